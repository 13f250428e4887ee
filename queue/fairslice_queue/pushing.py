"""Pushing work out: notice, then suspension or eviction; room kept for whom it is done."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from fairslice import messages, stamps
from fairslice.booking import Booking, State
from fairslice.v1alpha1.scalars import duration_seconds
from fairslice_queue.actions import Preempt, Reserve
from fairslice_queue.facts import WorkloadFacts
from fairslice_queue.history import FAILED, PUSHED, noted
from fairslice_queue.restarts import Restarts, asks_for_restart
from fairslice_queue.seat import Seat

__all__ = ["Pushing"]

_DEFAULT_GRACE = 30
_CLAIM_SECONDS = 5.0  # a claim whose victims have gone and that still doesn't fit is void


@dataclass(slots=True)
class _Notice:
    """A victim that has been warned: who goes, for whom, when (monotonic seconds)."""

    action: Preempt
    due: float


@dataclass(frozen=True, slots=True)
class _Eviction:
    """A pod that is to go: why, with how much grace, asked since when (monotonic seconds).

    `past` is its history, this time included.
    """

    why: str
    grace: int
    since: float
    past: str = ""


@dataclass(slots=True)
class _Claim:
    """Room kept for a workload whose victims are leaving."""

    reserve: Reserve
    victims: set[str]
    empty_since: float = 0.0


class Pushing:
    """The preemptions under way. All of it can be lost: a new leader plans them again."""

    def __init__(self, seat: Seat, restarts: Restarts) -> None:
        self._seat = seat
        self._restarts = restarts
        self._notices: dict[str, _Notice] = {}
        self._claims: dict[str, _Claim] = {}
        self._evicting: dict[str, _Eviction] = {}

    @property
    def warned(self) -> Mapping[str, object]:
        """Those who have had their notice, by booking id."""
        return self._notices

    @property
    def claims(self) -> dict[str, Reserve]:
        """The room kept, by whom it is kept for."""
        return {key: claim.reserve for key, claim in self._claims.items()}

    def begin(self, action: Preempt, now: float) -> None:
        """Warn a victim."""
        claim = self._claims.get(action.beneficiary)
        if claim is not None:
            claim.victims.add(action.victim)
        elif action.beneficiary:
            reserve = Reserve(action.beneficiary, 0, {})
            self._claims[action.beneficiary] = _Claim(reserve, {action.victim})
        if action.victim in self._notices:
            return
        due = now + action.notice
        # Whatever becomes of the clock meanwhile.
        self._notices[action.victim] = _Notice(action, time.monotonic() + action.notice)
        if action.notice:
            self._seat.calls.start(action.victim, self._warn(action, due))
        else:
            self._seat.watch.changed.set()

    def keep(self, action: Reserve) -> None:
        """Remember where the work goes that others leave for."""
        claim = self._claims.get(action.booking)
        if claim is not None:
            claim.reserve = action

    def fulfilled(self, booking_id: str) -> None:
        """Forget the room kept for work that has started or is over."""
        self._claims.pop(booking_id, None)

    def forget(self, booking_id: str) -> None:
        """Drop what is remembered of a booking that is over."""
        self.fulfilled(booking_id)
        self._notices.pop(booking_id, None)
        self._evicting.pop(booking_id, None)

    async def act_on_due(self, now: float) -> None:
        """Push out those whose notice has run out."""
        seat = self._seat
        for victim, notice in list(self._notices.items()):
            if time.monotonic() < notice.due or victim in seat.calls.busy:
                continue
            del self._notices[victim]
            booking = seat.mirror.books.get(victim)
            if booking is None or not booking.state.holds:
                continue
            action = notice.action
            await self.push_out(booking, self._why(action), action.grace, now, action.lost_seconds)

    async def push_out(
        self,
        booking: Booking,
        why: str,
        grace: int,
        now: float,
        lost_seconds: float,
        what: str = PUSHED,
    ) -> None:
        """Put a holder on its way out. Raises LedgerUnavailable."""
        seat = self._seat
        await self._leave(booking, now)
        seat.metrics.preempted.labels(booking.team, booking.work_class).inc()
        seat.metrics.lost_seconds.labels(booking.team).inc(lost_seconds)
        seat.standing.tell(booking, "Preempted", why)
        past = noted(seat.watch.annotations_of(booking.id), what, why, now, lost_seconds)
        if booking.ref.kind == "Pod":
            self._evict(booking, why, grace, past)
            return
        workload = seat.watch.workload_of(booking.id)
        if workload is not None:
            notes: dict[str, str | None] = {
                stamps.PREEMPTION: why,
                stamps.STATUS: why,
                stamps.HISTORY: past,
            }
            seat.calls.start(booking.id, self.stop(booking, workload, notes))

    async def take_back(
        self, booking: Booking, workload: WorkloadFacts | None, why: str, now: float
    ) -> None:
        """Take back a release that does not come to run. Raises LedgerUnavailable.

        A workload is suspended; a pod goes, and is made again if it asks for it.
        """
        seat = self._seat
        lost = self.lost_work(booking, now)
        await self._leave(booking, now)
        seat.metrics.lost_seconds.labels(booking.team).inc(lost)
        seat.standing.tell(booking, "FailedToStart", messages.line(why))
        past = noted(seat.watch.annotations_of(booking.id), FAILED, why, now, lost)
        if workload is None:
            self._evict(booking, why, 0, past)
            return
        notes: dict[str, str | None] = {
            stamps.STATUS: messages.line(why),
            stamps.HISTORY: past,
        }
        seat.calls.start(booking.id, self.stop(booking, workload, notes))

    def lost_work(self, booking: Booking, now: float) -> float:
        """Tell how much work would be lost now, in seconds: all since its last checkpoint."""
        watch = self._seat.watch
        started = [pod.started for pod in watch.pods_of(booking.id).values() if pod.started]
        ran = max(0.0, now - min(started, default=now))
        text = watch.annotations_of(booking.id).get(stamps.CHECKPOINT_EVERY)
        try:
            every = duration_seconds(text) if text else 0
        except ValueError:
            every = 0
        return ran % every if every > 0 else ran

    def _evict(self, booking: Booking, why: str, grace: int, past: str) -> None:
        self._evicting[booking.id] = _Eviction(why, grace, time.monotonic(), past)
        self._seat.calls.start(booking.id, self.evict_again(booking))

    async def _leave(self, booking: Booking, now: float) -> None:
        seat = self._seat
        await seat.ledger.settle(
            seat.epoch,
            booking.id,
            state=State.PREEMPTED,
            pods=booking.pods,
            place=booking.place,
            now=now,
        )
        await seat.mirror.follow(0.0)

    async def stop(
        self,
        booking: Booking,
        workload: WorkloadFacts,
        annotations: Mapping[str, str | None],
    ) -> None:
        """Suspend a workload. Raises ApiError."""
        current = self._seat.mirror.books.get(booking.id)
        state = current.state if current is not None else State.QUEUED
        await self._seat.actor.stop_workload(workload, state, annotations)

    async def evict_again(self, booking: Booking) -> None:
        """Evict a booking's pod; a disruption budget is honoured for the policy's evictGrace.

        Raises ApiError.
        """
        seat = self._seat
        eviction = self._evicting.get(booking.id)
        if eviction is None:  # begun by an earlier leader
            work_class = seat.watch.policy.classes.get(booking.work_class)
            grace = work_class.grace if work_class is not None else _DEFAULT_GRACE
            eviction = self._evicting[booking.id] = _Eviction("", grace, time.monotonic())
        for pod in list(seat.watch.pods_of(booking.id).values()):
            if pod.ended or pod.deleting:
                continue
            why = eviction.why or pod.annotations.get(stamps.PREEMPTION) or "made room"
            if eviction.why:
                # Before it is stored: what comes back brings its history along.
                notice = {stamps.PREEMPTION: messages.line(why), stamps.HISTORY: eviction.past}
                await seat.actor.annotate("Pod", pod.namespace, pod.name, pod.uid, notice)
            if asks_for_restart(pod, seat.watch.policy):
                await self._restarts.store_pod(pod, booking.option, booking.restarts)
                await self._restarts.mark("Pod", pod.namespace, pod.name, why)
            if await seat.actor.evict(pod, eviction.grace):
                continue
            if time.monotonic() - eviction.since > seat.watch.policy.evict_grace:
                await seat.actor.delete("Pod", pod.namespace, pod.name, pod.uid, eviction.grace)

    def void_claims(self) -> None:
        """Give up claims that their victims' leaving did not fulfil."""
        books = self._seat.mirror.books
        for booking_id, claim in list(self._claims.items()):
            waiting = books.get(booking_id)
            if waiting is None or not waiting.state.waits:
                del self._claims[booking_id]
            elif any(self._still_holds(victim) for victim in claim.victims):
                claim.empty_since = 0.0
            elif not claim.empty_since:
                claim.empty_since = time.monotonic()
            elif time.monotonic() - claim.empty_since > _CLAIM_SECONDS:
                del self._claims[booking_id]

    def _still_holds(self, victim: str) -> bool:
        if victim in self._notices:
            return True
        booking = self._seat.mirror.books.get(victim)
        return booking is not None and booking.state.leaves

    async def _warn(self, action: Preempt, due: float) -> None:
        seat = self._seat
        booking = seat.mirror.books.get(action.victim)
        if booking is None:
            return
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due))
        notice = {stamps.PREEMPTION: messages.line(f"{when} {self._why(action)}")}
        for pod in list(seat.watch.pods_of(booking.id).values()):
            await seat.actor.annotate("Pod", pod.namespace, pod.name, pod.uid, notice)

    def _why(self, action: Preempt) -> str:
        if not action.beneficiary:
            return messages.preempted(action.rule, action.lost_seconds)
        beneficiary = self._seat.mirror.books.get(action.beneficiary)
        name = str(beneficiary.ref) if beneficiary is not None else "other work"
        return messages.preempted_by(name, action.rule, action.lost_seconds)
