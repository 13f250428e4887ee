"""What planning remembers from one decision to the next."""

import heapq
from collections import defaultdict
from dataclasses import dataclass

from fairslice.booking import Option
from fairslice.placement import PodNeeds
from fairslice_queue.actions import Reserve
from fairslice_queue.holders import Holders
from fairslice_queue.line import Line, Row, Want
from fairslice_queue.order import Order, Waiting

__all__ = ["Kept", "Slate"]


@dataclass(frozen=True, slots=True)
class Kept:
    """Nodes kept for work that has waited long. `by`: free by then, as far as that is known.

    `fill_by` is when that was to be at first: what fills the wait must have ended by then. Starts
    take a moment, runs a little longer; went it by the latest news, the end would creep away.
    Who has the smaller `turn` needn't mind those after: they have what is left once it has ended.
    `level` is the work's own right, the first two terms of its key: whoever has a better one
    needn't mind.
    """

    reserve: Reserve
    turn: tuple[int, int]
    shape: bytes
    level: tuple[int, int]
    by: float | None
    fill_by: float | None
    needs: PodNeeds
    option: Option


class Slate:
    """The line, the holders, what is kept for whom, and what is to be judged anew.

    `claims` are kept for those whose victims leave, `kept` for those who waited long; `notes`
    say so to them. `unlent` are rows that may not borrow more, by pool; `own` those whose own
    team's lesser work may give way; `lifted` go before better classes; `worn` don't fit, but
    maybe for another reason. `rows` and `nodes` are to be looked at in the next round; `teams`
    are those whose work may stand elsewhere than it was told, or for another reason.
    """

    def __init__(self) -> None:
        self.line = Line()
        self.holders = Holders()
        self.kept: dict[str, Kept] = {}
        self.claims: dict[str, Reserve] = {}
        self.notes: dict[str, str] = {}
        self.unlent: defaultdict[str, set[Row]] = defaultdict(set)
        self.own: set[Row] = set()
        self.worn: set[Want] = set()
        self.lifted: set[Row] = set()
        self.keeps = 0
        self.rows: set[Row] = set()
        self.nodes: set[str] = set()
        self.teams: set[str] = set()
        self._aging: list[tuple[float, str]] = []
        self._told: dict[str, bool] = {}
        self._may_differ: set[str] = set()
        self._flipped: set[Row] = set()

    def enter(self, item: Waiting, now: float) -> None:
        """Put work in its place in line, or beside it if it has a claim."""
        booking_id = item.booking.id
        self.teams.add(item.booking.team)
        before = self.line.row_of(booking_id) if booking_id in self.line else None
        row = self.line.put(item, now, aside=booking_id in self.claims)
        self.rows.update(each for each in (before, row) if each is not None)
        self._may_differ.add(booking_id)

    def leave(self, booking_id: str) -> None:
        """Take out work that waits no more, or is not to be looked at."""
        self.give_up(booking_id)
        self.notes.pop(booking_id, None)
        item = self.line.get(booking_id)
        if item is None:
            return
        self.teams.add(item.booking.team)
        if booking_id in self.claims:  # what was kept for it counted as held
            self.rows.update(self.line.rows_of(item.booking.team))
        row = self.line.drop(booking_id)
        if row is not None:
            self.rows.add(row)

    def give_up(self, booking_id: str) -> None:
        """Keep nodes no longer for work that waits."""
        kept = self.kept.pop(booking_id, None)
        if kept is not None:
            self.notes.pop(booking_id, None)
            self.nodes |= kept.reserve.place.keys()

    def note(self, item: Waiting, text: str) -> None:
        """Remember what is special about where work stands."""
        if self.notes.get(item.booking.id) != text:
            self.notes[item.booking.id] = text
            self.teams.add(item.booking.team)

    def forget(self, row: Row) -> None:
        """Drop what is remembered of how a row was judged."""
        self.own.discard(row)
        self.lifted.discard(row)
        for rows in self.unlent.values():
            rows.discard(row)

    def watch_age(self, row: Row, order: Order) -> None:
        """See that a row is judged anew when its first has aged."""
        if row.timed != row.first:
            row.timed = row.first
            when = order.ages_at(self.line.first(row).booking)
            if when:
                heapq.heappush(self._aging, (when, row.first))

    def come_of_age(self, now: float) -> None:
        """Judge anew those who have aged by now."""
        while self._aging and self._aging[0][0] <= now:
            _, booking_id = heapq.heappop(self._aging)
            if booking_id in self.line:
                self.rows.add(self.line.row_of(booking_id))

    def flipped(self, row: Row) -> None:
        """Take note that a row's work is held up by other things than before."""
        self._flipped.add(row)

    def is_capped(self, booking_id: str) -> bool:
        """Say whether nothing but its own team's caps is in the way of waiting work."""
        return self.line.row_of(booking_id).capped and booking_id not in self.claims

    def take_capped(self) -> dict[str, bool]:
        """Tell of whom it is new that only their own team's caps hold them up, or no more."""
        for row in self._flipped:
            self._may_differ.update(self.line.members(row))
        found: dict[str, bool] = {}
        for booking_id in self._may_differ:
            if booking_id in self.line:
                capped = self.is_capped(booking_id)
                if self._told.get(booking_id) is not capped:
                    found[booking_id] = self._told[booking_id] = capped
        self._flipped, self._may_differ = set(), set()
        return found

    def assume_open(self, booking_id: str) -> None:
        """Take it that the books say of work that it stands in others' way, as of all new work."""
        self._told.setdefault(booking_id, False)

    def assume_nothing(self, booking_id: str) -> None:
        """Forget what the books say of work that waits no more."""
        self._told.pop(booking_id, None)
