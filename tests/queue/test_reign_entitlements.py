"""Budgets, cut quotas, longest runs and the lead's order, on a cluster."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest_asyncio

from fairslice import stamps
from fairslice.booking import State
from fairslice_queue.team_status import publish_team_status

from .world import CLASSES, World, job, node, pod, policy, team, world

# A GPU costs 1 a second.
POOL = {
    "name": "default",
    "products": ["*"],
    "prices": [{"from": "2020-01-01", "perGpuHour": "3600"}],
}
LONGEST = [{**item, "maxRuntime": "3s", "notice": "3s"} for item in CLASSES]


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A node of two GPUs."""
    async with world(redis_url, tmp_path) as made:
        rules = policy(timeZone="Europe/Berlin")
        rules["spec"]["pools"] = [POOL]
        await made.create(rules)
        await made.create(team("nlp"))
        await made.cluster.add_node(node())
        yield made
        made.check_alive()
        assert await made.audit() == []


def budgeted(**budget: Any) -> dict[str, Any]:
    made = team("cv")
    made["spec"]["budgets"] = [{"period": "Monthly", **budget}]
    return made


@asynccontextmanager
async def publishing(box: World) -> AsyncIterator[None]:
    leader = box.leader
    assert leader is not None
    task = asyncio.create_task(
        publish_team_status(
            box.client, leader.watch, lambda: leader.mirror.books, leader.meter, time.time
        )
    )
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def status(box: World) -> dict[str, Any]:
    return (box.get("Team", "cv", "") or {}).get("status") or {}


async def test_a_budget_runs_out_what_runs_goes_on_and_what_waits_says_until_when(
    box: World,
) -> None:
    await box.create(budgeted(money="0.5"))
    await box.start()
    await box.create(job("runs", seconds=None), "cv")
    await box.until(lambda: box.running() == {"runs"})
    await asyncio.sleep(1.5)
    await box.create(job("waits", seconds=0.1), "cv")
    await box.create(job("other", seconds=0.1), "nlp")
    text = await box.until(lambda: "used up" in (s := box.note("Job", "waits", "cv")) and s)
    assert "team cv has used up its budget of 0.50 of money a month: it starts anew 20" in text
    assert text.endswith(("CET", "CEST"))
    await box.until(lambda: box.finished() == {"other"})
    assert "runs" in box.running()


async def test_a_budget_stays_used_up_when_the_leader_and_all_of_redis_are_lost(
    box: World,
) -> None:
    await box.create(budgeted(money="0.5"))
    await box.start()
    await box.create(job("runs", seconds=1.0), "cv")
    await box.until(lambda: box.finished() == {"runs"})
    await box.until(lambda: len(box.books) == 0)
    async with publishing(box):
        told = await box.until(lambda: status(box).get("budgets"))
    assert told[0]["exhausted"] is True
    assert float(told[0]["spent"]) >= 1.0
    assert box.leader is not None
    await box.leader.stop()
    await box.redis.client.flushall()
    await box.start()
    await box.create(job("waits", seconds=0.1), "cv")
    await box.until(lambda: "used up" in box.note("Job", "waits", "cv"))
    # Somebody raises it.
    await box.merge("Team", "cv", {"spec": {"budgets": [{"money": "1000"}]}})
    await box.until(lambda: "waits" in box.finished())


async def test_a_scavenger_has_what_nobody_else_wants(box: World) -> None:
    await box.create(budgeted(gpuHours=0, onExhausted="Scavenge"))
    await box.start()
    await box.create(job("idle", seconds=None, gpus=2), "cv")
    await box.until(lambda: box.running() == {"idle"})
    await box.create(job("wanted", seconds=0.2, gpus=2), "nlp")
    await box.until(lambda: "wanted" in box.finished())
    await box.until(
        lambda: any("budget is used up" in item["message"] for item in box.objects("Event", "cv"))
    )
    await box.until(lambda: box.running() == {"idle"})


async def test_a_lowered_limit_pushes_out_what_is_too_much_if_the_team_says_so(
    box: World,
) -> None:
    made = team("cv", limit=2)
    made["spec"]["onQuotaCut"] = "Evict"
    await box.create(made)
    await box.start()
    await box.create(job("old", seconds=None), "cv")
    await box.until(lambda: box.running() == {"old"})
    await asyncio.sleep(1.1)  # starts are told to the second
    await box.create(job("young", seconds=None), "cv")
    await box.until(lambda: box.running() == {"old", "young"})
    await box.merge("Team", "cv", {"spec": {"pools": [{"pool": "default", "limit": "1"}]}})
    await box.until(lambda: box.running() == {"old"})
    await box.until(lambda: box.state_of("young") is State.QUEUED)
    await box.merge("Team", "cv", {"spec": {"pools": [{"pool": "default", "limit": "2"}]}})
    await box.until(lambda: box.running() == {"old", "young"})


async def test_a_pod_ends_when_it_has_run_as_long_as_its_class_may_and_stays_ended(
    box: World,
) -> None:
    await box.merge("SharingPolicy", "default", {"spec": {"classes": LONGEST}})
    await box.create(team("cv"))
    await box.start()
    await box.create(pod("nb", restart=True), "cv")
    await box.until(lambda: box.running() == {"nb"})
    text = await box.until(lambda: box.note("Pod", "nb", "cv", stamps.PREEMPTION))
    assert "class training runs for 3 s at most: ends at " in text
    await box.until(lambda: box.get("Pod", "nb", "cv") is None)
    await box.stays(lambda: box.get("Pod", "nb", "cv") is None, 1.5)
    await box.until(lambda: len(box.books) == 0)


async def test_the_lead_moves_and_holds_work_by_annotation(box: World) -> None:
    await box.create(team("cv"))
    await box.start()
    await box.create(job("big", gpus=2, seconds=0.5), "cv")
    await box.until(lambda: box.running() == {"big"})
    await box.create(job("first", gpus=2, seconds=0.1), "cv")
    await box.create(job("moved", gpus=2, seconds=0.1), "cv")
    held = job("held", gpus=2, seconds=0.1, annotations={stamps.HOLD: "true"})
    await box.create(held, "cv")
    await box.merge("Job", "moved", {"metadata": {"annotations": {stamps.ORDER: "-1"}}}, "cv")
    await box.until(lambda: box.finished() == {"big", "first", "moved"})
    assert box.doorman.started.index("moved") < box.doorman.started.index("first")
    await box.until(lambda: "fairslice.io/hold" in box.note("Job", "held", "cv"))
    await box.merge("Job", "held", {"metadata": {"annotations": {stamps.HOLD: None}}}, "cv")
    await box.until(lambda: "held" in box.finished())
