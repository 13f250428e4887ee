"""Teams and policies as they are applied."""

from typing import Any

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
