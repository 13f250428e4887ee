"""The embedded server: found, kept apart, stopped cleanly, its data kept."""

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from fairslice import redis_embedded
from fairslice.redis_embedded import EmbeddedRedis, EmbeddedRedisError, find_server


async def write(server: EmbeddedRedis, value: str) -> None:
    async with Redis(unix_socket_path=str(server.socket)) as client:
        await client.set("key", value)


async def read(server: EmbeddedRedis) -> object:
    async with Redis(unix_socket_path=str(server.socket)) as client:
        return await client.get("key")


def test_a_server_on_the_path_comes_before_the_packaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server().name == "valkey-server"
    assert find_server().parent != tmp_path
    own = tmp_path / "redis-server"
    own.touch(mode=0o755)
    assert find_server() == own
    own.unlink()
    monkeypatch.setattr(redis_embedded, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedRedisError, match="no Redis server found: install"):
        find_server()


async def test_data_survive_stop_and_kill(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "data")
    async with server:
        await write(server, "stopped")
    async with server:
        assert await read(server) == b"stopped"
        await write(server, "killed")
        await server.kill()
        await server.start()
        assert await read(server) == b"killed"


async def test_nobody_else_can_reach_it(tmp_path: Path) -> None:
    async with EmbeddedRedis(tmp_path / "data") as server:
        assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
        async with Redis(unix_socket_path=str(server.socket)) as client:
            assert (await client.config_get("port"))["port"] == "0"


async def test_two_can_not_share_a_directory(tmp_path: Path) -> None:
    async with EmbeddedRedis(tmp_path / "data") as server:
        with pytest.raises(EmbeddedRedisError, match="used by another fairslice"):
            await EmbeddedRedis(server.directory).start()
        await write(server, "unharmed")


@pytest.mark.parametrize("folder", ["data", "d" * 120])
async def test_a_server_left_over_from_a_killed_parent_is_replaced(
    tmp_path: Path, folder: str
) -> None:
    orphaned = EmbeddedRedis(tmp_path / folder)
    await orphaned.start()
    await write(orphaned, "by the orphan")
    orphan, orphaned._process = orphaned._process, None
    assert orphan is not None
    orphaned._lock.close()  # type: ignore[union-attr]
    async with EmbeddedRedis(orphaned.directory) as server:
        assert await read(server) == b"by the orphan"
        await orphan.wait()
        socket_folder = server.socket.parent
    assert socket_folder == server.directory or not socket_folder.exists()


_PARENT = """
import asyncio, pathlib, sys
from fairslice.redis_embedded import EmbeddedRedis

async def main():
    async with EmbeddedRedis(pathlib.Path(sys.argv[1])) as server:
        print(server._process.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PARENT, str(tmp_path / "data")), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), 20))
    assert is_running(pid)
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(10):
        while is_running(pid):  # noqa: ASYNC110 - it is nobody's child by now
            await asyncio.sleep(0.02)


def is_running(pid: int) -> bool:
    """Say whether a process lives; one that nobody has waited for does not."""
    try:
        stat_line = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat_line.rpartition(")")[2].split()[0] != "Z"


async def test_its_end_is_noticed(tmp_path: Path) -> None:
    async with EmbeddedRedis(tmp_path / "data") as server:
        async with Redis(unix_socket_path=str(server.socket)) as client:
            pid = int((await client.info("server"))["process_id"])
        os.kill(pid, signal.SIGKILL)
        assert await server.wait_for_exit() == -signal.SIGKILL
    with pytest.raises(EmbeddedRedisError, match="not running"):
        await server.wait_for_exit()


async def test_what_keeps_it_from_starting_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedRedisError, match=r"can't keep Redis data in .*Not a directory"):
        await EmbeddedRedis(tmp_path / "file" / "data").start()
    broken = tmp_path / "valkey-server"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(redis_embedded, "find_server", lambda: broken)
    server = EmbeddedRedis(tmp_path / "data")
    with pytest.raises(EmbeddedRedisError, match=r"ended at once \(code 3\): see .*redis.log"):
        await server.start()
    monkeypatch.undo()
    async with server:
        await write(server, "now it works")
