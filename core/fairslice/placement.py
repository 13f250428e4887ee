"""Whether pods fit on nodes, and where: all pods of a gang together, on one GPU model.

Pods of a gang are alike, so counting how many each node could take answers exactly whether
the gang fits; the choice among nodes then keeps the emptiest ones whole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from fairslice import messages
from fairslice.booking import Option, offer_key
from fairslice.kube.objects import NodeSelector, PodSpec, Resources, Taint, Toleration
from fairslice.node_selection import meets, selects, untolerated
from fairslice.quantity import format_milli, parse_milli, parse_quantity
from fairslice.requests import ContainerKind, sum_containers
from fairslice.resource_names import ResourceNameError, parse_resource

__all__ = [
    "GangNeeds",
    "Misfit",
    "NodeState",
    "Placement",
    "PodNeeds",
    "SetNeeds",
    "fits_on",
    "gang_needs",
    "is_plain_extended",
    "place",
    "pod_needs",
    "whole_units",
]


class PodNeeds(Struct, frozen=True, kw_only=True):
    """What a pod needs of a node besides GPUs. cpu in thousandths, memory in bytes.

    `extended` holds every other countable resource (network adapters, hugepages, storage).
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


class SetNeeds(Struct, frozen=True, kw_only=True):
    """Like pods of a gang: how many, how large in pods of the booking, what one needs."""

    count: int
    size: int
    needs: PodNeeds


class GangNeeds(PodNeeds, frozen=True, kw_only=True):
    """What a gang of unlike pods needs. By itself: what one of the booking's pods needs at most."""

    sets: tuple[SetNeeds, ...]


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
        return NodeState(
            name=self.name,
            labels=self.labels,
            taints=self.taints,
            cpu_milli=self.cpu_milli,
            memory=self.memory,
            pods=self.pods,
            units=self.units.copy(),
            extended=self.extended.copy(),
        )

    def take(self, needs: PodNeeds, units: Mapping[str, int], pods: int = 1) -> None:
        """Take what so many pods need; `units` by offer key. Negative pods give back."""
        self.cpu_milli -= needs.cpu_milli * pods
        self.memory -= needs.memory * pods
        self.pods -= pods
        for name, amount in units.items():
            self.units[name] = self.units.get(name, 0) - amount * pods
        for name, amount in needs.extended.items():
            self.extended[name] = self.extended.get(name, 0) - amount * pods


class Placement(Struct, frozen=True, kw_only=True):
    """Where pods go: the index of the option chosen, and pods per node.

    `sets` says the same for each set of a gang of unlike pods, in that set's own pods.
    """

    chosen: int
    place: dict[str, int]
    sets: tuple[dict[str, int], ...] = ()


class Misfit(Struct, frozen=True, kw_only=True):
    """Why pods don't fit now: the narrowest reason, and how many would fit."""

    reason: str
    fit: int = 0


