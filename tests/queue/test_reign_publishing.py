"""What the leader tells the ledger, so that work may start at once without asking the queue."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from fairslice.booking import Booking, Option, Ref, State
from fairslice_queue.ledger import BookRequest, LedgerUnavailable, Limits, Verdict

from .world import World, job, node, policy, team, world


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Three nodes of three GPUs."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy(reserveAfter="1s"))
        for name in ("n1", "n2", "n3"):
            await made.cluster.add_node(node(name, gpus=3))
        yield made
        made.check_alive()
        assert await made.audit() == []


def keeping(name: str, guaranteed: int, lendable: int) -> dict[str, Any]:
    made = team(name, guaranteed=guaranteed)
    made["spec"]["pools"][0]["lendable"] = str(lendable)
    return made


async def why_not(box: World, gpus: int, right: int | None = 0) -> str:
    """Say what keeps work of team nlp from starting at once."""
    assert box.leader is not None
    offer = box.leader.watch.inventory.offers[0]
    pool, _, resource = offer.key.split("|")
    option = Option(pool=pool, product=offer.product, mode="whole", milli=1000, units={resource: 1})
    booking = Booking(
        id="trial",
        ref=Ref(kind="Job", namespace="nlp", name="trial"),
        team="nlp",
        work_class="training",
        rank=1,
        user="ada",
        state=State.QUEUED,
        pods=gpus,
        options=(option,),
    )
    rights = {} if right is None else {pool: right}
    limits = Limits(pools={pool: None}, guaranteed=rights)
    try:
        outcome = await box.ledger.trial(
            BookRequest(booking=booking, limits=limits, now=time.time())
        )
    except LedgerUnavailable:
        return "unavailable"
    return "" if outcome.verdict is Verdict.BOOKED else outcome.cause


async def eventually(box: World, gpus: int, cause: str, right: int | None = 0) -> None:
    for _ in range(500):
        if await why_not(box, gpus, right) == cause:
            return
        box.check_alive()
        await asyncio.sleep(0.01)
    raise AssertionError(f"{await why_not(box, gpus, right)}, not {cause}\n{box.describe()}")


async def test_what_teams_keep_is_told_and_told_anew_when_it_changes(box: World) -> None:
    await box.create(keeping("cv", 6, 0))
    await box.create(team("nlp"))
    await box.start()
    await eventually(box, 3, "")
    await eventually(box, 4, "lending")
    await box.merge("Team", "cv", {"spec": keeping("cv", 6, 4)["spec"]})
    await eventually(box, 7, "")
    await eventually(box, 8, "lending")
    await box.cluster.add_node(node("n4", gpus=3))
    await eventually(box, 8, "")
    await box.redis.call(lambda client: client.flushall())
    await eventually(box, 10, "")
    await eventually(box, 11, "lending")
    await box.delete("Team", "cv", "")
    await eventually(box, 12, "")


async def test_who_waits_for_kept_nodes_leaves_the_others_to_whoever_comes(box: World) -> None:
    await box.create(team("nlp"))
    await box.start()
    for name in ("one", "two", "three"):
        await box.create(job(name, gpus=2, seconds=None), "nlp")
    await box.until(lambda: len(box.running()) == 3)
    assert await why_not(box, 1, None) == ""
    await box.create(job("large", gpus=3, pods=2), "nlp")
    await eventually(box, 1, "standing", None)
    # Once two nodes are kept for it, what is left of the third is anybody's.
    await eventually(box, 1, "", None)
    assert await why_not(box, 2, None) == "capacity"
    assert await why_not(box, 3, None) == "capacity"
    await box.delete("Job", "large", "nlp")
    await eventually(box, 3, "", None)


async def test_work_that_waited_too_long_is_passed_by_nobody(box: World) -> None:
    await box.merge(
        "SharingPolicy", "default", {"spec": {"queue": {"aging": "1s", "reserveAfter": "1h"}}}
    )
    await box.create(team("nlp"))
    await box.start()
    await box.create(job("runs", gpus=1, seconds=None), "nlp")
    await box.until(lambda: box.running() == {"runs"})
    await box.create(job("long", gpus=3, pods=3, work_class="experiment"), "nlp")
    await box.until(lambda: box.suspended() == {"long"})
    assert await why_not(box, 1, None) == "", "a better class"
    await eventually(box, 1, "standing", None)
