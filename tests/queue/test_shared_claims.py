"""Claims that many pods may share stay in the books as long as they exist, and no longer."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest_asyncio

from fairslice import stamps
from fairslice.booking import Assignment, Booking, Option, Ref, State
from fairslice_queue.ledger import BookRequest, Limits
from fairslice_sandbox.users import ADMIN

from .world import World, job, node, policy, team, world

CLAIMS = "resourceclaims.resource.k8s.io"
ID = "b" + "c" * 20
TWO = Option(
    pool="default",
    product="unknown",
    mode="whole",
    milli=2000,
    units={},
    devices={"nvidia.com/gpu": 2},
)


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv", limit=3))
        await made.cluster.add_node(node())
        await made.start()
        yield made
        made.check_alive()
        assert await made.audit() == []


async def claim(box: World, *, bind: bool = True) -> str:
    """Create a claim as admission lets it through; return its uid."""
    booking = Booking(
        id=ID,
        ref=Ref(kind="ResourceClaim", namespace="cv", name="shared"),
        team="cv",
        work_class="training",
        rank=1,
        user="alice",
        state=State.QUEUED,
        pods=1,
        options=(TWO,),
        preemptible=False,
    )
    request = BookRequest(
        booking=booking,
        limits=Limits(pools={"default": 3000}),
        now=time.time(),
        overflow_queue=False,
        capacity=False,
    )
    await box.ledger.book(request)
    assignment = msgspec.json.encode(Assignment(booking=ID, option=TWO)).decode()
    made = await box.api.create(
        CLAIMS,
        "cv",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": "shared",
                "namespace": "cv",
                "labels": {stamps.CLASS: "training"},
                "annotations": {
                    stamps.BOOKING: ID,
                    stamps.ASSIGNMENT: assignment,
                    stamps.USER: "alice",
                },
            },
            "spec": {"devices": {"requests": [{"name": "r"}]}},
        },
        user=ADMIN,
    )
    uid = str(made["metadata"]["uid"])
    if bind:
        await box.ledger.bind(ID, namespace="cv", kind="ResourceClaim", name="shared", uid=uid)
    return uid


async def held(box: World) -> dict[str, int]:
    return dict((await box.ledger.held("cv")).pools)


async def test_a_claim_is_confirmed_and_holds_until_it_is_deleted(box: World) -> None:
    uid = await claim(box, bind=False)
    await box.until(lambda: (box.booking_of("shared") or _NONE).bound)
    found = box.booking_of("shared")
    assert found is not None
    assert (found.ref.uid, found.state, found.held_milli) == (uid, State.RELEASED, 2000)
    # Others find only what it leaves.
    await box.create(job("one"), "cv")
    await box.create(job("two", gpus=2, seconds=0.1), "cv")
    await box.until(lambda: "one" in box.finished())
    assert box.suspended() == {"two"}
    await box.until(lambda: box.booking_of("one") is None)
    assert await held(box) == {"default": 2000}


async def test_a_lost_claim_is_in_the_books_again_and_a_deleted_one_is_not(box: World) -> None:
    await claim(box)
    await box.until(lambda: box.booking_of("shared") is not None)
    await box.redis.client.flushall()
    await box.until(lambda: (box.booking_of("shared") or _NONE).held_milli == 2000)
    found = box.booking_of("shared")
    assert found is not None
    assert (found.team, found.user, found.preemptible) == ("cv", "alice", False)
    await box.api.delete(CLAIMS, "cv", "shared", user=ADMIN)
    await box.until(lambda: box.booking_of("shared") is None, 20)
    assert await held(box) == {}


_NONE = Booking(
    id="",
    ref=Ref(kind="", namespace=""),
    team="",
    work_class="",
    rank=0,
    user="",
    state=State.QUEUED,
    pods=0,
    options=(),
)
