"""What hangs rather than dies: Redis, the API server, the webhook. Nobody is kept waiting."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from .harness.client import Refused
from .harness.history import is_complete, is_suspended
from .harness.kinds import Obj
from .harness.manifests import job, pod
from .harness.nodes import RUN_LABEL
from .harness.reviews import Entry, Verdict, ask, entries, review
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.shapes import a100
from .harness.waiting import eventually

_EXPERIMENT = {"fairslice.io/class": "experiment"}
_SWEEP = {"fairslice.io/class": "sweep"}
_VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
# What the webhook answers within, its documented limit; the API server's own time comes on top.
_CONSERVATIVE = 0.3
_POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"


async def _entry(scene: Scene, name: str) -> Entry:
    return next(
        each
        for each in await entries(scene.api)
        if each.mutates and each.name == f"{name}.fairslice.io"
    )


async def _timed(entry: Entry, asked: Obj) -> tuple[Verdict, float]:
    body = review("Pod", asked, user="somebody")
    body["request"]["dryRun"] = True
    started = time.monotonic()
    return await ask(entry, body), time.monotonic() - started


async def test_while_redis_hangs_the_conservative_answer_comes_at_once(
    scene: Scene, fairslice: Fairslice
) -> None:
    await scene.node(a100(mig_1g_10gb=3))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    entry = await _entry(scene, "gpu-pods")
    asked = pod("nb", team.namespace, labels=_EXPERIMENT)
    (_, usual), *_ = [await _timed(entry, asked) for _ in range(3)]
    async with fairslice.redis_frozen():
        # The first to notice, then many at once while it is known, then one after the other.
        first = await _timed(entry, asked)
        many = await asyncio.gather(*(_timed(entry, asked) for _ in range(12)))
        for verdict, _ in (first, *many, *[await _timed(entry, asked) for _ in range(3)]):
            assert not verdict.allowed
            assert "try again" in verdict.message
        assert first[1] - usual < _CONSERVATIVE
        assert min(seconds for _, seconds in many) - usual < _CONSERVATIVE

        with pytest.raises(Refused, match="try again"):
            await team.create(asked)
        waits = (await team.create(job("waits", team.namespace, labels=_SWEEP, seconds=0.5))).obj
        assert is_suspended(waits)
        here = {RUN_LABEL: scene.target.run_id}
        started = time.monotonic()
        await team.create(pod("plain", team.namespace, 0, nodeSelector=here))
        assert time.monotonic() - started < 1.0
    await scene.running("plain", team.namespace)
    await scene.settled("Job", "waits", team.namespace, "completes", is_complete)
    await team.create(pod("after", team.namespace, labels=_EXPERIMENT))
    await scene.running("after", team.namespace)


async def test_while_the_api_server_hangs_the_webhook_goes_on_answering(scene: Scene) -> None:
    if not scene.target.programs:
        pytest.skip("this API server is not the suite's to stop")
    (api_server,) = scene.target.programs
    await scene.node(a100(mig_1g_10gb=3))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    entry = await _entry(scene, "gpu-pods")
    with api_server.frozen():
        for _ in range(3):
            verdict, seconds = await _timed(entry, pod("nb", team.namespace, labels=_EXPERIMENT))
            assert verdict.allowed
            assert seconds < _CONSERVATIVE
            await asyncio.sleep(0.5)
    await team.create(pod("after", team.namespace, labels=_EXPERIMENT))
    await scene.running("after", team.namespace)


async def test_while_the_webhook_hangs_pods_without_gpus_wait_a_second_at_most(
    scene: Scene, fairslice: Fairslice
) -> None:
    await _check_hanging(scene, fairslice)


async def _check_hanging(scene: Scene, fairslice: Fairslice) -> None:
    # What was asked for meanwhile is booked for some seconds, though nobody waits for it.
    await scene.node(a100(mig_1g_10gb=5))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    scene.audited.update((team.namespace, scene.target.exempt_namespace))
    here = {RUN_LABEL: scene.target.run_id}
    plain = pod("plain", team.namespace, 0, nodeSelector=here)
    privileged = pod("opens", team.namespace, 0, nodeSelector=here)
    privileged["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with fairslice.webhook.frozen():
        for asked in (plain, privileged):
            started = time.monotonic()
            await team.create(asked)
            assert time.monotonic() - started < 2.0
        # What is exempt as a whole needs no webhook at all.
        exempt = pod("exempt", scene.target.exempt_namespace, labels=_EXPERIMENT)
        started = time.monotonic()
        await scene.api.create(exempt, dry_run=True)
        assert time.monotonic() - started < 1.0
        with pytest.raises(Refused, match="gpu-pods"):
            await team.create(pod("gpu", team.namespace, labels=_EXPERIMENT))
        await team.api.delete("Pod", "plain", team.namespace)
        await scene.gone("Pod", "plain", team.namespace)
    await fairslice.ready()

    async def taken() -> bool:
        try:
            await team.create(pod("after", team.namespace, labels=_EXPERIMENT))
        except Refused as refusal:
            # Redis seemed away meanwhile, and is asked again shortly.
            if "try again" in refusal.message:
                return False
            raise
        return True

    await eventually("GPU pods are taken again", taken, within=5)


@pytest_asyncio.fixture(loop_scope="session")
async def hidden_by_webhook(scene: Scene, fairslice: Fairslice) -> AsyncIterator[Scene]:
    """A scene where the API server hides nothing by itself, though it may be able to."""
    usual = await _names(scene)
    await fairslice.restart(fairslice.webhook, FAIRSLICE_HIDE_BY="webhook")
    await eventually("the policy is gone", lambda: _names(scene), lambda names: not names)
    yield scene
    await fairslice.restart(fairslice.webhook)
    await eventually("all is as before", lambda: _names(scene), lambda names: names == usual)


async def _names(scene: Scene) -> list[str]:
    """Name what hides in the API server."""
    try:
        found = (await scene.api.call("GET", _POLICIES)).obj["items"]
    except Refused as refusal:
        if refusal.status == 404:
            return []
        raise
    return [each["metadata"]["name"] for each in found]


async def test_the_webhooks_own_hiding_is_the_exact_rest_and_waits_a_second_at_most(
    hidden_by_webhook: Scene, fairslice: Fairslice
) -> None:
    scene = hidden_by_webhook
    entry = await _entry(scene, "hide")
    team = await scene.team("nlp", {"a100": ("1", "1")})
    made = (await team.create(pod("hidden", team.namespace, 0), dry_run=True)).obj
    assert made["spec"]["containers"][0]["env"] == _VOID
    assert entry.name == "hide.fairslice.io"
    await _check_hanging(scene, fairslice)
