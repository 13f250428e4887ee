"""The brake: fairslice out of the way in seconds, whatever is dead, and back with its books."""

import re
import shlex
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from msgspec import json

from .harness.client import Refused
from .harness.history import is_complete, is_suspended
from .harness.kinds import Obj
from .harness.manifests import job, manifest, pod
from .harness.processes import Result, run_command
from .harness.reviews import entries
from .harness.scene import Scene, Team
from .harness.serving import Fairslice
from .harness.shapes import a100
from .harness.waiting import eventually

_TRAINING = {"fairslice.io/class": "training"}
_FLAG = ("ConfigMap", "fairslice-brake", "fairslice-system")
_SECONDS = 10.0
_DOCUMENTED = Path(__file__).parents[2] / "docs" / "operations.md"


@pytest_asyncio.fixture(loop_scope="session")
async def braked(scene: Scene, fairslice: Fairslice) -> AsyncIterator[Scene]:
    """A scene in which the brake may be pulled; it is off, and all is well, afterwards."""
    yield scene
    await scene.api.delete(*_FLAG)
    for program in fairslice.programs:
        if not program.is_running:
            await program.start()
    await fairslice.ready()
    await eventually("the webhook is registered", lambda: entries(scene.api), within=_SECONDS)


async def _brake(fairslice: Fairslice, *args: str) -> Any:
    result = await fairslice.command("brake", "-o", "json", *args)
    assert result.code == 0, result
    return json.decode(result.out)


async def _untouched(scene: Scene, team: Team) -> None:
    """Wait until new pods pass as they are, as a dry run shows."""
    scene.audited.add(team.namespace)
    probe = pod("probe", team.namespace, labels=_TRAINING)

    async def passes() -> bool:
        try:
            made = (await team.create(probe, dry_run=True)).obj
        except Refused:
            return False
        plain = (await team.create(pod("plain", team.namespace, 0), dry_run=True)).obj
        return (
            "priorityClassName" not in made["spec"]
            and "env" not in made["spec"]["containers"][0]
            and "env" not in plain["spec"]["containers"][0]
        )

    await eventually("new pods pass as they are", passes, within=_SECONDS)


async def _booked(fairslice: Fairslice, name: str) -> bool:
    """Say whether the queue, once it leads, knows of some work."""
    rows = (await fairslice.status("/queue"))["items"]
    return any(row["name"] == name for row in rows)


