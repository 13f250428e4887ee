"""Looking at what no event tells: objects never seen, releases that find no node."""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from fairslice import messages, stamps
from fairslice.booking import Booking, State
from fairslice.kube.client import ApiError, NotFound
from fairslice.kube.objects import ObjectMeta
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.holding_back import HoldingBack
from fairslice_queue.newcomers import STRANGER
from fairslice_queue.patrol import Patrol
from fairslice_queue.pushing import Pushing
from fairslice_queue.restarts import asks_for_restart
from fairslice_queue.seat import Seat
from fairslice_queue.shared_claims import CLAIM

__all__ = ["Checks"]

_log = logging.getLogger(__name__)

_UNSEEN_SECONDS = 10.0  # a bound booking whose object the watch hasn't shown is looked up
_PAUSE_SECONDS = 0.01


class _Named(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


class Checks:
    """Looks at bookings from time to time. `forget` drops what is remembered of one."""

    def __init__(
        self,
        seat: Seat,
        pushing: Pushing,
        holding_back: HoldingBack,
        forget: Callable[[Booking], None],
    ) -> None:
        self._seat = seat
        self._pushing = pushing
        self._holding_back = holding_back
        self._forget = forget
        self._patrol = Patrol()

    async def all(self) -> None:
        """Look at what no event tells: objects never seen, releases that can't start.

        Of a long line a part each time, with pauses in which decisions are made.
        """
        seat = self._seat
        for batch in self._patrol.turn(seat.mirror.books):
            now = seat.clock()
            for booking_id in batch:
                booking = seat.mirror.books.get(booking_id)
                if booking is not None and booking.bound and booking_id not in seat.calls.busy:
                    await self._check(booking, now)
            seat.watch.changed.set()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _check(self, booking: Booking, now: float) -> None:
        seat = self._seat
        if booking.ref.kind == CLAIM:
            seat.watch.dirty.add(booking.id)
            return
        workload = seat.watch.workload_of(booking.id)
        pods = seat.watch.pods_of(booking.id).values()
        if workload is None and not pods:
            # Since a time to come: the clock was set back.
            lately = 0 <= now - booking.since <= _UNSEEN_SECONDS
            if not lately and not booking.id.startswith(STRANGER):
                await self.look_up(booking)
            return
        stuck_since = now - seat.watch.policy.start_timeout
        stuck = next((pod for pod in pods if pod.is_stuck(stuck_since)), None)
        if workload is not None and booking.state is State.RELEASED and not pods:
            stuck = self._unstamped(workload, stuck_since)
        if stuck is not None and booking.state in (State.RELEASED, State.RUNNING):
            await self._could_not_start(booking, workload, stuck, now)
        elif booking.state is State.RUNNING:
            self._holding_back.started(booking.id)
        elif (
            booking.state is State.PREEMPTED
            and booking.ref.kind == "Pod"
            and any(not pod.deleting and not pod.ended for pod in pods)
        ):
            seat.calls.start(booking.id, self._pushing.evict_again(booking))
        seat.watch.dirty.add(booking.id)

    def _unstamped(self, workload: WorkloadFacts, since: float) -> PodFacts | None:
        """Find a pod that nobody stamped, of a workload that was let go meanwhile, and no node."""
        for pod in self._seat.watch.strange_pods:
            owner = pod.controller
            if owner is not None and owner.uid == workload.uid and pod.is_stuck(since):
                return pod
        return None

    async def _could_not_start(
        self, booking: Booking, workload: WorkloadFacts | None, pod: PodFacts, now: float
    ) -> None:
        """Take back what the kube-scheduler finds no node for, where that can be done."""
        seat, policy = self._seat, self._seat.watch.policy
        why = pod.unschedulable
        if workload is not None:
            # Of work that goes on in parts, only the missing part holds nothing.
            if booking.state is State.RELEASED or workload.starts_whole:
                self._holding_back.failed(booking, why)
                await self._pushing.take_back(booking, workload, why, now)
        elif asks_for_restart(pod, policy) and booking.restarts < policy.restart_limit:
            self._holding_back.failed(booking, why)
            self._holding_back.leave_to_successor(booking)
            await self._pushing.take_back(booking, None, why, now)
        elif booking.ref.kind == "Pod" and self._holding_back.tell_once(booking.id, why):
            # A gate can't be put back: it stays with the kube-scheduler, and keeps no room.
            text = messages.unschedulable(why)
            seat.metrics.start_failures.inc()
            seat.standing.tell(booking, "FailedToStart", text)
            note = {stamps.STATUS: text}
            annotate = seat.actor.annotate("Pod", pod.namespace, pod.name, pod.uid, note)
            seat.calls.start(booking.id, annotate)

    async def look_up(self, booking: Booking) -> None:
        """Ask the API server about an object that the watch doesn't show."""
        seat, ref = self._seat, booking.ref
        try:
            raw = await seat.client.get(seat.actor.paths.of(ref.kind, ref.namespace, ref.name))
            found = msgspec.json.decode(raw, type=_Named).metadata
        except NotFound:
            found = ObjectMeta()
        except ApiError as error:
            _log.warning("%s: %s", ref, error)
            return
        stamp = (found.annotations or {}).get(stamps.BOOKING)
        if found.uid != ref.uid or stamp != booking.id:
            await seat.ledger.end(seat.epoch, booking.id)
            self._forget(booking)
