"""Fair shares: dominant share of decayed use, the order of the queue.

The share is Armada's cost (fairness.go): the largest of a team's shares of a pool, each times
the pool's rate, over the team's weight.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

__all__ = [
    "ENTRY_SECONDS",
    "OrderKey",
    "PoolWeight",
    "dominant_share",
    "entry_penalty",
    "jain_index",
    "order_key",
    "passes",
]

ENTRY_SECONDS = 60
"""Seconds of use charged at once when work starts, so that a burst doesn't look unused."""


class PoolWeight(Struct, frozen=True, kw_only=True):
    """A pool in the sum: its capacity in milli-GPU, its exchange rate in millionths."""

    capacity: int
    rate_millionths: int = 1_000_000


def entry_penalty(milli: int) -> float:
    """Return what is charged the moment that work starts, in milli-GPU-seconds."""
    return float(milli * ENTRY_SECONDS)


def dominant_share(
    use: Mapping[str, float], pools: Mapping[str, PoolWeight], weight: int, half_life: float
) -> float:
    """Return a team's weighted dominant share. `use` is decayed milli-GPU-seconds by pool.

    A team that held a whole pool of rate 1 for ever, with weight 1, has share 1.
    """
    # Holding one milli-GPU for ever leaves this many decayed seconds.
    horizon = half_life / math.log(2) if half_life > 0 else 1.0
    share = 0.0
    for name, amount in use.items():
        pool = pools.get(name)
        if pool is not None and pool.capacity > 0:
            part = amount / (pool.capacity * horizon) * (pool.rate_millionths / 1_000_000)
            share = max(share, part)
    return share / max(weight, 1)


class OrderKey(NamedTuple):
    """The place in line; smaller goes first, term by term.

    `passes` is 0 for a class that passes everyone, 1 for what its team's lead marked as urgent, 2
    for what has waited too long, 4 for what may only have what nobody else wants, else 3.
    `borrowed` is 0 within the team's guarantee. `rank` is the class's. `share` is the team's
    weighted dominant share. `queued_at` is when it first came in line, in Unix seconds.
    """

    passes: int
    borrowed: int
    rank: int
    share: float
    queued_at: float
    name: str


def order_key(
    *,
    passes_all: bool,
    aged: bool,
    within_guarantee: bool,
    rank: int,
    share: float,
    queued_at: float,
    name: str,
    scavenges: bool = False,
    urgent: bool = False,
) -> OrderKey:
    """Make the key from what is known of a waiting workload.

    Shares are compared to nine digits, so that rounding never decides.
    """
    return OrderKey(
        passes=passes(scavenges=scavenges, passes_all=passes_all, urgent=urgent, aged=aged),
        borrowed=0 if within_guarantee else 1,
        rank=rank,
        share=round(share, 9),
        queued_at=queued_at,
        name=name,
    )


def passes(*, passes_all: bool, urgent: bool, aged: bool, scavenges: bool) -> int:
    """Return the first term of the order."""
    return 4 if scavenges else 0 if passes_all else 1 if urgent else 2 if aged else 3


def jain_index(values: Iterable[float]) -> float:
    """Return Jain's fairness index: 1 for equal shares, 1/n for one that has all.

    Nobody, or nobody with anything, is fair: 1.
    """
    shares = list(values)
    largest = max(shares, default=0.0)
    if largest <= 0:
        return 1.0
    scaled = [share / largest for share in shares]
    return sum(scaled) ** 2 / (len(scaled) * sum(share * share for share in scaled))
