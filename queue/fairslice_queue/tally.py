"""What teams hold, as planning counts it while it gives out more. Amounts are milli-GPU."""

from collections import Counter
from dataclasses import dataclass, field

from fairslice.booking import Booking, Option

__all__ = ["Tally"]


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

    def copy(self) -> "Tally":
        """Copy, to count on from here without touching the original."""
        return Tally(
            self.pools.copy(),
            self.surge.copy(),
            self.classes.copy(),
            self.users.copy(),
            self.resources.copy(),
            self.in_pool.copy(),
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
