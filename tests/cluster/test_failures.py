"""Scenario 8: parts that die take nothing with them, and nothing is lost or run twice."""

import time
from collections.abc import Awaitable, Callable

import pytest

from .harness.client import Refused
from .harness.history import is_complete, phase
from .harness.line import CAPACITY, Line
from .harness.manifests import job, pod
from .harness.nodes import RUN_LABEL
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.shapes import a100
from .harness.waiting import eventually

_EXPERIMENT = {"fairslice.io/class": "experiment"}
_SWEEP = {"fairslice.io/class": "sweep"}


async def test_without_the_webhook_only_gpu_pods_are_kept_out(
    scene: Scene, fairslice: Fairslice
) -> None:
    await scene.node(a100(mig_1g_10gb=3))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    doomed = await scene.team("doomed", {"a100": ("1", "1")})
    here = {RUN_LABEL: scene.target.run_id}
    await team.create(pod("nb", team.namespace, labels=_EXPERIMENT))
    await team.create(job("short", team.namespace, labels=_EXPERIMENT, seconds=2))
    await doomed.create(pod("nb", doomed.namespace, labels=_EXPERIMENT))
    await scene.running("nb", team.namespace)
    await scene.running("nb", doomed.namespace)
    await eventually("the Job runs", lambda: scene.started(team.namespace, "short"))

    await fairslice.webhook.kill()
    try:
        before = time.monotonic()
        await team.create(pod("plain", team.namespace, 0, nodeSelector=here))
        assert time.monotonic() - before < 3.0
        await scene.running("plain", team.namespace)
        with pytest.raises(Refused):
            await team.create(pod("gpu", team.namespace, labels=_EXPERIMENT))
        await scene.settled("Job", "short", team.namespace, "completes", is_complete)
        await team.api.delete("Pod", "nb", team.namespace)
        await scene.gone("Pod", "nb", team.namespace)
        await scene.api.delete("Namespace", doomed.namespace)
        await scene.gone("Namespace", doomed.namespace, within=60)
    finally:
        await fairslice.webhook.start()
        await fairslice.ready()

    await eventually("GPU pods are taken again", lambda: _accepted(scene, team.namespace))
    # Nothing hid the GPUs of the pod that came meanwhile: it never asked for one.
    scene.audited.add(team.namespace)


async def _accepted(scene: Scene, namespace: str) -> bool:
    member = scene.api.acting_as(scene.target.user("nlp"))
    try:
        await member.create(pod("after", namespace, labels=_EXPERIMENT))
    except Refused:
        return False
    return True


async def _restart_webhook(fairslice: Fairslice) -> None:
    await fairslice.restart(fairslice.webhook)


async def _restart_queue(fairslice: Fairslice) -> None:
    await fairslice.restart(fairslice.queue)


async def _restart_redis(fairslice: Fairslice) -> None:
    await fairslice.lose_redis(data=False)


async def _wipe_redis(fairslice: Fairslice) -> None:
    await fairslice.lose_redis(data=True)


@pytest.mark.parametrize(
    "blow",
    [
        pytest.param(_restart_webhook, id="the webhook"),
        pytest.param(_restart_queue, id="the queue"),
        pytest.param(_restart_redis, id="Redis"),
        pytest.param(_wipe_redis, id="Redis and its data"),
    ],
)
async def test_a_line_survives_the_death_of(
    scene: Scene, fairslice: Fairslice, blow: Callable[[Fairslice], Awaitable[None]]
) -> None:
    line = await Line.of(scene, seconds=1.5)
    await line.submit_all()
    await line.completed(2)
    # A Job whose pods the API server refuses is tried again after a minute: strike in between.
    await eventually("the next three run", line.started, lambda runs: len(runs) >= 2 * CAPACITY)

    await blow(fairslice)

    await line.all_complete()
    line.check_nothing_ran_twice()
    assert line.most_at_once() <= CAPACITY
    await fairslice.ready()


async def test_work_submitted_while_redis_is_away_waits_and_then_runs(
    scene: Scene, fairslice: Fairslice
) -> None:
    await scene.node(a100(mig_1g_10gb=3))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    await fairslice.redis.kill()
    try:
        await team.create(job("patient", team.namespace, labels=_SWEEP, seconds=0.5))
    finally:
        await fairslice.redis.start()
    await scene.settled("Job", "patient", team.namespace, "completes", is_complete)
    assert len(scene.runs(team.namespace)) == 1
    assert all(phase(found) == "Succeeded" for found in await scene.pods(team.namespace))
