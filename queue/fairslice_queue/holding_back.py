"""Who is kept back in line for a while: what failed to start, and what was pushed out too often.

Failed starts wait 60 s, doubling to 1 h. What others' guarantees pushed out three times within a
day waits as long before it borrows again, up to half an hour: nothing goes round in circles
faster than that. Within its own team's guarantee it may start all the same.
"""

from collections.abc import Mapping

from fairslice import messages
from fairslice.booking import Booking
from fairslice_queue.history import PUSHED, past_of
from fairslice_queue.rights import Rights
from fairslice_queue.seat import Seat

__all__ = ["HoldingBack"]

_FIRST_SECONDS = 60.0
_LONGEST_SECONDS = 3600.0
_LONGEST_PAUSE = 1800.0
_PUSHES_FREE = 2  # so often a day nobody minds
_DAY = 86400.0
_REMEMBERED = 10_000


class HoldingBack:
    """Until when work is kept back. What failed is forgotten with the process: tried once more."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._failed: dict[str, tuple[float, int]] = {}
        self._why: dict[str, str] = {}
        self._pauses: dict[str, tuple[float, str]] = {}
        self._heirs: dict[tuple[str, str], tuple[float, int, str]] = {}

    @property
    def until(self) -> Mapping[str, tuple[float, str]]:
        """Until when work is kept back (Unix seconds), and why, by booking id."""
        kept = {key: (until, self.why(key)) for key, (until, _) in self._failed.items()}
        books, now = self._seat.mirror.books, self._seat.clock()
        rights: Rights | None = None
        for key, (until, why) in list(self._pauses.items()):
            booking = books.get(key)
            if until <= now or booking is None or not booking.state.waits:
                del self._pauses[key]
                continue
            rights = rights or Rights(self._seat.watch.teams, books.tally, now)
            if until > kept.get(key, (0.0, ""))[0] and not _within_guarantee(
                booking, rights, books.tally.pools
            ):
                kept[key] = (until, why)
        return kept

    def failed(self, booking: Booking, reason: str) -> None:
        """Let work that could not start be tried again later and later."""
        now = self._seat.clock()
        _, failures = self._failed.get(booking.id, (0.0, 0))
        pause = min(_FIRST_SECONDS * 2**failures, _LONGEST_SECONDS)
        self._failed[booking.id] = (now + pause, failures + 1)
        self._why[booking.id] = messages.line(reason)
        self._seat.metrics.start_failures.inc()

    def why(self, booking_id: str) -> str:
        """Say why work last failed to start; empty if it did not."""
        return self._why.get(booking_id, "")

    def tell_once(self, booking_id: str, reason: str) -> bool:
        """Remember a failure that keeps nothing back. True: it was not known."""
        known = self._why.get(booking_id)
        self._why[booking_id] = messages.line(reason)
        return known is None

    def started(self, booking_id: str) -> None:
        """Forget what kept work back: it runs."""
        self._failed.pop(booking_id, None)
        self._why.pop(booking_id, None)

    def forget(self, booking_id: str) -> None:
        """Drop what is remembered of a booking that is over."""
        self.started(booking_id)
        self._pauses.pop(booking_id, None)

    def leave_to_successor(self, booking: Booking) -> None:
        """Let what is made anew under this name be kept back as this would have been."""
        until, failures = self._failed[booking.id]
        self._heirs[booking.ref.namespace, booking.ref.name] = (
            until,
            failures,
            self.why(booking.id),
        )
        if len(self._heirs) > _REMEMBERED:
            del self._heirs[next(iter(self._heirs))]

    def look_at(self, booking: Booking) -> None:
        """Look at work in line: what it takes over, and how often it was pushed out."""
        if booking.restarts:
            heir = self._heirs.pop((booking.ref.namespace, booking.ref.name), None)
            if heir is not None:
                self._failed[booking.id] = heir[:2]
                self._why[booking.id] = heir[2]
        past = past_of(self._seat.watch.annotations_of(booking.id))
        if past.pushed <= _PUSHES_FREE:
            return
        now = self._seat.clock()
        pushes = [event.moment for event in past.last if event.what == PUSHED]
        lately = [moment for moment in pushes if now - moment < _DAY]
        if len(lately) > _PUSHES_FREE:
            pause = min(_FIRST_SECONDS * 2 ** (len(lately) - 1 - _PUSHES_FREE), _LONGEST_PAUSE)
            why = messages.pushed_out_often(len(lately))
            self._pauses[booking.id] = (lately[-1] + pause, why)


def _within_guarantee(
    booking: Booking, rights: Rights, held: Mapping[tuple[str, str], int]
) -> bool:
    return any(
        held.get((booking.team, option.pool), 0) + option.milli * booking.pods
        <= rights.guaranteed(booking.team, option.pool)
        for option in booking.options
    )
