"""Many at once: exactly what fits is admitted, and floods of what comes to nothing pass."""

import asyncio
import sys
from pathlib import Path

import pytest

from fairslice.booking import Ref
from fairslice_queue.ledger import Verdict

from .books import NOW, POOL, WHOLES, booking, limits, request
from .conftest import Books

PROCESSES = 8


@pytest.mark.parametrize(
    ("requests", "limit", "units"),
    [(2000, 16_000_000, 40_000), (500, 40_000_000, 4_000)],
    ids=["quota", "capacity"],
)
async def test_eight_processes_admit_exactly_what_fits(
    books: Books, redis_url: str, requests: int, limit: int, units: int
) -> None:
    """Half of what they ask for fits, so that all of them race when it runs out."""
    fits = min(limit // 1000, units)
    nodes = {f"node-{n}": units // 20 for n in range(20)}
    await books.ledger.publish_capacity(books.epoch, {"a100|A100|gpu": nodes})
    script = str(Path(__file__).with_name("booking_process.py"))
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            *(script, redis_url, str(n), str(requests), str(limit)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for n in range(PROCESSES)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0] * PROCESSES
    admitted = [int(out) for out, _ in outputs]
    assert sum(admitted) == fits
    racing = sum(count > 0 for count in admitted)
    assert racing > PROCESSES // 2, "most of them were in the race, as far as cores allow"
    assert (await books.ledger.held("cv")).pools == {"a100": fits * 1000}
    assert await books.ledger.audit() == []


async def test_a_thousand_requests_that_come_to_nothing_starve_nobody(books: Books) -> None:
    await books.ledger.publish_capacity(books.epoch, {WHOLES: {"node-a": 500}})
    caps = limits(300_000)

    async def flood(number: int) -> None:
        # Invalid objects under many names, one name or none, and names that are taken already.
        name = ("", "taken", f"never-{number}", "one")[number % 4]
        asked = booking(f"f{number}", user="mallory", name=name, pods=1 + number % 2)
        await books.ledger.book(request(asked, caps, now=NOW + number * 0.001))

    await books.ledger.book(request(booking("b0", name="taken"), caps))
    assert await books.ledger.bind("b0", namespace="ns", kind="Job", name="taken", uid="u")
    await asyncio.gather(*(flood(number) for number in range(1000)))
    held = (await books.ledger.held("cv")).pools[POOL]
    assert held <= 301_000, "of a thousand requests two hundred hold something"

    mate = request(booking("mate", user="ada"), caps, now=NOW + 1)
    waits = await books.ledger.book(mate)
    assert (waits.verdict, waits.cause) == (Verdict.QUEUED, "tentative"), "queued, not denied"
    assert await books.ledger.bind("mate", namespace="ns", kind="Job", name="mate", uid="m")
    released = await books.ledger.release(
        books.epoch, "mate", chosen=0, place={"node-a": 1}, limits=limits(400_000), now=NOW + 1
    )
    assert released.verdict is Verdict.BOOKED, "the queue lets it go all the same"
    other = await books.ledger.book(request(booking("other", team="nlp"), caps, now=NOW + 1))
    assert other.verdict is Verdict.BOOKED

    await books.ledger.expire(books.epoch, NOW + 11.1)
    later = request(booking("later", pods=250), caps, now=NOW + 11.1)
    outcome = await books.ledger.book(later)
    assert outcome.verdict is Verdict.BOOKED, "seconds later nothing of it is left in the way"
    assert (await books.ledger.held("cv")).pools == {POOL: 252_000}


async def test_one_object_that_is_sent_again_and_again_is_one_booking(books: Books) -> None:
    ref = Ref(kind="Job", namespace="ns", name="again")
    outcomes = await asyncio.gather(
        *(books.ledger.book(request(booking(f"b{n}", ref=ref), limits(1000))) for n in range(200))
    )
    assert {(outcome.verdict, outcome.id) for outcome in outcomes} == {
        (Verdict.BOOKED, outcomes[0].id)
    }
