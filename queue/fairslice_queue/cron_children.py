"""A CronJob's runs in line: its place is the CronJob's, and only so many of them wait.

`Forbid` makes no run while one waits. `Replace` deletes the one that waits and makes another, which
takes over its time in line. Of `Allow`, runs beyond a few that wait are skipped, as the CronJob's
own controller skips what it missed, and an event on the CronJob says so.
"""

import logging
import time
from collections import OrderedDict

from msgspec import Struct, json, structs

from fairslice import messages, stamps
from fairslice.booking import Booking, Ref
from fairslice.kube.objects import ObjectMeta
from fairslice_queue.facts import WorkloadFacts
from fairslice_queue.history import past_of
from fairslice_queue.seat import Seat

__all__ = ["CronChildren"]

_log = logging.getLogger(__name__)

MOST_WAITING = 5
_TAKEN_OVER_SECONDS = 120.0
_REMEMBERED = 10_000

_Cron = tuple[str, str]


class _Named(Struct, frozen=True):
    metadata: ObjectMeta


class CronChildren:
    """Looks at Jobs that CronJobs made. All of it can be lost: what waits is looked at anew."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._cron_of: dict[str, _Cron] = {}
        self._waiting: dict[_Cron, set[str]] = {}
        self._left: OrderedDict[_Cron, tuple[float, float]] = OrderedDict()

    async def look_at(self, booking: Booking, workload: WorkloadFacts | None) -> bool:
        """Look at work in line. True: it is changed or skipped. Raises LedgerUnavailable."""
        cron = _cron_of(workload) if workload is not None else None
        if workload is None or cron is None:
            return False
        self._cron_of[booking.id] = cron
        siblings = self._waiting.setdefault(cron, set())
        siblings.add(booking.id)
        books = self._seat.mirror.books
        for sibling in list(siblings):
            known = books.get(sibling)
            if known is None or not known.state.waits:
                siblings.discard(sibling)
        if len(siblings) > MOST_WAITING and not past_of(workload.annotations).last:
            newest = max(siblings, key=lambda key: _age(books.get(key)))
            if newest == booking.id:
                siblings.discard(booking.id)
                self._seat.calls.start(booking.id, self._skip(booking, cron))
                return True
        return await self._take_over(booking, workload, cron)

    def over(self, booking: Booking) -> None:
        """Take note that a booking is over; what waited may leave its time in line."""
        cron = self._cron_of.pop(booking.id, None)
        if cron is None:
            return
        siblings = self._waiting.get(cron)
        if siblings is not None:
            siblings.discard(booking.id)
            if not siblings:
                del self._waiting[cron]
        if booking.state.waits:
            self._left[cron] = (booking.queued_at, self._seat.clock())
            self._left.move_to_end(cron)
            if len(self._left) > _REMEMBERED:
                self._left.popitem(last=False)

    async def _take_over(self, booking: Booking, workload: WorkloadFacts, cron: _Cron) -> bool:
        found = self._left.get(cron)
        if found is None:
            return False
        queued_at, when = found
        if not 0 <= self._seat.clock() - when <= _TAKEN_OVER_SECONDS:
            del self._left[cron]
            return False
        if queued_at >= booking.queued_at:
            return False
        del self._left[cron]
        seat = self._seat
        await seat.ledger.adopt(seat.epoch, structs.replace(booking, queued_at=queued_at))
        note = {stamps.QUEUED_AT: _rfc3339(queued_at)}
        annotate = seat.actor.annotate("Job", workload.namespace, workload.name, workload.uid, note)
        seat.calls.start(booking.id, annotate)
        return True

    async def _skip(self, booking: Booking, cron: _Cron) -> None:
        """Delete a run that is one too many. Raises ApiError."""
        seat, ref = self._seat, booking.ref
        path = seat.actor.paths.of(ref.kind, ref.namespace, ref.name)
        meta = json.decode(await seat.client.get(path), type=_Named).metadata
        if meta.uid != ref.uid:
            return
        uid = next((item.uid for item in meta.owner_references or () if item.controller), "")
        text = messages.cron_run_skipped(ref.name, MOST_WAITING)
        _log.info("CronJob %s/%s: %s", *cron, text)
        owner = Ref(kind="CronJob", namespace=cron[0], name=cron[1], uid=uid)
        seat.standing.tell(structs.replace(booking, ref=owner), "RunSkipped", text)
        await seat.actor.delete(ref.kind, ref.namespace, ref.name, ref.uid, None)


def _cron_of(workload: WorkloadFacts) -> _Cron | None:
    """Name the CronJob that made a Job: its own name and the minute of the run make the Job's."""
    name, _, minute = workload.name.rpartition("-")
    made = workload.kind == "Job" and "CronJob" in workload.kinds and minute.isdecimal()
    return (workload.namespace, name) if made and name else None


def _age(booking: Booking | None) -> tuple[float, str]:
    return (booking.queued_at, booking.id) if booking is not None else (0.0, "")


def _rfc3339(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
