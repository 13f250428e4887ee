"""Days, weeks and months as people count them: by the clock on the wall, in a time zone.

Boundaries are local midnights, worked out anew for each date, so that a day may have 23 or 25
hours. Times are Unix seconds.
"""

from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fairslice.v1alpha1.team import Period

__all__ = [
    "Span",
    "clock_time",
    "day_after",
    "day_or_time",
    "moment_text",
    "period_at",
    "zone_named",
]


class Span(NamedTuple):
    """A time from `start` on, up to and without `end`."""

    start: float
    end: float


def zone_named(name: str) -> tzinfo:
    """Find a time zone by its IANA name.

    Raises ValueError for a name that there isn't.
    """
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a directory
        raise ValueError(f"{name!r} is no time zone such as UTC or Europe/Berlin") from None


def period_at(period: Period, moment: float, zone: tzinfo) -> Span:
    """Return the day, week (from Monday) or month that a moment lies in."""
    today = datetime.fromtimestamp(moment, zone).date()
    match period:
        case Period.DAILY:
            first = today
            after = first + timedelta(days=1)
        case Period.WEEKLY:
            first = today - timedelta(days=today.weekday())
            after = first + timedelta(weeks=1)
        case Period.MONTHLY:
            first = today.replace(day=1)
            after = (first + timedelta(days=31)).replace(day=1)
    return Span(_midnight(first, zone), _midnight(after, zone))


def day_or_time(text: str, zone: tzinfo) -> float:
    """Read a `Date`: a UTC time, or a day, which begins at midnight in the zone.

    Raises ValueError for a date that there isn't.
    """
    if "T" in text:
        return datetime.fromisoformat(text).timestamp()
    return _midnight(date.fromisoformat(text), zone)


def day_after(text: str, zone: tzinfo) -> float:
    """Read a `Date` as an end: a UTC time, or the end of a day in the zone.

    Raises ValueError for a date that there isn't.
    """
    if "T" in text:
        return day_or_time(text, zone)
    return _midnight(date.fromisoformat(text) + timedelta(days=1), zone)


def moment_text(moment: float, zone: tzinfo) -> str:
    """Write a moment for people: `2026-12-01 00:00 CET`."""
    return f"{datetime.fromtimestamp(moment, zone):%Y-%m-%d %H:%M %Z}"


def clock_time(day: date, minutes: int, zone: tzinfo) -> float:
    """Return when the clocks of a zone first show this minute of a day, or a later one."""
    wall = datetime(day.year, day.month, day.day, *divmod(minutes, 60), tzinfo=zone)
    # fold=0 takes the first of two such times; one that clocks jump over it takes at the offset
    # before the jump, which names a moment after it.
    moment = wall.astimezone(UTC)
    shown = moment.astimezone(zone)
    if shown.replace(tzinfo=None) == wall.replace(tzinfo=None):
        return moment.timestamp()
    offset = shown.utcoffset()
    before, after = wall.replace(fold=1).astimezone(UTC).timestamp(), moment.timestamp()
    while after - before > 1:
        middle = (before + after) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            after = middle
        else:
            before = middle
    return after


def _midnight(day: date, zone: tzinfo) -> float:
    return clock_time(day, 0, zone)
