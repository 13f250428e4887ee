"""Keeping the mirror of the ledger: a snapshot, then every change in order."""

from collections.abc import Callable, Iterable

from fairslice.booking import Booking
from fairslice_queue.bookkeeping import Change
from fairslice_queue.books import Books
from fairslice_queue.ledger import Ledger

__all__ = ["Mirror"]

OnChange = Callable[[Booking | None, Booking | None], None]


class Mirror:
    """Books that follow the ledger. `on_change` gets (old, new) of every booking."""

    def __init__(self, ledger: Ledger, on_change: OnChange) -> None:
        self.books = Books()
        self._ledger = ledger
        self._on_change = on_change
        self._generation = ""
        self._sequence: tuple[int, int] = (0, 0)
        self._position = "0-0"

    async def load(self) -> None:
        """Read the whole ledger. Raises LedgerUnavailable."""
        snapshot = await self._ledger.snapshot()
        before = self.books
        self.books = Books(snapshot.bookings)
        self._move_to(snapshot.sequence)
        for booking in self.books:
            old = before.get(booking.id)
            if old != booking:
                self._on_change(old, booking)
        for booking in before:
            if booking.id not in self.books:
                self._on_change(booking, None)

    async def follow(self, wait_seconds: float) -> bool:
        """Apply what changed since, waiting for it if nothing did. False: nothing came.

        Safe to call while another call waits: what both read is applied once, and what this
        call returns from includes all that was written before it began.
        Raises LedgerUnavailable.
        """
        came, wait = False, wait_seconds
        while True:
            position = self._position
            changes = await self._ledger.changes(position, wait)
            if changes is None:
                await self.load()
                return True
            # Where another call was faster, what this one read may be older.
            if position == self._position:
                came = self._apply(changes) or came
                if wait_seconds or not changes:
                    return came
            # One answer holds a part only of what many writes left.
            wait = 0.0

    def _apply(self, changes: Iterable[Change]) -> bool:
        """Apply changes; say whether they are any to those who read the books."""
        came = False
        for change in changes:
            generation, number = _parts(change.sequence)
            # Of books that were lost meanwhile, or read by another call already.
            if generation != self._generation or number <= self._sequence:
                continue
            self._move_to(change.sequence)
            if change.booking is None:
                old = self.books.drop(change.id)
            else:
                old = self.books.put(change.booking)
            # What only scripts read (who stands in whose way) changes nothing here.
            if old != change.booking:
                came = True
                self._on_change(old, change.booking)
        return came

    def _move_to(self, position: str) -> None:
        self._position = position
        self._generation, self._sequence = _parts(position)


def _parts(position: str) -> tuple[str, tuple[int, int]]:
    """Split `generation/milliseconds-counter`; the books' first position has no entry yet."""
    generation, _, entry = position.rpartition("/")
    milliseconds, _, counter = entry.partition("-")
    return generation, (int(milliseconds or 0), int(counter or 0))
