"""Scripts of many callers on one connection: each gets its own answer, whatever befalls others."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from fairslice.redis_connection import RedisConnection, RedisUnavailable, Script
from fairslice.redis_embedded import find_server
from fairslice.redis_lane import parse_reply

KEY = "{fairslice}:meta"
ECHO = Script("return {ARGV[1], KEYS[1]}", KEY)
COUNT = Script("return redis.call('INCR', KEYS[1])", KEY)
FAIL = Script("return redis.call('GET')", KEY)


@asynccontextmanager
async def server(folder: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    path = folder / "r.sock"
    path.unlink(missing_ok=True)
    process = await asyncio.create_subprocess_exec(
        find_server(),
        *("--port", "0", "--unixsocket", str(path), "--save", "", *options),
        cwd=folder,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(10):
            while not path.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def soon(redis: RedisConnection, script: Script = ECHO) -> Any:
    """Run a script as soon as Redis answers."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await redis.run_script(script, (b"x",))
            except RedisUnavailable:
                await asyncio.sleep(0.02)


async def test_each_of_many_callers_gets_his_own_answer(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url, call_seconds=5.0) as redis:
        answers = await asyncio.gather(
            *(redis.run_script(ECHO, (str(n).encode() * 500,)) for n in range(3000))
        )
        assert answers == [[str(n).encode() * 500, KEY.encode()] for n in range(3000)]
        clients = await redis.call(lambda client: client.info("clients"))
        assert clients["connected_clients"] <= 2


async def test_a_script_that_fails_fails_for_its_caller_alone(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url) as redis:
        results = await asyncio.gather(
            *(redis.run_script(FAIL if n % 3 == 0 else ECHO, (b"%d" % n,)) for n in range(30)),
            return_exceptions=True,
        )
        for n, result in enumerate(results):
            if n % 3 == 0:
                assert isinstance(result, ResponseError)
            else:
                assert result == [b"%d" % n, KEY.encode()]
        assert redis.available


async def test_a_caller_who_leaves_takes_nobody_along(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url) as redis:
        for delay in (0.0, 0.0, 0.0005, 0.001):
            calls = [
                asyncio.ensure_future(redis.run_script(ECHO, (b"%d" % n,))) for n in range(200)
            ]
            await asyncio.sleep(delay)
            left = [call for call in calls[::3] if call.cancel()]
            results = await asyncio.gather(*calls, return_exceptions=True)
            for n, (call, result) in enumerate(zip(calls, results, strict=True)):
                if call in left:
                    assert isinstance(result, asyncio.CancelledError)
                else:
                    assert result == [b"%d" % n, KEY.encode()]


async def test_what_was_cancelled_before_it_went_out_is_never_run(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url) as redis:
        assert await redis.run_script(COUNT, ()) == 1
        first, second, third = (
            asyncio.ensure_future(redis.run_script(COUNT, ())) for _ in range(3)
        )
        # The first goes out at once, the others together at the end of the turn.
        asyncio.get_running_loop().call_soon(second.cancel)
        assert [await first, await third] == [2, 3]
        assert second.cancelled()


async def test_scripts_that_redis_forgot_are_sent_again(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url) as redis:
        for _ in range(3):
            await redis.call(lambda client: client.script_flush())
            answers = await asyncio.gather(
                *(redis.run_script(ECHO, (b"%d" % n,)) for n in range(20))
            )
            assert [answer[0] for answer in answers] == [b"%d" % n for n in range(20)]


async def test_a_redis_that_hangs_costs_nobody_more_than_300_ms(tmp_path: Path) -> None:
    url = f"unix://{tmp_path / 'r.sock'}"
    async with server(tmp_path) as process, RedisConnection.parse(url) as redis:
        await soon(redis)
        for _ in range(2):
            os.kill(process.pid, signal.SIGSTOP)
            try:

                async def refused(delay: float) -> float:
                    await asyncio.sleep(delay)
                    started = time.monotonic()
                    with pytest.raises(RedisUnavailable):
                        await redis.run_script(ECHO, (b"late",))
                    return time.monotonic() - started

                waits = await asyncio.gather(*(refused(n * 0.001) for n in range(500)))
                assert max(waits) < 0.35, "the margin is the machine's"
                later = sorted(waits[300:])
                assert later[-3] < 0.05, "who comes later hears at once, but for those who probe"
            finally:
                os.kill(process.pid, signal.SIGCONT)
            assert await soon(redis) == [b"x", KEY.encode()], "no answer of earlier calls"
            assert redis.available


