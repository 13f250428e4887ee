"""Who is let go when nothing is enforced any more, and who is not."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from fairslice.booking import State

from .world import World, job, node, policy, team, world


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A full node of two GPUs, and two more in line."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv"))
        await made.create(team("nlp"))
        await made.cluster.add_node(node())
        await made.start()
        await made.create(job("big", gpus=2, seconds=None), "cv")
        await made.until(lambda: made.running() == {"big"})
        for name in ("a", "b"):
            await made.create(job(name, seconds=None), "nlp")
        await made.until(lambda: made.state_of("b") is State.QUEUED)
        yield made
        made.check_alive()


async def test_a_team_that_is_deleted_and_made_anew_keeps_its_line(box: World) -> None:
    await box.delete("Team", "nlp", "")
    await box.until(lambda: box.leader.watch.teams.named("nlp") is None)
    await box.stays(lambda: box.suspended() == {"a", "b"}, 2.5)
    await box.create(team("nlp"))
    await box.delete("Job", "big", "cv")
    await box.until(lambda: box.running() == {"a", "b"})
    await box.until(lambda: box.state_of("a") is State.RUNNING)
    assert await box.audit() == []


async def test_a_policy_that_is_deleted_and_made_anew_keeps_the_line(box: World) -> None:
    await box.delete("SharingPolicy", "default", "")
    await box.until(lambda: not box.leader.watch.has_policy)
    await box.stays(lambda: box.suspended() == {"a", "b"}, 2.5)
    await box.create(policy())
    await box.delete("Job", "big", "cv")
    await box.until(lambda: box.running() == {"a", "b"})
    await box.until(lambda: box.state_of("a") is State.RUNNING)


async def test_a_team_that_is_gone_for_good_holds_nothing_back(box: World) -> None:
    await box.delete("Team", "nlp", "")
    await box.until(lambda: not box.suspended(), 12.0)


async def test_a_team_whose_queue_is_not_enforced_any_more_is_let_go_at_once(box: World) -> None:
    await box.merge("Team", "nlp", {"spec": {"mode": {"queue": "Audit"}}})
    await box.until(lambda: not box.suspended(), 4.0)
