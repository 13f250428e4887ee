"""The line, kept from one decision to the next: rows of like work, heaps of rows.

A *row* is work of which all must wait if its first must: of one team, class and user, fitting
the same nodes. A *want* is what rows want together: one shape, by one set of options that
nothing but room keeps them from. Each want has a heap of its rows, by the key of their first.

Keys in the heaps may be too small, never too large: those that grow by themselves (shares) are
looked at again when they come to the top; whatever makes a key smaller is to be told
(`Line.place`). So a decision costs the logarithm of what is queued.
"""

import heapq
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from math import inf

from fairslice import messages
from fairslice.booking import Option
from fairslice.fairshare import OrderKey
from fairslice.placement import Misfit, PodNeeds
from fairslice_queue.caps import Excess
from fairslice_queue.order import Order, TeamKey, Waiting

__all__ = ["Line", "Row", "Want"]

_Entry = tuple[OrderKey, int, int, "Row"]
_Turn = tuple[int, float, str]

# What is different between two rows of one team: shape, class, user, rollout, rank, urgency, and
# whether they can't be looked at.
_RowKey = tuple[bytes, str, str, str, str, int, bool, bool]


class Row:
    """Like work of one team, in order. `waits` is what none of it starts for, if not for room.

    `want` is None while no option is open to it. `capped`: only its team's caps hold it up.
    `own` are the options for which its own team would have to give up so much (milli-GPU).
    `timed` is the id of the first for whose age somebody watches.
    """

    __slots__ = (
        "_version",
        "capped",
        "idle",
        "key",
        "own",
        "team",
        "timed",
        "turns",
        "waits",
        "want",
    )

    def __init__(self, team: str, *, idle: bool) -> None:
        self.team = team
        self.idle = idle
        self.turns: list[_Turn] = []
        self.want: Want | None = None
        self.key: OrderKey | None = None
        self.waits: Excess | str = ""
        self.capped = idle
        self.own: Mapping[int, int] = {}
        self.timed = ""
        self._version = 0

    @property
    def first(self) -> str:
        """The id of the booking that goes first."""
        return self.turns[0][2]

    def reason(self, item: Waiting) -> str:
        """Say why work of this row waits."""
        if item.blocked:
            return item.blocked
        if item.not_before and self.idle:
            until = f"{datetime.fromtimestamp(item.not_before, UTC):%H:%M:%S} UTC"
            return messages.failed_to_start(item.failure or item.booking.reason, until)
        broken = self.waits
        if isinstance(broken, Excess):
            return messages.cap_reached(
                self.team, broken.cause, broken.subject, broken.used, broken.limit, broken.asked
            )
        if broken:
            return broken
        misfit = self.want.misfit if self.want is not None else None
        if misfit is None:
            return messages.others_first("the same GPUs")
        return messages.waits_for_room(misfit.reason)


class Want:
    """Rows that want the same of the same nodes. `misfit` says that it is not there now.

    `entitled` are those that may push others out, by their class or their team's guarantee.
    `told` is the last reason that was found for its waiting, `started` when the last of its work
    was let go (Unix seconds; 0: not since it has been in line).
    """

    __slots__ = (
        "_heap",
        "_rows",
        "entitled",
        "misfit",
        "offers",
        "open",
        "sample",
        "started",
        "told",
    )

    def __init__(self, sample: Waiting, open_: tuple[int, ...]) -> None:
        self.sample = sample
        self.open = open_
        self.offers = frozenset(key for option in self.options for key in option.offers)
        self.misfit: Misfit | None = None
        self.told = ""
        self.started = 0.0
        self.entitled: set[Row] = set()
        self._rows: set[Row] = set()
        self._heap: list[_Entry] = []

    @property
    def options(self) -> list[Option]:
        """The options that are open."""
        return [self.sample.booking.options[index] for index in self.open]

    @property
    def needs(self) -> PodNeeds:
        """What a pod needs beside GPUs."""
        return self.sample.needs

    @property
    def rows(self) -> Iterable[Row]:
        """All its rows, in no order."""
        return self._rows

    @property
    def size(self) -> int:
        """How much one of it wants at most, in milli-GPU."""
        return max((o.milli for o in self.options), default=0) * self.sample.booking.pods

    @property
    def passed_over_since(self) -> float:
        """Say since when work of this kind waits and none of it was let go (Unix seconds)."""
        return max(self.started, min((row.turns[0][1] for row in self._rows), default=inf))

    def top(self, key_of: Callable[[Row], OrderKey]) -> Row | None:
        """Find the row that goes first."""
        heap = self._heap
        while heap:
            key, version, _, row = heap[0]
            if row.want is not self or row._version != version:
                heapq.heappop(heap)
                continue
            fresh = key_of(row)
            if fresh <= key:
                return row
            row.key = fresh
            heapq.heapreplace(heap, (fresh, version, id(row), row))
        return None

    def put(self, row: Row, key: OrderKey) -> None:
        """Enter a row, or give it a smaller key."""
        row._version += 1
        row.key = key
        self._rows.add(row)
        # What moved from row to row may be in here twice under one key, and rows don't compare.
        heapq.heappush(self._heap, (key, row._version, id(row), row))

    def drop(self, row: Row) -> None:
        """Take a row out."""
        row._version += 1
        row.key = None
        self._rows.discard(row)
        self.entitled.discard(row)


