"""What keeps work from starting at once besides caps: budgets that are gone, others' guarantees.

Of budgets the ledger knows nothing. Where work may wait, the queue judges, which knows them to
the moment; where it may not, what the queue told of the team a moment ago must do.
"""

from datetime import datetime

import msgspec

from fairslice import messages
from fairslice.booking import Option
from fairslice.budgets import Stop, stop_for
from fairslice.periods import moment_text
from fairslice.policy import Team
from fairslice.v1alpha1.team import Exhausted, TeamStatus
from fairslice_queue.ledger import BookRequest
from fairslice_webhook.view import View

__all__ = ["entitled"]

_NO_STATUS = TeamStatus()


def entitled(view: View, team: Team, request: BookRequest) -> BookRequest:
    """Narrow a wish down to what its team may start now; `held_up` then says why."""
    stops = _stops(view, team, request.now)
    request = _with_rights(view, team, request, stops)
    if not stops:
        return request
    if request.overflow_queue:
        return _waiting(request, stops)
    why, open_ = "", list[Option]()
    for option in request.booking.options:
        stop = stop_for(stops, option.pool, request.now)
        if stop is None or stop.scavenges:
            open_.append(option)
        else:
            why = why or stop.reason
    if not open_:
        return msgspec.structs.replace(request, start=False, held_up=why)
    if len(open_) == len(request.booking.options):
        return request
    booking = msgspec.structs.replace(request.booking, options=tuple(open_))
    return msgspec.structs.replace(request, booking=booking)


def _with_rights(
    view: View, team: Team, request: BookRequest, stops: tuple[Stop, ...]
) -> BookRequest:
    """Say what the team has a right to, where others have rights as well: the rest it borrows."""
    guaranteed: dict[str, int] = {}
    for pool in {option.pool for option in request.booking.options}:
        if view.teams.others_have_rights(team.name, pool, request.now):
            scavenges = stop_for(stops, pool, request.now) if stops else None
            right = team.quota(pool, request.now).guaranteed
            guaranteed[pool] = right if scavenges is None else 0
    if not guaranteed:
        return request
    limits = msgspec.structs.replace(request.limits, guaranteed=guaranteed)
    return msgspec.structs.replace(request, limits=limits)


def _waiting(request: BookRequest, stops: tuple[Stop, ...]) -> BookRequest:
    for pool in sorted({option.pool for option in request.booking.options}):
        stop = stop_for(stops, pool, request.now)
        if stop is not None:
            return msgspec.structs.replace(request, start=False, held_up=stop.reason)
    return request


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
