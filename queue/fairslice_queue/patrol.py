"""Whom to look at without being told to, and in what portions, so that no turn takes long."""

from collections.abc import Iterator

from fairslice.booking import State
from fairslice_queue.books import Books

__all__ = ["Patrol"]

_TURNS = 12
# With fewer bookings than that, each turn is at all of them.
_FEWEST = 500
_BATCH = 50


class Patrol:
    """Goes round the books: everyone comes up once in twelve turns."""

    def __init__(self) -> None:
        self._left: list[str] = []

    def turn(self, books: Books) -> Iterator[tuple[str, ...]]:
        """Yield the ids that are due, in batches.

        What starts or is on its way out comes up each time: it depends on the time, and nothing
        happens to it that would tell.
        """
        due = {item.id: None for item in books.holding() if item.state is not State.RUNNING}
        if not self._left:
            self._left = [booking.id for booking in books]
        part = max(_FEWEST, -(-len(books) // _TURNS))
        due.update(dict.fromkeys(self._left[-part:]))
        del self._left[-part:]
        ids = list(due)
        for start in range(0, len(ids), _BATCH):
            yield tuple(ids[start : start + _BATCH])
