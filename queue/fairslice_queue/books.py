"""The leader's mirror of the ledger, with the totals that planning reads."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from fairslice.booking import Booking
from fairslice_queue.tally import Tally

__all__ = ["Books"]


# Where nobody plans, nobody asks what changed.
_MOST_CHANGED = 100_000


class Books:
    """All bookings by id. The tally follows each change."""

    def __init__(self, bookings: Iterable[Booking] = ()) -> None:
        self.tally = Tally()
        self._bookings: dict[str, Booking] = {}
        self._waiting: set[str] = set()
        self._holding: dict[str, Booking] = {}
        self._waiting_of: Counter[str] = Counter()
        self._holding_of: Counter[str] = Counter()
        self._changed: set[str] | None = None
        for booking in bookings:
            self.put(booking)

    def __iter__(self) -> Iterator[Booking]:
        return iter(self._bookings.values())

    def __len__(self) -> int:
        return len(self._bookings)

    def __contains__(self, booking_id: object) -> bool:
        return booking_id in self._bookings

    def get(self, booking_id: str) -> Booking | None:
        """Return a booking, or None."""
        return self._bookings.get(booking_id)

    def put(self, booking: Booking) -> Booking | None:
        """Add or replace a booking; return what it was before."""
        old = self.drop(booking.id)
        self._bookings[booking.id] = booking
        self._count(booking, 1)
        if booking.state.waits:
            self._waiting.add(booking.id)
            self._waiting_of[booking.team] += 1
        elif booking.state.holds:
            self._holding[booking.id] = booking
            self._holding_of[booking.team] += 1
        self._note(booking.id)
        return old

    def drop(self, booking_id: str) -> Booking | None:
        """Remove a booking; return what it was."""
        old = self._bookings.pop(booking_id, None)
        if old is not None:
            self._count(old, -1)
            if old.state.waits:
                self._waiting.discard(booking_id)
                _less(self._waiting_of, old.team)
            elif old.state.holds:
                del self._holding[booking_id]
                _less(self._holding_of, old.team)
            self._note(booking_id)
        return old

    def waiting(self) -> Iterator[Booking]:
        """Yield the bookings in line, in no order."""
        return (self._bookings[booking_id] for booking_id in self._waiting)

    @property
    def teams_waiting(self) -> Collection[str]:
        """The teams that have work in line."""
        return self._waiting_of.keys()

    def waiting_of(self, team: str) -> int:
        """Count a team's bookings in line."""
        return self._waiting_of[team]

    def holding_of(self, team: str) -> int:
        """Count a team's bookings that hold something."""
        return self._holding_of[team]

    def holding(self) -> Iterator[Booking]:
        """Yield the bookings that hold something."""
        return iter(self._holding.values())

    def take_changed(self) -> set[str] | None:
        """List the ids of those that were put or dropped since this was last asked.

        None stands for all: it wasn't asked before, or not for too long.
        """
        changed, self._changed = self._changed, set()
        return changed

    def _note(self, booking_id: str) -> None:
        if self._changed is not None:
            self._changed.add(booking_id)
            if len(self._changed) > _MOST_CHANGED:
                self._changed = None

    def _count(self, booking: Booking, sign: int) -> None:
        option = booking.option
        if option is not None and booking.state.holds:
            self.tally.add(booking, option, sign)


def _less(counts: Counter[str], team: str) -> None:
    counts[team] -= 1
    if not counts[team]:
        del counts[team]
