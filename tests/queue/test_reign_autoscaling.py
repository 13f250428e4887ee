"""A pool that an autoscaler fills, down to no node at all."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairslice_queue import reign

from .world import World, job, node, policy, team, world


@pytest_asyncio.fixture
async def box(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """A pool that may grow to four GPUs and has no node yet."""
    monkeypatch.setattr(reign, "_CHECK_SECONDS", 0.2)
    monkeypatch.setattr(reign, "_TICK_SECONDS", 0.1)
    async with world(redis_url, tmp_path) as made:
        rules = policy()
        pool = {"name": "h100", "products": ["NVIDIA-H100-*"], "autoscaleMaxGpus": 4}
        rules["spec"]["pools"] = [pool]
        await made.create(rules)
        owner = team("cv")
        owner["spec"]["pools"] = [{"pool": "h100"}]
        await made.create(owner)
        await made.start()
        yield made
        made.check_alive()
        assert await made.audit() == []


async def test_work_is_let_go_for_nodes_to_come_as_far_as_the_pool_may_grow(box: World) -> None:
    for name in ("a", "b", "c"):
        await box.create(job(name, gpus=2, seconds=None), "cv")
    # An autoscaler sees the pods of two of them; four GPUs are all that there may ever be.
    await box.until(lambda: len(box.objects("Pod", "cv")) == 2)
    await box.stays(lambda: len(box.suspended()) == 1, 0.5)
    first = {"a", "b", "c"} - box.suspended()
    await box.cluster.add_node(node("gpu-1", 2))
    await box.until(lambda: len(box.running()) == 1)
    await box.cluster.add_node(node("gpu-2", 2))
    await box.until(lambda: box.running() == first)
    # What they hold is known by what the nodes really are.
    held = [box.booking_of(name) for name in first]
    await box.until(
        lambda: all(
            (b := box.booking_of(name)) is not None
            and b.option is not None
            and b.option.product.startswith("NVIDIA-H100")
            for name in first
        )
    )
    assert all(item is not None for item in held)
    await box.delete("Job", min(first), "cv")
    await box.until(lambda: len(box.running()) == 2 and not box.suspended())


async def test_what_waits_for_a_pool_without_nodes_is_served_by_the_nodes_that_come(
    box: World,
) -> None:
    await box.create(job("wide", gpus=4, seconds=None), "cv")
    await box.create(job("small", gpus=1, seconds=None), "cv")
    await box.until(lambda: "wide" not in box.suspended())
    await box.stays(lambda: box.suspended() == {"small"}, 0.4)
    await box.cluster.add_node(node("gpu-1", 4))
    await box.until(lambda: box.running() == {"wide"})
    await box.until(lambda: "NVIDIA-H100" in str(box.booking_of("small")))
    await box.delete("Job", "wide", "cv")
    await box.until(lambda: box.running() == {"small"})


async def test_work_for_which_no_node_comes_goes_back_in_line(box: World) -> None:
    await box.merge("SharingPolicy", "default", {"spec": {"queue": {"startTimeout": "1s"}}})
    await box.create(job("wide", gpus=4, seconds=None), "cv")
    await box.until(lambda: "kept back until" in box.note("Job", "wide", "cv"), 15.0)
    assert box.suspended() == {"wide"}
