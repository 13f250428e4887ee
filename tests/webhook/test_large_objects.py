"""Objects as large as an API server takes: answered soon, so that nobody else has to wait."""

import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairslice.device_claims import Devices
from fairslice_webhook.decide import Phase, decide, without_ledger
from fairslice_webhook.decision import Answer
from fairslice_webhook.patching import apply
from fairslice_webhook.review import decode_review
from fairslice_webhook.view import Call

from .scene import A100, GPU, a100_node, container, node, pod, review, team, view

_MOST_BYTES = 3_000_000
# Of processor time, which is the loop's: everybody else's requests wait for so long.
_MOST_SECONDS = 0.1

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


def _claim(requests: int) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.nvidia.com"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "large", "namespace": "nlp", "labels": _TRAINING},
        "spec": {"devices": {"requests": _named(requests, exactly=exactly)}},
    }


def _choosy(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return pod("large", labels=_TRAINING, affinity={"nodeAffinity": required})


def _rule(number: int, **fields: Any) -> dict[str, Any]:
    return {"key": f"k{number}", "operator": "NotIn", "values": ["x"], **fields}


# By so many parts, how large an object is.
_OBJECTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "containers": lambda size: pod("large", *_named(size, **_ASKS), labels=_TRAINING),
    "init containers": lambda size: pod(
        "large", *_named(1, **_ASKS), initContainers=_named(size, **_ASKS), labels=_TRAINING
    ),
    "containers without GPUs": lambda size: pod("large", *_named(size)),
    "containers that peep": lambda size: pod("large", *_named(size, env=_PEEPING)),
    "variables": lambda size: pod("large", container(gpus=1, env=_named(size, value="x"))),
    "variables that peep": lambda size: pod("large", container(env=_PEEPING * size)),
    "arguments": lambda size: pod("large", container(gpus=1, args=["--nproc_per_node=2"] * size)),
    "volumes": lambda size: pod(
        "large", *_named(1), volumes=_named(size, hostPath={"path": "/opt/../opt/x"})
    ),
    "mounts": lambda size: pod(
        "large", container(volumeMounts=_named(size, mountPath="/var/run/../run/x"))
    ),
    "annotations": lambda size: pod(
        "large", annotations={f"system.fairslice.io/{number}": "x" for number in range(size)}
    ),
    "gates": lambda size: pod("large", labels=_TRAINING, schedulingGates=_named(size)),
    "tolerations": lambda size: pod(
        "large", tolerations=[{"key": f"k{n}", "operator": "Exists"} for n in range(size)]
    ),
    "claims of a pod": lambda size: pod(
        "large", container(), resourceClaims=_named(size, resourceClaimTemplateName="t")
    ),
    "requests of a claim": _claim,
    "terms": lambda size: _choosy(*({"matchExpressions": [_rule(0)]} for _ in range(size))),
    "expressions": lambda size: _choosy({"matchExpressions": [_rule(n) for n in range(size)]}),
    "values": lambda size: _choosy(
        {"matchExpressions": [_rule(0, values=[f"v{n}" for n in range(size)])]}
    ),
    "groups": _jobset,
}


def _as_large_as_can_be(make: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    few = 1000
    each = (len(json.dumps(make(few))) - len(json.dumps(make(0)))) / few
    return make(int(_MOST_BYTES / each))


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Garbage is collected at times of its own, on whoever's account."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("what", _OBJECTS)
def test_an_object_of_three_megabytes_holds_nobody_up(what: str) -> None:
    pools = [{"pool": "a100", "limit": "999999"}]
    nodes = (a100_node(), *(node(f"n{number}", A100, {GPU: 8}) for number in range(100)))
    seen = view(teams=(team(pools=pools),), nodes=nodes, devices=Devices(known=True))
    call = Call(0.0, "b" + "0" * 20, "p" + "0" * 20)
    sent = review(_as_large_as_can_be(_OBJECTS[what]))
    took = []
    for _ in range(3):
        started = time.process_time()
        asked = decode_review(sent)
        decision = decide(asked, seen, call, Phase.MUTATE)
        answer = decision if isinstance(decision, Answer) else without_ledger(decision)
        if answer.ops and answer.denial is None:
            apply(answer.ops, asked.object)
        took.append(time.process_time() - started)
    assert min(took) < _MOST_SECONDS


_FEW, _MANY = 3_000, 12_000
# Four times the size; were it the square of that, it would be sixteen.
_MOST_TIMES = 7.0


@pytest.mark.parametrize("what", _OBJECTS)
def test_a_decision_takes_time_in_proportion_to_the_object(what: str) -> None:
    seen = view(teams=(team(pools=[{"pool": "a100", "limit": "999999"}]),))
    call = Call(0.0, "b" + "0" * 20, "p" + "0" * 20)

    def cost(size: int) -> float:
        sent = review(_OBJECTS[what](size))
        took = []
        for _ in range(3):
            started = time.process_time()
            decide(decode_review(sent), seen, call, Phase.MUTATE)
            took.append(time.process_time() - started)
        return min(took)

    few, many = cost(_FEW), cost(_MANY)
    assert many < _MOST_TIMES * max(few, 0.01), f"{few:.3f} s, {many:.3f} s"
