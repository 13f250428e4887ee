"""Looking after what must come back: disrupted by us or by others, or failed by disruption."""

import logging
from collections.abc import Iterable, Mapping

from fairslice import messages, stamps
from fairslice.booking import Booking, State
from fairslice.kube.client import ApiError, Unreachable
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.history import DISRUPTED
from fairslice_queue.pushing import Pushing
from fairslice_queue.restarts import Restarts, StoredManifest, asks_for_restart
from fairslice_queue.seat import Seat

__all__ = ["Returning"]

_log = logging.getLogger(__name__)

_BY_EVICTION = "EvictionByEvictionAPI"
_ALL_RETRIES_GONE = "BackoffLimitExceeded"


class Returning:
    """Watches over manifests that may be needed, and uses them."""

    def __init__(self, seat: Seat, restarts: Restarts, pushing: Pushing) -> None:
        self._seat = seat
        self._restarts = restarts
        self._pushing = pushing
        self._stored: dict[str, str] = {}
        self._done: dict[str, str] = {}

    async def after_disruption(
        self, booking: Booking, workload: WorkloadFacts, pods: Iterable[PodFacts], now: float
    ) -> bool:
        """Take a workload back whose pods somebody else pushes out. True: it was.

        A Job that failed by this alone is made again; any other is suspended and queued.
        """
        seat = self._seat
        pods = list(pods)
        reason = seat.watch.disrupted.get(booking.id, "")
        if workload.failed and not workload.deleting:
            reason = reason or next((pod.disruption for pod in pods if pod.disruption), "")
            return self._after_failure(booking, workload, pods, reason) if reason else False
        if not reason or booking.state not in (State.RELEASED, State.RUNNING):
            return False
        if workload.finished or workload.suspended or workload.deleting:
            return False
        if reason == _BY_EVICTION:
            # Ours, or a drain that asked politely; the workload's controller follows it up.
            return False
        why, lost = messages.pushed_out_by_others(reason), self._pushing.lost_work(booking, now)
        await self._pushing.push_out(booking, why, 0, now, lost, DISRUPTED)
        return True

    def _after_failure(
        self, booking: Booking, job: WorkloadFacts, pods: Iterable[PodFacts], reason: str
    ) -> bool:
        # The siblings of a pod that was pushed out are deleted by the Job's controller.
        own_fault = any(
            pod.phase == "Failed" and not pod.disruption and not pod.deleting for pod in pods
        )
        # Other kinds count and retry failures by rules of their own.
        if own_fault or job.kind != "Job" or job.failure != _ALL_RETRIES_GONE:
            return False
        if booking.restarts >= self._seat.watch.policy.restart_limit:
            return False
        self._count_lost(booking)
        self._seat.calls.start(booking.id, self._make_again(booking, job, reason))
        return True

    def _count_lost(self, booking: Booking) -> None:
        lost = self._pushing.lost_work(booking, self._seat.clock())
        self._seat.metrics.lost_seconds.labels(booking.team).inc(lost)

    def look_after(self, booking: Booking, pod: PodFacts) -> None:
        """Store the manifest of a pod that asks to be brought back, while it still can be."""
        if pod.gated or self._done.get(booking.id) == pod.uid:
            return
        policy = self._seat.watch.policy
        if booking.id in self._seat.calls.busy or not asks_for_restart(pod, policy):
            return
        if pod.disruption:
            # Stored before; where it was not, there is nothing to mark.
            self._done[booking.id] = pod.uid
            if not booking.state.leaves:  # what we push out ourselves is counted already
                self._count_lost(booking)
            self._seat.calls.start(booking.id, self._mark(pod))
        elif (
            not (pod.ended or pod.deleting)
            and self._stored.get(booking.id) != pod.uid
            and booking.restarts < policy.restart_limit
        ):
            self._stored[booking.id] = pod.uid
            self._seat.calls.start(booking.id, self._store(booking, pod))

    async def store_first(self, booking: Booking, pod: PodFacts) -> None:
        """Store the manifest of a pod before it starts: from then on others may push it out.

        Raises ApiError.
        """
        policy = self._seat.watch.policy
        if not pod.gated or not asks_for_restart(pod, policy):
            return
        if booking.restarts < policy.restart_limit and self._stored.get(booking.id) != pod.uid:
            await self._store(booking, pod)
            self._stored[booking.id] = pod.uid

    def forget(self, booking_id: str) -> None:
        """Drop what is remembered of a booking that is over."""
        self._stored.pop(booking_id, None)
        self._done.pop(booking_id, None)

    async def bring_back(self) -> None:
        """Create again what went through disruption, as soon as its name is free.

        Raises Unreachable.
        """
        for stored in self._seat.watch.stored_manifests:
            try:
                await self._consider(stored)
            except Unreachable:
                raise
            except ApiError as error:
                _log.warning("%s is not brought back yet: %s", stored.where, error)

    async def _consider(self, stored: StoredManifest) -> None:
        subject, watch = stored.subject, self._seat.watch
        namespace, name = stored.namespace, subject.name
        if subject.kind == "Job":
            workload = watch.workloads.get(f"Job/{namespace}/{name}")
            if workload is None or workload.deleting:
                await self._create(stored)
            elif _restarts(workload.annotations) >= subject.restarts:
                await self._restarts.forget(stored)  # it is back already
            elif workload.failed:
                await self._seat.actor.delete("Job", namespace, name, workload.uid, None)
            return
        pod = watch.pods.get(f"{namespace}/{name}")
        if pod is not None:
            await self._consider_pod(stored, pod)
        elif stored.disrupted or f"{namespace}/{name}" in watch.disrupted_pods:
            await self._create(stored)
        else:
            # Its owner deleted it: gone for good.
            await self._restarts.forget(stored)

    async def _consider_pod(self, stored: StoredManifest, pod: PodFacts) -> None:
        if _restarts(pod.annotations) >= stored.subject.restarts:
            await self._restarts.forget(stored)  # it is back already
        elif pod.ended and (pod.disruption or stored.disrupted):
            if not pod.deleting:
                await self._seat.actor.delete("Pod", pod.namespace, pod.name, pod.uid, 0)
        elif pod.ended:
            await self._restarts.forget(stored)

    async def _create(self, stored: StoredManifest) -> None:
        if await self._restarts.bring_back(stored):
            self._seat.metrics.restarted.inc()

    async def _make_again(self, booking: Booking, job: WorkloadFacts, reason: str) -> None:
        await self._restarts.store_job(job, booking.restarts, reason)
        await self._seat.actor.delete("Job", job.namespace, job.name, job.uid, None)

    async def _store(self, booking: Booking, pod: PodFacts) -> None:
        await self._restarts.store_pod(pod, booking.option, booking.restarts)

    async def _mark(self, pod: PodFacts) -> None:
        await self._restarts.mark("Pod", pod.namespace, pod.name, pod.disruption)


def _restarts(annotations: Mapping[str, str]) -> int:
    text = annotations.get(stamps.RESTARTS, "")
    return int(text) if text.isascii() and text.isdigit() else 0
