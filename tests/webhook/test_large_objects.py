"""Objects as large as an API server takes: answered in time that grows with their size alone."""

import time
from typing import Any

import pytest

from .conftest import MakeCluster
from .scene import GPU, Cluster, a100_node, pod, team, view

_SECONDS = 2.5
_ASKS = {"resources": {"limits": {GPU: "1"}}}
_MANY = 15_000


def _named(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": f"c{number}", **fields} for number in range(count)]


def _jobset(groups: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "c", **_ASKS}], "restartPolicy": "Never"}}
    job = {"replicas": 1, "template": {"spec": {"parallelism": 1, "template": template}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": "large",
            "namespace": "nlp",
            "labels": {"fairslice.io/class": "training"},
        },
        "spec": {"replicatedJobs": _named(groups, **job)},
    }


_TRAINING = {"fairslice.io/class": "training"}
_PEEPING = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
_OBJECTS = {
    "containers": pod("large", *_named(_MANY, **_ASKS), labels=_TRAINING),
    "init containers": pod(
        "large", *_named(1, **_ASKS), initContainers=_named(_MANY, **_ASKS), labels=_TRAINING
    ),
    "containers that peep": pod("large", *_named(_MANY, env=_PEEPING)),
    "volumes": pod("large", *_named(1), volumes=_named(_MANY, hostPath={"path": "/opt/../opt/x"})),
    "groups": _jobset(_MANY // 2),
}


@pytest.mark.parametrize("what", _OBJECTS)
async def test_a_large_object_is_answered_in_good_time(cluster: MakeCluster, what: str) -> None:
    limit = str(2 * _MANY)
    rich = team(pools=[{"pool": "a100", "limit": limit}])
    place: Cluster = await cluster(view(teams=(rich,), nodes=(a100_node(),)))
    started = time.perf_counter()
    await place.create(_OBJECTS[what])
    took = time.perf_counter() - started
    assert took < _SECONDS, f"{took:.1f} s"
