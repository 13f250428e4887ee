"""Runs of CronJobs in line: one place for Forbid and Replace, a few for Allow."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from fairslice.booking import State
from fairslice_queue.cron_children import MOST_WAITING
from fairslice_sandbox.store import Obj

from .world import World, job, node, policy, team, world


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A full node of two GPUs, and a CronJob that never makes a run by itself."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv"))
        await made.create(team("nlp"))
        await made.cluster.add_node(node())
        await made.start()
        await made.create(job("big", gpus=2, seconds=None), "cv")
        await made.until(lambda: made.running() == {"big"})
        await made.create(
            {
                "apiVersion": "batch/v1",
                "kind": "CronJob",
                "metadata": {"name": "sweep"},
                "spec": {
                    "schedule": "0 0 1 1 *",
                    "successfulJobsHistoryLimit": 20,
                    "jobTemplate": {"spec": job("x", seconds=0.1)["spec"]},
                },
            },
            "nlp",
        )
        yield made
        made.check_alive()
        assert await made.audit() == []


async def run(box: World, minute: int, **fields: Any) -> str:
    """Make a run as the CronJob's controller does."""
    cron: Obj = box.get("CronJob", "sweep", "nlp") or {}
    made = job(f"sweep-{minute}", **fields)
    made["metadata"]["ownerReferences"] = [
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "name": "sweep",
            "uid": cron["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    await box.create(made, "nlp")
    return f"sweep-{minute}"


async def test_a_run_that_replaces_another_in_line_takes_its_place(box: World) -> None:
    first = await run(box, 1, seconds=None, gpus=2)
    await box.until(lambda: "position 1" in box.note("Job", first, "nlp"))
    await box.create(job("later", gpus=2, seconds=None), "nlp")
    await box.until(lambda: box.state_of("later") is State.QUEUED)
    queued_at = box.booking_of(first).queued_at  # type: ignore[union-attr]
    await box.delete("Job", first, "nlp")
    second = await run(box, 2, seconds=None, gpus=2)
    await box.until(
        lambda: (b := box.booking_of(second)) is not None and b.queued_at == queued_at, 12.0
    )
    await box.delete("Job", "big", "cv")
    await box.until(lambda: box.running() == {second})


async def test_of_runs_that_pile_up_only_some_are_let_into_line(box: World) -> None:
    for minute in range(MOST_WAITING + 2):
        await run(box, minute, seconds=0.05)
        await box.until(
            lambda minute=minute: (
                box.state_of(f"sweep-{minute}") is State.QUEUED
                or box.get("Job", f"sweep-{minute}", "nlp") is None
            )
        )
    first = {f"sweep-{minute}" for minute in range(MOST_WAITING)}
    await box.until(lambda: {b.ref.name for b in box.books.waiting()} == first)
    events = await box.until(
        lambda: [e for e in box.objects("Event", "nlp") if e["reason"] == "RunSkipped"]
    )
    assert events[0]["involvedObject"]["kind"] == "CronJob"
    assert events[0]["involvedObject"]["name"] == "sweep"
    await box.delete("Job", "big", "cv")
    await box.until(lambda: box.finished("nlp") == first)
    await run(box, 99, seconds=0.05)
    await box.until(lambda: "sweep-99" in box.finished("nlp"))


async def test_a_run_that_was_pushed_out_is_not_skipped(box: World) -> None:
    await box.delete("Job", "big", "cv")
    old = await run(box, 100, seconds=None, gpus=2)
    await box.until(lambda: box.running() == {old})
    for minute in range(MOST_WAITING):
        await run(box, minute, seconds=None)
    await box.until(lambda: len(list(box.books.waiting())) == MOST_WAITING)
    await box.merge("Team", "cv", {"spec": {"pools": [{"pool": "default", "guaranteed": "1"}]}})
    await box.create(job("owner", seconds=None), "cv")
    await box.until(lambda: "owner" in box.running())
    await box.until(lambda: box.state_of(old) in (State.QUEUED, State.RELEASED, State.RUNNING))
    await box.stays(lambda: box.get("Job", old, "nlp") is not None, 1.0)
