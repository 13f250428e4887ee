"""Making the books say what the API server shows, and objects what the books say."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b

import msgspec

from fairslice import stamps
from fairslice.booking import Booking, State
from fairslice.gangs import size_in
from fairslice.kube.objects import OwnerReference
from fairslice.workloads import kinds_above
from fairslice_queue.bookkeeping import LedgerUnavailable
from fairslice_queue.checks import Checks
from fairslice_queue.cron_children import CronChildren
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.holding_back import HoldingBack
from fairslice_queue.ledger import LINGERS
from fairslice_queue.newcomers import Newcomers
from fairslice_queue.nodes_to_come import without_stand_ins
from fairslice_queue.pushing import Pushing
from fairslice_queue.reconcile import (
    LINGER_SECONDS,
    End,
    Fix,
    Keep,
    Requeue,
    Settle,
    Step,
    held_by,
    reconcile_pod,
    reconcile_workload,
)
from fairslice_queue.returning import Returning
from fairslice_queue.seat import Seat
from fairslice_queue.shared_claims import CLAIM

__all__ = ["Reconciler"]

_log = logging.getLogger(__name__)

_AT_ONCE = 500


class Reconciler:
    """Looks at bookings one by one. Methods raise LedgerUnavailable."""

    def __init__(
        self, seat: Seat, newcomers: Newcomers, pushing: Pushing, returning: Returning
    ) -> None:
        self._seat = seat
        self._newcomers = newcomers
        self._pushing = pushing
        self._returning = returning
        self._holding_back = HoldingBack(seat)
        self._cron_children = CronChildren(seat)
        self._checks = Checks(seat, pushing, self._holding_back, self._forget)

    @property
    def held_back(self) -> Mapping[str, tuple[float, str]]:
        """Until when work in line is held back (Unix seconds), and why."""
        return self._holding_back.until

    async def all_dirty(self) -> None:
        """Look at every booking and stranger that an event may have changed."""
        watch = self._seat.watch
        # Taken before the books are read: an object's booking is older than the object.
        dirty, watch.dirty = watch.dirty, set()
        try:
            await self._seat.mirror.follow(0.0)
            while dirty:
                booking_id = dirty.pop()
                try:
                    await self._one(booking_id)
                except LedgerUnavailable:
                    dirty.add(booking_id)
                    raise
                if dirty and not len(dirty) % _AT_ONCE:
                    await asyncio.sleep(0)  # others have their turn while a long line is looked at
            await self._newcomers.look_at_strangers()
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
        is_claim = booking.ref.kind == CLAIM if booking else bool(seat.watch.claims.of(booking_id))
        if is_claim:
            await self._newcomers.look_at_claim(booking_id, booking, now)
            return
        if booking is None or (workload is not None and _has_no_option(booking)):
            if booking is None and not seat.calls.may_repeat(booking_id):
                # A stamp that was just taken away may still show in the watch.
                seat.watch.dirty.add(booking_id)
                return
            await self._newcomers.adopt(workload, pods, now)
            if booking is None:
                seat.calls.forget(booking_id)
            return
        if booking.reason == LINGERS:
            return
        real = without_stand_ins(booking, seat.watch.inventory, seat.watch.policy)
        if real is not None:
            renamed = msgspec.structs.replace(booking, options=real)
            await seat.ledger.adopt(seat.epoch, renamed)
            return
        if not booking.bound:
            await self._newcomers.confirm(booking, workload, pods)
            return
        if booking.state.waits:
            self._holding_back.look_at(booking)
            if await self._cron_children.look_at(booking, workload):
                return
        if booking.ref.kind == "Pod":
            step = await self._pod_step(booking, pods, now)
        else:
            step = await self._workload_step(booking, workload, pods, now)
        if step is not None:
            await self._apply(booking, step, workload, pods, now)

    async def _pod_step(self, booking: Booking, pods: list[PodFacts], now: float) -> Step | None:
        pod = pods[0] if pods else None
        if pod is None:
            return reconcile_pod(booking, None) if self._surely_gone(booking) else None
        self._returning.look_after(booking, pod)
        if booking.state.waits and pod.gated and await self._join(booking, pod):
            return None
        return reconcile_pod(booking, pod, now - self._seat.watch.policy.start_timeout)

    async def _workload_step(
        self,
        booking: Booking,
        workload: WorkloadFacts | None,
        pods: list[PodFacts],
        now: float,
    ) -> Step | None:
        if workload is None:
            if not self._surely_gone(booking):
                return None
            if all(pod.ended for pod in pods):
                # It may have lost the label that it is watched by: a consistent read tells.
                await self._checks.look_up(booking)
                return None
        elif await self._returning.after_disruption(booking, workload, pods, now):
            return None
        stuck_since = now - self._seat.watch.policy.start_timeout
        return reconcile_workload(booking, workload, pods, now, stuck_since)

    def _surely_gone(self, booking: Booking) -> bool:
        return bool(booking.ref.uid) and self._seat.watch.is_gone(booking.ref.uid)

    async def _join(self, booking: Booking, pod: PodFacts) -> bool:
        """Give a gated pod the place among its workload's pods that it was refused.

        It came before its predecessor was taken off the books. False: there is none, or the pod
        was rewritten to something else.
        """
        seat, owner = self._seat, pod.controller
        if owner is None or pod.assignment is None:
            return False
        parent = seat.mirror.books.get(self._workload_above(pod, owner))
        if parent is None or parent.id in seat.calls.busy or parent.ref.namespace != pod.namespace:
            return False
        if parent.option is None or parent.state.leaves:
            return False
        size = size_in(parent.option, pod.assignment.option)
        live = [item for item in seat.watch.pods_of(parent.id).values() if not item.ended]
        if not size or held_by(parent, live) + size > parent.pods:
            return False
        attached = await seat.ledger.attach(
            parent.id,
            owner_uid=owner.uid,
            team=parent.team,
            pod="p" + blake2b(pod.uid.encode(), digest_size=10).hexdigest(),
            now=seat.clock(),
            units=sum(pod.assignment.option.units.values()),
            above=kinds_above(owner.kind),
        )
        if not attached.accepted or attached.option is None:
            return False
        await seat.ledger.bind_pod(parent.id, pod=attached.pod, uid=pod.uid, name=pod.name)
        await seat.ledger.end(seat.epoch, booking.id)
        self._forget(booking)
        ungate = seat.actor.ungate(pod, parent, attached.option, attached.pod)
        seat.calls.start(booking.id, ungate)
        return True

    def _workload_above(self, pod: PodFacts, owner: OwnerReference) -> str:
        """Name the booking of the workload that a pod is of, as it says itself or its owner."""
        claimed = pod.annotations.get(stamps.CLAIMED)
        if claimed:
            return claimed
        key = f"{owner.kind}/{pod.namespace}/{owner.name}"
        workload = self._seat.watch.workloads.get(key)
        return workload.booking if workload is not None and workload.uid == owner.uid else ""

    async def _detach_ended(self) -> None:
        """Let pods that ended go from their workloads' bookings, so that others may follow."""
        ended = self._seat.watch.detached
        while ended:
            booking_id, stamp = next(iter(ended))
            await self._seat.ledger.detach(self._seat.epoch, booking_id, pod=stamp)
            ended.discard((booking_id, stamp))

    async def _apply(
        self,
        booking: Booking,
        step: Step,
        workload: WorkloadFacts | None,
        pods: list[PodFacts],
        now: float,
    ) -> None:
        seat = self._seat
        match step:
            case Keep():
                pass
            case Settle(state, held, place) if booking.state.holds:
                await seat.ledger.settle(
                    seat.epoch, booking.id, state=state, pods=held, place=place, now=now
                )
            case Settle(state, held, place):
                holds = msgspec.structs.replace(
                    booking,
                    state=state,
                    pods=held,
                    place=dict(place),
                    chosen=_given(booking, workload, pods),
                    since=now,
                    reason="",
                )
                await seat.ledger.adopt(seat.epoch, holds)
            case Requeue(state, held, reason):
                reason = self._holding_back.why(booking.id) or reason
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
        self._returning.forget(booking.id)
        self._holding_back.forget(booking.id)
        self._cron_children.over(booking)
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
                    await self._returning.store_first(booking, pod)
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
        seat = self._seat
        booking = seat.mirror.books.get(booking_id)
        if booking is None or booking.state is not State.RELEASED:
            return
        self._holding_back.failed(booking, reason)
        with suppress(LedgerUnavailable):  # it is tried again, and refused again
            await seat.ledger.requeue(
                seat.epoch,
                booking.id,
                state=State.QUEUED,
                pods=booking.pods,
                reason=self._holding_back.why(booking.id),
                now=seat.clock(),
            )

    async def check_all(self) -> None:
        """Look at what no event tells: see `Checks`."""
        await self._checks.all()


def _has_no_option(booking: Booking) -> bool:
    """Say whether a booking waits for something that no node offered when it was made."""
    return booking.state.waits and not booking.options


def _given(booking: Booking, workload: WorkloadFacts | None, pods: list[PodFacts]) -> int:
    """Tell from stamps which of its options a booking was given."""
    stamped = [workload.assignment] if workload is not None else []
    stamped += [pod.assignment for pod in pods]
    for assignment in stamped:
        if assignment is None:
            continue
        for index, option in enumerate(booking.options):
            if option == assignment.option or (
                booking.sizes and size_in(option, assignment.option)
            ):
                return index
    return 0


def _label(state: State) -> str:
    return state.value.lower()
