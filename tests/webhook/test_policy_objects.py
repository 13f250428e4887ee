"""Teams and policies as they are applied."""

from typing import Any

import pytest

from fairslice_webhook.decide import Phase

from .conftest import MakeCluster
from .scene import review


def resource(kind: str, spec: dict[str, Any], name: str = "default") -> dict[str, Any]:
    return {
        "apiVersion": "fairslice.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


async def test_a_contradiction_is_refused_with_its_path(cluster: MakeCluster) -> None:
    place = await cluster()
    bad = resource("Team", {"pools": [{"pool": "a", "guaranteed": "4", "limit": "2"}]}, "nlp")
    refused = await place.call(review(bad), bad, Phase.VALIDATE)
    assert not refused.allowed
    assert "spec.pools[0].limit" in refused.message
    twice = resource("SharingPolicy", {"pools": [{"name": "a"}, {"name": "a"}]})
    assert "spec.pools[1].name" in (await place.call(review(twice), twice, Phase.VALIDATE)).message


async def test_a_good_one_passes(cluster: MakeCluster) -> None:
    place = await cluster()
    good = resource("Team", {"namespaces": ["nlp"], "pools": [{"pool": "a", "limit": "2"}]}, "nlp")
    assert (await place.call(review(good), good, Phase.VALIDATE)).allowed


@pytest.mark.parametrize(
    ("spec", "warned"),
    [
        ({"pools": [{"pool": "a100", "limit": "2"}]}, ""),
        ({"pools": [{"pool": "default", "limit": "2"}]}, ""),
        ({"pools": [{"pool": "a1000", "limit": "2"}]}, "a1000"),
        ({"loans": [{"pool": "h100", "gpus": "2", "until": "2030-01-01"}]}, "h100"),
        ({"budgets": [{"pool": "h100", "gpuHours": 2}, {"gpuHours": 2}]}, "h100"),
    ],
)
async def test_a_pool_that_the_policy_does_not_have_is_warned_of(
    cluster: MakeCluster, spec: dict[str, Any], warned: str
) -> None:
    place = await cluster()
    named = resource("Team", spec, "nlp")
    done = await place.call(review(named), named, Phase.VALIDATE)
    assert done.allowed
    if warned:
        (warning,) = done.warnings
        assert f"team nlp names a pool that the policy does not have: {warned};" in warning
        assert "there are: a100, t4, default" in warning
    else:
        assert not done.warnings


async def test_a_policy_that_lacks_a_pool_of_some_team_is_warned_of(cluster: MakeCluster) -> None:
    place = await cluster()
    without = resource("SharingPolicy", {"pools": [{"name": "t4"}]})
    (warning,) = (await place.call(review(without), without, Phase.VALIDATE)).warnings
    assert "does not have the pool a100, named by nlp" in warning
    with_it = resource("SharingPolicy", {"pools": [{"name": "a100"}]})
    assert not (await place.call(review(with_it), with_it, Phase.VALIDATE)).warnings
