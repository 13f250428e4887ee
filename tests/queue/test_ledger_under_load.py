"""Many at once against one quota: exactly what fits is admitted."""

import asyncio
import sys
from pathlib import Path

import pytest

from .conftest import Books

PROCESSES = 8
REQUESTS = 250


@pytest.mark.parametrize(
    ("limit", "units", "fits"), [(100_000, 10_000, 100), (10_000_000, 100, 100)]
)
async def test_eight_processes_admit_exactly_what_fits(
    books: Books, redis_url: str, limit: int, units: int, fits: int
) -> None:
    nodes = {f"node-{n}": units // 20 for n in range(20)}
    await books.ledger.publish_capacity(books.epoch, {"a100|A100|gpu": nodes})
    script = str(Path(__file__).with_name("booking_process.py"))
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *(script, redis_url, str(n), str(REQUESTS), str(limit)),
            stdout=asyncio.subprocess.PIPE,
        )
        for n in range(PROCESSES)
    ]
    outputs = await asyncio.gather(*(process.communicate() for process in processes))
    assert [process.returncode for process in processes] == [0] * PROCESSES
    assert sum(int(out) for out, _ in outputs) == fits
    assert (await books.ledger.held("cv")).pools == {"a100": fits * 1000}
    assert await books.ledger.audit() == []
