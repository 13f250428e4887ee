"""What a cluster's nodes offer: kinds of share, how many, where."""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from fairslice.booking import NodeRequirement
from fairslice.devices import Offer
from fairslice.kube.objects import Node, NodeSelector, PodSpec
from fairslice.node_offers import LABELS_THAT_TELL, UNKNOWN, NodeFacts, read_node
from fairslice.node_selection import meets, selects
from fairslice.placement import NodeState
from fairslice.policy import UNPOOLED, Policy, Pool
from fairslice.resource_names import GPU
from fairslice.v1alpha1.policy import SharingMode

__all__ = ["Inventory", "Reach"]

_HOSTNAME = "kubernetes.io/hostname"
_MAX_SELECTIONS = 256

_Selection = tuple[tuple[tuple[str, str], ...], NodeSelector | None]


class Reach(Struct, frozen=True, kw_only=True):
    """The most that could ever be had of an offer, in units: in all, and on one node."""

    total: int
    on_one_node: int


class _Seen(Struct, frozen=True, kw_only=True):
    """The most ever seen of an offer, and the node that showed most of it."""

    total: int
    on_one_node: int
    offer: Offer
    example: NodeFacts


class Inventory:
    """Nodes and their offers; every change makes a new Inventory and leaves the old one."""

    __slots__ = (
        "_capacity",
        "_earlier_offers",
        "_models",
        "_nodes",
        "_offers",
        "_policy",
        "_seen",
        "_selections",
        "_totals",
    )

    def __init__(
        self,
        policy: Policy,
        nodes: dict[str, NodeFacts],
        totals: dict[str, int],
        seen: dict[str, _Seen],
    ) -> None:
        self._policy = policy
        self._nodes = nodes
        self._totals = totals
        self._seen = seen
        self._offers: tuple[Offer, ...] | None = None
        self._earlier_offers: tuple[Offer, ...] | None = None
        self._capacity: dict[str, dict[str, int]] | None = None
        self._selections: dict[_Selection, tuple[Offer, ...]] = {}
        self._models: dict[_Selection, tuple[Offer, ...]] = {}

    @classmethod
    def build(
        cls, nodes: Iterable[Node], policy: Policy, *, before: "Inventory | None" = None
    ) -> "Inventory":
        """Read nodes. `before` hands on what was ever seen, under the same policy."""
        seen = dict(before._seen) if before is not None and before._policy is policy else {}
        inventory = cls(policy, {}, {}, seen)
        for node in nodes:
            inventory._put(read_node(node, policy))
        return inventory

    def with_node(self, node: Node) -> "Inventory":
        """Return the inventory with a node added or changed; itself if nothing of note did."""
        facts = read_node(node, self._policy)
        if self._nodes.get(facts.name) == facts:
            return self
        changed = self._copy()
        changed._put(facts)
        return changed

    def without_node(self, name: str) -> "Inventory":
        """Return the inventory without a node. What it offered stays known as ever seen."""
        if name not in self._nodes:
            return self
        changed = self._copy()
        changed._drop(name)
        return changed

    @property
    def nodes(self) -> Mapping[str, NodeFacts]:
        """All nodes, in service or not, by name."""
        return self._nodes

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Every kind of share, of nodes present or seen before, ordered by key.

        An offer seen before stays while it may come back: its node is gone, rebooting or
        changing its slices. It goes once that node is back in service without it.
        """
        if self._offers is None:
            offers = self._list_offers()
            # The very same tuple as long as nothing changed lets readers cache by identity.
            earlier = self._earlier_offers
            self._offers = earlier if earlier is not None and earlier == offers else offers
        return self._offers

    def offers_for(self, spec: PodSpec) -> tuple[Offer, ...]:
        """Return the offers on nodes that a pod's selector and required affinity allow."""
        node_affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        required = (
            node_affinity.required_during_scheduling_ignored_during_execution
            if node_affinity is not None
            else None
        )
        if not spec.node_selector and required is None:
            return self.offers
        selector = tuple(sorted((spec.node_selector or {}).items()))
        key = (selector, required)
        found = self._selections.get(key)
        if found is None:
            if len(self._selections) >= _MAX_SELECTIONS:
                self._selections.clear()
            found = self._selections[key] = self._select(selector, required)
        return found

    def models_for(self, spec: PodSpec) -> tuple[Offer, ...]:
        """Return the GPU models on nodes that a pod allows, as offers without a resource.

        They stand for what DRA gives out on such nodes, which no node's allocatable shows.
        """
        node_affinity = spec.affinity.node_affinity if spec.affinity is not None else None
        required = (
            node_affinity.required_during_scheduling_ignored_during_execution
            if node_affinity is not None
            else None
        )
        key = (tuple(sorted((spec.node_selector or {}).items())), required)
        known = self._models.get(key)
        if known is None:
            if len(self._models) >= _MAX_SELECTIONS:
                self._models.clear()
            known = self._models[key] = self._list_models(spec, required)
        return known

    def advertises(self, resource: str) -> bool:
        """Say whether a node offers a resource, now or before."""
        return any(offer.resource == resource for offer in self.offers)

    def on_one_node(self, offers: Collection[str]) -> bool:
        """Say whether some node, present or seen before, offers all of these, by key."""
        found: dict[str, set[str]] = {}
        for facts, offer in self._showing():
            if offer.key in offers:
                found.setdefault(facts.name, set()).add(offer.key)
        return any(len(keys) == len(offers) for keys in found.values())

    def _list_models(self, spec: PodSpec, required: NodeSelector | None) -> tuple[Offer, ...]:
        by_model: dict[tuple[str, str], list[NodeFacts]] = {}
        for facts in self._nodes.values():
            if facts.shares or facts.product != UNKNOWN:
                by_model.setdefault((facts.pool, facts.product), []).append(facts)
        if not by_model:
            return (_of_model(UNPOOLED, UNKNOWN),)
        found = []
        for model, nodes in by_model.items():
            if not any(_allows(spec, required, facts) for facts in nodes):
                continue
            others = [facts for key, rest in by_model.items() if key != model for facts in rest]
            found.append(_pinned(_of_model(*model), nodes, others, self._policy.pools))
        found.sort(key=lambda offer: offer.key)
        return tuple(found)

    def capacity(self) -> Mapping[str, Mapping[str, int]]:
        """Return allocatable units by offer key and node, of nodes in service."""
        if self._capacity is None:
            capacity: dict[str, dict[str, int]] = {}
            for facts in self._nodes.values():
                if facts.in_service:
                    for offer, units in facts.shares:
                        capacity.setdefault(offer.key, {})[facts.name] = units
            self._capacity = capacity
        return self._capacity

    def reach(self, offer: str) -> Reach:
        """Return the most there could be of an offer, by key: seen ever, or by autoscaling."""
        pool_name, _, _ = offer.partition("|")
        promised = 0
        for pool in self._policy.pools:
            if pool.name == pool_name:
                promised = pool.autoscale_max_gpus
        seen = self._seen.get(offer)
        if seen is None:
            return Reach(total=promised, on_one_node=promised)
        promised = promised * 1000 // seen.offer.milli
        return Reach(total=max(seen.total, promised), on_one_node=seen.on_one_node)

    def node_states(self) -> dict[str, NodeState]:
        """Return nodes in service with all that they can allocate, as if nothing ran."""
        return {name: facts.state() for name, facts in self._nodes.items() if facts.in_service}

    def _copy(self) -> "Inventory":
        copy = Inventory(self._policy, dict(self._nodes), dict(self._totals), dict(self._seen))
        copy._earlier_offers = self._offers if self._offers is not None else self._earlier_offers
        return copy

    def _drop(self, name: str) -> None:
        for offer, units in self._nodes.pop(name).shares:
            left = self._totals[offer.key] - units
            if left:
                self._totals[offer.key] = left
            else:
                del self._totals[offer.key]

    def _put(self, facts: NodeFacts) -> None:
        if facts.name in self._nodes:
            self._drop(facts.name)
        self._nodes[facts.name] = facts
        for offer, units in facts.shares:
            key = offer.key
            total = self._totals[key] = self._totals.get(key, 0) + units
            seen = self._seen.get(key)
            if seen is None:
                self._seen[key] = _Seen(total=total, on_one_node=units, offer=offer, example=facts)
                continue
            self._seen[key] = _Seen(
                total=max(seen.total, total),
                on_one_node=max(seen.on_one_node, units),
                offer=_merge(seen.offer, offer),
                example=facts if units >= seen.on_one_node else seen.example,
            )

    def _showing(self) -> list[tuple[NodeFacts, Offer]]:
        """Pair nodes with what they offer, and examples with what may come back."""
        shown = [(facts, offer) for facts in self._nodes.values() for offer, _ in facts.shares]
        for key, seen in self._seen.items():
            if key not in self._totals:
                now = self._nodes.get(seen.example.name)
                if now is None or not now.in_service:
                    shown.append((seen.example, seen.offer))
        return shown

    def _list_offers(self) -> tuple[Offer, ...]:
        by_name: dict[str, dict[str, list[NodeFacts]]] = {}
        for facts, offer in self._showing():
            by_name.setdefault(offer.resource, {}).setdefault(offer.key, []).append(facts)
        offers: list[Offer] = []
        for shares in by_name.values():
            for key, nodes in shares.items():
                others = [
                    facts for other, found in shares.items() if other != key for facts in found
                ]
                offers.append(_pinned(self._seen[key].offer, nodes, others, self._policy.pools))
        offers += self._promised(offers)
        offers.sort(key=lambda offer: offer.key)
        return tuple(offers)

    def _promised(self, known: list[Offer]) -> list[Offer]:
        """Stand in for pools that only an autoscaler will fill: whole GPUs of unknown model."""
        pools = {offer.pool for offer in known}
        named = any(offer.resource == GPU for offer in known)
        return [
            Offer(
                pool=pool.name,
                product=pool.name,
                resource=GPU,
                mode=SharingMode.WHOLE,
                milli=1000,
                memory_mib=0,
                size_gb=0,
                isolated=True,
                requirements=_of_selector(pool),
            )
            for pool in self._policy.pools
            # Without a selector nothing would keep the pod off the other pools' nodes.
            if pool.autoscale_max_gpus
            and pool.name not in pools
            and (pool.node_selector or not named)
        ]

    def _select(
        self, selector: tuple[tuple[str, str], ...], required: NodeSelector | None
    ) -> tuple[Offer, ...]:
        growing = {pool.name for pool in self._policy.pools if pool.autoscale_max_gpus}
        allowed: set[str] = set()
        for facts, offer in self._showing():
            key = offer.key
            if key in allowed:
                continue
            # A node to come may bear any label that doesn't speak of its GPUs.
            asked = selector
            affinity = required
            if offer.pool in growing:
                asked = tuple(item for item in selector if item[0] in LABELS_THAT_TELL)
                affinity = None
            if all(facts.labels.get(name) == value for name, value in asked) and (
                affinity is None or selects(affinity, facts.name, facts.labels)
            ):
                allowed.add(key)
        return tuple(
            offer
            for offer in self.offers
            if offer.key in allowed or (offer.key not in self._seen and offer.pool in growing)
        )