@lru_cache(maxsize=8192)
def whole_units(text: str) -> int:
    """Read a quantity as whole units, rounded up as the scheduler does."""
    value = parse_quantity(text)
    return -((-value.numerator) // value.denominator)


@lru_cache(maxsize=8192)
def _milli(text: str) -> int:
    return parse_milli(text)


def is_plain_extended(name: str) -> bool:
    """Say whether a resource is counted per node but is neither cpu, memory, pods nor a GPU."""
    if name in ("cpu", "memory", "pods"):
        return False
    try:
        return parse_resource(name) is None
    except ResourceNameError:
        return True


def pod_needs(spec: PodSpec) -> PodNeeds:
    """Read what a pod needs of a node besides GPUs (kubelet's maths, overhead included).

    Raises QuantityError for a value that the API server would refuse.
    """
    amounts: dict[str, list[tuple[ContainerKind, int]]] = {}
    for container in spec.init_containers or ():
        sidecar = container.restart_policy == "Always"
        kind = ContainerKind.SIDECAR if sidecar else ContainerKind.INIT
        _collect(amounts, kind, container.resources)
    for container in spec.containers:
        _collect(amounts, ContainerKind.APP, container.resources)
    totals = {name: sum_containers(parts) for name, parts in amounts.items()}
    for name, value in (spec.overhead or {}).items():
        totals[name] = totals.get(name, 0) + _amount(name, value)
    cpu, memory = totals.pop("cpu", 0), totals.pop("memory", 0)
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return PodNeeds(
        cpu_milli=cpu,
        memory=memory,
        extended={name: amount for name, amount in totals.items() if amount},
        node_selector=spec.node_selector or {},
        affinity=(
            affinity.required_during_scheduling_ignored_during_execution
            if affinity is not None
            else None
        ),
        tolerations=spec.tolerations or (),
    )


def _amount(name: str, value: str | int | float) -> int:
    return _milli(str(value)) if name == "cpu" else whole_units(str(value))


def _collect(
    amounts: dict[str, list[tuple[ContainerKind, int]]],
    kind: ContainerKind,
    resources: Resources | None,
) -> None:
    if resources is None:
        return
    # A template's limits are not yet copied into its requests.
    asked = {**(resources.limits or {}), **(resources.requests or {})}
    for name, value in asked.items():
        if name in ("cpu", "memory") or is_plain_extended(name):
            amounts.setdefault(name, []).append((kind, _amount(name, value)))


def fits_on(needs: PodNeeds, option: Option, state: NodeState) -> int:
    """Count the pods that a node could take now."""
    if not _admits(needs, option, state) or untolerated(state.taints, needs.tolerations):
        return 0
    return _room(needs, option.offers, state)


def place(
    count: int, needs: PodNeeds, options: Sequence[Option], states: Iterable[NodeState]
) -> Placement | Misfit:
    """Find room for all pods at once, on the first option that has it. Changes nothing.

    Of several ways, takes the fewest nodes and leaves the least behind on the last one. For
    GangNeeds `count` is not looked at: its sets say how many.
    """
    if isinstance(needs, GangNeeds):
        return _place_gang(needs, options, states)
    nodes = list(states)
    closest: tuple[int, Misfit] | None = None
    for chosen, option in enumerate(options):
        rooms = _rooms(needs, option, nodes)
        if isinstance(rooms, tuple):
            misfit = rooms
        else:
            fit = sum(room for room, _ in rooms)
            if fit >= count:
                return Placement(chosen=chosen, place=_choose(count, option, rooms))
            what = _worded(option.units)
            misfit = (6, Misfit(reason=messages.fit_gang(count, fit, what), fit=fit))
        if closest is None or misfit[0] > closest[0]:
            closest = misfit
    if closest is None:
        return Misfit(reason="no option is left")
    return closest[1]


def gang_needs(sets: Sequence[SetNeeds]) -> PodNeeds:
    """Join the needs of a workload's pod sets."""
    if len(sets) == 1 and sets[0].size == 1:
        return sets[0].needs
    extended: dict[str, int] = {}
    for item in sets:
        for name, amount in item.needs.extended.items():
            extended[name] = max(extended.get(name, 0), -(-amount // item.size))
    return GangNeeds(
        sets=tuple(sets),
        cpu_milli=max(-(-item.needs.cpu_milli // item.size) for item in sets),
        memory=max(-(-item.needs.memory // item.size) for item in sets),
        extended=extended,
    )


def _place_gang(
    needs: GangNeeds, options: Sequence[Option], states: Iterable[NodeState]
) -> Placement | Misfit:
    """Find room for one set after the other: those that choose their nodes, then the largest."""
    nodes = {state.name: state for state in states}
    sets = needs.sets
    order = sorted(range(len(sets)), key=lambda n: (sets[n].needs.unconstrained, -sets[n].size))
    first: Misfit | None = None
    for chosen, option in enumerate(options):
        left, places = dict(nodes), [dict[str, int]() for _ in sets]
        whole: dict[str, int] = {}
        for index in order:
            item, share = sets[index], option.times(sets[index].size)
            fit = place(item.count, item.needs, [share], left.values())
            if isinstance(fit, Misfit):
                first = first or fit
                break
            places[index] = fit.place
            for name, pods in fit.place.items():
                state = left[name]
                if state is nodes[name]:
                    state = left[name] = state.copy()
                state.take(item.needs, share.offers, pods)
                whole[name] = whole.get(name, 0) + pods * item.size
        else:
            return Placement(chosen=chosen, place=whole, sets=tuple(places))
    return first or Misfit(reason="no option is left")


def _admits(needs: PodNeeds, option: Option, state: NodeState) -> bool:
    labels = state.labels
    if needs.node_selector and any(
        labels.get(key) != value for key, value in needs.node_selector.items()
    ):
        return False
    if needs.affinity is not None and not selects(needs.affinity, state.name, labels):
        return False
    return meets(option.requirements, labels)


def _room(needs: PodNeeds, offers: Mapping[str, int], state: NodeState) -> int:
    room = max(state.pods, 0)
    for key, amount in offers.items():
        room = min(room, max(state.units.get(key, 0), 0) // amount)
    if needs.cpu_milli:
        room = min(room, max(state.cpu_milli, 0) // needs.cpu_milli)
    if needs.memory:
        room = min(room, max(state.memory, 0) // needs.memory)
    for name, amount in needs.extended.items():
        room = min(room, max(state.extended.get(name, 0), 0) // amount)
    return room


_Room = tuple[int, NodeState]


def _rooms(
    needs: PodNeeds, option: Option, nodes: list[NodeState]
) -> list[_Room] | tuple[int, Misfit]:
    """Count each node's room; or say, with how far the search got, why there is none."""
    offers = option.offers
    offering = [node for node in nodes if all(key in node.units for key in offers)]
    if not offering:
        resource = next(iter(option.units), "devices")
        return 0, Misfit(reason=messages.fit_elsewhere(resource, option.product))
    admitted = [node for node in offering if _admits(needs, option, node)]
    if not admitted:
        why = "the pod's nodeSelector or node affinity excludes it"
        return 1, Misfit(reason=messages.fit_kept_off(len(offering), why))
    open_nodes = [node for node in admitted if not untolerated(node.taints, needs.tolerations)]
    if not open_nodes:
        taint = untolerated(admitted[0].taints, needs.tolerations)
        key = taint.key if taint is not None else ""
        why = f"taint {key} is not tolerated"
        return 2, Misfit(reason=messages.fit_kept_off(len(admitted), why))
    rooms = [(_room(needs, offers, node), node) for node in open_nodes]
    rooms = [item for item in rooms if item[0]]
    if rooms:
        return rooms
    return _scarcity(needs, option, open_nodes)


def _scarcity(needs: PodNeeds, option: Option, nodes: list[NodeState]) -> tuple[int, Misfit]:
    """Name the one thing of which no node has enough for a single pod."""
    for resource, amount in option.units.items():
        key = offer_key(option.pool, option.product, resource)
        most = max(node.units.get(key, 0) for node in nodes)
        if most < amount:
            reason = messages.fit_scarce(str(amount), resource, str(max(most, 0)))
            return 3, Misfit(reason=reason)
    holding = [
        node
        for node in nodes
        if all(node.units.get(key, 0) >= amount for key, amount in option.offers.items())
    ]
    other: list[tuple[str, int, list[int], Callable[[int], str]]] = [
        ("cpu", needs.cpu_milli, [node.cpu_milli for node in holding], format_milli),
        ("memory", needs.memory, [node.memory for node in holding], _gibibytes),
        ("pod slot", 1, [node.pods for node in holding], str),
    ]
    for name, amount in needs.extended.items():
        other.append((name, amount, [node.extended.get(name, 0) for node in holding], str))
    for name, amount, free, shown in other:
        most = max(free, default=0)
        if most < amount:
            beside = f"{name} beside {_worded(option.units)}"
            reason = messages.fit_scarce(shown(amount), beside, shown(max(most, 0)))
            return 4, Misfit(reason=reason)
    return 5, Misfit(reason=messages.fit_apart(_worded(option.units)))


def _choose(count: int, option: Option, rooms: list[_Room]) -> dict[str, int]:
    offers = option.offers
    left = {node.name: (room, node) for room, node in rooms}
    chosen: dict[str, int] = {}
    while count > 0:
        enough = [item for item in left.values() if item[0] >= count]
        if enough:
            pods = count
            _, node = min(enough, key=lambda item: _waste(item[1], offers, pods))
        else:
            pods, node = max(
                left.values(), key=lambda item: (item[0], -_others(item[1], offers), item[1].name)
            )
        chosen[node.name] = pods
        count -= pods
        del left[node.name]
    return chosen


def _waste(node: NodeState, offers: Mapping[str, int], pods: int) -> tuple[int, int, int, str]:
    """Rank a node for the last pods of a gang: what would stay free there, least first."""
    own = sum(node.units[key] - amount * pods for key, amount in offers.items())
    return own, _others(node, offers), node.cpu_milli, node.name


def _others(node: NodeState, offers: Mapping[str, int]) -> int:
    """Count the other shares still free on a node, which its cpu and memory had best serve."""
    return sum(free for key, free in node.units.items() if key not in offers and free > 0)


def _worded(units: Mapping[str, int]) -> str:
    return " and ".join(f"{amount} {name}" for name, amount in units.items())


def _gibibytes(amount: int) -> str:
    return f"{amount / 1024**3:.4g}Gi"
