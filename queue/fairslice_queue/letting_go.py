"""Letting work go that nobody holds back any more: its team's queue is not enforced (now)."""

import logging

from msgspec import structs

from fairslice.booking import State
from fairslice.v1alpha1.scalars import Mode
from fairslice_queue.seat import Seat

__all__ = ["let_go"]

_log = logging.getLogger(__name__)

# What applies manifests again may take a Team or the policy away for a moment.
_MISSED_SECONDS = 8.0


async def let_go(seat: Seat) -> None:
    """Free waiting work whose team's queue is not enforced, whatever caps and capacity say.

    So going back from Enforce, or removing a team, leaves nothing stuck in line; a team or a
    policy that is only replaced, by deleting it and making it anew, lets nothing go. A workload's
    pods are then counted one by one, where they come to run. What a person holds stays held.
    Raises LedgerUnavailable.
    """
    watch = seat.watch
    books = seat.mirror.books
    free = {team for team in tuple(books.teams_waiting) if not _is_held(seat, team)}
    if not free:
        return
    for booking in [item for item in books.waiting() if item.team in free]:
        if not booking.bound or booking.id in seat.calls.busy:
            continue
        workload = watch.workload_of(booking.id)
        if workload is not None:
            _log.info("%s is let go: the queue is not enforced for it", booking.ref)
            await seat.ledger.end(seat.epoch, booking.id)
            seat.calls.start(booking.id, seat.actor.free_workload(workload))
        elif booking.ref.kind == "Pod":
            _log.info("%s is let go: the queue is not enforced for it", booking.ref)
            freed = structs.replace(
                booking, state=State.RELEASED, chosen=0, place={}, since=seat.clock(), reason=""
            )
            await seat.ledger.adopt(seat.epoch, freed)
            watch.dirty.add(booking.id)


def _is_held(seat: Seat, name: str) -> bool:
    """Say whether a team's work waits for the queue."""
    watch = seat.watch
    team = watch.teams.named(name)
    if team is not None and watch.policy.modes_for(team).queue is Mode.ENFORCE:
        seat.unheld.pop(name, None)
        return True
    if team is not None and watch.has_policy:
        return False
    now = seat.clock()
    since = seat.unheld.setdefault(name, now)
    if now < since:  # the clock was set back
        seat.unheld[name] = now
    return now - since < _MISSED_SECONDS
