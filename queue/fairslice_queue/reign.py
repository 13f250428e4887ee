"""One leader's reign: reconcile what changed, plan, act; again and again.

What the API server says happened is what happened. The ledger is written before the object is
patched; if this process dies in between, its successor finds the object lagging and repeats
the patch.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs

from fairslice.booking import State
from fairslice.kube.client import KubeClient, Unreachable
from fairslice_queue.actions import Preempt, Release, Reserve
from fairslice_queue.bookkeeping import LedgerUnavailable, ReleaseOrder, StaleEpoch, Verdict
from fairslice_queue.caps import limits_of
from fairslice_queue.drift import Drift
from fairslice_queue.leads import Leads
from fairslice_queue.ledger import Ledger
from fairslice_queue.letting_go import let_go
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.mirror import Mirror
from fairslice_queue.newcomers import Newcomers
from fairslice_queue.outlook import Outlook
from fairslice_queue.overtime import Overtime
from fairslice_queue.pod_gangs import releases_of
from fairslice_queue.publishing import Publishing
from fairslice_queue.pushing import Pushing
from fairslice_queue.reconciler import Reconciler
from fairslice_queue.restarts import Restarts
from fairslice_queue.returning import Returning
from fairslice_queue.rights import Rights
from fairslice_queue.scene import Scene
from fairslice_queue.seat import Calls, Seat
from fairslice_queue.standing import Standing
from fairslice_queue.usage import Meter
from fairslice_queue.watching import Watch

__all__ = ["Reign"]

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0  # waits, notices and back-offs end without an event
_CHECK_SECONDS = 5.0
# The ledger knew better than the plan: let the watch catch up before the next one.
_REFUSAL_SECONDS = 0.05
# One event is looked at at once; of many in a row, so many together as come in that time.
_BREATH_SECONDS = 0.01


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
        leads: Leads | None = None,
    ) -> None:
        calls = Calls(watch, self._refused)
        seat = Seat(client, ledger, watch, mirror, meter, standing, metrics, calls, new_id, clock)
        restarts = Restarts(client)
        self._seat = seat
        self._pushing = Pushing(seat, restarts)
        self._returning = Returning(seat, restarts, self._pushing)
        self._newcomers = Newcomers(seat)
        self._reconciler = Reconciler(seat, self._newcomers, self._pushing, self._returning)
        self._outlook = Outlook(watch, meter, leads)
        self._overtime = Overtime(seat)
        self._publishing = Publishing(seat)
        self.drift = Drift(seat, self._restore)
        self._thorough = True

    async def run(self) -> None:
        """Take over, then work until cancelled."""
        await self._take_over()
        self._seat.standing.follow(self._outlook)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._seat.calls.attach(tasks)
                tasks.create_task(self._follow())
                tasks.create_task(self._tick())
                tasks.create_task(self.drift.run())
                tasks.create_task(self._work())
        finally:
            self._seat.standing.follow(None)

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
        bookings = self._newcomers.all_seen()
        # On a new cluster there is nothing to lose.
        level = logging.WARNING if bookings else logging.INFO
        _log.log(level, "the ledger is empty: rebuilding it from the cluster")
        await self._publishing.rebuild(tuple(bookings.values()))
        _log.info("the ledger holds %d bookings again", len(bookings))

    async def _follow(self) -> None:
        seat = self._seat
        while True:
            try:
                if await seat.mirror.follow(5.0):
                    seat.watch.changed.set()
                    await asyncio.sleep(_BREATH_SECONDS)
            except LedgerUnavailable:
                await asyncio.sleep(0.5)

    async def _tick(self) -> None:
        seat, elapsed = self._seat, 0.0
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            elapsed += _TICK_SECONDS
            epoch = seat.epoch
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
            except StaleEpoch:
                if epoch == seat.epoch:
                    raise
                # The books were opened anew meanwhile: it is we who lead.
            self._thorough = True
            seat.watch.changed.set()

    async def _restore(self) -> None:
        """Write the books anew from the bookings that are known, so that their totals add up."""
        seat = self._seat
        await seat.mirror.follow(0.0)
        bookings = tuple(booking for booking in seat.mirror.books if booking.bound)
        await self._publishing.rebuild(bookings)
        await seat.mirror.load()
        self._newcomers.look_at_all()

    async def _work(self) -> None:
        seat, ended, first = self._seat, 0.0, True
        while True:
            await seat.watch.changed.wait()
            await self._breathe(ended + _BREATH_SECONDS)
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
            ended = time.perf_counter()
            seat.metrics.round_seconds.observe(ended - started)
            if first:
                # Most of what there is now stays; going through it again and again for garbage
                # would hold up decisions for tens of milliseconds.
                gc.freeze()
                first = False
            if not agreed:
                await asyncio.sleep(_REFUSAL_SECONDS)
                seat.watch.changed.set()

    async def _breathe(self, until: float) -> None:
        """Let events come together, unless what starts at once depends on them: new capacity."""
        watch = self._seat.watch
        while (left := until - time.perf_counter()) > 0:
            if watch.capacity_changed:
                return
            await asyncio.sleep(min(left, _BREATH_SECONDS / 5))

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
        await self._publishing.tell(seat.clock(), anew=self._thorough)
        await self._reconciler.all_dirty()
        await seat.mirror.follow(0.0)
        now = seat.clock()
        await self._pushing.act_on_due(now)
        thorough, self._thorough = self._thorough, False
        scene = self._scene(now, thorough=thorough)
        planner = self._outlook.planner
        actions = planner.decide(scene, now, thorough=thorough)
        for action in actions:
            match action:
                case Preempt():
                    self._pushing.begin(action, now)
                case Reserve():
                    self._pushing.keep(action)
        releases = [action for action in actions if isinstance(action, Release)]
        agreed = await self._release(releases, scene, now) if releases else True
        capped = planner.capped()
        if capped:
            await seat.ledger.block_many(seat.epoch, self._with_members(capped))
        await self._publishing.tell_kept(planner.kept, self._outlook.members)
        if thorough:
            await self._publishing.tell_lifted(planner.lifted())
        self._tell()
        self._pushing.void_claims()
        return agreed

    def _scene(self, now: float, *, thorough: bool) -> Scene:
        seat = self._seat
        return self._outlook.follow(
            seat.mirror.books,
            now,
            busy=seat.calls.busy,
            leaving=self._pushing.warned.keys(),
            held_back=self._reconciler.held_back,
            claims=self._pushing.claims,
            thorough=thorough,
        )

    def _tell(self) -> None:
        standing, outlook = self._seat.standing, self._outlook
        for booking_id in outlook.left:
            standing.forget(booking_id)
        outlook.left.clear()
        standing.changed(outlook.planner.take_told())

    def _with_members(self, capped: Mapping[str, bool]) -> Mapping[str, bool]:
        """Say of each pod of a group what holds of the group."""
        found = dict(capped)
        for booking_id in capped.keys() & self._outlook.members.keys():
            for member in self._outlook.members[booking_id]:
                found[member.id] = capped[booking_id]
        return found

    async def _release(self, actions: Sequence[Release], scene: Scene, now: float) -> bool:
        """Write releases into the books, then let go what they agreed to. False: not to all."""
        rights = Rights(scene.teams, scene.tally, now, scene.stops)
        orders: list[ReleaseOrder] = []
        groups: dict[str, str] = {}
        for action in actions:
            members = self._outlook.members.get(action.booking)
            each = (action,) if members is None else releases_of(action, members)
            # No pod of a group is let go before all are in the books.
            if all(self._may_go(release.booking) for release in each):
                group = "" if members is None else action.booking
                groups.update((release.booking, action.booking) for release in each)
                orders += [self._order(release, group, rights, now) for release in each]
            else:
                self._not_released(action)
        outcomes = await self._seat.ledger.release_many(self._seat.epoch, orders, now)
        agreed = True
        for order, outcome in zip(orders, outcomes, strict=True):
            if outcome.verdict is Verdict.BOOKED:
                self._let_go(order, now)
                self._pushing.fulfilled(groups[order.id])
                continue
            _log.debug("%s not released: %s %s", order.id, outcome.cause, outcome.subject)
            agreed = False
            self._outlook.look_again(order.id)
            self._outlook.planner.touch(nodes=order.place)
        return agreed

    def _not_released(self, action: Release) -> None:
        self._outlook.look_again(action.booking)
        self._outlook.planner.touch(nodes=action.place)

    def _may_go(self, booking_id: str) -> bool:
        """Say whether what was planned for still waits, with no call under way."""
        booking = self._seat.mirror.books.get(booking_id)
        if booking is None or booking_id in self._seat.calls.busy:
            return False
        return self._seat.watch.teams.named(booking.team) is not None

    def _order(self, action: Release, group: str, rights: Rights, now: float) -> ReleaseOrder:
        seat = self._seat
        booking = seat.mirror.books.get(action.booking)
        team = seat.watch.teams.named(booking.team) if booking is not None else None
        assert booking is not None
        assert team is not None
        limits = limits_of(team, booking.work_class, booking.options, now)
        pool = booking.options[action.chosen].pool
        if seat.watch.teams.kept(pool, now):
            # Others may have borrowed since this was planned.
            limits = structs.replace(limits, guaranteed={pool: rights.guaranteed(team.name, pool)})
        return ReleaseOrder(
            id=booking.id,
            chosen=action.chosen,
            place=dict(action.place),
            limits=limits,
            group=group,
        )

    def _let_go(self, order: ReleaseOrder, now: float) -> None:
        seat = self._seat
        booking = seat.mirror.books.get(order.id)
        assert booking is not None
        booking = structs.replace(
            booking, state=State.RELEASED, chosen=order.chosen, place=order.place
        )
        seat.watch.disrupted.pop(booking.id, None)
        labels = (booking.team, booking.work_class)
        seat.metrics.released.labels(*labels).inc()
        seat.metrics.waited.labels(*labels).observe(max(0.0, now - booking.queued_at))
        seat.calls.start(booking.id, self._reconciler.start(booking))

    async def _refused(self, booking_id: str, reason: str) -> None:
        await self._reconciler.refused(booking_id, reason)
