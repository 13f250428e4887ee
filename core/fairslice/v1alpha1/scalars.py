"""Scalar types of the custom resources, with the patterns that the CRD schema carries."""

import re
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

__all__ = [
    "CLOCK_PATTERN",
    "ClockTime",
    "Date",
    "DnsName",
    "Duration",
    "Gpus",
    "Mode",
    "Money",
    "Rate",
    "duration_seconds",
    "keyed_by",
]

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)

Duration = Annotated[
    str,
    Meta(
        # No lookahead: the API server's patterns are RE2.
        pattern="^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$",
        min_length=2,
        max_length=24,
        description="A time span such as 90s, 15m, 12h or 7d.",
    ),
]
CLOCK_PATTERN = "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"

ClockTime = Annotated[
    str,
    Meta(
        pattern=CLOCK_PATTERN,
        description="A time of day such as 20:00; 24:00 ends a day.",
    ),
]
Gpus = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,6}(\.[0-9]{1,3})?$",
        description="A number of GPUs, to a thousandth: 4, 0.5.",
    ),
]
Rate = Annotated[
    str,
    Meta(pattern=r"^[0-9]{1,6}(\.[0-9]{1,6})?$", description="A positive factor: 1.0, 2.2."),
]
Money = Annotated[
    str,
    Meta(pattern=r"^[0-9]{1,9}(\.[0-9]{1,6})?$", description="An amount, to a millionth: 2.75."),
]
Date = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}:[0-9]{2}Z)?$",
        description="A day or a UTC time.",
    ),
]
DnsName = Annotated[
    str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", description="A DNS label.")
]


def keyed_by(field: str) -> dict[str, object]:
    """Return the schema keywords that make a list refuse two entries with the same key."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


class Mode(StrEnum):
    """How far a feature goes: nothing, warn and count, or act."""

    OFF = "Off"
    AUDIT = "Audit"
    ENFORCE = "Enforce"


def duration_seconds(text: str) -> int:
    """Seconds of a `Duration`.

    Raises ValueError for text that the schema's pattern refuses.
    """
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is not a time span such as 90s, 15m, 12h or 7d")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
