"""Replies that get lost, Redis that goes, comes back empty, or says nothing."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fairslice.booking import State
from fairslice.redis_connection import RedisConnection
from fairslice.redis_embedded import EmbeddedRedis
from fairslice_queue.ledger import BookRequest, Ledger, LedgerUnavailable, Verdict

from .books import NOW, POOL, WHOLES, booking, limits, request
from .conftest import Books


class Wire:
    """A proxy that carries commands to Redis, and loses replies while told to."""

    def __init__(self) -> None:
        self.losing = False
        self.lost = 0
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def running(self, path: Path, target: Path) -> AsyncIterator[str]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.append(writer)
            up_reader, up_writer = await asyncio.open_unix_connection(str(target))
            self._writers.append(up_writer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._carry(reader, up_writer, lambda: False))
                tasks.create_task(self._carry(up_reader, writer, lambda: self.losing))

        server = await asyncio.start_unix_server(serve, path)
        try:
            yield f"unix://{path}"
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
            await asyncio.sleep(0.01)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, loses: Callable[[], bool]
    ) -> None:
        try:
            while data := await source.read(65536):
                if loses():
                    self.lost += 1
                else:
                    sink.write(data)
                    await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.close()


@asynccontextmanager
async def lossy_ledger(server: EmbeddedRedis, path: Path) -> AsyncIterator[tuple[Ledger, Wire]]:
    wire = Wire()
    async with (
        wire.running(path / "wire.sock", server.socket) as url,
        RedisConnection.parse(url, call_seconds=0.1) as redis,
    ):
        redis.breaker.first = 0.01
        yield Ledger(redis), wire


async def test_a_lost_reply_changes_nothing_for_who_asks_again(
    books: Books, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    async with lossy_ledger(redis_server, tmp_path) as (ledger, wire):

        async def twice(attempt: Callable[[], Awaitable[Any]]) -> Any:
            """Ask, lose the answer although it was done, ask again until answered."""
            wire.losing = True
            with pytest.raises(LedgerUnavailable):
                await attempt()
            wire.losing = False
            while True:
                try:
                    return await attempt()
                except LedgerUnavailable:
                    await asyncio.sleep(0.02)

        await ledger.get("warm-up")
        outcome = await twice(lambda: ledger.book(request(booking("b1", pods=2), limits(2000))))
        assert outcome.verdict is Verdict.BOOKED
        assert await twice(
            lambda: ledger.bind("b1", namespace="ns", kind="Job", name="b1", uid="u")
        )
        answer = await twice(
            lambda: ledger.attach("b1", owner_uid="u", team="cv", pod="p1", now=NOW)
        )
        assert answer.accepted
        assert await twice(lambda: ledger.bind_pod("b1", pod="p1", uid="u1", name="n"))
        await ledger.book(request(booking("b2", pods=2), limits(4000), start=False))
        released = await twice(
            lambda: ledger.release(
                books.epoch, "b2", chosen=0, place={"node-b": 2}, limits=limits(4000), now=NOW
            )
        )
        assert released.verdict is Verdict.BOOKED
        assert await twice(
            lambda: ledger.settle(
                books.epoch, "b2", state=State.RUNNING, pods=1, place={"node-b": 1}, now=NOW
            )
        )
        assert (await books.ledger.held("cv")).pools == {POOL: 3000}
        assert await twice(
            lambda: ledger.requeue(
                books.epoch, "b2", state=State.QUEUED, pods=2, reason="", now=NOW
            )
        )
        await twice(lambda: ledger.end(books.epoch, "b2"))
        await twice(lambda: ledger.publish_capacity(books.epoch, {WHOLES: {"node-a": 3}}))
        assert (await books.ledger.held("cv")).pools == {POOL: 2000}
        assert await books.ledger.audit() == []
        assert wire.lost >= 8


async def test_an_emptied_redis_answers_nothing_until_the_books_are_rebuilt(books: Books) -> None:
    ledger = books.ledger
    await ledger.book(request(booking("b1")))
    position = (await ledger.snapshot()).sequence
    await books.redis.call(lambda redis: redis.flushall())
    assert not await ledger.ready()
    for attempt in (
        ledger.book(request(booking("b2"))),
        ledger.bind("b1", namespace="ns", kind="Job", name="b1", uid="u"),
        ledger.attach("b1", owner_uid="", team="cv", pod="p", now=NOW),
        ledger.bind_pod("b1", pod="p", uid="u", name="n"),
        ledger.held("cv"),
        ledger.get("b1"),
        ledger.changes(position, 0),
        ledger.snapshot(),
        ledger.audit(),
        ledger.end(books.epoch, "b1"),
    ):
        with pytest.raises(LedgerUnavailable, match="not rebuilt"):
            await attempt
    await ledger.rebuild(books.epoch, [], {WHOLES: {"node-a": 1}})
    assert await ledger.changes(position, 0) is None
    assert (await ledger.book(request(booking("b2")))).verdict is Verdict.BOOKED


async def test_a_rebuild_that_was_cut_short_leaves_the_books_closed(books: Books) -> None:
    many = [booking(f"b{n}", bound=True) for n in range(300)]
    position = (await books.ledger.snapshot()).sequence
    async with asyncio.TaskGroup() as tasks:
        rebuilding = tasks.create_task(books.ledger.rebuild(books.epoch, many, {}))
        for _ in range(1000):
            if not await books.ledger.ready():
                rebuilding.cancel()
                break
    assert not await books.ledger.ready()
    with pytest.raises(LedgerUnavailable):
        await books.ledger.changes(position, 0)
    await books.ledger.rebuild(books.epoch, many, {})
    assert len((await books.ledger.snapshot()).bookings) == 300


async def test_bookings_survive_a_killed_server(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "redis")
    async with server, RedisConnection.parse(server.url) as redis:
        ledger = Ledger(redis)
        epoch = await ledger.lead()
        await ledger.rebuild(epoch, [], {WHOLES: {"node-a": 4}})
        await ledger.book(request(booking("b1", pods=3)))
        await server.kill()
        started = time.monotonic()
        for _ in range(20):
            with pytest.raises(LedgerUnavailable):
                await ledger.book(request(booking("b2")))
        assert time.monotonic() - started < 0.3
        await server.start()
        await asyncio.sleep(0.15)
        assert (await ledger.book(request(booking("b2", pods=2)))).cause == "capacity"
        assert await ledger.audit() == []


async def test_a_hanging_server_is_told_in_time_and_what_it_did_is_not_done_twice(
    tmp_path: Path,
) -> None:
    server = EmbeddedRedis(tmp_path / "redis")
    async with server, RedisConnection.parse(server.url) as redis:
        ledger = Ledger(redis)
        await ledger.rebuild(await ledger.lead(), [], {WHOLES: {"node-a": 400}})
        await ledger.book(request(booking("first")))
        pid = int((await redis.call(lambda client: client.info("server")))["process_id"])

        def asked(number: int) -> BookRequest:
            return request(booking(f"b{number}"), max_tentative=1000)

        async def refused(number: int) -> float:
            started = time.monotonic()
            with pytest.raises(LedgerUnavailable):
                await ledger.book(asked(number))
            return time.monotonic() - started

        os.kill(pid, signal.SIGSTOP)
        try:
            waits = await asyncio.gather(*(refused(number) for number in range(300)))
            assert max(waits) < 0.4, "the margin is the machine's"
            assert await refused(300) < 0.05
        finally:
            os.kill(pid, signal.SIGCONT)
        redis.breaker.longest = 0.1
        async with asyncio.timeout(10):
            while not redis.available:
                await asyncio.sleep(0.05)
                with suppress(LedgerUnavailable):
                    await ledger.get("first")
        outcomes = [await ledger.book(asked(n)) for n in range(300)]
        assert {outcome.verdict for outcome in outcomes} == {Verdict.BOOKED}
        assert (await ledger.held("cv")).pools == {POOL: 301_000}
        assert await ledger.audit() == []


async def test_waiting_for_changes_notices_that_redis_went(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "redis")
    async with server, RedisConnection.parse(server.url) as redis:
        ledger = Ledger(redis)
        await ledger.rebuild(await ledger.lead(), [], {})
        position = (await ledger.snapshot()).sequence
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_failure(ledger, position))
            await asyncio.sleep(0.05)
            await server.kill()
        assert isinstance(waiting.result(), LedgerUnavailable)


async def _failure(ledger: Ledger, position: str) -> Exception | None:
    try:
        await ledger.changes(position, 30)
    except LedgerUnavailable as error:
        return error
    return None


async def test_scripts_are_loaded_again_after_they_are_lost(books: Books) -> None:
    await books.ledger.book(request(booking("b1")))
    await books.redis.call(lambda redis: redis.script_flush())
    assert (await books.ledger.book(request(booking("b2")))).verdict is Verdict.BOOKED
