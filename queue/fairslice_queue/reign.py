"""One leader's reign: reconcile what changed, plan, act; again and again.

What the API server says happened is what happened. The ledger is written before the object is
patched; if this process dies in between, its successor finds the object lagging and repeats
the patch.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fairslice import messages, stamps
from fairslice.booking import Booking, State
from fairslice.kube.client import ApiError, KubeClient, NotFound, Unreachable
from fairslice_queue.acting import Actor, path_of
from fairslice_queue.actions import Explain, Preempt, Release, Reserve
from fairslice_queue.adoption import Adopter
from fairslice_queue.bookkeeping import LedgerUnavailable, Verdict
from fairslice_queue.caps import limits_of
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.ledger import Ledger
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.mirror import Mirror
from fairslice_queue.outlook import outlook
from fairslice_queue.planner import PlanState, plan
from fairslice_queue.reconcile import (
    End,
    Fix,
    Keep,
    Requeue,
    Settle,
    Step,
    reconcile_pod,
    reconcile_workload,
)
from fairslice_queue.restarts import Restarts, asks_for_restart
from fairslice_queue.standing import Standing
from fairslice_queue.usage import Meter
from fairslice_queue.watching import Watch

__all__ = ["Reign"]

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0  # waits, notices and back-offs end without an event
_CHECK_SECONDS = 5.0
_UNSEEN_SECONDS = 10.0  # a bound booking whose object the watch hasn't shown is looked up
_REPEAT_SECONDS = 3.0  # a patch is given this long to show in the watch
_CLAIM_SECONDS = 5.0  # a claim whose victims have gone and that still doesn't fit is void
_FIRST_BACKOFF = 60.0
_LONGEST_BACKOFF = 3600.0
_MAX_CALLS = 32


@dataclass(slots=True)
class _Notice:
    """A victim that has been warned: who goes, for whom, when."""

    action: Preempt
    due: float


@dataclass(slots=True)
class _Claim:
    """Room kept for a workload whose victims are leaving."""

    reserve: Reserve
    victims: set[str]
    empty_since: float = 0.0


@dataclass(slots=True)
class _Backoff:
    until: float
    failures: int = 1


@dataclass(slots=True)
class _Memory:
    """What a reign knows beyond ledger and watch; all of it can be lost."""

    in_flight: set[str] = field(default_factory=set)
    patched: dict[str, float] = field(default_factory=dict)
    notices: dict[str, _Notice] = field(default_factory=dict)
    claims: dict[str, _Claim] = field(default_factory=dict)
    backoffs: dict[str, _Backoff] = field(default_factory=dict)
    evicting: dict[str, float] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    blocked: set[str] = field(default_factory=set)


class Reign:
    """Runs while this process leads. `run` returns never; StaleEpoch ends it."""

    def __init__(
        self,
        client: KubeClient,
        ledger: Ledger,
        watch: Watch,
        mirror: Mirror,
        meter: Meter,
        standing: Standing,
        metrics: QueueMetrics,
        *,
        new_id: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._watch = watch
        self._mirror = mirror
        self._meter = meter
        self._standing = standing
        self._metrics = metrics
        self._new_id = new_id
        self._clock = clock
        self._actor = Actor(client)
        self._restarts = Restarts(client)
        self._epoch = 0
        self._memory = _Memory()
        self._calls = asyncio.Semaphore(_MAX_CALLS)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Take over, then work until cancelled."""
        await self._take_over()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._follow())
            tasks.create_task(self._tick())
            tasks.create_task(self._work())

    async def _take_over(self) -> None:
        while True:
            try:
                self._epoch = await self._ledger.lead()
                if not await self._ledger.ready():
                    await self._rebuild()
                await self._mirror.load()
                break
            except LedgerUnavailable as error:
                _log.warning("the queue waits for its books: %s", error)
                await asyncio.sleep(1.0)
        self._watch.capacity_changed = True
        self._watch.dirty.update(booking.id for booking in self._mirror.books)
        self._watch.dirty.update(item.booking for item in self._watch.workloads.values())
        self._watch.dirty.update(pod.booking for pod in self._watch.pods.values() if pod.booking)
        self._watch.changed.set()

    async def _rebuild(self) -> None:
        """Make the books anew from the API server."""
        _log.warning("the ledger is empty: rebuilding it from the cluster")
        adopter, now = self._adopter(), self._clock()
        bookings: dict[str, Booking] = {}
        for facts in self._watch.workloads.values():
            booking = None if facts.finished or facts.deleting else adopter.workload(facts, now)
            if booking is not None:
                bookings[booking.id] = booking
        for pod in self._watch.pods.values():
            if pod.ended or pod.booking in bookings:
                continue
            booking = adopter.pod(pod, now)
            if booking is not None:
                bookings[booking.id] = booking
        await self._ledger.rebuild(
            self._epoch, tuple(bookings.values()), self._watch.inventory.capacity()
        )
        _log.info("the ledger holds %d bookings again", len(bookings))

    def _adopter(self) -> Adopter:
        return Adopter(self._watch.policy, self._watch.teams, self._watch.inventory, self._new_id)

    async def _follow(self) -> None:
        while True:
            try:
                if await self._mirror.follow(5.0):
                    self._watch.changed.set()
            except LedgerUnavailable:
                await asyncio.sleep(0.5)

    async def _tick(self) -> None:
        elapsed = 0.0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            elapsed += _TICK_SECONDS
            if elapsed >= _CHECK_SECONDS:
                elapsed = 0.0
                await self._check()
            self._watch.changed.set()

    async def _work(self) -> None:
        while True:
            await self._watch.changed.wait()
            self._watch.changed.clear()
            started = time.perf_counter()
            try:
                await self._round()
                self._metrics.redis_up.set(1)
            except LedgerUnavailable as error:
                self._metrics.redis_up.set(0)
                _log.warning("the queue pauses: %s", error)
                await asyncio.sleep(0.5)
                await self._recover()
            self._metrics.round_seconds.observe(time.perf_counter() - started)

    async def _recover(self) -> None:
        """After Redis was away: it may have come back empty."""
        try:
            if not await self._ledger.ready():
                self._epoch = await self._ledger.lead()
                await self._rebuild()
            await self._mirror.load()
        except LedgerUnavailable:
            pass
        self._watch.capacity_changed = True
        self._watch.changed.set()

    async def _round(self) -> None:
        if self._watch.capacity_changed:
            self._watch.capacity_changed = False
            try:
                await self._ledger.publish_capacity(self._epoch, self._watch.inventory.capacity())
            except LedgerUnavailable:
                self._watch.capacity_changed = True
                raise
        await self._mirror.follow(0.0)
        dirty, self._watch.dirty = self._watch.dirty, set()
        try:
            while dirty:
                booking_id = dirty.pop()
                try:
                    await self._reconcile(booking_id)
                except LedgerUnavailable:
                    dirty.add(booking_id)
                    raise
            await self._adopt_strangers()
            await self._detach_ended()
        finally:
            self._watch.dirty |= dirty
        await self._mirror.follow(0.0)
        now = self._clock()
        await self._due_notices(now)
        actions = plan(self._outlook(now), now)
        self._standing.begin(now)
        for action in actions:
            match action:
                case Release():
                    await self._release(action, now)
                case Preempt():
                    self._preempt(action, now)
                case Reserve():
                    self._reserve(action, now)
                case Explain():
                    await self._explain(action, now)
        self._standing.end()
        self._void_claims(now)

    async def _explain(self, action: Explain, now: float) -> None:
        self._standing.explain(self._mirror.books.get(action.booking), action, now)
        blocked = self._memory.blocked
        if action.capped != (action.booking in blocked):
            # What only its own team's caps hold up must not keep others from the fast path.
            await self._ledger.block(self._epoch, action.booking, blocked=action.capped)
            (blocked.add if action.capped else blocked.discard)(action.booking)

    # Reconciliation.

    async def _reconcile(self, booking_id: str) -> None:
        if booking_id in self._memory.in_flight:
            return  # looked at again when the call in flight is done
        booking = self._mirror.books.get(booking_id)
        workload = self._watch.workload_of(booking_id)
        pods = list(self._watch.pods_of(booking_id).values())
        now = self._clock()
        if booking is None:
            await self._adopt(workload, pods, now)
            return
        if not booking.bound:
            await self._confirm(booking, workload, pods)
            return
        if booking.ref.kind == "Pod":
            pod = pods[0] if pods else None
            if pod is None and not self._surely_gone(booking):
                return
            await self._look_after(booking, pod)
            step = reconcile_pod(booking, pod)
        else:
            if workload is None and not self._surely_gone(booking):
                return
            if workload is not None and await self._was_disrupted(booking, workload, now):
                return
            step = reconcile_workload(booking, workload, pods)
        await self._apply(booking, step, workload, pods, now)

    async def _confirm(
        self, booking: Booking, workload: WorkloadFacts | None, pods: list[PodFacts]
    ) -> None:
        """Bind a tentative booking to the object that the watch shows."""
        found: WorkloadFacts | PodFacts | None = workload
        if booking.ref.kind == "Pod":
            found = pods[0] if pods else None
        if found is not None:
            await self._ledger.bind(
                booking.id,
                namespace=found.namespace,
                kind=booking.ref.kind,
                name=found.name,
                uid=found.uid,
            )

    def _surely_gone(self, booking: Booking) -> bool:
        return bool(booking.ref.uid) and self._watch.is_gone(booking.ref.uid)

    async def _adopt(
        self, workload: WorkloadFacts | None, pods: list[PodFacts], now: float
    ) -> None:
        booking = None
        if workload is not None:
            if not workload.finished and not workload.deleting:
                booking = self._adopter().workload(workload, now)
        elif pods and not pods[0].ended:
            booking = self._adopter().pod(pods[0], now)
        if booking is not None:
            await self._ledger.adopt(self._epoch, booking)

    async def _adopt_strangers(self) -> None:
        """Take pods with GPUs that nobody booked into the books, and let them go again."""
        now = self._clock()
        for pod in self._watch.unbooked():
            booking_id = _stranger_id(pod)
            known = self._mirror.books.get(booking_id)
            where = pod.node or pod.nominated_node
            if known is not None and known.place == ({where: 1} if where else {}):
                continue
            booking = self._adopter().pod(pod, now)
            if booking is not None:
                await self._ledger.adopt(
                    self._epoch, msgspec.structs.replace(booking, id=booking_id)
                )
        for booking in list(self._mirror.books):
            if booking.id.startswith(_STRANGER) and booking.ref.uid:
                key = f"{booking.ref.namespace}/{booking.ref.name}"
                facts = self._watch.pods.get(key)
                if facts is None or facts.uid != booking.ref.uid or facts.ended:
                    await self._ledger.end(self._epoch, booking.id)

    async def _detach_ended(self) -> None:
        """Let pods that ended go from their workloads' bookings, so that others may follow."""
        ended = self._watch.detached
        while ended:
            booking_id, stamp = next(iter(ended))
            await self._ledger.detach(self._epoch, booking_id, pod=stamp)
            ended.discard((booking_id, stamp))

    async def _apply(
        self,
        booking: Booking,
        step: Step,
        workload: WorkloadFacts | None,
        pods: list[PodFacts],
        now: float,
    ) -> None:
        match step:
            case Keep():
                pass
            case Settle(state, held, place):
                await self._ledger.settle(
                    self._epoch, booking.id, state=state, pods=held, place=place, now=now
                )
            case Requeue(state, held, reason):
                await self._ledger.requeue(
                    self._epoch, booking.id, state=state, pods=held, reason=reason, now=now
                )
                if workload is not None and workload.labels.get(stamps.STATE) != _label(state):
                    self._call(booking.id, self._label(booking, workload, state))
            case End(linger):
                await self._ledger.end(self._epoch, booking.id, linger_seconds=linger, now=now)
                self._forget(booking)
            case Fix(what):
                self._fix(booking, what, workload, pods)

    def _forget(self, booking: Booking) -> None:
        memory = self._memory
        memory.patched.pop(booking.id, None)
        memory.notices.pop(booking.id, None)
        memory.claims.pop(booking.id, None)
        memory.backoffs.pop(booking.id, None)
        memory.evicting.pop(booking.id, None)
        memory.blocked.discard(booking.id)
        self._watch.disrupted.pop(booking.id, None)
        self._watch.forget_gone(booking.ref.uid)
        self._standing.forget(booking.id)

    def _fix(
        self, booking: Booking, what: str, workload: WorkloadFacts | None, pods: list[PodFacts]
    ) -> None:
        since = time.monotonic() - self._memory.patched.get(booking.id, -_REPEAT_SECONDS)
        if since < _REPEAT_SECONDS:
            return
        if what == "start":
            self._call(booking.id, self._start(booking))
        elif workload is not None:
            self._call(booking.id, self._stop(booking, workload, {}))

    async def _label(self, booking: Booking, workload: WorkloadFacts, state: State) -> None:
        await self._actor.label_state(
            booking.ref.kind, workload.namespace, workload.name, workload.uid, state
        )

    # Acting.

    def _call(self, booking_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Do something to a booking's object in the background; one thing at a time each."""
        assert self._tasks is not None
        self._memory.in_flight.add(booking_id)
        self._tasks.create_task(self._guarded(booking_id, work))

    async def _guarded(self, booking_id: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with self._calls:
                await work
            self._memory.patched[booking_id] = time.monotonic()
        except NotFound:
            _log.debug("%s: its object is gone", booking_id)
        except Unreachable as error:
            _log.warning("%s: %s", booking_id, error)
        except ApiError as error:
            _log.warning("%s: the API server refused: %s", booking_id, error)
            await self._refused(booking_id, str(error))
        finally:
            self._memory.in_flight.discard(booking_id)
            self._watch.dirty.add(booking_id)
            self._watch.changed.set()

    async def _refused(self, booking_id: str, reason: str) -> None:
        """A release that the API server refuses goes back in line for a while."""
        booking = self._mirror.books.get(booking_id)
        if booking is None or booking.state is not State.RELEASED:
            return
        try:
            await self._back(booking, reason)
        except LedgerUnavailable:
            return

    async def _back(self, booking: Booking, reason: str) -> None:
        """Put a released workload back in line, to be tried again later and later."""
        now = self._clock()
        before = self._memory.backoffs.get(booking.id)
        failures = before.failures + 1 if before is not None else 1
        pause = min(_FIRST_BACKOFF * 2 ** (failures - 1), _LONGEST_BACKOFF)
        self._memory.backoffs[booking.id] = _Backoff(now + pause, failures)
        self._metrics.start_failures.inc()
        await self._ledger.requeue(
            self._epoch,
            booking.id,
            state=State.QUEUED,
            pods=booking.pods,
            reason=messages.line(reason),
            now=now,
        )

    async def _release(self, action: Release, now: float) -> None:
        booking = self._mirror.books.get(action.booking)
        team = self._watch.teams.named(booking.team) if booking is not None else None
        if booking is None or team is None or booking.id in self._memory.in_flight:
            return
        outcome = await self._ledger.release(
            self._epoch,
            booking.id,
            chosen=action.chosen,
            place=action.place,
            limits=limits_of(team, booking.work_class, booking.options),
            now=now,
        )
        if outcome.verdict is not Verdict.BOOKED:
            self._watch.changed.set()
            return
        self._memory.claims.pop(booking.id, None)
        released = msgspec.structs.replace(
            booking, state=State.RELEASED, chosen=action.chosen, place=dict(action.place)
        )
        self._metrics.released.labels(booking.team, booking.work_class).inc()
        self._metrics.waited.labels(booking.team, booking.work_class).observe(
            max(0.0, now - booking.queued_at)
        )
        self._call(booking.id, self._start(released))

    async def _start(self, booking: Booking) -> None:
        option = booking.option
        if option is None:
            return
        if booking.ref.kind == "Pod":
            for pod in list(self._watch.pods_of(booking.id).values()):
                await self._actor.ungate(pod, booking, option)
            return
        workload = self._watch.workload_of(booking.id)
        if workload is not None:
            await self._actor.start_workload(workload, booking, option)

    async def _stop(
        self, booking: Booking, workload: WorkloadFacts, annotations: dict[str, str | None]
    ) -> None:
        current = self._mirror.books.get(booking.id)
        state = current.state if current is not None else State.QUEUED
        await self._actor.stop_workload(workload, state, annotations)

    # Preemption.

    def _preempt(self, action: Preempt, now: float) -> None:
        claim = self._memory.claims.get(action.beneficiary)
        if claim is not None:
            claim.victims.add(action.victim)
        else:
            self._memory.claims[action.beneficiary] = _Claim(
                Reserve(action.beneficiary, 0, {}), {action.victim}
            )
        if action.victim in self._memory.notices:
            return
        self._memory.notices[action.victim] = _Notice(action, now + action.notice)
        if action.notice:
            self._call(action.victim, self._warn(action, now + action.notice))
        else:
            self._watch.changed.set()

    def _reserve(self, action: Reserve, now: float) -> None:
        claim = self._memory.claims.get(action.booking)
        if claim is not None:
            claim.reserve = action

    async def _warn(self, action: Preempt, due: float) -> None:
        booking = self._mirror.books.get(action.victim)
        if booking is None:
            return
        text = self._why(action)
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(due))
        notice = {stamps.PREEMPTION: f"{when} {text}"}
        for pod in list(self._watch.pods_of(booking.id).values()):
            await self._actor.annotate("Pod", pod.namespace, pod.name, pod.uid, notice)

    def _why(self, action: Preempt) -> str:
        beneficiary = self._mirror.books.get(action.beneficiary)
        name = str(beneficiary.ref) if beneficiary is not None else "other work"
        return messages.preempted_by(name, action.rule, action.lost_seconds)

    async def _due_notices(self, now: float) -> None:
        for victim, notice in list(self._memory.notices.items()):
            if now < notice.due or victim in self._memory.in_flight:
                continue
            del self._memory.notices[victim]
            booking = self._mirror.books.get(victim)
            if booking is None or not booking.state.holds:
                continue
            await self._push_out(booking, self._why(notice.action), notice.action.grace, now)
            self._metrics.preempted.labels(booking.team, booking.work_class).inc()
            self._metrics.lost_seconds.labels(booking.team).inc(notice.action.lost_seconds)

    async def _push_out(self, booking: Booking, why: str, grace: int, now: float) -> None:
        await self._ledger.settle(
            self._epoch,
            booking.id,
            state=State.PREEMPTED,
            pods=booking.pods,
            place=booking.place,
            now=now,
        )
        await self._mirror.follow(0.0)
        self._standing.tell(booking, "Preempted", why)
        if booking.ref.kind == "Pod":
            self._call(booking.id, self._evict(booking, why, grace))
            return
        workload = self._watch.workload_of(booking.id)
        if workload is not None:
            notes: dict[str, str | None] = {stamps.PREEMPTION: why, stamps.STATUS: why}
            self._call(booking.id, self._stop(booking, workload, notes))

    async def _evict(self, booking: Booking, why: str, grace: int) -> None:
        """Evict a booking's pod; a disruption budget is honoured for the policy's evictGrace."""
        for pod in list(self._watch.pods_of(booking.id).values()):
            if pod.ended or pod.deleting:
                continue
            if asks_for_restart(pod, self._watch.policy):
                await self._restarts.store_pod(pod, booking.option, booking.restarts)
                await self._restarts.mark("Pod", pod.namespace, pod.name, why)
            await self._actor.annotate(
                "Pod", pod.namespace, pod.name, pod.uid, {stamps.PREEMPTION: why}
            )
            first = self._memory.evicting.setdefault(booking.id, time.monotonic())
            if await self._actor.evict(pod, grace):
                continue
            if time.monotonic() - first > self._watch.policy.evict_grace:
                await self._actor.delete("Pod", pod.namespace, pod.name, pod.uid, grace)

    def _void_claims(self, now: float) -> None:
        """Give up claims that their victims' leaving did not fulfil."""
        books = self._mirror.books
        for booking_id, claim in list(self._memory.claims.items()):
            waiting = books.get(booking_id)
            if waiting is None or not waiting.state.waits:
                del self._memory.claims[booking_id]
                continue
            leaving = {
                victim
                for victim in claim.victims
                if victim in self._memory.notices
                or ((booking := books.get(victim)) is not None and booking.state.holds)
            }
            if leaving:
                claim.empty_since = 0.0
            elif not claim.empty_since:
                claim.empty_since = now
            elif now - claim.empty_since > _CLAIM_SECONDS:
                del self._memory.claims[booking_id]

    # Restart and disruption by others.

    async def _was_disrupted(self, booking: Booking, workload: WorkloadFacts, now: float) -> bool:
        """Look after a workload whose pods somebody else pushes out."""
        reason = self._watch.disrupted.get(booking.id)
        if reason is None or booking.state not in (State.RELEASED, State.RUNNING):
            return False
        if workload.failed and workload.failure == "BackoffLimitExceeded":
            if booking.restarts >= self._watch.policy.restart_limit:
                return False
            del self._watch.disrupted[booking.id]
            self._call(booking.id, self._recreate(booking, workload, reason))
            return True
        if workload.finished or workload.suspended or reason == "EvictionByEvictionAPI":
            return False
        del self._watch.disrupted[booking.id]
        self._metrics.preempted.labels(booking.team, booking.work_class).inc()
        await self._push_out(booking, f"pushed out by others ({reason})", 0, now)
        return True

    async def _recreate(self, booking: Booking, job: WorkloadFacts, reason: str) -> None:
        await self._restarts.store_job(job, booking.restarts, reason)
        await self._actor.delete("Job", job.namespace, job.name, job.uid, None)

    async def _look_after(self, booking: Booking, pod: PodFacts | None) -> None:
        """Keep the manifest of a pod that asks to be brought back, while it may be needed."""
        if pod is None or pod.gated:
            return
        if pod.disruption:
            if pod.uid in self._memory.stored and booking.id not in self._memory.in_flight:
                self._memory.stored.discard(pod.uid)
                self._call(booking.id, self._mark(pod))
            return
        if pod.ended or pod.deleting or pod.uid in self._memory.stored:
            return
        if asks_for_restart(pod, self._watch.policy):
            if booking.restarts >= self._watch.policy.restart_limit:
                return
            self._memory.stored.add(pod.uid)
            self._call(booking.id, self._store(booking, pod))

    async def _store(self, booking: Booking, pod: PodFacts) -> None:
        await self._restarts.store_pod(pod, booking.option, booking.restarts)

    async def _mark(self, pod: PodFacts) -> None:
        await self._restarts.mark("Pod", pod.namespace, pod.name, pod.disruption)

    def _outlook(self, now: float) -> PlanState:
        memory = self._memory
        return outlook(
            self._watch,
            self._mirror.books,
            self._meter,
            now,
            busy=memory.in_flight,
            leaving=memory.notices.keys(),
            not_before={key: item.until for key, item in memory.backoffs.items()},
            claims={key: claim.reserve for key, claim in memory.claims.items()},
        )

    # Timers.

    async def _check(self) -> None:
        """What no event tells: objects never seen, releases that can't start, stored manifests."""
        now = self._clock()
        try:
            await self._ledger.expire(self._epoch, now)
            for booking in list(self._mirror.books):
                await self._check_one(booking, now)
            await self._bring_back()
            drift = await self._ledger.audit()
        except LedgerUnavailable:
            return
        except Unreachable as error:
            _log.warning("%s", error)
            return
        self._metrics.drift.set(len(drift))
        for line in drift:
            _log.error("the books don't add up: %s", line)

    async def _check_one(self, booking: Booking, now: float) -> None:
        if booking.id in self._memory.in_flight or not booking.bound:
            return
        seen = self._watch.workload_of(booking.id) or self._watch.pods_of(booking.id)
        if not seen and now - booking.since > _UNSEEN_SECONDS:
            await self._look_up(booking)
            return
        if booking.state is State.RELEASED and booking.ref.kind != "Pod":
            pods = self._watch.pods_of(booking.id).values()
            stuck = [
                pod
                for pod in pods
                if pod.unschedulable
                and now - pod.unschedulable_since > self._watch.policy.start_timeout
            ]
            workload = self._watch.workload_of(booking.id)
            if stuck and workload is not None:
                await self._back(booking, stuck[0].unschedulable)
                self._call(booking.id, self._stop(booking, workload, {}))
        elif booking.state is State.PREEMPTED and booking.ref.kind == "Pod":
            pods = self._watch.pods_of(booking.id).values()
            if any(not pod.deleting and not pod.ended for pod in pods):
                self._call(booking.id, self._evict(booking, booking.reason, 0))
        self._watch.dirty.add(booking.id)

    async def _look_up(self, booking: Booking) -> None:
        """Ask the API server about an object that the watch doesn't show."""
        if booking.id.startswith(_STRANGER):
            return
        try:
            raw = await self._client.get(
                path_of(booking.ref.kind, booking.ref.namespace, booking.ref.name)
            )
        except NotFound:
            await self._ledger.end(self._epoch, booking.id)
            self._forget(booking)
            return
        except ApiError as error:
            _log.warning("%s: %s", booking.ref, error)
            return
        found = msgspec.json.decode(raw, type=_Named)
        stamp = (found.metadata.annotations or {}).get(stamps.BOOKING)
        if found.metadata.uid != booking.ref.uid or stamp != booking.id:
            await self._ledger.end(self._epoch, booking.id)
            self._forget(booking)

    async def _bring_back(self) -> None:
        for stored in self._watch.stored_manifests:
            kind, name = stored.subject
            namespace = stored.metadata.namespace
            pod = self._watch.pods.get(f"{namespace}/{name}") if kind == "Pod" else None
            try:
                if kind == "Job":
                    await self._restarts.bring_back(stored)
                elif pod is None and stored.disrupted:
                    if await self._restarts.bring_back(stored):
                        self._metrics.restarted.inc()
                elif pod is None:
                    await self._restarts.forget(stored)
                elif pod.ended and pod.disruption:
                    await self._actor.delete("Pod", namespace, name, pod.uid, 0)
                elif pod.ended:
                    await self._restarts.forget(stored)
            except Unreachable:
                raise
            except ApiError as error:
                _log.warning("%s/%s is not brought back yet: %s", namespace, name, error)


_STRANGER = "x-"


class _Named(msgspec.Struct, frozen=True):
    metadata: Any


def _stranger_id(pod: PodFacts) -> str:
    return _STRANGER + pod.uid


def _label(state: State) -> str:
    return state.value.lower()
