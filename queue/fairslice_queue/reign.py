"""One leader's reign: reconcile what changed, plan, act; again and again.

What the API server says happened is what happened. The ledger is written before the object is
patched; if this process dies in between, its successor finds the object lagging and repeats
the patch.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Sequence

from msgspec import structs

from fairslice import stamps
from fairslice.booking import Booking, State
from fairslice.kube.client import KubeClient, Unreachable
from fairslice_queue.actions import Explain, Preempt, Release, Reserve
from fairslice_queue.bookkeeping import LedgerUnavailable, Verdict
from fairslice_queue.caps import limits_of
from fairslice_queue.ledger import Ledger
from fairslice_queue.letting_go import let_go
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.mirror import Mirror
from fairslice_queue.newcomers import Newcomers
from fairslice_queue.outlook import Outlook
from fairslice_queue.overtime import Overtime
from fairslice_queue.planner import PlanState, plan
from fairslice_queue.pod_gangs import releases_of
from fairslice_queue.pushing import Pushing
from fairslice_queue.reconciler import Reconciler
from fairslice_queue.restarts import Restarts
from fairslice_queue.returning import Returning
from fairslice_queue.seat import Calls, Seat
from fairslice_queue.standing import Standing
from fairslice_queue.usage import Meter
from fairslice_queue.watching import Watch

__all__ = ["Reign"]

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0  # waits, notices and back-offs end without an event
_CHECK_SECONDS = 5.0
_AUDIT_SECONDS = 60.0
# The ledger knew better than the plan: let the watch catch up before the next one.
_REFUSAL_SECONDS = 0.05


class Reign:
    """Runs while this process leads; StaleEpoch ends it."""

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
        calls = Calls(watch, self._refused)
        seat = Seat(client, ledger, watch, mirror, meter, standing, metrics, calls, new_id, clock)
        restarts = Restarts(client)
        self._seat = seat
        self._pushing = Pushing(seat, restarts)
        self._returning = Returning(seat, restarts, self._pushing)
        self._newcomers = Newcomers(seat)
        self._reconciler = Reconciler(seat, self._newcomers, self._pushing, self._returning)
        self._outlook = Outlook(watch, meter)
        self._overtime = Overtime(seat)
        self._blocked: dict[str, bool] = {}
        self._capped: dict[str, bool] = {}

    async def run(self) -> None:
        """Take over, then work until cancelled."""
        await self._take_over()
        async with asyncio.TaskGroup() as tasks:
            self._seat.calls.attach(tasks)
            tasks.create_task(self._follow())
            tasks.create_task(self._tick())
            tasks.create_task(self._audit())
            tasks.create_task(self._work())

    async def _take_over(self) -> None:
        level = logging.WARNING
        while True:
            try:
                await self._open_books()
                break
            except LedgerUnavailable as error:
                _log.log(level, "the queue waits for its books: %s", error)
                level = logging.DEBUG  # Said once; it is tried every second.
                await asyncio.sleep(1.0)
        self._newcomers.look_at_all()

    async def _open_books(self) -> None:
        seat = self._seat
        seat.epoch = await seat.ledger.lead()
        if not await seat.ledger.ready():
            await self._rebuild()
        await seat.mirror.load()
        # What teams hold is known now, also of those that a checkpoint says held something.
        tally, now = seat.mirror.books.tally, seat.clock()
        for key in list(seat.meter.known()):
            seat.meter.hold(*key, tally.pools[key] + tally.surge[key], now)

    async def _rebuild(self) -> None:
        """Make the books anew from the API server."""
        seat = self._seat
        bookings = self._newcomers.all_seen()
        # On a new cluster there is nothing to lose.
        level = logging.WARNING if bookings else logging.INFO
        _log.log(level, "the ledger is empty: rebuilding it from the cluster")
        await seat.ledger.rebuild(
            seat.epoch, tuple(bookings.values()), seat.watch.inventory.capacity()
        )
        _log.info("the ledger holds %d bookings again", len(bookings))

    async def _follow(self) -> None:
        seat = self._seat
        while True:
            try:
                if await seat.mirror.follow(5.0):
                    seat.watch.changed.set()
            except LedgerUnavailable:
                await asyncio.sleep(0.5)

    async def _tick(self) -> None:
        seat, elapsed = self._seat, 0.0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            elapsed += _TICK_SECONDS
            try:
                await let_go(seat)
                await self._returning.bring_back()
                self._overtime.check()
                if elapsed >= _CHECK_SECONDS:
                    elapsed = 0.0
                    await seat.ledger.expire(seat.epoch, seat.clock())
                    await self._reconciler.check_all()
            except (LedgerUnavailable, Unreachable) as error:
                _log.debug("checks put off: %s", error)
            seat.watch.changed.set()

    async def _audit(self) -> None:
        """Measure drift: totals that don't follow from the bookings."""
        while True:
            await asyncio.sleep(_AUDIT_SECONDS)
            try:
                drift = await self._seat.ledger.audit()
            except LedgerUnavailable:
                continue
            self._seat.metrics.drift.set(len(drift))
            for line in drift:
                _log.error("the books don't add up: %s", line)

    async def _work(self) -> None:
        seat = self._seat
        while True:
            await seat.watch.changed.wait()
            seat.watch.changed.clear()
            started = time.perf_counter()
            try:
                agreed = await self._round()
                seat.metrics.redis_up.set(1)
            except LedgerUnavailable as error:
                seat.metrics.redis_up.set(0)
                _log.warning("the queue pauses: %s", error)
                await asyncio.sleep(0.5)
                await self._recover()
                agreed = True
            seat.metrics.round_seconds.observe(time.perf_counter() - started)
            if not agreed:
                await asyncio.sleep(_REFUSAL_SECONDS)
                seat.watch.changed.set()

    async def _recover(self) -> None:
        """Go on after Redis was away; it may have come back empty."""
        seat = self._seat
        try:
            if await seat.ledger.ready():
                await seat.mirror.load()
            else:
                await self._open_books()
        except LedgerUnavailable as error:
            _log.debug("still paused: %s", error)
        self._newcomers.look_at_all()

    async def _round(self) -> bool:
        """Do what there is to do. False: the ledger refused a release that was planned."""
        seat = self._seat
        if seat.watch.capacity_changed:
            # Nodes may change while it is published: then it is to be published again.
            seat.watch.capacity_changed = False
            try:
                await seat.ledger.publish_capacity(seat.epoch, seat.watch.inventory.capacity())
            except LedgerUnavailable:
                seat.watch.capacity_changed = True
                raise
        await self._reconciler.all_dirty()
        await seat.mirror.follow(0.0)
        now = seat.clock()
        await self._pushing.act_on_due(now)
        actions = plan(self._state(now), now)
        seat.standing.begin()
        agreed = True
        for action in actions:
            match action:
                case Release():
                    members = self._outlook.members.get(action.booking)
                    if members is None:
                        agreed &= await self._release(action, now)
                    else:
                        agreed &= await self._release_group(action, members, now)
                case Preempt():
                    self._pushing.begin(action, now)
                case Reserve():
                    self._pushing.keep(action)
                case Explain():
                    for each in self._outlook.members.get(action.booking, ()):
                        self._explain(dataclasses.replace(action, booking=each.id))
                    if action.booking not in self._outlook.members:
                        self._explain(action)
        await self._tell_who_is_capped()
        seat.standing.end()
        if len(self._blocked) > 2 * len(seat.standing.lines) + 100:
            lines = seat.standing.lines
            self._blocked = {key: value for key, value in self._blocked.items() if key in lines}
        self._pushing.void_claims(now)
        return agreed

    def _state(self, now: float) -> PlanState:
        seat = self._seat
        return self._outlook.draw(
            seat.mirror.books,
            now,
            busy=seat.calls.busy,
            leaving=self._pushing.warned.keys(),
            held_back=self._reconciler.held_back,
            claims=self._pushing.claims,
        )

    def _explain(self, action: Explain) -> None:
        seat = self._seat
        shown = seat.watch.annotations_of(action.booking).get(stamps.STATUS, "")
        seat.standing.explain(seat.mirror.books.get(action.booking), action, shown)
        if action.capped != self._blocked.get(action.booking):
            self._capped[action.booking] = action.capped

    async def _tell_who_is_capped(self) -> None:
        """Tell the ledger: what only its own team's caps hold up must not keep others waiting."""
        seat = self._seat
        for capped in (True, False):
            ids = [booking for booking, value in self._capped.items() if value is capped]
            await seat.ledger.block(seat.epoch, *ids, blocked=capped)
        self._blocked |= self._capped
        self._capped = {}

    async def _release_group(self, action: Release, members: Sequence[Booking], now: float) -> bool:
        """Release all pods of a group, or none: none is let go before all are in the books."""
        seat, done = self._seat, list[Booking]()
        if not all(self._may_go(booking.id) for booking in members):
            return True
        for release in releases_of(action, members):
            released = await self._booked(release, now)
            if released is None:
                for booking in done:
                    await seat.ledger.requeue(
                        seat.epoch, booking.id, state=State.QUEUED, pods=1, reason="", now=now
                    )
                return False
            done.append(released)
        for booking in done:
            self._let_go(booking, now)
        self._pushing.fulfilled(action.booking)
        return True

    async def _release(self, action: Release, now: float) -> bool:
        if not self._may_go(action.booking):
            return True
        released = await self._booked(action, now)
        if released is None:
            return False
        self._let_go(released, now)
        return True

    def _may_go(self, booking_id: str) -> bool:
        """Say whether what was planned for still waits, with no call under way."""
        booking = self._seat.mirror.books.get(booking_id)
        if booking is None or booking_id in self._seat.calls.busy:
            return False
        return self._seat.watch.teams.named(booking.team) is not None

    async def _booked(self, action: Release, now: float) -> Booking | None:
        """Write a release into the books; None if they refuse it."""
        seat = self._seat
        booking = seat.mirror.books.get(action.booking)
        team = seat.watch.teams.named(booking.team) if booking is not None else None
        if booking is None or team is None:
            return None
        outcome = await seat.ledger.release(
            seat.epoch,
            booking.id,
            chosen=action.chosen,
            place=action.place,
            limits=limits_of(team, booking.work_class, booking.options, now),
            now=now,
        )
        if outcome.verdict is not Verdict.BOOKED:
            _log.debug("%s not released: %s %s", booking.id, outcome.cause, outcome.subject)
            return None
        return structs.replace(
            booking, state=State.RELEASED, chosen=action.chosen, place=dict(action.place)
        )

    def _let_go(self, booking: Booking, now: float) -> None:
        seat = self._seat
        self._pushing.fulfilled(booking.id)
        seat.watch.disrupted.pop(booking.id, None)
        self._blocked.pop(booking.id, None)
        labels = (booking.team, booking.work_class)
        seat.metrics.released.labels(*labels).inc()
        seat.metrics.waited.labels(*labels).observe(max(0.0, now - booking.queued_at))
        seat.calls.start(booking.id, self._reconciler.start(booking))

    async def _refused(self, booking_id: str, reason: str) -> None:
        await self._reconciler.refused(booking_id, reason)