def _of_model(pool: str, product: str) -> Offer:
    return Offer(
        pool=pool,
        product=product,
        resource="",
        mode=SharingMode.WHOLE,
        milli=1000,
        memory_mib=0,
        size_gb=0,
        isolated=True,
    )


def _allows(spec: PodSpec, required: NodeSelector | None, facts: NodeFacts) -> bool:
    selector = spec.node_selector or {}
    return all(facts.labels.get(key) == value for key, value in selector.items()) and (
        required is None or selects(required, facts.name, facts.labels)
    )


def _merge(one: Offer, other: Offer) -> Offer:
    """Join what two nodes say of the same share: the lesser memory, the greater weight."""
    if one == other:
        return one
    memories = [memory for memory in (one.memory_mib, other.memory_mib) if memory]
    return Offer(
        pool=one.pool,
        product=one.product,
        resource=one.resource,
        mode=one.mode,
        milli=max(one.milli, other.milli),
        memory_mib=min(memories, default=0),
        size_gb=one.size_gb,
        isolated=one.isolated and other.isolated,
    )


def _of_selector(pool: Pool) -> tuple[NodeRequirement, ...]:
    return tuple(
        NodeRequirement(key=key, values=(value,))
        for key, value in sorted(pool.node_selector.items())
    )


def _pinned(
    offer: Offer, nodes: list[NodeFacts], others: list[NodeFacts], pools: tuple[Pool, ...]
) -> Offer:
    """Add the node affinity that an offer needs, if other nodes advertise the same name."""
    requirements: tuple[NodeRequirement, ...] = ()
    if others:
        keys = list(LABELS_THAT_TELL)
        keys += sorted({key for pool in pools for key in pool.node_selector})
        keys.append(_HOSTNAME)
        for key in keys:
            values = {facts.labels.get(key) for facts in nodes}
            known = tuple(sorted(value for value in values if value is not None))
            if None in values or not known:
                continue
            tried = NodeRequirement(key=key, values=known)
            left = [facts for facts in others if meets((tried,), facts.labels)]
            if len(left) < len(others):
                requirements = (*requirements, tried)
                others = left
            if not others:
                break
    return Offer(
        pool=offer.pool,
        product=offer.product,
        resource=offer.resource,
        mode=offer.mode,
        milli=offer.milli,
        memory_mib=offer.memory_mib,
        size_gb=offer.size_gb,
        isolated=offer.isolated,
        requirements=requirements,
    )
