"""Making the books say what the API server shows, and objects what the books say."""

import logging
from collections.abc import Mapping

import msgspec

from fairslice import messages, stamps
from fairslice.booking import Booking, State
from fairslice.kube.client import ApiError, NotFound
from fairslice.kube.objects import ObjectMeta
from fairslice_queue.acting import path_of
from fairslice_queue.adoption import Adopter
from fairslice_queue.bookkeeping import LedgerUnavailable
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.ledger import LINGERS
from fairslice_queue.pushing import Pushing
from fairslice_queue.reconcile import (
    LINGER_SECONDS,
    End,
    Fix,
    Keep,
    Requeue,
    Settle,
    Step,
    reconcile_pod,
    reconcile_workload,
)
from fairslice_queue.returning import Returning
from fairslice_queue.seat import Seat

__all__ = ["Reconciler"]

_log = logging.getLogger(__name__)

_UNSEEN_SECONDS = 10.0  # a bound booking whose object the watch hasn't shown is looked up
_FIRST_BACKOFF = 60.0
_LONGEST_BACKOFF = 3600.0
# Bookings of pods that carry no stamp: older than the install, or of exempt namespaces.
_STRANGER = "x-"


class _Named(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


class Reconciler:
    """Looks at bookings one by one. Methods raise LedgerUnavailable."""

    def __init__(self, seat: Seat, pushing: Pushing, returning: Returning) -> None:
        self._seat = seat
        self._pushing = pushing
        self._returning = returning
        self._backoffs: dict[str, tuple[float, int]] = {}

    @property
    def not_before(self) -> Mapping[str, float]:
        """When work that failed to start may be tried again (Unix seconds)."""
        return {key: until for key, (until, _) in self._backoffs.items()}

    def adopter(self) -> Adopter:
        """Make an adopter for the cluster as it is now."""
        watch = self._seat.watch
        return Adopter(watch.policy, watch.teams, watch.inventory, self._seat.new_id)

    async def all_dirty(self) -> None:
        """Look at every booking and stranger that an event may have changed."""
        watch = self._seat.watch
        dirty, watch.dirty = watch.dirty, set()
        try:
            while dirty:
                booking_id = dirty.pop()
                try:
                    await self._one(booking_id)
                except LedgerUnavailable:
                    dirty.add(booking_id)
                    raise
            await self._strangers()
            await self._detach_ended()
        finally:
            watch.dirty |= dirty

    async def _one(self, booking_id: str) -> None:
        seat = self._seat
        if booking_id in seat.calls.busy:
            return  # looked at again when the call is done
        booking = seat.mirror.books.get(booking_id)
        workload = seat.watch.workload_of(booking_id)
        pods = list(seat.watch.pods_of(booking_id).values())
        now = seat.clock()
        if booking is None:
            await self._adopt(workload, pods, now)
            return
        if booking.reason == LINGERS:
            return
        if not booking.bound:
            await self._confirm(booking, workload, pods)
            return
        if booking.ref.kind == "Pod":
            pod = pods[0] if pods else None
            if pod is None and not self._surely_gone(booking):
                return
            if pod is not None:
                self._returning.look_after(booking, pod)
            step = reconcile_pod(booking, pod)
        else:
            if workload is None and not self._surely_gone(booking):
                return
            if workload is not None and await self._returning.after_disruption(
                booking, workload, now
            ):
                return
            step = reconcile_workload(booking, workload, pods)
        await self._apply(booking, step, workload, now)

    def _surely_gone(self, booking: Booking) -> bool:
        return bool(booking.ref.uid) and self._seat.watch.is_gone(booking.ref.uid)

    async def _adopt(
        self, workload: WorkloadFacts | None, pods: list[PodFacts], now: float
    ) -> None:
        booking = None
        if workload is not None:
            if not workload.finished and not workload.deleting:
                booking = self.adopter().workload(workload, now)
        elif pods and not pods[0].ended:
            booking = self.adopter().pod(pods[0], now)
        if booking is not None:
            await self._seat.ledger.adopt(self._seat.epoch, booking)

    async def _confirm(
        self, booking: Booking, workload: WorkloadFacts | None, pods: list[PodFacts]
    ) -> None:
        """Bind a tentative booking to the object that the watch shows."""
        found: WorkloadFacts | PodFacts | None = workload
        if booking.ref.kind == "Pod":
            found = pods[0] if pods else None
        if found is not None:
            await self._seat.ledger.bind(
                booking.id,
                namespace=found.namespace,
                kind=booking.ref.kind,
                name=found.name,
                uid=found.uid,
            )

    async def _strangers(self) -> None:
        """Take pods with GPUs that nobody booked into the books, and let them go again."""
        seat, now = self._seat, self._seat.clock()
        seen = set()
        for pod in seat.watch.unbooked():
            booking_id = _STRANGER + pod.uid
            seen.add(booking_id)
            known = seat.mirror.books.get(booking_id)
            where = pod.node or pod.nominated_node
            if known is not None and known.place == ({where: 1} if where else {}):
                continue
            booking = self.adopter().pod(pod, now)
            if booking is not None:
                await seat.ledger.adopt(seat.epoch, msgspec.structs.replace(booking, id=booking_id))
        for booking in list(seat.mirror.books):
            if booking.id.startswith(_STRANGER) and booking.id not in seen:
                await seat.ledger.end(seat.epoch, booking.id)

    async def _detach_ended(self) -> None:
        """Let pods that ended go from their workloads' bookings, so that others may follow."""
        ended = self._seat.watch.detached
        while ended:
            booking_id, stamp = next(iter(ended))
            await self._seat.ledger.detach(self._seat.epoch, booking_id, pod=stamp)
            ended.discard((booking_id, stamp))

    async def _apply(
        self, booking: Booking, step: Step, workload: WorkloadFacts | None, now: float
    ) -> None:
        seat = self._seat
        match step:
            case Keep():
                pass
            case Settle(state, held, place):
                await seat.ledger.settle(
                    seat.epoch, booking.id, state=state, pods=held, place=place, now=now
                )
            case Requeue(state, held, reason):
                await seat.ledger.requeue(
                    seat.epoch, booking.id, state=state, pods=held, reason=reason, now=now
                )
                if workload is not None and workload.labels.get(stamps.STATE) != _label(state):
                    seat.calls.start(booking.id, self._label(booking, workload, state))
            case End(linger):
                await seat.ledger.end(seat.epoch, booking.id, linger_seconds=linger, now=now)
                self._forget(booking)
            case Fix(what):
                self._fix(booking, what, workload)

    def _forget(self, booking: Booking) -> None:
        seat = self._seat
        seat.calls.forget(booking.id)
        self._pushing.forget(booking.id)
        self._backoffs.pop(booking.id, None)
        seat.watch.disrupted.pop(booking.id, None)
        seat.watch.forget_gone(booking.ref.uid)
        seat.standing.forget(booking.id)

    def _fix(self, booking: Booking, what: str, workload: WorkloadFacts | None) -> None:
        if not self._seat.calls.may_repeat(booking.id):
            return
        if what == "start":
            self._seat.calls.start(booking.id, self.start(booking))
        elif workload is not None:
            self._seat.calls.start(booking.id, self._pushing.stop(booking, workload, {}))

    async def start(self, booking: Booking) -> None:
        """Let the object of a released booking go. Raises ApiError."""
        seat, option = self._seat, booking.option
        if option is None:
            return
        if booking.ref.kind == "Pod":
            for pod in list(seat.watch.pods_of(booking.id).values()):
                given = pod.assignment.option if pod.assignment is not None else option
                if given.units == option.units:
                    await seat.actor.ungate(pod, booking, option)
                else:
                    await self._rebind(booking, pod)
            return
        workload = seat.watch.workload_of(booking.id)
        if workload is not None:
            await seat.actor.start_workload(workload, booking, option)

    async def _rebind(self, booking: Booking, pod: PodFacts) -> None:
        """Have a gated pod that was rewritten to another share, for good, made anew.

        What it is given now lingers for the successor, which its controller makes as soon as
        the pod is gone. Raises ApiError.
        """
        seat = self._seat
        try:
            await seat.ledger.end(
                seat.epoch, booking.id, linger_seconds=LINGER_SECONDS, now=seat.clock()
            )
        except LedgerUnavailable as error:
            _log.warning("%s keeps its share: %s", booking.ref, error)
            return
        await seat.actor.delete("Pod", pod.namespace, pod.name, pod.uid, 0)

    async def _label(self, booking: Booking, workload: WorkloadFacts, state: State) -> None:
        await self._seat.actor.label_state(
            booking.ref.kind, workload.namespace, workload.name, workload.uid, state
        )

    async def refused(self, booking_id: str, reason: str) -> None:
        """Put a release that the API server refuses back in line for a while."""
        booking = self._seat.mirror.books.get(booking_id)
        if booking is None or booking.state is not State.RELEASED:
            return
        try:
            await self._back(booking, reason)
        except LedgerUnavailable:
            return

    async def _back(self, booking: Booking, reason: str) -> None:
        """Put a released workload back in line, to be tried again later and later."""
        seat, now = self._seat, self._seat.clock()
        _, failures = self._backoffs.get(booking.id, (0.0, 0))
        pause = min(_FIRST_BACKOFF * 2**failures, _LONGEST_BACKOFF)
        self._backoffs[booking.id] = (now + pause, failures + 1)
        seat.metrics.start_failures.inc()
        await seat.ledger.requeue(
            seat.epoch,
            booking.id,
            state=State.QUEUED,
            pods=booking.pods,
            reason=messages.line(reason),
            now=now,
        )

    async def check_all(self) -> None:
        """Look at what no event tells: objects never seen, releases that can't start."""
        now = self._seat.clock()
        for booking in list(self._seat.mirror.books):
            if booking.id not in self._seat.calls.busy and booking.bound:
                await self._check(booking, now)

    async def _check(self, booking: Booking, now: float) -> None:
        seat = self._seat
        workload = seat.watch.workload_of(booking.id)
        pods = seat.watch.pods_of(booking.id).values()
        if workload is None and not pods:
            if now - booking.since > _UNSEEN_SECONDS and not booking.id.startswith(_STRANGER):
                await self._look_up(booking)
            return
        if booking.state is State.RELEASED and workload is not None:
            stuck = next(
                (
                    pod.unschedulable
                    for pod in pods
                    if pod.unschedulable
                    and now - pod.unschedulable_since > seat.watch.policy.start_timeout
                ),
                "",
            )
            if stuck:
                await self._back(booking, stuck)
                seat.calls.start(booking.id, self._pushing.stop(booking, workload, {}))
        elif (
            booking.state is State.PREEMPTED
            and booking.ref.kind == "Pod"
            and any(not pod.deleting and not pod.ended for pod in pods)
        ):
            seat.calls.start(booking.id, self._pushing.evict(booking, booking.reason, 0))
        seat.watch.dirty.add(booking.id)

    async def _look_up(self, booking: Booking) -> None:
        """Ask the API server about an object that the watch doesn't show."""
        seat, ref = self._seat, booking.ref
        try:
            raw = await seat.client.get(path_of(ref.kind, ref.namespace, ref.name))
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


def _label(state: State) -> str:
    return state.value.lower()
