"""What teams hold, as planning counts it while it gives out more. Amounts are milli-GPU."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TypeVar

from fairslice.booking import Booking, Option

__all__ = ["Tally"]

_K = TypeVar("_K")


class _Layer(Counter[_K]):
    """What was counted here, and below that whatever a counter says."""

    def __init__(self, below: Counter[_K]) -> None:
        super().__init__()
        self._below = below

    def __missing__(self, key: _K) -> int:
        return self._below[key]


@dataclass(slots=True)
class Tally:
    """Holdings by team and pool, class, user; units by team and resource.

    `in_pool` is what everybody holds of a pool, surge included.
    """

    pools: Counter[tuple[str, str]] = field(default_factory=Counter)
    surge: Counter[tuple[str, str]] = field(default_factory=Counter)
    classes: Counter[tuple[str, str]] = field(default_factory=Counter)
    users: Counter[tuple[str, str]] = field(default_factory=Counter)
    resources: Counter[tuple[str, str]] = field(default_factory=Counter)
    in_pool: Counter[str] = field(default_factory=Counter)

    def layer(self) -> "Tally":
        """Count on from here without touching the original, while that doesn't change."""
        return Tally(
            _Layer(self.pools),
            _Layer(self.surge),
            _Layer(self.classes),
            _Layer(self.users),
            _Layer(self.resources),
            _Layer(self.in_pool),
        )

    def add(self, booking: Booking, option: Option, sign: int = 1) -> None:
        """Count all pods of a booking as holding an option (sign -1: no more)."""
        milli = sign * option.milli * booking.pods
        self.in_pool[option.pool] += milli
        if booking.surge:  # a rollout's extra pods count towards no cap
            self.surge[booking.team, option.pool] += milli
            return
        self.pools[booking.team, option.pool] += milli
        self.classes[booking.team, booking.work_class] += milli
        self.users[booking.team, booking.user] += milli
        for resource, units in option.units.items():
            self.resources[booking.team, resource] += sign * units * booking.pods
