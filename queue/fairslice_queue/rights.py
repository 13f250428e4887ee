"""What teams may do in pools just now: budgets that are gone, guarantees that are not lent."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fairslice.booking import Booking
from fairslice.budgets import Stop, stop_for
from fairslice.teams import TeamIndex
from fairslice_queue.tally import Tally

__all__ = ["Rights"]

_NONE: Sequence[Stop] = ()


class _Keeping(NamedTuple):
    """What teams that don't lend all of their guarantee may still take; in milli-GPU."""

    by_team: Mapping[str, int]
    total: int

    def __bool__(self) -> bool:
        return bool(self.by_team)


class Rights:
    """Rights at one time. `capacity` is milli-GPU by pool.

    `tally` may change meanwhile, if `recount` is told.
    """

    def __init__(
        self,
        teams: TeamIndex,
        tally: Tally,
        now: float,
        stops: Mapping[str, Sequence[Stop]] | None = None,
        capacity: Mapping[str, int] | None = None,
    ) -> None:
        self._teams = teams
        self._tally = tally
        self._now = now
        self._stops = stops or {}
        self._capacity = capacity or {}
        self._keeping: dict[str, _Keeping] = {}

    def stop(self, team: str, pool: str) -> Stop | None:
        """Find the budget that is gone for new work of a team in a pool."""
        stops = self._stops.get(team, _NONE)
        return stop_for(stops, pool, self._now) if stops else None

    def scavenges(self, booking: Booking) -> bool:
        """Say whether waiting work may only have what nobody else wants."""
        if booking.team not in self._stops:
            return False
        found = [self.stop(booking.team, option.pool) for option in booking.options]
        return None not in found and any(stop is not None and stop.scavenges for stop in found)

    def has_scavenged(self, booking: Booking) -> bool:
        """Say whether a holder has only what nobody else wants."""
        option = booking.option
        return option is not None and self._degraded(booking.team, option.pool)

    def _degraded(self, team: str, pool: str) -> bool:
        stops = self._stops.get(team, _NONE)
        return any(
            stop.degrades and stop.pool in ("", pool) and stop.until > self._now for stop in stops
        )

    def guaranteed(self, team: str, pool: str) -> int:
        """Return what a team always gets back, in milli-GPU: nothing once it scavenges."""
        found = self._teams.named(team)
        if found is None:
            return 0
        guaranteed = found.quota(pool, self._now).guaranteed
        return 0 if guaranteed and self._degraded(team, pool) else guaranteed

    def unlent(self, team: str, pool: str, asked: int) -> tuple[int, int] | None:
        """Say what forbids borrowing so much: what is free, and what of it is kept by others.

        None: it is within the team's own guarantee, or enough stays free.
        """
        capacity = self._capacity.get(pool)
        if capacity is None:
            return None
        kept = self._kept(pool)
        if not kept:
            return None
        tally = self._tally
        if tally.pools[team, pool] + asked <= self.guaranteed(team, pool):
            return None
        by_others = kept.total - kept.by_team.get(team, 0)
        free = max(0, capacity - tally.in_pool[pool])
        return (free, by_others) if asked > free - by_others and by_others else None

    def lendable(self, pool: str) -> int:
        """Return what whoever keeps nothing itself may borrow of a pool, in milli-GPU."""
        free = max(0, self._capacity.get(pool, 0) - self._tally.in_pool[pool])
        return free - self._kept(pool).total

    def recount(self) -> None:
        """Take note that the tally has changed."""
        self._keeping = {}

    def _kept(self, pool: str) -> _Keeping:
        found = self._keeping.get(pool)
        if found is None:
            tally = self._tally
            by_team = {
                name: left
                for name, milli in self._teams.kept(pool, self._now)
                if (left := milli - tally.pools[name, pool] - tally.surge[name, pool]) > 0
            }
            found = self._keeping[pool] = _Keeping(by_team, sum(by_team.values()))
        return found
