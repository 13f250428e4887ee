"""Ending runs that have lasted as long as their class allows.

Jobs end by themselves: admission gives them `activeDeadlineSeconds`. Pods are deleted, which
nobody takes for a disruption; other workloads are suspended and held.
"""

from fairslice import messages, stamps
from fairslice.booking import Booking, State
from fairslice.periods import moment_text
from fairslice.policy import WorkClass
from fairslice_queue.facts import PodFacts
from fairslice_queue.seat import Seat

__all__ = ["Overtime"]

_EVENT = "MaxRuntime"


class Overtime:
    """Warns what is about to end, and ends it. All of it can be lost: it is done again."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._told: dict[str, float] = {}

    def check(self) -> None:
        """Look at all that runs."""
        seat = self._seat
        policy, now = seat.watch.policy, seat.clock()
        if not any(item.max_runtime for item in policy.classes.values()):
            return
        running = set()
        for booking in list(seat.mirror.books.holding()):
            work_class = policy.classes.get(booking.work_class)
            if work_class is None or not work_class.max_runtime or booking.ref.kind == "Job":
                continue
            if booking.state is State.RUNNING and booking.id not in seat.calls.busy:
                self._check(booking, work_class, now)
            running.add(booking.id)
        self._told = {key: end for key, end in self._told.items() if key in running}

    def _check(self, booking: Booking, work_class: WorkClass, now: float) -> None:
        seat = self._seat
        pods = [pod for pod in seat.watch.pods_of(booking.id).values() if not pod.ended]
        started = min((pod.started for pod in pods if pod.started), default=None)
        if started is None:
            return
        end = started + work_class.max_runtime
        if now < end - work_class.notice:
            return
        when = moment_text(end, seat.watch.policy.zone)
        text = messages.max_runtime_over(work_class.name, work_class.max_runtime, when)
        if self._told.get(booking.id) != end:
            self._told[booking.id] = end
            seat.standing.tell(booking, _EVENT, text)
            if now < end:
                seat.calls.start(booking.id, self._warn(pods, text))
                return
        if now >= end:
            seat.calls.start(booking.id, self._end(booking, pods, work_class, text))

    async def _warn(self, pods: list[PodFacts], text: str) -> None:
        notice = {stamps.PREEMPTION: text}
        for pod in pods:
            await self._seat.actor.annotate("Pod", pod.namespace, pod.name, pod.uid, notice)

    async def _end(
        self, booking: Booking, pods: list[PodFacts], work_class: WorkClass, text: str
    ) -> None:
        seat = self._seat
        if booking.ref.kind != "Pod":
            workload = seat.watch.workload_of(booking.id)
            if workload is not None and not workload.suspended:
                notes = {stamps.STATUS: text}
                await seat.actor.stop_workload(workload, State.HELD, notes)
            return
        for pod in pods:
            if not pod.deleting:
                grace = work_class.grace
                await seat.actor.delete("Pod", pod.namespace, pod.name, pod.uid, grace)
