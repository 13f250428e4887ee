"""Fair shares: decayed use, dominant share, the order of the queue."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec import Struct

__all__ = [
    "DecayedUse",
    "OrderKey",
    "PoolWeight",
    "dominant_share",
    "explain",
    "jain_index",
    "order_key",
]


class PoolWeight(Struct, frozen=True, kw_only=True):
    """A pool in the sum: its capacity in milli-GPU, its exchange rate in millionths."""

    capacity: int
    rate_millionths: int = 1_000_000


class DecayedUse(Struct, frozen=True, kw_only=True):
    """Use that fades: milli-GPU-seconds, as of `at` (Unix seconds)."""

    amount: float = 0.0
    at: float = 0.0

    def held(self, milli: int, start: float, end: float, half_life: float) -> "DecayedUse":
        """Add so many milli-GPU held from start to end."""
        raise NotImplementedError

    def plus(self, amount: float, when: float, half_life: float) -> "DecayedUse":
        """Add an amount at one instant, such as an entry penalty."""
        raise NotImplementedError

    def value(self, now: float, half_life: float) -> float:
        """Return what is left of it now, in milli-GPU-seconds."""
        raise NotImplementedError


def dominant_share(
    use: Mapping[str, float], pools: Mapping[str, PoolWeight], weight: int, half_life: float
) -> float:
    """Return a team's weighted dominant share. `use` is decayed milli-GPU-seconds by pool."""
    raise NotImplementedError


class OrderKey(NamedTuple):
    """The place in line; smaller goes first, term by term."""

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
) -> OrderKey:
    """Make the key from what is known of a waiting workload."""
    raise NotImplementedError


def explain(first: OrderKey, second: OrderKey) -> str:
    """Say why one goes before the other: the first term that differs."""
    raise NotImplementedError


def jain_index(values: Iterable[float]) -> float:
    """Return Jain's fairness index: 1 for equal shares, 1/n for one that has all."""
    raise NotImplementedError
