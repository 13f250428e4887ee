"""Pods that nobody stamped, because nothing stood in their way when they were made."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from fairslice.booking import State

from .world import World, job, node, pod, policy, team, world


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A node of two GPUs, and a Job in line when the webhook goes."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv"))
        await made.create(team("nlp", limit=2))
        await made.cluster.add_node(node())
        await made.start()
        await made.create(job("big", gpus=2, seconds=None), "cv")
        await made.until(lambda: made.running() == {"big"})
        await made.create(job("waits", gpus=1, seconds=None), "nlp")
        await made.until(lambda: made.state_of("waits") is State.QUEUED)
        made.doorman.asleep = True
        await made.delete("Job", "big", "cv")
        await made.until(lambda: made.running() == {"waits"})
        yield made
        made.check_alive()
        assert await made.audit() == []


async def test_the_pods_of_a_job_that_is_let_go_without_the_webhook_count_once(
    box: World,
) -> None:
    await box.stays(lambda: box.books.tally.pools["nlp", "default"] == 1000, 0.5)
    box.doorman.asleep = False
    await box.create(job("next", gpus=1, seconds=None), "nlp")
    await box.until(lambda: box.running() == {"waits", "next"})
    await box.delete("Job", "waits", "nlp")
    await box.until(lambda: box.books.tally.pools["nlp", "default"] == 1000)


async def test_a_job_that_finds_no_node_without_the_webhook_goes_back_in_line(
    box: World,
) -> None:
    box.doorman.asleep = False
    shy = pod("shy", gpus=0)
    shy["metadata"]["labels"] = {"app": "shy"}
    await box.create(shy, "nlp")
    await box.until(lambda: "shy" in box.running())
    await box.create(job("big", gpus=1, seconds=None), "cv")
    await box.until(lambda: "big" in box.running())
    term = {
        "labelSelector": {"matchLabels": {"app": "shy"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    lost = job("lost", seconds=0.1)
    lost["spec"]["template"]["spec"]["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    }
    await box.create(lost, "nlp")
    await box.until(lambda: box.state_of("lost") is State.QUEUED)
    box.doorman.asleep = True
    await box.merge("SharingPolicy", "default", {"spec": {"queue": {"startTimeout": "2s"}}})
    await box.delete("Job", "big", "cv")
    await box.until(lambda: "lost" not in box.suspended())
    await box.until(lambda: "lost" in box.suspended(), 20.0)
    await box.until(lambda: "kept back" in box.note("Job", "lost", "nlp"))


async def test_they_count_for_themselves_while_their_job_is_on_its_way_out(box: World) -> None:
    box.doorman.asleep = False
    pods = box.objects("Pod", "nlp")
    slow = {"metadata": {"annotations": {"sandbox.fairslice.io/term-seconds": "1.0"}}}
    await box.merge("Pod", pods[0]["metadata"]["name"], slow, "nlp")
    await box.merge("Team", "cv", {"spec": {"pools": [{"pool": "default", "guaranteed": "2"}]}})
    await box.create(job("owner", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.suspended() >= {"waits"})
    await box.until(lambda: box.running() == {"owner"}, 12.0)