class Line:
    """All waiting work, by id; the rows of each team; the wants by what they want."""

    def __init__(self) -> None:
        self._items: dict[str, Waiting] = {}
        self._row_of: dict[str, Row] = {}
        self._rows: dict[str, dict[_RowKey, Row]] = {}
        self._wants: dict[tuple[bytes, tuple[int, ...]], Want] = {}
        self._by_offer: defaultdict[str, set[Want]] = defaultdict(set)
        self._later: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, booking_id: str) -> bool:
        return booking_id in self._items

    @property
    def wants(self) -> Iterable[Want]:
        """All wants."""
        return self._wants.values()

    @property
    def teams(self) -> Iterable[str]:
        """All teams that have work in line."""
        return self._rows.keys()

    def get(self, booking_id: str) -> Waiting | None:
        """Find waiting work."""
        return self._items.get(booking_id)

    def row_of(self, booking_id: str) -> Row:
        """Return the row in which work stands."""
        return self._row_of[booking_id]

    def first(self, row: Row) -> Waiting:
        """Return the work of a row that goes first."""
        return self._items[row.first]

    def rows_of(self, team: str) -> Iterable[Row]:
        """All rows of a team, in no order."""
        return self._rows.get(team, {}).values()

    def members(self, row: Row) -> Iterator[str]:
        """Yield the ids of a row's work, in order."""
        return (turn[2] for turn in row.turns)

    def put(self, item: Waiting, now: float, *, aside: bool = False) -> Row | None:
        """Enter work, or what is new of it; return the row whose place is to be found anew.

        `aside`: it has its room already, and is not looked at with the others.
        """
        booking = item.booking
        late = item.not_before > now
        if late:
            heapq.heappush(self._later, (item.not_before, booking.id))
        idle = aside or late or bool(item.blocked)
        key = _row_key(item, idle=idle)
        rows = self._rows.setdefault(booking.team, {})
        row = rows.get(key)
        turn = _turn(item)
        known = self._items.get(booking.id)
        if known is not None and self._row_of[booking.id] is row and _turn(known) == turn:
            self._items[booking.id] = item
            return None
        if known is not None:
            self.drop(booking.id)
            rows = self._rows.setdefault(booking.team, {})
            row = rows.get(key)
        if row is None:
            row = rows[key] = Row(booking.team, idle=idle)
        insort(row.turns, turn)
        self._items[booking.id], self._row_of[booking.id] = item, row
        return row if row.first == booking.id else None

    def drop(self, booking_id: str) -> Row | None:
        """Take work out; return the row whose place is to be found anew, if any is left."""
        item = self._items.pop(booking_id, None)
        if item is None:
            return None
        row = self._row_of.pop(booking_id)
        index = bisect_left(row.turns, _turn(item))
        del row.turns[index]
        if row.turns:
            return row if index == 0 else None
        self._leave(row)
        rows = self._rows[row.team]
        del rows[_row_key(item, idle=row.idle)]
        if not rows:
            del self._rows[row.team]
        return None

    def place(
        self, row: Row, open_: tuple[int, ...], key: OrderKey | None, *, entitled: bool
    ) -> Want | None:
        """Enter a row where it belongs; return the want, if it is to be looked at for it.

        With no option open (and no key) it is nowhere.
        """
        if key is None or not open_:
            self._leave(row)
            return None
        want = self._want(self.first(row), open_)
        if row.want is not want:
            self._leave(row)
            row.want = want
        if entitled:
            want.entitled.add(row)
        else:
            want.entitled.discard(row)
        if row.key is None or key < row.key:
            want.put(row, key)
            return want
        return None

    def due(self, now: float) -> list[Waiting]:
        """Take note of the time; return the work that was kept back until now."""
        due = []
        while self._later and self._later[0][0] <= now:
            _, booking_id = heapq.heappop(self._later)
            item = self.get(booking_id)
            if item is not None and 0 < item.not_before <= now:
                due.append(item)
        return due

    def wanting(self, offers: Iterable[str]) -> set[Want]:
        """Find the wants that want any of these offers."""
        return {want for key in offers for want in self._by_offer.get(key, ())}

    def of_team(self, team: str, order: Order, most: int | None = None) -> list[str]:
        """List a team's work in its own order, all of it or the first so many."""

        def keys(row: Row) -> Iterator[TeamKey]:
            return (order.in_team(self._items[turn[2]]) for turn in row.turns)

        merged = heapq.merge(*(keys(row) for row in self.rows_of(team)))
        return [key.name for key in islice(merged, most)]

    def count(self, team: str) -> int:
        """Count a team's work in line."""
        return sum(len(row.turns) for row in self.rows_of(team))

    def _want(self, item: Waiting, open_: tuple[int, ...]) -> Want:
        key = (item.shape, open_)
        want = self._wants.get(key)
        if want is None:
            want = self._wants[key] = Want(item, open_)
            for offer in want.offers:
                self._by_offer[offer].add(want)
        return want

    def _leave(self, row: Row) -> None:
        want, row.want = row.want, None
        if want is None:
            return
        want.drop(row)
        if not want._rows:
            del self._wants[want.sample.shape, want.open]
            for offer in want.offers:
                self._by_offer[offer].discard(want)
                if not self._by_offer[offer]:
                    del self._by_offer[offer]


def _row_key(item: Waiting, *, idle: bool) -> _RowKey:
    booking = item.booking
    return (item.shape, booking.work_class, booking.user, booking.group,
            booking.group_revision, booking.rank, item.urgent, idle)  # fmt: skip


def _turn(item: Waiting) -> _Turn:
    return item.turn, item.booking.queued_at, item.booking.id
