"""The queue at work on a cluster: released in order, told why, ended, held, resumed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from fairslice import stamps
from fairslice.booking import State

from .world import World, job, node, pod, policy, team, world


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A node of two GPUs; cv and nlp have nothing guaranteed and may hold all."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv"))
        await made.create(team("nlp"))
        await made.cluster.add_node(node())
        await made.start()
        yield made
        made.check_alive()
        assert await made.audit() == []


async def test_jobs_are_released_in_order_as_capacity_frees(box: World) -> None:
    for number in range(5):
        await box.create(job(f"j{number}", seconds=0.3), "cv")
    await box.until(lambda: box.running() == {"j0", "j1"})
    await box.until(lambda: len(box.finished()) == 5)
    starts = box.doorman.started
    assert [set(starts[:2]), set(starts[2:4]), set(starts[4:])] == [
        {"j0", "j1"},
        {"j2", "j3"},
        {"j4"},
    ]
    await box.until(lambda: len(box.books) == 0)


async def test_what_waits_says_where_it_stands_on_the_job(box: World) -> None:
    await box.create(job("big", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"big"})
    await box.create(job("first", seconds=None), "nlp")
    await box.create(job("second", seconds=None), "nlp")
    text = await box.until(
        lambda: (s := box.note("Job", "second", "nlp")).startswith("Queued: position 2 of 2") and s
    )
    assert "nlp" in text
    assert len(text) <= 256
    await box.delete("Job", "first", "nlp")
    await box.until(lambda: "position 1 of 1" in box.note("Job", "second", "nlp"))
    await box.delete("Job", "big", "cv")
    await box.until(lambda: box.running() == {"second"})
    assert box.note("Job", "second", "nlp") == "Released"
    events = {(e["involvedObject"]["name"], e["reason"]) for e in box.objects("Event", "nlp")}
    assert ("second", "Queued") in events


async def test_a_job_deleted_while_it_waits_leaves_the_line(box: World) -> None:
    await box.create(job("big", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"big"})
    await box.create(job("gone", seconds=None), "nlp")
    await box.until(lambda: box.state_of("gone") is State.QUEUED)
    await box.delete("Job", "gone", "nlp")
    await box.until(lambda: box.booking_of("gone") is None)


async def test_a_job_deleted_while_it_runs_holds_its_gpus_until_its_pods_have_ended(
    box: World,
) -> None:
    slow = job("slow", gpus=2, seconds=None)
    slow["spec"]["template"]["metadata"]["annotations"]["sandbox.fairslice.io/term-seconds"] = "0.6"
    await box.create(slow, "cv")
    await box.until(lambda: box.running() == {"slow"})
    await box.create(job("next", seconds=None), "nlp")
    await box.until(lambda: box.state_of("next") is State.QUEUED)
    await box.delete("Job", "slow", "cv")
    await box.stays(lambda: box.suspended() == {"next"}, 0.3)
    await box.until(lambda: box.running() == {"next"})
    assert box.booking_of("slow") is None


async def test_a_job_of_many_pods_lets_go_as_its_pods_end(box: World) -> None:
    await box.create(job("array", pods=2, completions=3, seconds=0.4), "cv")
    await box.until(lambda: box.state_of("array") is State.RUNNING)
    await box.create(job("next", seconds=None), "nlp")
    # Three completions, two at a time: the second round needs one GPU only.
    await box.until(lambda: box.running() == {"array", "next"})
    booking = box.booking_of("array")
    assert booking is not None
    assert booking.pods == 1
    await box.until(lambda: box.finished() == {"array"})


async def test_a_job_that_its_user_suspends_is_held_and_comes_back_when_resumed(
    box: World,
) -> None:
    await box.create(job("mine", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"mine"})
    await box.create(job("next", gpus=2, seconds=0.4), "nlp")
    # As the webhook stamps it when a user suspends.
    held = {"metadata": {"labels": {stamps.STATE: "held"}}, "spec": {"suspend": True}}
    await box.merge("Job", "mine", held, "cv")
    await box.until(lambda: box.state_of("mine") is State.HELD)
    await box.until(lambda: box.running() == {"next"})
    await box.until(lambda: box.finished() == {"next"})
    await box.stays(lambda: box.suspended() == {"mine"}, 0.2)
    back = {"metadata": {"labels": {stamps.STATE: "queued"}}}
    await box.merge("Job", "mine", back, "cv")
    await box.until(lambda: box.running() == {"mine"})


async def test_a_lead_can_hold_work_in_line(box: World) -> None:
    await box.create(job("big", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"big"})
    await box.create(job("held", annotations={stamps.HOLD: "true"}, seconds=None), "nlp")
    await box.create(job("free", seconds=None), "nlp")
    await box.delete("Job", "big", "cv")
    await box.until(lambda: box.running() == {"free"})
    await box.stays(lambda: box.suspended() == {"held"}, 0.3)
    await box.merge("Job", "held", {"metadata": {"annotations": {stamps.HOLD: None}}}, "nlp")
    await box.until(lambda: box.running() == {"free", "held"})


async def test_a_queued_job_that_someone_lets_go_is_suspended_again(box: World) -> None:
    await box.create(job("big", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"big"})
    await box.create(job("eager", seconds=None), "nlp")
    await box.until(lambda: box.state_of("eager") is State.QUEUED)
    await box.merge("Job", "eager", {"spec": {"suspend": False}}, "nlp")
    await box.until(lambda: box.suspended() == {"eager"})
    await box.delete("Job", "big", "cv")
    await box.until(lambda: box.running() == {"eager"})


async def test_a_gated_pod_is_let_go_and_its_end_lets_the_next_one_in(box: World) -> None:
    for name in ("p0", "p1", "p2"):
        await box.create(pod(name, seconds=4.0), "cv")
    await box.until(lambda: box.running() == {"p0", "p1"})
    await box.until(lambda: "position 1 of 1" in box.note("Pod", "p2", "cv"))
    await box.until(lambda: box.running() == {"p2"})
    await box.until(lambda: len(box.books) == 0)


async def test_work_on_the_fast_path_starts_at_once_and_is_in_the_books(box: World) -> None:
    box.doorman.fast = True
    made = await box.create(job("quick", seconds=None), "cv")
    assert made["spec"]["suspend"] is False
    await box.until(lambda: box.state_of("quick") is State.RUNNING)
    booking = box.booking_of("quick")
    assert booking is not None
    assert booking.place == {"gpu-1": 1}


async def test_a_team_at_its_limit_waits_and_says_so_while_others_pass(box: World) -> None:
    await box.merge("Team", "cv", {"spec": {"pools": [{"pool": "default", "limit": "1"}]}})
    await box.until(lambda: box.leader.watch.teams.named("cv").quota("default").limit == 1000)
    await box.create(job("one", seconds=None), "cv")
    await box.create(job("two", seconds=None), "cv")
    await box.until(lambda: box.running() == {"one"})
    await box.create(job("other", seconds=None), "nlp")
    await box.until(lambda: box.running() == {"one", "other"})
    text = await box.until(lambda: box.note("Job", "two", "cv"))
    assert "1" in text
    assert "cv" in text
    await box.merge("Team", "cv", {"spec": {"pools": [{"pool": "default", "limit": "2"}]}})
    await box.delete("Job", "other", "nlp")
    await box.until(lambda: box.running() == {"one", "two"})


async def test_new_nodes_and_cordoned_ones_count_at_once(box: World) -> None:
    await box.create(job("big", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"big"})
    await box.create(job("next", gpus=2, seconds=None), "nlp")
    await box.until(lambda: box.state_of("next") is State.QUEUED)
    await box.cluster.add_node(node("gpu-2"))
    await box.until(lambda: box.running() == {"big", "next"})
    await box.merge("Node", "gpu-2", {"spec": {"unschedulable": True}})
    await box.delete("Job", "next", "nlp")
    await box.create(job("third", seconds=None), "nlp")
    await box.stays(lambda: "third" not in box.running(), 0.4)
    await box.merge("Node", "gpu-2", {"spec": {"unschedulable": None}})
    await box.until(lambda: box.running() == {"big", "third"})
