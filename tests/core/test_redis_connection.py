"""Redis in good and bad times, in every topology."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from fairslice.redis_connection import Breaker, RedisConnection, RedisUnavailable, Script
from fairslice.redis_embedded import find_server

SCRIPT = Script("redis.call('SET', KEYS[1], ARGV[1]); return redis.call('GET', KEYS[1])", "{f}:a")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def server(folder: Path, *options: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        find_server(), *options, cwd=folder, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


async def eventually(redis: RedisConnection, *command: str | int) -> object:
    """Run a command, as soon as that is possible."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await redis.call(lambda client: client.execute_command(*command))
            except RedisUnavailable:
                await asyncio.sleep(0.05)


async def timed_failure(redis: RedisConnection) -> float:
    started = time.monotonic()
    with pytest.raises(RedisUnavailable):
        await redis.call(lambda client: client.ping())
    return time.monotonic() - started


async def test_an_absent_redis_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    async with RedisConnection.parse(f"redis://127.0.0.1:{free_port()}/0") as redis:
        for _ in range(3):
            await timed_failure(redis)
            await asyncio.sleep(0.25)
    (line,) = caplog.messages
    assert line.startswith("Redis doesn't answer: ")


def test_a_breaker_lets_one_probe_through_at_growing_distances() -> None:
    breaker = Breaker(first=0.1, longest=0.3)
    assert breaker.admits(0.0)
    assert not breaker.begin()
    breaker.failed(0.0, probe=False)
    breaker.failed(0.05, probe=False)
    assert not breaker.admits(0.09)
    assert breaker.admits(0.1)
    assert breaker.begin()
    assert not breaker.admits(5.0), "one probe at a time"
    breaker.failed(0.2, probe=True)
    assert not breaker.admits(0.39)
    assert breaker.admits(0.4)
    assert breaker.begin()
    breaker.abandoned(probe=True)
    assert breaker.admits(0.4)
    breaker.begin()
    breaker.failed(1.0, probe=True)
    assert breaker.admits(1.31), "never further apart than the longest distance"
    breaker.begin()
    breaker.succeeded()
    assert breaker.admits(1.31)
    assert not breaker.open


async def test_a_refused_connection_fails_at_once() -> None:
    async with RedisConnection.parse(f"redis://127.0.0.1:{free_port()}") as redis:
        assert await timed_failure(redis) < 0.1
        assert not redis.available


async def test_a_silent_peer_costs_a_caller_300_ms_and_later_ones_nothing() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with silent, RedisConnection.parse(f"redis://127.0.0.1:{port}") as redis:
        redis.breaker.first = redis.breaker.longest = 60.0  # however slow the machine, no probe yet
        at_once = await asyncio.gather(*(timed_failure(redis) for _ in range(100)))
        assert max(at_once) < 0.45, "those that had to queue as well (the margin is the machine's)"
        assert await timed_failure(redis) < 0.01
        with pytest.raises(RedisUnavailable):
            await redis.wait(lambda client: client.ping(), seconds=30)


async def test_service_resumes_with_the_first_probe(tmp_path: Path) -> None:
    path = tmp_path / "r.sock"
    options = ("--port", "0", "--unixsocket", str(path), "--save", "")
    async with RedisConnection.parse(f"unix://{path}") as redis:
        async with server(tmp_path, *options):
            assert await eventually(redis, "SET", "a", "b")
        assert await timed_failure(redis) < 0.1
        async with server(tmp_path, *options):
            assert await eventually(redis, "SET", "b", "b")
            assert redis.available


async def test_a_wrong_command_is_an_error_not_an_outage(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url) as redis:
        with pytest.raises(ResponseError):
            await redis.call(lambda client: client.execute_command("NONSENSE"))
        assert redis.available


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.002, 0.005])
async def test_a_cancellation_is_never_lost(redis_url: str, delay: float) -> None:
    async with RedisConnection.parse(redis_url, connections=2) as redis:
        for attempt in (
            lambda: redis.call(lambda client: client.ping()),
            lambda: redis.call(lambda client: client.blpop(["none"], 30)),
            lambda: redis.wait(lambda client: client.blpop(["none"], 30), seconds=30),
        ):
            for _ in range(3):
                call = asyncio.ensure_future(attempt())
                await asyncio.sleep(delay)
                if call.cancel():
                    async with asyncio.timeout(5):
                        with pytest.raises(asyncio.CancelledError):
                            await call
        assert await eventually(redis, "SET", "a", "b")


