"""What the ledger must know to let work start at once: capacity, lending, who goes first."""

from collections.abc import Collection, Mapping, Sequence, Set

from fairslice.booking import Booking
from fairslice.pool_capacity import pool_capacity
from fairslice.teams import TeamIndex
from fairslice_queue.actions import Reserve
from fairslice_queue.bookkeeping import Keep, LedgerUnavailable, Lending
from fairslice_queue.seat import Seat

__all__ = ["Publishing"]


class Publishing:
    """Tells the ledger what changed since it was last told. Raises LedgerUnavailable."""

    def __init__(self, seat: Seat) -> None:
        """Nothing is known of what a former leader told."""
        self._seat = seat
        self._capacity: Mapping[str, int] = {}
        self._teams: TeamIndex | None = None
        self._lending: Mapping[str, Lending] | None = None
        self._keeps: Mapping[str, Keep] | None = None
        self._lifted: Set[str] = frozenset()

    async def rebuild(self, bookings: Sequence[Booking]) -> None:
        """Make the books anew from these bookings and what is published."""
        seat = self._seat
        self._capacity = pool_capacity(seat.watch.inventory)
        teams, lending = seat.watch.teams, self._lent(seat.clock())
        await seat.ledger.rebuild(seat.epoch, bookings, seat.watch.inventory.capacity(), lending)
        self._teams, self._lending, self._keeps = teams, lending, {}
        self._lifted = frozenset()

    async def tell(self, now: float, *, anew: bool) -> None:
        """Publish what nodes offer and who keeps what of its guarantee.

        What time alone changes of that, as windows of quotas do, is looked at if `anew`.
        """
        seat = self._seat
        if seat.watch.capacity_changed:
            # Nodes may change while it is published: then it is to be published again.
            seat.watch.capacity_changed = False
            self._teams = None
            self._capacity = pool_capacity(seat.watch.inventory)
            try:
                await seat.ledger.publish_capacity(seat.epoch, seat.watch.inventory.capacity())
            except LedgerUnavailable:
                seat.watch.capacity_changed = True
                raise
        teams = seat.watch.teams
        if anew or teams is not self._teams:
            lending = self._lent(now)
            if lending != self._lending:
                await seat.ledger.publish_lending(seat.epoch, lending)
            self._teams, self._lending = teams, lending

    async def tell_kept(self, kept: Mapping[str, Reserve], groups: Collection[str]) -> None:
        """Publish which units are kept for whom. Pods of `groups` wait like others instead."""
        keeps = {
            booking_id: Keep(chosen=reserve.chosen, place=dict(reserve.place))
            for booking_id, reserve in kept.items()
            if reserve.place and booking_id not in groups
        }
        if keeps != self._keeps:
            await self._seat.ledger.keep(self._seat.epoch, keeps)
            self._keeps = keeps

    async def tell_lifted(self, lifted: Set[str]) -> None:
        """Publish who goes before better classes."""
        if lifted != self._lifted:
            flags = {
                **dict.fromkeys(self._lifted - lifted, False),
                **dict.fromkeys(lifted - self._lifted, True),
            }
            await self._seat.ledger.block_many(self._seat.epoch, {}, flags)
            self._lifted = frozenset(lifted)

    def _lent(self, now: float) -> dict[str, Lending]:
        teams = self._seat.watch.teams
        return {
            pool: Lending(capacity=milli, kept=dict(kept))
            for pool, milli in self._capacity.items()
            if (kept := teams.kept(pool, now))
        }
