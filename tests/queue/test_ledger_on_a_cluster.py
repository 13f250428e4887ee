"""All keys lie in one slot, so the same scripts run on a Redis Cluster."""

import asyncio
import socket
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from fairslice.redis_connection import RedisConnection
from fairslice.redis_embedded import find_server
from fairslice_queue.ledger import Ledger, Verdict

from .books import POOL, WHOLES, booking, limits, request


def cluster_port() -> int:
    """A free port; the cluster bus takes it plus 10,000."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < 55_000:
            return port
    raise AssertionError("no port below 55,000 is free")


async def form_cluster(port: int) -> None:
    async with Redis(port=port) as connected:
        client: Any = connected  # execute_command has no types
        for _ in range(200):
            try:
                await client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                break
            except RedisError:
                await asyncio.sleep(0.05)
        for _ in range(200):
            if b"cluster_state:ok" in await client.execute_command("CLUSTER", "INFO"):
                return
            await asyncio.sleep(0.05)


async def test_the_ledger_works_on_a_cluster(tmp_path: Path) -> None:
    port = cluster_port()
    server = await asyncio.create_subprocess_exec(
        find_server(),
        *("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--cluster-enabled", "yes"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        await form_cluster(port)
        setting = f"redis+cluster://127.0.0.1:{port}"
        async with RedisConnection.parse(setting, call_seconds=5.0) as redis:
            ledger = Ledger(redis)
            epoch = await ledger.lead()
            await ledger.rebuild(epoch, [], {WHOLES: {"node-a": 4}})
            position = (await ledger.snapshot()).sequence
            outcome = await ledger.book(request(booking("b1", pods=3), limits(4000)))
            assert outcome.verdict is Verdict.BOOKED
            assert (await ledger.held("cv")).pools == {POOL: 3000}
            changes = await ledger.changes(position, 1)
            assert [change.id for change in changes or ()] == ["b1"]
            assert await ledger.changes((await ledger.snapshot()).sequence, 0.02) == ()
            assert await ledger.audit() == []
            await redis.call(lambda client: client.script_flush())
            assert await ledger.end(epoch, "b1")
    finally:
        server.kill()
        await server.wait()
