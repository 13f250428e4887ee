"""Whether pods fit on nodes, and where: all pods of a gang together, on one GPU model."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from fairslice.booking import Option
from fairslice.kube.objects import NodeSelector, PodSpec, Taint, Toleration

__all__ = ["Misfit", "NodeState", "Placement", "PodNeeds", "fits_on", "place", "pod_needs"]


class PodNeeds(Struct, frozen=True, kw_only=True):
    """What a pod needs of a node besides GPUs. cpu in thousandths, memory in bytes.

    `extended` holds every other extended resource (network adapters, hugepages, storage).
    """

    cpu_milli: int = 0
    memory: int = 0
    extended: Mapping[str, int] = {}
    node_selector: Mapping[str, str] = {}
    affinity: NodeSelector | None = None
    tolerations: tuple[Toleration, ...] = ()

    @property
    def unconstrained(self) -> bool:
        """Say whether the pod itself leaves the choice of node open."""
        return not self.node_selector and self.affinity is None


class NodeState(Struct, kw_only=True):
    """A node in service and what is free on it. `units` is keyed by offer."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    cpu_milli: int = 0
    memory: int = 0
    pods: int = 0
    units: dict[str, int] = {}
    extended: dict[str, int] = {}

    def copy(self) -> "NodeState":
        """Copy the free amounts; labels and taints are shared."""
        raise NotImplementedError

    def take(self, needs: PodNeeds, units: Mapping[str, int], pods: int = 1) -> None:
        """Take what so many pods need; `units` by offer key. Negative pods give back."""
        raise NotImplementedError


class Placement(Struct, frozen=True, kw_only=True):
    """Where pods go: the index of the option chosen, and pods per node."""

    chosen: int
    place: dict[str, int]


class Misfit(Struct, frozen=True, kw_only=True):
    """Why pods don't fit now: the narrowest reason, and how many would fit."""

    reason: str
    fit: int = 0


def pod_needs(spec: PodSpec) -> PodNeeds:
    """Read what a pod needs of a node besides GPUs (kubelet's maths, overhead included)."""
    raise NotImplementedError


def fits_on(needs: PodNeeds, option: Option, state: NodeState) -> int:
    """Count the pods that a node could take now."""
    raise NotImplementedError


def place(
    count: int, needs: PodNeeds, options: Sequence[Option], states: Iterable[NodeState]
) -> Placement | Misfit:
    """Find room for all pods at once, on the first option that has it. Changes nothing."""
    raise NotImplementedError
