"""A ledger on a real server, its books open and empty."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest_asyncio

from fairslice.redis_connection import RedisConnection
from fairslice_queue.ledger import Ledger

from .books import SLICES, WHOLES


@dataclass
class Books:
    """An open ledger and the epoch that leads it."""

    ledger: Ledger
    epoch: int
    redis: RedisConnection


@pytest_asyncio.fixture
async def books(redis_url: str) -> AsyncIterator[Books]:
    """Four whole GPUs on each of two nodes, seven slices on a third."""
    async with RedisConnection.parse(redis_url) as redis:
        ledger = Ledger(redis)
        epoch = await ledger.lead()
        await ledger.rebuild(epoch, [], {WHOLES: {"node-a": 4, "node-b": 4}, SLICES: {"node-c": 7}})
        books = Books(ledger, epoch, redis)
        yield books
        if await ledger.ready():
            assert await ledger.audit() == []
