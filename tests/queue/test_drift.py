"""Drift between ledger and cluster: noticed, told and put right."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairslice.booking import State
from fairslice_queue import drift

from .world import World, job, node, pod, policy, team, world


@pytest_asyncio.fixture
async def box(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """Two run, one waits; a second look comes soon after the first."""
    monkeypatch.setattr(drift, "_PATIENCE_SECONDS", 0.2)
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv"))
        await made.create(team("nlp"))
        await made.cluster.add_node(node())
        await made.start()
        await made.create(job("runs", seconds=None), "cv")
        await made.create(pod("bare"), "nlp")
        await made.until(lambda: made.running() == {"runs", "bare"})
        await made.create(job("waits", seconds=None), "nlp")
        await made.until(lambda: made.state_of("waits") is State.QUEUED)
        yield made
        made.check_alive()
        assert await made.audit() == []


def _measured(box: World) -> float:
    assert box.leader is not None
    return float(box.leader.metrics.drift._value.get())


async def test_all_is_well_while_nothing_is_wrong(box: World) -> None:
    assert box.leader is not None
    assert await box.leader.reign.drift.look() == []
    assert _measured(box) == 0


async def test_totals_that_were_tampered_with_are_made_anew(box: World) -> None:
    assert box.leader is not None
    keys = [key async for key in box.redis.client.scan_iter(match="*held:cv*")]
    assert keys
    for key in keys:
        for field, value in (await box.redis.client.hgetall(key)).items():
            await box.redis.client.hset(key, field, int(value) + 500)
    assert await box.ledger.audit()
    found = await box.leader.reign.drift.look()
    assert found
    assert _measured(box) == len(found)
    assert await box.ledger.audit() == []
    assert await box.leader.reign.drift.look() == []
    assert _measured(box) == 0
    await box.delete("Job", "runs", "cv")
    await box.until(lambda: box.running() == {"bare", "waits"})


async def test_a_booking_that_is_unlike_its_object_is_put_right(
    box: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = box.leader
    assert leader is not None
    booking = box.booking_of("runs")
    assert booking is not None

    missed = True

    async def deaf() -> None:
        """Look at nothing: an event was missed."""
        if missed:
            leader.watch.dirty.clear()

    reconciler = leader.reign._reconciler
    with monkeypatch.context() as patched:
        patched.setattr(reconciler, "all_dirty", deaf)
        patched.setattr(reconciler, "check_all", deaf)
        epoch = leader.reign._seat.epoch
        await box.ledger.requeue(
            epoch, booking.id, state=State.HELD, pods=1, reason="", now=booking.since
        )
        await box.until(lambda: box.state_of("runs") is State.HELD)
        missed = False  # what is found now is to be looked at, be there a round meanwhile or not
        found = await leader.reign.drift.look()
        assert len(found) == 1
        assert "runs" in found[0]
        assert _measured(box) == 1
    await box.until(lambda: box.state_of("runs") is State.RUNNING)
    assert await leader.reign.drift.look() == []
