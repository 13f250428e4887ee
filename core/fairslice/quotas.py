"""What a team may hold in a pool, and when: its quota, windows that change it, loans that end.

Windows go by the clock on the wall, in a time zone: one that starts at 20:00 starts when clocks
first show 20:00 or later, whatever is done to them that day. Times are Unix seconds, amounts
milli-GPU.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import chain
from math import inf, isfinite

from fairslice.periods import Span, clock_time

__all__ = ["DAY_MINUTES", "Loan", "PoolQuota", "Quota", "Window"]

DAY_MINUTES = 24 * 60

_ONE_DAY = timedelta(days=1)
# A window whose days lie a week apart may be skipped once, where clocks jump over it.
_DAYS_AHEAD = 16


@dataclass(frozen=True, slots=True)
class Quota:
    """A team's right in one pool, in milli-GPU. No limit means all that is idle."""

    guaranteed: int
    limit: int | None
    lendable: int | None

    @property
    def kept(self) -> int:
        """What of the guarantee others may not borrow; none of it unless the team says so."""
        return 0 if self.lendable is None else max(0, self.guaranteed - self.lendable)


@dataclass(frozen=True, slots=True)
class Loan:
    """More limit in a pool, in milli-GPU, up to a moment in Unix seconds."""

    pool: str
    milli: int
    until: float


@dataclass(frozen=True, slots=True)
class Window:
    """When another quota holds. It opens on `days` (0 is Monday), in minutes of the clock.

    `end` is up to a day after `start`; above DAY_MINUTES it lies on the next day.
    """

    days: frozenset[int]
    start: int
    end: int
    quota: Quota

    def spans(self, first: date, count: int, zone: tzinfo) -> Iterator[Span]:
        """List when it is open, of those times that begin on so many days from `first` on.

        Times that clocks jump over are left out.
        """
        for number in range(count):
            day = first + number * _ONE_DAY
            if day.weekday() in self.days:
                span = _span(day, self.start, self.end, zone)
                if span.start < span.end:
                    yield span


@dataclass(frozen=True, slots=True)
class PoolQuota:
    """A quota with its windows; the first open one counts."""

    usual: Quota
    windows: tuple[Window, ...] = ()

    def at(self, now: float, zone: tzinfo) -> Quota:
        """Return the quota that holds at a time; at no time in particular (inf), the usual one."""
        if not self.windows or not isfinite(now):
            return self.usual
        yesterday = datetime.fromtimestamp(now, zone).date() - _ONE_DAY
        for window in self.windows:
            if any(span.start <= now < span.end for span in window.spans(yesterday, 2, zone)):
                return window.quota
        return self.usual

    def next_change(self, now: float, zone: tzinfo) -> float:
        """Return when a window opens or closes next; inf if none ever does."""
        if not self.windows or not isfinite(now):
            return inf
        yesterday = datetime.fromtimestamp(now, zone).date() - _ONE_DAY
        return min((_next(window, now, yesterday, zone) for window in self.windows), default=inf)

    def quotas(self) -> Iterable[Quota]:
        """Return all the quotas that hold at some time."""
        return chain((self.usual,), (window.quota for window in self.windows))


def _next(window: Window, now: float, yesterday: date, zone: tzinfo) -> float:
    for span in window.spans(yesterday, _DAYS_AHEAD, zone):
        if span.start > now:
            return span.start
        if span.end > now:
            return span.end
    return inf


@lru_cache(maxsize=4096)
def _span(day: date, start: int, end: int, zone: tzinfo) -> Span:
    return Span(_moment(day, start, zone), _moment(day, end, zone))


def _moment(day: date, minutes: int, zone: tzinfo) -> float:
    days, rest = divmod(minutes, DAY_MINUTES)
    return clock_time(day + days * _ONE_DAY, rest, zone)
