"""The line: in which order waiting work is looked at (DESIGN §3, Order)."""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairslice.booking import Booking
from fairslice.fairshare import OrderKey, order_key
from fairslice.placement import PodNeeds
from fairslice.policy import Policy, Team
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.policy import Preempts, WithinTeam
from fairslice_queue.rights import Rights
from fairslice_queue.tally import Tally

__all__ = ["Line", "Waiting"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A booking in line. `shape` is equal for requests that fit on the same nodes.

    `blocked` says why it is not looked at at all; `not_before` keeps work back after a failed
    start (Unix seconds), for `failure`; `runtime` is the declared run time in seconds, 0 if
    none; `order` is the lead's own order, smaller first.
    """

    booking: Booking
    needs: PodNeeds
    shape: bytes
    runtime: float = 0.0
    not_before: float = 0.0
    blocked: str = ""
    failure: str = ""
    order: int = 0


class Line:
    """Waiting work in order.

    `tally` and `shares` may change while it is walked through, if `judge_anew` is told.
    """

    def __init__(
        self,
        policy: Policy,
        teams: TeamIndex,
        tally: Tally,
        shares: Mapping[str, float],
        now: float,
        rights: Rights | None = None,
    ) -> None:
        self._rights = rights or Rights(teams, tally, now)
        self._policy = policy
        self._teams = teams
        self._tally = tally
        self._shares = shares
        self._now = now
        self._version = 0
        # Whatever the options of one shape need within a guarantee, by team.
        self._asks: dict[bytes, tuple[tuple[str, int], ...]] = {}

    def walk(self, waiting: Sequence[Waiting]) -> Iterator[tuple[Waiting, Team]]:
        """Yield the line; a team's place is judged anew after each of its releases."""
        lines: defaultdict[str, list[Waiting]] = defaultdict(list)
        for item in waiting:
            lines[item.booking.team].append(item)
        heads: list[tuple[OrderKey, str, int, int]] = []
        for name, line in lines.items():
            team = self._teams.named(name)
            if team is not None:
                self._sort(line)
                heapq.heappush(heads, (self.key(line[0], team), name, 0, self._version))
        while heads:
            key, name, index, version = heapq.heappop(heads)
            team = self._teams.named(name)
            assert team is not None
            line = lines[name]
            if version != self._version:
                fresh = self.key(line[index], team)
                if fresh > key and heads and heads[0][0] < fresh:
                    heapq.heappush(heads, (fresh, name, index, self._version))
                    continue
            yield line[index], team
            if index + 1 < len(line):
                following = self.key(line[index + 1], team)
                heapq.heappush(heads, (following, name, index + 1, self._version))

    def judge_anew(self) -> None:
        """Take note that the tally or the shares have changed."""
        self._version += 1

    def key(self, item: Waiting, team: Team) -> OrderKey:
        """Make the key by which work is compared across teams."""
        booking = item.booking
        return order_key(
            passes_all=self._passes_all(booking),
            aged=self._aged(booking),
            scavenges=self._rights.scavenges(booking),
            within_guarantee=self._within_guarantee(item, team),
            rank=booking.rank,
            share=self._shares.get(team.name, 0.0),
            queued_at=booking.queued_at,
            name=booking.id,
        )

    def _sort(self, line: list[Waiting]) -> None:
        """Put a team's own line in order: class, the lead's order, first come."""
        line.sort(key=self._first_come)
        if self._policy.within_team is not WithinTeam.FAIR_BY_USER:
            return
        # Fair by user: each user's next work counts as if the earlier ran already.
        load: dict[str, int] = {}
        fair: dict[str, int] = {}
        for item in line:
            booking = item.booking
            held = load.get(booking.user, self._tally.users[booking.team, booking.user])
            fair[booking.id] = held
            load[booking.user] = held + booking.options[0].milli * booking.pods
        line.sort(
            key=lambda item: (
                *self._first_come(item)[:3],
                fair[item.booking.id],
                *self._first_come(item)[3:],
            )
        )

    def _first_come(self, item: Waiting) -> tuple[int, int, int, float, str]:
        booking = item.booking
        passes = 2
        if self._rights.scavenges(booking):
            passes = 3
        elif self._passes_all(booking):
            passes = 0
        elif self._aged(booking):
            passes = 1
        return (passes, booking.rank, item.order, booking.queued_at, booking.id)

    def _passes_all(self, booking: Booking) -> bool:
        work_class = self._policy.classes.get(booking.work_class)
        return work_class is not None and work_class.preempts is Preempts.EVERYONE

    def _aged(self, booking: Booking) -> bool:
        return 0 < self._policy.aging <= self._now - booking.queued_at

    def _within_guarantee(self, item: Waiting, team: Team) -> bool:
        asks = self._asks.get(item.shape)
        if asks is None:
            booking = item.booking
            asks = tuple({(o.pool, o.milli * booking.pods): None for o in booking.options})
            self._asks[item.shape] = asks
        pools, rights = self._tally.pools, self._rights
        return any(
            pools[team.name, pool] + milli <= rights.guaranteed(team.name, pool)
            for pool, milli in asks
        )
