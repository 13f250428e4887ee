"""Nodes kept for those who waited long: taken off what is free, and who needn't mind.

Only one of each kind has nodes kept (EASY backfilling: Lifka, The ANL/IBM SP Scheduling System,
1995), until it starts. Neither a better class nor a lower share lets others have them, or what
is small and comes without end would always pass; a better right does (what passes everyone,
guarantees before what is borrowed). What says that it ends before they are needed may use them
meanwhile.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fairslice.fairshare import OrderKey
from fairslice.placement import GangNeeds, Misfit, NodeState, Placement, fits_on, place
from fairslice_queue.actions import Reserve
from fairslice_queue.expecting import free_by
from fairslice_queue.order import Waiting
from fairslice_queue.room import Room
from fairslice_queue.slate import Kept, Slate

__all__ = ["Keeping", "place_on"]

# For so many of those who come first nodes are kept, of all kinds together.
_MOST_KEPT = 32


def place_on(
    nodes: Mapping[str, NodeState], item: Waiting, indices: Sequence[int]
) -> Placement | Misfit:
    """Find room on these nodes with one of these of its options."""
    options = [item.booking.options[index] for index in indices]
    fit = place(item.booking.pods, item.needs, options, nodes.values())
    if isinstance(fit, Misfit):
        return fit
    return Placement(chosen=indices[fit.chosen], place=fit.place, sets=fit.sets)


class Keeping:
    """What is kept, as one round finds and leaves it."""

    def __init__(self, slate: Slate, room: Room, now: float) -> None:
        self._slate = slate
        self._room = room
        self._now = now
        self._hopeless: set[bytes] = set()

    def take(self) -> None:
        """Take what is kept off what is free."""
        for kept in self._all():
            self._take(kept)

    def drop(self, booking_id: str) -> None:
        """Keep nothing any more for one."""
        kept = self._slate.kept.get(booking_id)
        if kept is not None:
            self._take(kept, sign=-1)
            self._slate.give_up(booking_id)

    def place(self, item: Waiting, open_: Sequence[int], key: OrderKey) -> Placement | Misfit:
        """Find room now, minding the nodes that are kept for others of no lesser right."""
        with self.lifted_for(item, key):
            fit = place_on(self._room.now, item, open_)
        if isinstance(fit, Placement):
            self.make_way(item, key, fit.place)
        return fit

    @contextmanager
    def lifted_for(self, item: Waiting, key: OrderKey) -> Iterator[None]:
        """Give back for a while, in every view, what stands in no way of work with this key."""
        no_bar = self._no_bar_to(item, key)
        own = self._slate.kept.get(item.booking.id)
        if own is not None:
            no_bar += [each for each in self._all() if each.turn > own.turn and each not in no_bar]
        with self._lifted(no_bar):
            yield

    def make_way(self, item: Waiting, key: OrderKey, nodes: Container[str]) -> None:
        """Keep nothing more for the work itself, nor on these nodes for those of lesser right."""
        for kept in self._no_bar_to(item, key):
            booking_id = kept.reserve.booking
            if booking_id == item.booking.id or any(name in nodes for name in kept.reserve.place):
                self.drop(booking_id)

    def _no_bar_to(self, item: Waiting, key: OrderKey) -> list[Kept]:
        own, level = item.booking.id, key[:2]
        return [each for each in self._all() if level < each.level or each.reserve.booking == own]

    def fill(self, item: Waiting, open_: Sequence[int]) -> Placement | None:
        """Find room also on nodes that are not needed before the work has ended."""
        end = self._now + item.runtime
        spare = [each for each in self._all() if each.fill_by is not None and end <= each.fill_by]
        if not item.runtime or not spare or item.booking.id in self._slate.kept:
            return None
        with self._lifted(spare):
            fit = place_on(self._room.now, item, open_)
        return fit if isinstance(fit, Placement) else None

    def has_kind(self, item: Waiting) -> bool:
        """Say whether nodes are kept for work of this kind."""
        return any(each.shape == item.shape for each in self._all())

    def keep(self, item: Waiting, open_: Sequence[int], key: OrderKey) -> Kept | None:
        """Choose the nodes on which work that waited long will be able to start.

        They are those that are kept for it already, if it still fits there once everything that
        may be waited for has ended; else others, best without waiting for what never ends by
        itself. None: there are none.
        """
        booking_id = item.booking.id
        before = self._slate.kept.get(booking_id)
        self.drop(booking_id)
        turn = before.turn if before is not None else self._next_turn(item)
        if len(self._slate.kept) >= _MOST_KEPT or item.shape in self._hopeless:
            return None
        with self._lifted([each for each in self._all() if each.turn > turn]):
            reserve = self._reservation(item, open_, before)
            by = self._expected(item, reserve) if reserve is not None else None
        if reserve is None:
            self._hopeless.add(item.shape)
            return None
        fill_by = by
        if by is not None and before is not None and before.fill_by is not None:
            fill_by = min(by, before.fill_by)
        kept = Kept(
            reserve=reserve,
            turn=turn,
            shape=item.shape,
            level=key[:2],
            by=by,
            fill_by=fill_by,
            needs=item.needs,
            option=item.booking.options[reserve.chosen],
        )
        self._slate.kept[booking_id] = kept
        self._take(kept)
        return kept

    def _next_turn(self, item: Waiting) -> tuple[int, int]:
        """Give a turn: the largest first, for whom it is hardest to make room."""
        self._slate.keeps += 1
        booking = item.booking
        size = max(option.milli for option in booking.options) * booking.pods
        return -size, self._slate.keeps

    def without(self, node: NodeState) -> NodeState:
        """Tell what would be free on a node if nothing were kept there."""
        free = node
        for kept in self._all():
            pods = kept.reserve.place.get(node.name, 0)
            if pods:
                free = node.copy() if free is node else free
                free.take(kept.needs, kept.option.offers, -pods)
        return free

    def fillable(self) -> set[str]:
        """Return the offers on kept nodes of which it is known when they are needed."""
        names = {
            name for kept in self._all() if kept.fill_by is not None for name in kept.reserve.place
        }
        nodes = (self._room.now.get(name) for name in names)
        return {key for node in nodes if node is not None for key in node.units}

    def _all(self) -> Iterable[Kept]:
        return self._slate.kept.values()

    @contextmanager
    def _lifted(self, lifted: Sequence[Kept]) -> Iterator[None]:
        for kept in lifted:
            self._take(kept, sign=-1)
        try:
            yield
        finally:
            for kept in lifted:
                self._take(kept)

    def _take(self, kept: Kept, *, sign: int = 1) -> None:
        self._room.take(kept.needs, kept.option, kept.reserve.place, sign=sign)

    def _reservation(
        self, item: Waiting, open_: Sequence[int], before: Kept | None
    ) -> Reserve | None:
        # Were its pods moved about, others would start now on one node, now on another.
        if before is not None and self._still_serves(before, item, open_):
            return before.reserve
        for nodes in (self._room.after_jobs, self._room.after_all):
            fit = place_on(nodes, item, open_)
            if isinstance(fit, Placement):
                return Reserve(item.booking.id, fit.chosen, fit.place)
        return None

    def _still_serves(self, kept: Kept, item: Waiting, open_: Sequence[int]) -> bool:
        """Say whether the work will fit where nodes are kept for it, once others have ended."""
        place, nodes = kept.reserve.place, self._room.after_all
        if kept.shape != item.shape or kept.reserve.chosen not in open_:
            return False
        if isinstance(item.needs, GangNeeds):
            own = {name: node for name, node in nodes.items() if name in place}
            return isinstance(place_on(own, item, [kept.reserve.chosen]), Placement)
        return all(
            name in nodes and fits_on(item.needs, kept.option, nodes[name]) >= pods
            for name, pods in place.items()
        )

    def _expected(self, item: Waiting, reserve: Reserve) -> float | None:
        """Tell when the nodes kept for work are free at the latest, if that can be known."""

        def fits(nodes: Mapping[str, NodeState]) -> bool:
            return isinstance(place_on(nodes, item, [reserve.chosen]), Placement)

        now = self._room.now
        nodes = {name: now[name] for name in reserve.place if name in now}
        return free_by(nodes, self._slate.holders, fits, self._now)
