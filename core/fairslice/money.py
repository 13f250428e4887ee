"""Money, exactly: integer micro-units, prices by effective date, sums that come out even.

What held GPUs cost is summed up as an integer of `COST_UNIT`-ths of a micro-unit, so that no
order of adding and no number of pieces changes a sum; it is rounded once, when it is shown.
Times are integer microseconds since 1970.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from fairslice.quantity import parse_quantity

__all__ = [
    "COST_UNIT",
    "MICRO",
    "NO_PRICES",
    "Prices",
    "apportion",
    "format_micro",
    "parse_micro",
    "rounded",
]

MICRO = 1_000_000
"""Micro-units in a unit of money; microseconds in a second."""

COST_UNIT = 1000 * 3600 * MICRO
"""A micro-unit a GPU-hour is charged by milli-GPU and microsecond: so many make a micro-unit."""

K = TypeVar("K")


def parse_micro(text: str) -> int:
    """Read an amount of money, such as 2.75, in micro-units.

    Raises QuantityError.
    """
    return int(parse_quantity(text) * MICRO)


def format_micro(micro: int) -> str:
    """Write micro-units for people, to the hundredth: 2750000 is 2.75."""
    cents = (abs(micro) + 5000) // 10_000
    sign = "-" if micro < 0 and cents else ""
    return f"{sign}{cents // 100}.{cents % 100:02d}"


@dataclass(frozen=True, slots=True)
class Prices:
    """What a whole GPU of a pool costs an hour, in micro-units, from some moments on.

    Before the first one nothing is charged.
    """

    starts: tuple[int, ...] = ()
    micros: tuple[int, ...] = ()
    currency: str = ""

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int]], currency: str = "") -> "Prices":
        """Make a price list of (from when, micro-units) in any order; of equals the last counts."""
        ordered = sorted(dict(entries).items())
        return cls(tuple(at for at, _ in ordered), tuple(price for _, price in ordered), currency)

    def at(self, moment: int) -> int:
        """Return the price that holds at a moment."""
        index = bisect_right(self.starts, moment)
        return self.micros[index - 1] if index else 0

    def cost(self, milli: int, start: int, end: int) -> int:
        """Return the cost of holding so many milli-GPU from start to end, in COST_UNIT-ths."""
        if end <= start:
            return 0
        cuts = [start, *(at for at in self.starts if start < at < end), end]
        return milli * sum(self.at(since) * (until - since) for since, until in pairwise(cuts))


NO_PRICES = Prices()


def rounded(cost: int) -> int:
    """Round a cost in COST_UNIT-ths to micro-units, halves up."""
    return (cost + COST_UNIT // 2) // COST_UNIT


def apportion(total: int, weights: Mapping[K, int]) -> dict[K, int]:
    """Share an integer out by weight so that the parts sum to it: largest remainders first.

    Each part is its exact share rounded up or down. Of equal remainders the earlier in order of
    the keys' text is rounded up. Without any weight there are no parts.
    """
    whole = sum(weights.values())
    if whole <= 0:
        return dict.fromkeys(weights, 0)
    parts = {key: total * weight // whole for key, weight in weights.items()}
    short = total - sum(parts.values())
    by_remainder = sorted(weights, key=lambda key: (-(total * weights[key] % whole), str(key)))
    for key in by_remainder[:short]:
        parts[key] += 1
    return parts