async def test_a_loop_that_was_busy_still_reads_its_answers(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url, call_seconds=0.1) as redis:
        await redis.run_script(ECHO, (b"x",))
        for _ in range(3):
            calls = [asyncio.ensure_future(redis.run_script(ECHO, (b"x",))) for _ in range(3)]
            await asyncio.sleep(0)
            time.sleep(0.15)  # noqa: ASYNC251
            assert await asyncio.gather(*calls) == [[b"x", KEY.encode()]] * 3


async def test_a_redis_that_flaps_fails_and_serves_by_turns(tmp_path: Path) -> None:
    url = f"unix://{tmp_path / 'r.sock'}"
    async with RedisConnection.parse(url) as redis:
        redis.breaker.longest = 0.1
        for _ in range(3):
            async with server(tmp_path) as process:
                assert await soon(redis, COUNT) == 1, "a new server, empty"
                calls = [asyncio.ensure_future(redis.run_script(COUNT, ())) for _ in range(200)]
                await asyncio.sleep(0)
                process.kill()
                started = time.monotonic()
                results = await asyncio.gather(*calls, return_exceptions=True)
                assert time.monotonic() - started < 0.3
                assert all(isinstance(r, int | RedisUnavailable) for r in results)
            with pytest.raises(RedisUnavailable):
                await redis.run_script(ECHO, (b"x",))


async def test_an_idle_connection_that_goes_is_no_outage(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url) as redis:
        await redis.run_script(ECHO, (b"x",))
        await redis.call(lambda client: client.client_kill_filter(_type="normal", skipme=True))
        await asyncio.sleep(0.05)
        assert await redis.run_script(ECHO, (b"y",)) == [b"y", KEY.encode()]


async def test_a_full_or_read_only_redis_is_away(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url) as redis:
        redis.breaker.first = 0.01
        await redis.run_script(COUNT, ())
        await redis.call(lambda client: client.execute_command("REPLICAOF", "127.0.0.1", "1"))
        try:
            for _ in range(2):
                with pytest.raises(RedisUnavailable, match="READONLY"):
                    await redis.run_script(COUNT, ())
                await asyncio.sleep(0.05)
        finally:
            await redis.call(lambda client: client.execute_command("REPLICAOF", "NO", "ONE"))
        assert await soon(redis, COUNT) == 2


async def test_wrong_credentials_are_said(redis_url: str) -> None:
    async with RedisConnection.parse(f"{redis_url}?username=nobody&password=wrong") as redis:
        with pytest.raises(RedisUnavailable, match=r"username-password|AUTH"):
            await redis.run_script(ECHO, (b"x",))


async def test_who_closes_while_calls_wait_fails_them(redis_url: str) -> None:
    async with RedisConnection.parse(redis_url) as redis:
        calls = [asyncio.ensure_future(redis.run_script(ECHO, (b"x",))) for _ in range(3)]
        await asyncio.sleep(0)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, RedisUnavailable) for result in results)


VALUES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40),
    lambda values: st.lists(values, max_size=4),
    max_leaves=12,
)


def written(value: Any) -> bytes:
    match value:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % value
        case bytes():
            return b"$%d\r\n%b\r\n" % (len(value), value)
        case _:
            return b"*%d\r\n" % len(value) + b"".join(map(written, value))


@given(VALUES, st.binary(max_size=5))
def test_replies_are_read_whole_or_not_at_all(value: Any, rest: bytes) -> None:
    text = written(value)
    assert parse_reply(text + rest, 0) == (value, len(text))
    for cut in range(len(text)):
        with pytest.raises(EOFError):
            parse_reply(text[:cut], 0)
