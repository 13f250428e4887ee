"""A cluster to submit to, with a ledger on a real server."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio

from fairslice.pool_capacity import pool_capacity
from fairslice.redis_connection import RedisConnection
from fairslice_queue.ledger import Ledger, Lending
from fairslice_webhook.view import View

from .scene import NOW, Cluster, view

MakeCluster = Callable[..., Awaitable[Cluster]]


@pytest_asyncio.fixture
async def ledger(redis_url: str) -> AsyncIterator[Ledger]:
    async with RedisConnection.parse(redis_url) as redis:
        yield Ledger(redis)


@pytest_asyncio.fixture
async def cluster(ledger: Ledger) -> MakeCluster:
    """Make a cluster whose books are open and know what its nodes offer."""

    async def make(seen: View | None = None, now: float = NOW) -> Cluster:
        seen = seen or view()
        epoch = await ledger.lead()
        lending = {
            pool: Lending(capacity=milli, kept=dict(seen.teams.kept(pool, now)))
            for pool, milli in pool_capacity(seen.inventory).items()
        }
        await ledger.rebuild(epoch, [], seen.inventory.capacity(), lending)
        made = Cluster(ledger, seen)
        made.now = now
        return made

    return make
