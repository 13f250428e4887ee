"""A team's caps as the ledger checks them, and which of them stands in the way."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from fairslice.booking import Booking, Option
from fairslice.policy import Team
from fairslice_queue.bookkeeping import Limits
from fairslice_queue.tally import Tally

__all__ = ["Excess", "excess", "limits_of"]

# What rollouts may hold beyond a limit: a quarter of it, as a Deployment's default maxSurge,
# and never less than one whole GPU, or a team of one could not roll out at all.
_SURGE_DIVISOR = 4
_SURGE_FLOOR = 1000


@dataclass(frozen=True, slots=True)
class Excess:
    """A cap that a request would break, in milli-GPU (units where cause is `resource`)."""

    cause: str
    subject: str
    used: int
    limit: int
    asked: int


def limits_of(team: Team, work_class: str, options: Iterable[Option], now: float = inf) -> Limits:
    """Collect the caps that a booking with these options must keep, loans that run included."""
    options = tuple(options)
    pools = {pool: team.limit(pool, now) for pool in {option.pool: None for option in options}}
    named = {resource for option in options for resource in option.units}
    largest = max((limit for limit in pools.values() if limit is not None), default=0)
    return Limits(
        pools=pools,
        work_class=team.class_limits.get(work_class),
        user=team.user_limit,
        resources={name: cap for name, cap in team.resources.items() if name in named},
        surge=max(_SURGE_FLOOR, largest // _SURGE_DIVISOR),
    )


def excess(
    booking: Booking, option: Option, limits: Limits, tally: Tally, *, replaces: bool = False
) -> Excess | None:
    """Find the first cap that starting the booking with this option would break.

    `replaces` says that it is of a rollout whose older pods still hold: what is over a cap may
    then be surge.
    """
    found = _broken(booking, option, limits, tally)
    surge = tally.surge[booking.team, option.pool] + option.milli * booking.pods
    return None if found is not None and replaces and surge <= limits.surge else found


def _broken(booking: Booking, option: Option, limits: Limits, tally: Tally) -> Excess | None:
    asked = option.milli * booking.pods
    checks = (
        ("limit", option.pool, tally.pools[booking.team, option.pool],
         limits.pools.get(option.pool)),
        ("class", booking.work_class, tally.classes[booking.team, booking.work_class],
         limits.work_class),
        ("user", booking.user, tally.users[booking.team, booking.user], limits.user),
    )  # fmt: skip
    for cause, subject, used, cap in checks:
        if cap is not None and used + asked > cap:
            return Excess(cause, subject, used, cap, asked)
    for resource, units in option.units.items():
        cap = limits.resources.get(resource)
        used = tally.resources[booking.team, resource]
        wanted = units * booking.pods
        if cap is not None and used + wanted > cap:
            return Excess("resource", resource, used, cap, wanted)
    return None
