"""What a cluster's nodes offer: kinds of share, how many, where."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from fairslice.devices import Offer
from fairslice.kube.objects import Node, PodSpec
from fairslice.placement import NodeState
from fairslice.policy import Policy

__all__ = ["Inventory", "Reach"]


class Reach(Struct, frozen=True, kw_only=True):
    """The most that could ever be had of an offer, in units: in all, and on one node."""

    total: int
    on_one_node: int


class Inventory:
    """Nodes and their offers; every change makes a new Inventory and leaves the old one."""

    @classmethod
    def build(
        cls, nodes: Iterable[Node], policy: Policy, *, before: "Inventory | None" = None
    ) -> "Inventory":
        """Read nodes. `before` hands on what was ever seen."""
        raise NotImplementedError

    def with_node(self, node: Node) -> "Inventory":
        """Return the inventory with a node added or changed; itself if nothing of note did."""
        raise NotImplementedError

    def without_node(self, name: str) -> "Inventory":
        """Return the inventory without a node. What it offered stays known as ever seen."""
        raise NotImplementedError

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Every kind of share, of nodes in service or seen before, ordered by key."""
        raise NotImplementedError

    def offers_for(self, spec: PodSpec) -> tuple[Offer, ...]:
        """Return the offers on nodes that a pod's selector and required affinity allow."""
        raise NotImplementedError

    def capacity(self) -> Mapping[str, Mapping[str, int]]:
        """Return allocatable units by offer key and node, of nodes in service."""
        raise NotImplementedError

    def reach(self, offer: str) -> Reach:
        """Return the most there could be of an offer: seen ever, or by autoscaling."""
        raise NotImplementedError

    def node_states(self) -> dict[str, NodeState]:
        """Return nodes in service with all that they can allocate, as if nothing ran."""
        raise NotImplementedError
