"""What several components' tests share: a real Redis-compatible server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from fairslice.redis_embedded import EmbeddedRedis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """One server for the whole run, in a directory of its own."""
    directory: Path = tmp_path_factory.mktemp("redis")
    with asyncio.Runner() as runner:
        server = EmbeddedRedis(directory)
        runner.run(server.start())
        try:
            yield server
        finally:
            runner.run(server.stop())


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The setting of an empty Redis."""
    with Redis(unix_socket_path=str(redis_server.socket)) as client:
        client.flushall()
    return redis_server.url
