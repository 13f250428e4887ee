"""In which order waiting work is looked at (DESIGN §3, Order)."""

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from fairslice.booking import Booking
from fairslice.fairshare import OrderKey, order_key, passes
from fairslice.placement import PodNeeds
from fairslice.policy import Policy
from fairslice.v1alpha1.policy import Preempts, WithinTeam
from fairslice_queue.rights import Rights
from fairslice_queue.tally import Tally

__all__ = ["Order", "TeamKey", "Waiting"]

# More than any two orders differ by.
_PINNED = 10_000_000_000
_AGED = 2


class Waiting(Struct, frozen=True, gc=False):
    """A booking in line. `shape` is equal for requests that fit on the same nodes.

    `blocked` says why it is not looked at at all; `not_before` keeps work back after a failed
    start (Unix seconds), for `failure`; `runtime` is the longest it will run by its own word or
    its class's, in seconds, 0 if neither says. Of the team's lead are `order`, smaller first,
    and whether it is `pinned` or `urgent`.
    """

    booking: Booking
    needs: PodNeeds
    shape: bytes
    runtime: float = 0.0
    not_before: float = 0.0
    blocked: str = ""
    failure: str = ""
    order: int = 0
    pinned: bool = False
    urgent: bool = False

    @property
    def turn(self) -> int:
        """Its place among its like by the lead's word: pinned first, then by order."""
        return self.order - _PINNED if self.pinned else self.order


class TeamKey(NamedTuple):
    """The place in a team's own line; smaller goes first, term by term.

    `passes` is that of OrderKey, `rank` -1 for what is pinned; `held` is what the user holds, in
    milli-GPU, where users take turns.
    """

    passes: int
    borrowed: int
    rank: int
    order: int
    held: int
    queued_at: float
    name: str


class Order:
    """Makes the keys that waiting work is compared by. `tally` may change meanwhile.

    `share` gives a team's weighted dominant share. `growth` makes shares of different times
    comparable: those of teams that hold nothing all fade alike, so that a share times
    2^(age / half-life) stays what it was, and only grows for whoever holds something.
    """

    def __init__(
        self,
        policy: Policy,
        tally: Tally,
        share: Callable[[str], float],
        now: float,
        rights: Rights,
        growth: float = 1.0,
    ) -> None:
        self._policy = policy
        self._tally = tally
        self._share = share
        self._now = now
        self._rights = rights
        self._growth = growth
        self._by_user = policy.within_team is WithinTeam.FAIR_BY_USER

    def key(self, item: Waiting) -> OrderKey:
        """Make the key by which work is compared across teams."""
        booking = item.booking
        return order_key(
            passes_all=self.passes_all(booking),
            urgent=item.urgent,
            aged=self._aged(booking),
            scavenges=self._rights.scavenges(booking),
            within_guarantee=self._within_guarantee(booking),
            rank=booking.rank,
            share=self._share(booking.team) * self._growth,
            queued_at=booking.queued_at,
            name=booking.id,
        )

    def in_team(self, item: Waiting) -> TeamKey:
        """Make the key by which a team's own work is compared: class, the lead, first come."""
        booking = item.booking
        place = passes(
            passes_all=self.passes_all(booking),
            urgent=item.urgent,
            aged=self._aged(booking),
            scavenges=self._rights.scavenges(booking),
        )
        rank = booking.rank
        if item.pinned and place < 4:
            # Before its team's aged work and better classes, by equal right.
            place, rank = min(place, _AGED), -1
        held = self._tally.users[booking.team, booking.user] if self._by_user else 0
        return TeamKey(
            passes=place,
            borrowed=0 if self._within_guarantee(booking) else 1,
            rank=rank,
            order=item.turn,
            held=held,
            queued_at=booking.queued_at,
            name=booking.id,
        )

    def passes_all(self, booking: Booking) -> bool:
        """Say whether the booking's class passes everyone."""
        work_class = self._policy.classes.get(booking.work_class)
        return work_class is not None and work_class.preempts is Preempts.EVERYONE

    def lifts(self, item: Waiting) -> bool:
        """Say whether work goes before better classes, but for what passes everyone."""
        return item.urgent or self._aged(item.booking)

    def ages_at(self, booking: Booking) -> float:
        """Return when it will have waited too long (Unix seconds); 0: never, or it has."""
        aging = self._policy.aging
        return booking.queued_at + aging if aging > 0 and not self._aged(booking) else 0.0

    def _aged(self, booking: Booking) -> bool:
        return 0 < self._policy.aging <= self._now - booking.queued_at

    def _within_guarantee(self, booking: Booking) -> bool:
        pools, rights, team, pods = self._tally.pools, self._rights, booking.team, booking.pods
        return any(
            pools[team, option.pool] + option.milli * pods <= rights.guaranteed(team, option.pool)
            for option in booking.options
        )