async def test_a_full_or_read_only_redis_is_an_outage(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url) as redis:
        await redis.call(lambda client: client.config_set("maxmemory", "1"))
        with pytest.raises(RedisUnavailable, match=r"OOM|memory"):
            await redis.call(lambda client: client.set("a", "b"))
        await eventually(redis, "CONFIG", "SET", "maxmemory", "0")


async def test_sentinels_lead_to_the_master(tmp_path: Path) -> None:
    port, sentinel_port = free_port(), free_port()
    config = tmp_path / "sentinel.conf"
    config.write_text(
        f"port {sentinel_port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {port} 1\n"
    )
    async with (
        server(tmp_path, "--port", str(port), "--bind", "127.0.0.1", "--save", ""),
        server(tmp_path, str(config), "--sentinel"),
        RedisConnection.parse(
            f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{sentinel_port}/main"
        ) as redis,
    ):
        assert await eventually(redis, "SET", "a", "b")
        assert await redis.wait(lambda client: client.ping(), seconds=1)
        assert await redis.run_script(SCRIPT, (b"b",)) == b"b"


async def test_cluster_nodes_lead_to_the_one_that_has_the_slot(tmp_path: Path) -> None:
    port = cluster_port()
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--cluster-enabled", "yes")
    async with server(tmp_path, *options):
        async with RedisConnection.parse(f"redis://127.0.0.1:{port}") as one:
            await eventually(one, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await asyncio.sleep(0.2)
        async with RedisConnection.parse(f"redis+cluster://127.0.0.1:{port}") as redis:
            assert await eventually(redis, "SET", "{fairslice}:a", "b")
            assert await redis.wait(
                lambda client: client.xread({"{fairslice}:log": "0"}, 1, 10), seconds=1
            ) in ([], {})
            assert await redis.run_script(SCRIPT, (b"b",)) == b"b"


async def test_scripts_follow_their_slot_to_another_node(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    ports = [cluster_port(), cluster_port()]
    async with (
        cluster_node(tmp_path_factory.mktemp("a"), ports[0]) as first,
        cluster_node(tmp_path_factory.mktemp("b"), ports[1]) as second,
    ):
        await eventually(first, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        await eventually(second, "CLUSTER", "MEET", "127.0.0.1", ports[0])
        for node in (first, second):
            await formed(node)
        setting = f"redis+cluster://127.0.0.1:{ports[0]}"
        async with RedisConnection.parse(setting, call_seconds=2.0) as redis:
            assert await redis.run_script(SCRIPT, (b"b",)) == b"b"
            slot = await eventually(first, "CLUSTER", "KEYSLOT", SCRIPT.key)
            target = await eventually(second, "CLUSTER", "MYID")
            await eventually(first, "DEL", SCRIPT.key)
            for node in (second, first):
                await eventually(node, "CLUSTER", "SETSLOT", slot, "NODE", target)
            answers = await asyncio.gather(
                *(redis.run_script(SCRIPT, (b"%d" % n,)) for n in range(50))
            )
            assert answers == [b"%d" % n for n in range(50)]
            assert await eventually(second, "EXISTS", SCRIPT.key) == 1
            assert await redis.run_script(SCRIPT, (b"c",)) == b"c", "there from now on"


async def formed(node: RedisConnection) -> None:
    async with asyncio.timeout(20):
        while "cluster_state:ok" not in str(  # noqa: ASYNC110
            await eventually(node, "CLUSTER", "INFO")
        ):
            await asyncio.sleep(0.05)


@asynccontextmanager
async def cluster_node(folder: Path, port: int) -> AsyncIterator[RedisConnection]:
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--cluster-enabled", "yes")
    async with (
        server(folder, *options),
        RedisConnection.parse(f"redis://127.0.0.1:{port}") as redis,
    ):
        yield redis


def cluster_port() -> int:
    """A free port; the cluster bus takes it plus 10,000."""
    port = free_port()
    while port > 55000:
        port = free_port()
    return port
