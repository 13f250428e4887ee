"""The queue's leader over a long line, in a process of its own so that its memory is its own.

Reads an `Order` as JSON from stdin, writes `Found` as MessagePack to stdout. All of the
leader's real parts are at work (watch, mirror, ledger on a real Redis, planner, dispatcher,
standing); only the API server is a stub.
"""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import nan
from typing import Any, cast

import msgspec
import uvloop
from msgspec import Struct
from prometheus_client import CollectorRegistry

from fairslice.booking import Booking
from fairslice.redis_connection import RedisConnection
from fairslice_queue.ledger import Ledger
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.mirror import Mirror
from fairslice_queue.reign import Reign
from fairslice_queue.standing import Standing
from fairslice_queue.usage import Meter
from fairslice_queue.watching import Watch

from .api_stub import ApiStub, Backlog
from .measuring import Samples, cpu_seconds, peak_mib, resident_mib

__all__ = ["Found", "Order"]

_SETTLE_SECONDS = 3.0
_GIVE_UP_SECONDS = 120.0
_RELEASE_SECONDS = 20.0
_FEWEST_ROUNDS = 10


class Order(Struct, frozen=True):
    """How long a line to make, and how long to look at each thing (seconds)."""

    teams: int
    queued: int
    nodes: int
    redis_url: str
    write_latency: float
    seconds: float
    books_lost: bool


class Found(Struct, frozen=True):
    """What was found, in seconds and MiB.

    `started` runs from the process's being up to its first decision: with its books in Redis,
    to the first release; with the books lost, to the end of the first round, and then nothing
    else is looked at. `decisions` are rounds after one event each; `releases` run from the
    event that frees capacity to the patch's being written.
    """

    started: float
    decisions: Samples
    releases: Samples
    lost_releases: int
    memory_before: float
    memory_after: float
    memory_peak: float
    cpu_seconds: float
    writes: int


class _Rounds:
    """Stands in for the histogram of rounds, to keep each of them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def observe(self, seconds: float) -> None:
        """Keep one."""
        self.seconds.append(seconds)


class _Leader:
    """A queue process that leads, without the election."""

    def __init__(self, stub: ApiStub, ledger: Ledger, rounds: _Rounds) -> None:
        self._stub = stub
        self.watch = Watch(stub)
        self._meter = Meter(float(self.watch.policy.half_life))
        self._standing = Standing()
        self._mirror = Mirror(ledger, self._changed)
        metrics = QueueMetrics(CollectorRegistry())
        metrics.round_seconds = cast(Any, rounds)
        self._reign = Reign(
            stub,
            ledger,
            self.watch,
            self._mirror,
            self._meter,
            self._standing,
            metrics,
            new_id=lambda: "b" + secrets.token_hex(10),
        )

    async def run(self) -> None:
        """Watch, then lead, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            await self.watch.run(tasks)
            await self.watch.synced()
            tasks.create_task(self._reign.run())
            tasks.create_task(self._standing.run(self._stub))

    def _changed(self, old: Booking | None, new: Booking | None) -> None:
        """Do what the service does with each change of the books."""
        now, tally = time.time(), self._mirror.books.tally
        for booking in (old, new):
            if booking is not None and booking.team:
                for option in booking.options:
                    key = (booking.team, option.pool)
                    self._meter.hold(*key, tally.pools[key] + tally.surge[key], now)
        changed = new or old
        if changed is not None:
            self.watch.dirty.add(changed.id)


class _Scene:
    def __init__(self, order: Order, ledger: Ledger) -> None:
        self._order = order
        self._backlog = Backlog(order.teams, order.queued, order.nodes)
        self._ledger = ledger
        self._stub = ApiStub(self._backlog, order.write_latency)
        self._stub.on_release = self._released
        self._rounds = _Rounds()
        self._release = asyncio.Event()
        self._released_at = 0.0

    async def measure(self) -> Found:
        order, stub = self._order, self._stub
        before = resident_mib(os.getpid())
        if not order.books_lost:
            self._free_one()
        began, decisions, releases, lost = time.perf_counter(), [nan], [nan], 0
        async with self._leading() as task:
            if order.books_lost:
                started = await self._first_round(began, task)
            else:
                started = await self._first_release(began, task)
                await self._first_round(began, task)  # a long one, which is no event's
                await asyncio.sleep(_SETTLE_SECONDS)
                decisions = await self._events(order.seconds)
                releases, lost = await self._releases(order.seconds)
            after = resident_mib(os.getpid())
        return Found(
            started=started,
            decisions=Samples.of(decisions),
            releases=Samples.of(releases),
            lost_releases=lost,
            memory_before=before,
            memory_after=after,
            memory_peak=peak_mib(os.getpid()),
            cpu_seconds=cpu_seconds(os.getpid()),
            writes=stub.writes,
        )

    @asynccontextmanager
    async def _leading(self) -> AsyncIterator["asyncio.Task[None]"]:
        task = asyncio.create_task(_Leader(self._stub, self._ledger, self._rounds).run())
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def _free_one(self) -> int:
        number = self._stub.running()[0]
        self._release.clear()
        self._stub.finish(number)
        return number

    def _released(self, number: int, at: float) -> None:
        self._released_at = at
        self._release.set()

    async def _first_round(self, began: float, task: "asyncio.Task[None]") -> float:
        while not self._rounds.seconds and not task.done():  # noqa: ASYNC110 - as in _events
            await asyncio.sleep(0.005)
        if task.done():
            task.result()
        return time.perf_counter() - began

    async def _first_release(self, started: float, task: "asyncio.Task[None]") -> float:
        waiting = asyncio.create_task(self._release.wait())
        await asyncio.wait(
            (waiting, task), timeout=_GIVE_UP_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if task.done():
            task.result()
        return self._released_at - started if self._release.is_set() else float("nan")

    async def _events(self, seconds: float) -> list[float]:
        """Change one waiting Job after the other; each makes the queue decide again."""
        rounds, number = self._rounds.seconds, self._backlog.jobs
        first, ends = len(rounds), time.perf_counter() + seconds
        while time.perf_counter() < ends or len(rounds) < first + _FEWEST_ROUNDS:
            number -= 1
            known = len(rounds)
            self._stub.touch(number, f"{number}")
            while len(rounds) == known:  # noqa: ASYNC110 - the queue sets no event of ours
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.005)
        return rounds[first:]

    async def _releases(self, seconds: float) -> tuple[list[float], int]:
        """Let one Job after the other finish, and see when another is let go for it."""
        found: list[float] = []
        lost = 0
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            started = time.perf_counter()
            number = self._free_one()
            try:
                async with asyncio.timeout(_RELEASE_SECONDS):
                    await self._release.wait()
            except TimeoutError:
                lost += 1
                continue
            found.append(self._released_at - started)
            self._stub.clean(number)
            await asyncio.sleep(0.03)
        return found, lost


async def _run(order: Order) -> Found:
    async with RedisConnection.parse(order.redis_url) as redis:
        if order.books_lost:
            await cast(Any, redis.client).flushdb()
        return await _Scene(order, Ledger(redis)).measure()


def main() -> None:
    """Measure what stdin orders."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(msgspec.msgpack.encode(runner.run(_run(order))))


if __name__ == "__main__":
    main()
