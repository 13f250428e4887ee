"""What is free on each node, kept up to date as nodes, pods and bookings change.

Free is what a node can allocate, less what its pods need besides GPUs, less the GPUs of the
bookings placed there and what those of their pods will need that aren't there yet.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fairslice.booking import Booking, Option
from fairslice.node_offers import NodeFacts
from fairslice.placement import NodeState, Placement, PodNeeds, place

__all__ = ["FreeNodes", "PodThere"]

_NOTHING = PodNeeds()


class PodThere(Protocol):
    """What counts about a pod of a booking."""

    @property
    def node(self) -> str:
        """Where it runs; empty while it has no node."""

    @property
    def ended(self) -> bool:
        """Whether it holds nothing any more."""


@dataclass(slots=True)
class _Used:
    """What is taken on a node. Amounts of nothing are left out."""

    cpu_milli: int = 0
    memory: int = 0
    pods: int = 0
    units: dict[str, int] = field(default_factory=dict)
    extended: dict[str, int] = field(default_factory=dict)

    def add(self, needs: PodNeeds, pods: int) -> None:
        """Take what so many pods need; negative pods give back."""
        self.cpu_milli += needs.cpu_milli * pods
        self.memory += needs.memory * pods
        self.pods += pods
        _add(self.extended, needs.extended, pods)

    def add_units(self, offers: Mapping[str, int], pods: int) -> None:
        """Take the GPUs of so many pods; negative pods give back."""
        _add(self.units, offers, pods)

    def left_of(self, facts: NodeFacts) -> NodeState:
        """Tell what a node has left."""
        state = facts.state()
        state.cpu_milli -= self.cpu_milli
        state.memory -= self.memory
        state.pods -= self.pods
        for name, amount in self.units.items():
            state.units[name] = state.units.get(name, 0) - amount
        for name, amount in self.extended.items():
            state.extended[name] = state.extended.get(name, 0) - amount
        return state


def _add(sums: dict[str, int], amounts: Mapping[str, int], times: int) -> None:
    for name, amount in amounts.items():
        total = sums.get(name, 0) + amount * times
        if total:
            sums[name] = total
        else:
            sums.pop(name, None)


class _Placed(NamedTuple):
    """A booking's pods on a node: how many in all, how many of them aren't seen there yet."""

    pods: int
    unseen: int


class _Held(NamedTuple):
    """What a booking was counted with. `missing` are pods that have no place."""

    option: Option
    offers: Mapping[str, int]
    needs: PodNeeds
    places: Mapping[str, _Placed]
    missing: int


class FreeNodes:
    """`nodes` is a live view: one dictionary, in which a node that changes becomes a new object.

    Only nodes of which `serves` says so are in it. What holds without a place (made anew from the
    cluster, or left to the kube-scheduler) will go somewhere: room is set aside for it as if it
    were placed now.
    """

    def __init__(
        self,
        needs_of: Callable[[str], PodNeeds | None],
        pods_of: Callable[[str], Iterable[PodThere]],
        serves: Callable[[NodeFacts], bool],
    ) -> None:
        self._serves = serves
        self._needs_of = needs_of
        self._pods_of = pods_of
        self._used: defaultdict[str, _Used] = defaultdict(_Used)
        self._held: dict[str, _Held] = {}
        self._homeless: set[str] = set()
        self._stale: set[str] = set()
        # Before and after room is set aside for the homeless: the same objects where it isn't.
        self._bare: dict[str, NodeState] = {}
        self._shown: dict[str, NodeState] = {}
        self._set_aside: dict[str, NodeState] = {}

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        """What was free when last brought up to date, by node."""
        return self._shown

    def pod_came(self, node: str, needs: PodNeeds) -> None:
        """Count a pod that is on a node and has not ended."""
        self._used[node].add(needs, 1)
        self._stale.add(node)

    def pod_left(self, node: str, needs: PodNeeds) -> None:
        """Count a pod no longer; `needs` as it was counted with."""
        self._used[node].add(needs, -1)
        self._stale.add(node)

    def node_changed(self, name: str) -> None:
        """Look at a node again, at what it can allocate and whether it is in service."""
        self._stale.add(name)

    def update(
        self, nodes: Mapping[str, NodeFacts], bookings: Iterable[tuple[str, Booking | None]]
    ) -> Set[str]:
        """Bring `nodes` up to date; return the names of those on which that changed anything.

        `bookings` are all those, by id, that changed themselves or in their pods or needs; None
        is of one that is over.
        """
        homeless = False
        for booking_id, booking in bookings:
            homeless |= self._count(booking_id, booking)
        changed: set[str] = set()
        for name in self._stale:
            facts = nodes.get(name)
            if facts is not None and facts.in_service and self._serves(facts):
                now = self._used[name].left_of(facts) if name in self._used else facts.state()
            else:
                now = None
            if now != self._bare.get(name):
                changed.add(name)
                if now is None:
                    del self._bare[name]
                else:
                    self._bare[name] = now
        self._forget_idle()
        self._stale.clear()
        if changed or homeless:
            return self._show(changed)
        return changed

    @property
    def counted(self) -> Collection[str]:
        """The bookings that are counted, by id."""
        return self._held.keys()

    def _count(self, booking_id: str, booking: Booking | None) -> bool:
        """Count a booking as it is now. True: it has pods without a place, or had."""
        before = self._held.get(booking_id)
        now = self._hold(booking) if booking is not None else None
        if now == before:
            return False
        if before is not None:
            self._add(before, -1)
            del self._held[booking_id]
        if now is not None:
            self._add(now, 1)
            self._held[booking_id] = now
        was_homeless = booking_id in self._homeless
        if now is not None and now.missing and (now.offers or now.needs != _NOTHING):
            self._homeless.add(booking_id)
            return True
        self._homeless.discard(booking_id)
        return was_homeless

    def _hold(self, booking: Booking) -> _Held | None:
        option = booking.option
        if option is None or not booking.state.holds:
            return None
        needs = self._needs_of(booking.id) or _NOTHING
        there: defaultdict[str, int] = defaultdict(int)
        missing = booking.pods - sum(booking.place.values())
        if booking.place:
            for pod in self._pods_of(booking.id):
                if pod.node and not pod.ended:
                    there[pod.node] += 1
        places = {
            node: _Placed(pods, max(0, pods - there.get(node, 0)))
            for node, pods in booking.place.items()
        }
        return _Held(option, option.offers, needs, places, max(0, missing))

    def _add(self, held: _Held, sign: int) -> None:
        for node, (pods, unseen) in held.places.items():
            used = self._used[node]
            used.add_units(held.offers, sign * pods)
            if unseen:
                used.add(held.needs, sign * unseen)
            self._stale.add(node)

    def _forget_idle(self) -> None:
        for name in self._stale:
            used = self._used.get(name)
            if used is not None and used == _Used():
                del self._used[name]

    def _show(self, changed: set[str]) -> Set[str]:
        before, self._set_aside = self._set_aside, self._house()
        for name in changed | before.keys() | self._set_aside.keys():
            now = self._set_aside.get(name, self._bare.get(name))
            if now == self._shown.get(name):
                changed.discard(name)
            elif now is None:
                changed.add(name)
                del self._shown[name]
            else:
                changed.add(name)
                self._shown[name] = now
        return changed

    def _house(self) -> dict[str, NodeState]:
        """Set room aside for what has no place, in the order of ids; return the nodes with less."""
        if not self._homeless:
            return {}
        nodes, less = dict(self._bare), dict[str, NodeState]()
        # Nothing becomes free meanwhile: what is alike doesn't fit either.
        full: set[tuple[int, int, int]] = set()
        for booking_id in sorted(self._homeless):
            held = self._held[booking_id]
            alike = (held.missing, id(held.needs), id(held.option))
            if alike in full:
                continue
            fit = place(held.missing, held.needs, [held.option], nodes.values())
            if not isinstance(fit, Placement):
                full.add(alike)
                continue
            for name, pods in fit.place.items():
                if name not in less:
                    less[name] = nodes[name] = nodes[name].copy()
                less[name].take(held.needs, held.offers, pods)
        return less
