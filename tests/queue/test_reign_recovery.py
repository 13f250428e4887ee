"""Leaders die, Redis forgets, things are older than the install: nothing is lost or run twice."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairslice import stamps
from fairslice.booking import State
from fairslice_sandbox.attributes import Attributes
from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.users import ADMIN
from fairslice_sandbox.webhooks import Hook

from .doorman import registration
from .world import World, job, node, pod, policy, team, world

_REGISTRATIONS = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
_JOB_UPDATES = [
    {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["jobs"]}
]


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A node of two GPUs; cv and nlp may each hold all."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv", guaranteed=1))
        await made.create(team("nlp", guaranteed=1))
        await made.cluster.add_node(node())
        await made.start()
        yield made
        made.check_alive()
        assert await made.audit() == []


async def _submit(box: World, count: int, seconds: float = 0.3) -> set[str]:
    names = {f"j{number}" for number in range(count)}
    for number in range(count):
        await box.create(job(f"j{number}", seconds=seconds), ("cv", "nlp")[number % 2])
    return names


async def test_a_new_leader_goes_on_where_the_old_one_died(box: World) -> None:
    names = await _submit(box, 6)
    await box.until(lambda: len(box.running()) == 2)
    await box.restart()
    await box.until(lambda: len(box.finished()) >= 3)
    await box.restart()
    await box.until(lambda: box.finished() == names)
    # A pod whose Job was let go just as the leader died may come before the new one has learnt of
    # it, and is then let in by itself.
    started, alone = box.doorman.started, box.doorman.alone
    assert sorted({*started, *alone}) == sorted(names)
    assert len(started) == len(set(started))
    await box.until(lambda: len(box.books) == 0)


async def test_work_that_ended_while_nobody_led_lets_go_at_once(box: World) -> None:
    names = await _submit(box, 4)
    await box.until(lambda: len(box.running()) == 2)
    assert box.leader is not None
    await box.leader.stop()
    await box.until(lambda: len(box.finished()) == 2)
    await box.delete("Job", "j0", "cv")
    await box.until(lambda: box.get("Job", "j0", "cv") is None)
    await box.start()
    await box.until(lambda: box.finished() == names - {"j0"})
    # Of a Job that nobody saw go, the API server is asked after ten seconds.
    await box.until(lambda: len(box.books) == 0, 20.0)


async def test_the_books_are_made_anew_when_redis_has_forgotten_them(box: World) -> None:
    names = await _submit(box, 6, seconds=0.6)
    await box.create(pod("bare", seconds=0.2), "cv")
    await box.until(lambda: len(box.running()) == 2)
    running = box.running()
    await box.redis.client.flushall()
    await box.until(lambda: box.finished() >= running)
    await box.until(lambda: box.finished() == names, 12.0)
    assert sorted(box.doorman.started) == sorted(names)
    await box.until(lambda: len(box.books) == 0)


async def test_a_victim_on_its_way_out_still_counts_after_redis_forgot(box: World) -> None:
    await box.merge("Team", "nlp", {"spec": {"pools": [{"pool": "default"}]}})
    slow = job("slow", gpus=2, seconds=None)
    slow["spec"]["template"]["metadata"]["annotations"]["sandbox.fairslice.io/term-seconds"] = "1.0"
    await box.create(slow, "nlp")
    await box.until(lambda: box.running() == {"slow"})
    await box.create(job("owner", seconds=None), "cv")
    await box.until(lambda: "slow" in box.suspended())
    await box.redis.client.flushall()
    await box.until(lambda: box.state_of("slow") is State.PREEMPTED)
    await box.stays(lambda: "owner" in box.suspended(), 0.3)
    await box.until(lambda: box.running() == {"owner"})


async def test_work_older_than_the_install_is_taken_into_the_books_untouched(
    redis_url: str, tmp_path: Path
) -> None:
    async with world(redis_url, tmp_path) as box:
        await box.create(policy())
        await box.create(team("cv", guaranteed=2))
        await box.cluster.add_node(node())
        box.doorman.asleep = True
        old = await box.create(job("old", seconds=1.0), "cv")
        await box.create(pod("elsewhere", seconds=0.7), "default")
        await box.until(lambda: box.running() == {"old", "elsewhere"})
        box.doorman.asleep = False
        await box.start()
        await box.create(job("new", seconds=0.1), "cv")
        await box.until(lambda: box.state_of("new") is State.QUEUED)
        await box.until(lambda: len(box.books) == 3)
        await box.stays(lambda: box.suspended() == {"new"}, 0.2)
        await box.until(lambda: box.finished() == {"old", "new"})
        assert box.get("Job", "old", "cv")["metadata"]["uid"] == old["metadata"]["uid"]
        await box.until(lambda: len(box.books) == 0)


async def test_a_leader_whose_warning_was_lost_plans_it_again(box: World) -> None:
    await box.create(job("borrower", gpus=2, seconds=None), "nlp")
    await box.until(lambda: box.running() == {"borrower"})
    assert box.leader is not None
    await box.leader.stop()
    await box.create(job("owner", seconds=None), "cv")
    await box.start()
    await box.until(lambda: box.running() == {"owner"})
    assert box.suspended() == {"borrower"}


async def test_a_new_leader_pushes_out_no_more_than_is_needed(
    redis_url: str, tmp_path: Path
) -> None:
    async with world(redis_url, tmp_path) as box:
        await box.create(policy())
        await box.create(team("cv", guaranteed=1))
        await box.create(team("nlp"))
        await box.cluster.add_node(node())
        await box.start()
        for name in ("a", "b"):
            slow = job(name, seconds=None)
            notes = slow["spec"]["template"]["metadata"]["annotations"]
            notes["sandbox.fairslice.io/term-seconds"] = "1.0"
            await box.create(slow, "nlp")
        await box.until(lambda: box.running() == {"a", "b"})
        await box.create(job("owner", seconds=None), "cv")
        await box.until(lambda: len(box.suspended() & {"a", "b"}) == 1)
        await box.restart()
        await box.until(lambda: "owner" in box.running())
        assert len(box.running()) == 2


async def test_a_restarting_pod_evicted_between_two_leaders_is_made_again(box: World) -> None:
    await box.create(pod("nb", gpus=2, restart=True), "nlp")
    await box.until(lambda: box.objects("PodTemplate", "nlp"))
    await box.until(lambda: box.running() == {"nb"})
    assert box.leader is not None
    slow = {"metadata": {"annotations": {"sandbox.fairslice.io/term-seconds": "0.8"}}}
    await box.merge("Pod", "nb", slow, "nlp")
    await box.leader.stop()
    await box.scheduler_preempts()
    await box.until(lambda: "deletionTimestamp" in (box.get("Pod", "nb", "nlp") or {}).get(
        "metadata", {}) or box.get("Pod", "nb", "nlp") is None)  # fmt: skip
    await box.start()
    await box.until(lambda: box.note("Pod", "nb", "nlp", stamps.RESTARTS) == "1", 12.0)
    await box.until(lambda: box.running() == {"nb"}, 12.0)


async def test_a_webhook_that_is_down_for_a_moment_holds_work_up_for_a_moment(
    box: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = registration("Mutating")
    down["metadata"] = {"name": "down"}
    down["webhooks"][0] |= {"name": "down.example.com", "rules": _JOB_UPDATES}
    await box.api.create(_REGISTRATIONS, "", down, user=ADMIN)
    ask = box.doorman.mutate

    async def mutate(hook: Hook, request: Attributes) -> bool:
        if hook.name == "down.example.com":
            raise ApiError(500, "InternalError", "failed calling webhook: connection refused")
        return await ask(hook, request)

    monkeypatch.setattr(box.doorman, "mutate", mutate)
    names = await _submit(box, 2)
    await box.until(lambda: len(box.books) == 2)
    await asyncio.sleep(1.0)
    assert not box.running()
    await box.api.delete(_REGISTRATIONS, "", "down", user=ADMIN)
    # Nothing was wrong with the work: it is tried again soon, not after a failed start's pause.
    await box.until(lambda: box.finished() == names, 20.0)
