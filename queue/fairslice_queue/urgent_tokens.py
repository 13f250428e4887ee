"""Tokens that make waiting work urgent: so many a week for a team, counted in its status.

A token is spent by a write of the team's status over the version that was read, so that of two
who ask at once, in one process or two, the later one sees the earlier one's. What is spent for
work stays spent for it.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import json, to_builtins

from fairslice.booking import Booking
from fairslice.kube.client import MERGE_PATCH, Conflict, KubeClient
from fairslice.periods import period_at
from fairslice.policy import Policy, Team
from fairslice.v1alpha1.resources import TEAMS, TeamResource
from fairslice.v1alpha1.team import Period, UrgentStatus
from fairslice_queue.books import Books

__all__ = ["Tokens", "spend", "spent_in_week"]

_ATTEMPTS = 8


class Tokens(NamedTuple):
    """What asking for a token came to. `until` is when the week ends, in Unix seconds."""

    granted: bool
    left: int
    until: float


async def spend(
    client: KubeClient,
    team: Team,
    booking: Booking,
    by: str,
    policy: Policy,
    clock: Callable[[], float],
    books: Books,
) -> Tokens:
    """Spend one of a team's tokens for work, unless one was.

    Those of bookings that are over are dropped from the record after their week.
    Raises ApiError, Conflict among them where others kept writing.
    """
    path = f"{TEAMS}/{team.name}"
    for attempt in range(_ATTEMPTS):
        resource = json.decode(await client.get(path), type=TeamResource)
        now = clock()
        week = period_at(Period.WEEKLY, now, policy.zone)
        entries = resource.status.urgent
        left = max(0, team.urgent_per_week - spent_in_week(entries, week.start))
        if any(entry.booking == booking.id for entry in entries):
            return Tokens(True, left, week.end)
        if left == 0:
            return Tokens(False, 0, week.end)
        kept = (e for e in entries if _at(e) >= week.start or e.booking in books)
        spent = UrgentStatus(booking=booking.id, workload=str(booking.ref), by=by, at=_text(now))
        body = {
            "metadata": {"resourceVersion": resource.metadata.resource_version},
            "status": {"urgent": to_builtins((*kept, spent))},
        }
        try:
            await client.patch(f"{path}/status", body, MERGE_PATCH)
        except Conflict:
            if attempt + 1 == _ATTEMPTS:
                raise
            continue
        return Tokens(True, left - 1, week.end)
    raise AssertionError("unreachable")


def spent_in_week(entries: Sequence[UrgentStatus], start: float) -> int:
    """Count the tokens that were spent since a week began (Unix seconds)."""
    return sum(1 for entry in entries if _at(entry) >= start)


def _at(entry: UrgentStatus) -> float:
    try:
        return datetime.fromisoformat(entry.at).timestamp()
    except ValueError:
        return 0.0


def _text(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
