"""Objects as large as an API server takes: decided in time that grows with their size alone."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from fairslice_webhook.decide import Phase, decide
from fairslice_webhook.review import decode_review
from fairslice_webhook.view import Call

from .scene import GPU, pod, review, team, view

_FEW, _MANY = 3_000, 12_000
# Four times the size; were it the square of that, it would be sixteen.
_MOST = 7.0

_ASKS = {"resources": {"limits": {GPU: "1"}}}
_TRAINING = {"fairslice.io/class": "training"}
_PEEPING = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]


def _named(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": f"c{number}", **fields} for number in range(count)]


def _jobset(groups: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "c", **_ASKS}], "restartPolicy": "Never"}}
    job = {"replicas": 1, "template": {"spec": {"parallelism": 1, "template": template}}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "large", "namespace": "nlp", "labels": _TRAINING},
        "spec": {"replicatedJobs": _named(groups, **job)},
    }


_OBJECTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "containers": lambda size: pod("large", *_named(size, **_ASKS), labels=_TRAINING),
    "init containers": lambda size: pod(
        "large", *_named(1, **_ASKS), initContainers=_named(size, **_ASKS), labels=_TRAINING
    ),
    "containers that peep": lambda size: pod("large", *_named(size, env=_PEEPING)),
    "volumes": lambda size: pod(
        "large", *_named(1), volumes=_named(size, hostPath={"path": "/opt/../opt/x"})
    ),
    "groups": _jobset,
}


@pytest.mark.parametrize("what", _OBJECTS)
def test_a_decision_takes_time_in_proportion_to_the_object(what: str) -> None:
    rich = team(pools=[{"pool": "a100", "limit": str(2 * _MANY)}])
    seen = view(teams=(rich,))
    call = Call(0.0, "b" + "0" * 20, "p" + "0" * 20)

    def cost(size: int) -> float:
        sent = review(_OBJECTS[what](size))
        took = []
        for _ in range(3):
            # Of this process alone, whatever else the machine is doing.
            started = time.process_time()
            decide(decode_review(sent), seen, call, Phase.MUTATE)
            took.append(time.process_time() - started)
        return min(took)

    few, many = cost(_FEW), cost(_MANY)
    assert many < _MOST * max(few, 0.005), f"{few:.3f} s, {many:.3f} s"
