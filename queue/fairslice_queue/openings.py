"""Which options waiting work may have just now: by caps, budgets and what others keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from fairslice import messages
from fairslice.booking import Booking, Option
from fairslice.periods import moment_text
from fairslice.team import Team
from fairslice_queue.caps import Excess, excess, limits_of
from fairslice_queue.holders import Holders
from fairslice_queue.order import Order
from fairslice_queue.rights import Rights
from fairslice_queue.tally import Tally

__all__ = ["Opening", "Openings"]


@dataclass(slots=True)
class Opening:
    """Which options are open, and what the closed ones exceed the team's caps by.

    `over` is what the team itself must give up for an option, in milli-GPU, where the work
    passes everyone. `closed` is why options may not be had, if it isn't for a cap; `unlent` the
    pools of which others keep too much.
    """

    open: tuple[int, ...]
    broken: Excess | None
    over: dict[int, int]
    unlent: list[str]
    closed: str = ""

    @property
    def waits(self) -> Excess | str:
        """What it waits for, if nothing is open."""
        if self.broken is not None and not (self.closed and self.broken.asked > self.broken.limit):
            return self.broken
        return self.closed or messages.no_option_left()

    @property
    def capped(self) -> bool:
        """Say whether nothing but its own team's caps and rights is in the way."""
        return not self.open and (self.broken is not None or bool(self.closed))


class Openings:
    """Finds openings. `tally` and `leaving` (milli-GPU on the way out) may change meanwhile."""

    def __init__(
        self,
        order: Order,
        rights: Rights,
        tally: Tally,
        holders: Holders,
        leaving: Mapping[tuple[str, str], int],
        now: float,
    ) -> None:
        self._order = order
        self._rights = rights
        self._tally = tally
        self._holders = holders
        self._leaving = leaving
        self._now = now

    def of(self, booking: Booking, team: Team) -> Opening:
        """Find what is open to waiting work."""
        limits = limits_of(team, booking.work_class, booking.options, self._now)
        replaces = bool(
            booking.group
            and booking.group_revision
            and self._holders.has_other_revisions(booking.group, booking.group_revision)
        )
        passes_all = self._order.passes_all(booking)
        opening, open_ = Opening((), None, {}, []), list[int]()
        for index, option in enumerate(booking.options):
            closed = self._closed(booking, option, opening)
            if closed:
                opening.closed = opening.closed or closed
                continue
            found = excess(booking, option, limits, self._tally, replaces=replaces)
            if found is None:
                open_.append(index)
                continue
            if found.cause == "limit" and found.asked > found.limit:
                opening.closed = opening.closed or self._window(team, option.pool, found)
            opening.broken = opening.broken or found
            if passes_all and found.cause == "limit" and found.asked <= found.limit:
                over = found.used + found.asked - found.limit
                opening.over[index] = max(0, over - self._leaving.get((team.name, option.pool), 0))
        opening.open = tuple(open_)
        return opening

    def _window(self, team: Team, pool: str, found: Excess) -> str:
        when = team.opens(pool, found.asked, self._now)
        if when == inf:
            return ""
        text = moment_text(when, team.zone)
        return messages.waits_for_window(team.name, pool, found.asked, found.limit, text)

    def is_surge(self, booking: Booking, option: Option, team: Team) -> bool:
        """Say whether starting it with an option is beyond a cap: a rollout's extra pod."""
        limits = limits_of(team, booking.work_class, booking.options, self._now)
        return excess(booking, option, limits, self._tally) is not None

    def _closed(self, booking: Booking, option: Option, opening: Opening) -> str:
        """Say why an option may not be had now, whatever is free; empty if it may."""
        team, pool, asked = booking.team, option.pool, option.milli * booking.pods
        stop = self._rights.stop(team, pool)
        if stop is not None and not (stop.scavenges and self._rights.scavenges(booking)):
            return stop.reason
        unlent = self._rights.unlent(team, pool, asked)
        if unlent is None:
            return ""
        opening.unlent.append(pool)
        return messages.guarantee_kept(pool, *unlent)
