"""Objects with more parts than can be looked through while the API server waits.

An API server takes pods of thousands of containers, which no node could run. Looking through them
would hold up everybody else's; leaving them unlooked at would be a way around.
"""

from collections.abc import Iterable

from fairslice import messages
from fairslice.kube.objects import PodSpec

__all__ = [
    "MOST_CHOICES",
    "MOST_CLAIMS",
    "MOST_CONTAINERS",
    "MOST_GATES",
    "MOST_MOUNTS",
    "MOST_VOLUMES",
    "excess",
]

# In a pod, or in all pod templates of a workload together.
MOST_CONTAINERS = 1024
MOST_VOLUMES = 1024
MOST_MOUNTS = 8192
MOST_CLAIMS = 256
MOST_GATES = 256

MOST_CHOICES = 512
"""Labels, expressions and values by which nodes are chosen; many a node is compared with each."""

_SEVERAL = "make it several"
_BY_LABEL = "choose nodes by a label that they share"


def excess(specs: Iterable[PodSpec]) -> str:
    """Word what is too much of a pod, or of a workload's templates; empty if nothing is."""
    containers = volumes = mounts = claims = gates = choices = 0
    for spec in specs:
        containers += len(spec.containers) + len(spec.init_containers or ())
        volumes += len(spec.volumes or ())
        claims += len(spec.resource_claims or ())
        gates += len(spec.scheduling_gates or ())
        if spec.node_selector or spec.affinity is not None:
            choices += _choices(spec)
        if containers <= MOST_CONTAINERS:
            for item in spec.containers:
                mounts += len(item.volume_mounts or ())
            for item in spec.init_containers or ():
                mounts += len(item.volume_mounts or ())
    if containers > MOST_CONTAINERS:
        return messages.too_many("containers", MOST_CONTAINERS, _SEVERAL)
    if volumes > MOST_VOLUMES:
        return messages.too_many("volumes", MOST_VOLUMES, _SEVERAL)
    if mounts > MOST_MOUNTS:
        return messages.too_many("volumeMounts", MOST_MOUNTS, _SEVERAL)
    if claims > MOST_CLAIMS:
        return messages.too_many("resourceClaims", MOST_CLAIMS, _SEVERAL)
    if gates > MOST_GATES:
        return messages.too_many("schedulingGates", MOST_GATES, _SEVERAL)
    if choices > MOST_CHOICES:
        return messages.too_many("node choices", MOST_CHOICES, _BY_LABEL)
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
