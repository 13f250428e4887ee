"""Objects with more parts than can be looked through while the API server waits.

An API server takes pods of thousands of containers, which no node could run. Looking through them
would hold up everybody else's; leaving them unlooked at would be a way around.
"""

from collections.abc import Iterable

from fairslice import messages
from fairslice.kube.objects import PodSpec

__all__ = ["MOST", "excess"]

MOST = {
    "containers": 1024,
    "volumes": 1024,
    "volumeMounts": 8192,
    "resourceClaims": 256,
    "schedulingGates": 256,
    # With labels, expressions and values, each of which many a node is compared with.
    "node choices": 512,
}
"""How much is looked through: in a pod, or in all pod templates of a workload together."""

_WAYS_OUT = {"node choices": "choose nodes by a label that they share"}


def excess(specs: Iterable[PodSpec]) -> str:
    """Word what is too much of a pod, or of a workload's templates; empty if nothing is."""
    found = dict.fromkeys(MOST, 0)
    for spec in specs:
        found["volumes"] += len(spec.volumes or ())
        found["resourceClaims"] += len(spec.resource_claims or ())
        found["schedulingGates"] += len(spec.scheduling_gates or ())
        found["node choices"] += _choices(spec)
        for items in (spec.containers, spec.init_containers or ()):
            found["containers"] += len(items)
            if found["containers"] <= MOST["containers"]:
                found["volumeMounts"] += sum(len(item.volume_mounts or ()) for item in items)
        for what, most in MOST.items():
            if found[what] > most:
                way_out = _WAYS_OUT.get(what, "make it several")
                return messages.too_many(what, most, way_out)
    return ""


def _choices(spec: PodSpec) -> int:
    found = len(spec.node_selector or ())
    node_affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if node_affinity is None:
        return found
    required = node_affinity.required_during_scheduling_ignored_during_execution
    for term in required.node_selector_terms if required is not None else ():
        for items in (term.match_expressions or (), term.match_fields or ()):
            found += sum(1 + len(item.values or ()) for item in items)
    return found
