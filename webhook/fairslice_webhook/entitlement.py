"""What keeps work from starting at once besides caps: budgets that are gone, guarantees kept.

The ledger knows neither. Where work may wait, the queue judges, which knows both to the moment;
where it may not, what the queue told of the teams a moment ago must do.
"""

from collections.abc import Iterable
from datetime import datetime

import msgspec

from fairslice import messages
from fairslice.booking import Option
from fairslice.budgets import Stop, stop_for
from fairslice.periods import moment_text
from fairslice.policy import Team
from fairslice.pool_capacity import pool_capacity
from fairslice.quantity import parse_milli
from fairslice.v1alpha1.team import Exhausted, TeamStatus
from fairslice_queue.ledger import BookRequest
from fairslice_webhook.view import View

__all__ = ["entitled"]

_NO_STATUS = TeamStatus()


def entitled(view: View, team: Team, request: BookRequest) -> BookRequest:
    """Narrow a wish down to what its team may start now; `held_up` then says why."""
    stops = _stops(view, team, request.now)
    if request.overflow_queue:
        return _waiting(view, team, request, stops)
    if not stops and not any(
        view.teams.kept(option.pool, request.now) for option in request.booking.options
    ):
        return request
    why, open_ = "", list[Option]()
    for option in request.booking.options:
        stop = stop_for(stops, option.pool, request.now)
        closed = stop.reason if stop is not None and not stop.scavenges else ""
        closed = closed or _kept(view, team, option, request.booking.pods, request.now)
        if closed:
            why = why or closed
        else:
            open_.append(option)
    if not open_:
        return msgspec.structs.replace(request, start=False, held_up=why)
    if len(open_) == len(request.booking.options):
        return request
    booking = msgspec.structs.replace(request.booking, options=tuple(open_))
    return msgspec.structs.replace(request, booking=booking)


def _waiting(view: View, team: Team, request: BookRequest, stops: tuple[Stop, ...]) -> BookRequest:
    pools = {option.pool for option in request.booking.options}
    for pool in sorted(pools):
        stop = stop_for(stops, pool, request.now)
        if stop is not None:
            return msgspec.structs.replace(request, start=False, held_up=stop.reason)
    # Beyond its guarantee the queue looks at what others keep of theirs.
    guaranteed = {
        pool: team.quota(pool, request.now).guaranteed
        for pool in pools
        if any(name != team.name for name, _ in view.teams.kept(pool, request.now))
    }
    if not guaranteed:
        return request
    limits = msgspec.structs.replace(request.limits, guaranteed=guaranteed)
    return msgspec.structs.replace(request, limits=limits)


def _stops(view: View, team: Team, now: float) -> tuple[Stop, ...]:
    """Read from a team's status which of its budgets are gone."""
    if not team.budgets:
        return ()
    words = {budget.text for budget in team.budgets}
    found = []
    for item in view.statuses.get(team.name, _NO_STATUS).budgets:
        # A budget that was changed since is judged anew before long.
        if not item.exhausted or item.budget not in words:
            continue
        try:
            until = datetime.fromisoformat(item.ends).timestamp()
        except ValueError:
            continue
        when = moment_text(until, view.policy.zone)
        scavenges = item.on_exhausted is Exhausted.SCAVENGE
        reason = messages.budget_exhausted(team.name, item.budget, when)
        found.append(Stop(item.pool, scavenges, until, reason))
    return tuple(stop for stop in found if stop.until > now)


def _kept(view: View, team: Team, option: Option, pods: int, now: float) -> str:
    """Say why an option may not be borrowed, as far as the teams' status tells."""
    pool, asked = option.pool, option.milli * pods
    keepers = [found for found in view.teams.kept(pool, now) if found[0] != team.name]
    guaranteed = team.quota(pool, now).guaranteed
    if not keepers or _used(view, [team.name], pool) + asked <= guaranteed:
        return ""
    kept = sum(max(0, milli - _used(view, [name], pool)) for name, milli in keepers)
    capacity = pool_capacity(view.inventory).get(pool, 0)
    free = max(0, capacity - _used(view, view.statuses, pool))
    return messages.guarantee_kept(pool, free, kept) if kept and asked > free - kept else ""


def _used(view: View, teams: Iterable[str], pool: str) -> int:
    return sum(
        parse_milli(item.used)
        for name in teams
        for item in view.statuses.get(name, _NO_STATUS).pools
        if item.pool == pool
    )
