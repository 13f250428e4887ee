"""Looking after what must come back: disrupted by us or by others, or failed by disruption."""

import logging

from fairslice import messages
from fairslice.booking import Booking, State
from fairslice.kube.client import ApiError, Unreachable
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.pushing import Pushing
from fairslice_queue.restarts import Restarts, StoredManifest, asks_for_restart
from fairslice_queue.seat import Seat

__all__ = ["Returning"]

_log = logging.getLogger(__name__)

# Evictions are ours, or a drain that asked politely; the pod's controller follows them up.
_BY_EVICTION = "EvictionByEvictionAPI"
_ALL_RETRIES_GONE = "BackoffLimitExceeded"


class Returning:
    """Watches over manifests that may be needed, and uses them."""

    def __init__(self, seat: Seat, restarts: Restarts, pushing: Pushing) -> None:
        self._seat = seat
        self._restarts = restarts
        self._pushing = pushing
        self._stored: set[str] = set()

    async def after_disruption(self, booking: Booking, workload: WorkloadFacts, now: float) -> bool:
        """Take a workload back whose pods somebody else pushes out. True: it was.

        A Job that failed by this alone is made again; any other is suspended and queued.
        """
        seat = self._seat
        reason = seat.watch.disrupted.get(booking.id)
        if reason is None or booking.state not in (State.RELEASED, State.RUNNING):
            return False
        if workload.failed and workload.failure == _ALL_RETRIES_GONE:
            if booking.restarts >= seat.watch.policy.restart_limit:
                return False
            del seat.watch.disrupted[booking.id]
            seat.calls.start(booking.id, self._make_again(booking, workload, reason))
            return True
        if workload.finished or workload.suspended or reason == _BY_EVICTION:
            return False
        del seat.watch.disrupted[booking.id]
        await self._pushing.push_out(booking, messages.pushed_out_by_others(reason), 0, now)
        return True

    def look_after(self, booking: Booking, pod: PodFacts) -> None:
        """Store the manifest of a pod that asks to be brought back, while it still can be."""
        if pod.gated or booking.id in self._seat.calls.busy:
            return
        if pod.disruption:
            if pod.uid in self._stored:
                self._stored.discard(pod.uid)
                self._seat.calls.start(booking.id, self._mark(pod))
            return
        if pod.ended or pod.deleting or pod.uid in self._stored:
            return
        policy = self._seat.watch.policy
        if asks_for_restart(pod, policy) and booking.restarts < policy.restart_limit:
            self._stored.add(pod.uid)
            self._seat.calls.start(booking.id, self._store(booking, pod))

    async def bring_back(self) -> None:
        """Create again what went through disruption, as soon as its name is free.

        Raises Unreachable.
        """
        for stored in self._seat.watch.stored_manifests:
            namespace, name = stored.metadata.namespace, stored.metadata.name
            try:
                await self._consider(stored)
            except Unreachable:
                raise
            except ApiError as error:
                _log.warning("%s/%s is not brought back yet: %s", namespace, name, error)

    async def _consider(self, stored: StoredManifest) -> None:
        kind, name = stored.subject
        namespace = stored.metadata.namespace
        if kind == "Job":
            workload = self._seat.watch.workloads.get(f"Job/{namespace}/{name}")
            if workload is None or workload.deleting:
                await self._create(stored)
            return
        pod = self._seat.watch.pods.get(f"{namespace}/{name}")
        if pod is not None:
            if pod.ended and pod.disruption:
                await self._seat.actor.delete("Pod", namespace, name, pod.uid, 0)
            elif pod.ended:
                await self._restarts.forget(stored)
        elif stored.disrupted:
            await self._create(stored)
        else:
            # Its owner deleted it: gone for good.
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