async def _get(address: str, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as answer:
        return answer.status, await answer.text()


async def test_work_goes_on_while_the_brake_is_on_and_the_books_know_of_it(
    braked: Scene, fairslice: Fairslice
) -> None:
    scene = braked
    await scene.node(a100(3))
    team = await scene.team("nlp", {"a100": ("0", "2")})
    await team.create(job("first", team.namespace, labels=_TRAINING, seconds=4, pods=2))
    await team.create(job("second", team.namespace, labels=_TRAINING, seconds=2))
    assert is_suspended(await scene.api.get("Job", "second", team.namespace))

    before = time.monotonic()
    report = await _brake(fairslice, "--reason", "drill")
    await _untouched(scene, team)

    assert time.monotonic() - before < _SECONDS
    assert report["brake"] == "on"
    assert await entries(scene.api) == []
    _, page = await _get(fairslice.queue_status, "/")
    assert "the brake is on since" in page
    assert "drill" in page
    await team.create(pod("stray", team.namespace, labels=_TRAINING))
    stray = await scene.running("stray", team.namespace)
    assert not any("fairslice.io/" in key for key in stray["metadata"].get("annotations") or ())
    # The line moves on: what waited is still let go by the queue, in its turn.
    await scene.settled("Job", "first", team.namespace, "completes", is_complete)
    await scene.settled("Job", "second", team.namespace, "completes", is_complete)
    assert len(scene.runs(team.namespace, "second")) == 1

    await _brake(fairslice, "--release")

    assert await entries(scene.api) != []
    # The pod that came meanwhile holds one of the team's two GPUs.
    await team.create(job("third", team.namespace, labels=_TRAINING, seconds=0.5, pods=2))
    assert is_suspended(await scene.api.get("Job", "third", team.namespace))
    await team.api.delete("Pod", "stray", team.namespace)
    await scene.settled("Job", "third", team.namespace, "completes", is_complete)
    assert len(scene.runs(team.namespace, "third")) == 2


async def test_a_job_released_without_its_slice_gets_one_when_it_is_suspended_and_resumed(
    braked: Scene, fairslice: Fairslice
) -> None:
    scene = braked
    await scene.node(a100(mig_1g_10gb=1))
    team = await scene.team("nlp", {"a100": ("0", "0.125")})
    small = {"fairslice.io/class": "sweep"}
    await team.create(job("first", team.namespace, labels=small, seconds=3))
    await team.create(job("second", team.namespace, labels=small, seconds=0.5))
    assert is_suspended(await scene.api.get("Job", "second", team.namespace))
    await _brake(fairslice)
    await _untouched(scene, team)
    await scene.settled("Job", "first", team.namespace, "completes", is_complete)

    async def pods() -> list[Obj]:
        return await scene.pods(team.namespace, "job-name=second")

    (stuck,) = await eventually("the second is let go", pods)
    limits = stuck["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "1"}
    await _brake(fairslice, "--release")

    suspend = {"spec": {"suspend": True}}
    await team.api.patch("Job", "second", suspend, team.namespace)
    await eventually("its pod is gone", pods, lambda found: not found)
    await team.api.patch("Job", "second", {"spec": {"suspend": False}}, team.namespace)

    await scene.settled("Job", "second", team.namespace, "completes", is_complete)
    (run,) = scene.runs(team.namespace, "second")
    assert run.resources == {"nvidia.com/mig-1g.10gb": 1}


async def test_the_brake_needs_nothing_but_the_api_server(
    braked: Scene, fairslice: Fairslice
) -> None:
    scene = braked
    await scene.node(a100(1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    for program in fairslice.programs:
        await program.kill()
    await fairslice.redis.kill()
    try:
        with pytest.raises(Refused):
            await team.create(pod("refused", team.namespace, labels=_TRAINING))
        await _brake(fairslice)
        await _untouched(scene, team)
        await team.create(pod("taken", team.namespace, labels=_TRAINING))
        await scene.running("taken", team.namespace)

        # Nothing is put back that nobody answers.
        released = await fairslice.command("brake", "--release", "--wait", "1")
        assert released.code == 1, released
        assert "no webhook has registered" in released.err
        assert await entries(scene.api) == []
    finally:
        await fairslice.redis.start()
        for program in fairslice.programs:
            await program.start()
    await fairslice.ready()
    await eventually("the webhook is registered", lambda: entries(scene.api))
    await eventually("the pod is in the books", lambda: _booked(fairslice, "taken"))
    await team.create(job("next", team.namespace, labels=_TRAINING, seconds=0.5))
    assert is_suspended(await scene.api.get("Job", "next", team.namespace))
    await team.api.delete("Pod", "taken", team.namespace)
    await scene.settled("Job", "next", team.namespace, "completes", is_complete)


async def test_a_webhook_that_starts_while_the_brake_is_on_stays_out_and_says_so(
    braked: Scene, fairslice: Fairslice
) -> None:
    scene = braked
    await scene.node(a100(1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    # By hand, with kubectl: the ConfigMap alone makes a living webhook withdraw.
    await scene.api.create(manifest(*_FLAG))
    await _untouched(scene, team)
    assert await entries(scene.api) == []

    await fairslice.restart(fairslice.webhook)

    status, text = await _get(fairslice.webhook_health, "/readyz")
    assert (status, "the brake is on" in text) == (200, True), text
    _, metrics = await _get(fairslice.webhook_health, "/metrics")
    assert "fairslice_brake 1.0" in metrics
    assert await entries(scene.api) == []

    await scene.api.delete(*_FLAG)

    await eventually("the webhook is registered", lambda: entries(scene.api), within=_SECONDS)
    await scene.team("other", {"a100": ("0", "0")})


def _by_hand() -> tuple[list[str], str]:
    """Read from the documentation how to brake with kubectl alone, and how to release."""
    _, _, section = _DOCUMENTED.read_text().partition("\n## The brake\n")
    section, _, _ = section.partition("\n## ")
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    (release,) = re.findall(r"`(kubectl [^`]* delete configmap [^`]*)`", section)
    return [line for line in lines if line.startswith("kubectl ")], release


async def _kubectl(scene: Scene, line: str) -> Result:
    return await run_command(shlex.split(line), env={"KUBECONFIG": scene.target.kubeconfig})


@pytest.mark.parametrize("alive", [True, False], ids=["all runs", "all is dead"])
async def test_the_brake_by_hand_as_it_is_documented(
    braked: Scene, fairslice: Fairslice, alive: bool
) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl on this machine")
    scene = braked
    await scene.node(a100(1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    if not alive:
        for program in fairslice.programs:
            await program.kill()
    commands, release = _by_hand()
    assert len(commands) == 3
    before = time.monotonic()
    for line in commands:
        done = await _kubectl(scene, line)
        # The last is for newer API servers only.
        unknown = line is commands[-1] and "doesn't have a resource type" in done.err
        assert done.code == 0 or unknown, (line, done)
    await _untouched(scene, team)
    assert time.monotonic() - before < _SECONDS
    assert await entries(scene.api) == []
    await team.create(pod("taken", team.namespace, labels=_TRAINING))
    await scene.running("taken", team.namespace)

    if not alive:
        for program in fairslice.programs:
            await program.start()
        await fairslice.ready()
    done = await _kubectl(scene, release)
    assert done.code == 0, (release, done)

    await eventually("the webhook is registered", lambda: entries(scene.api), within=_SECONDS)
    await eventually("the pod is in the books", lambda: _booked(fairslice, "taken"))
    await team.create(job("next", team.namespace, labels=_TRAINING, seconds=0.5))
    assert is_suspended(await scene.api.get("Job", "next", team.namespace))
    await team.api.delete("Pod", "taken", team.namespace)
    await scene.settled("Job", "next", team.namespace, "completes", is_complete)
