"""Scenario 9: Audit changes nothing and tells what it would have; going back loses nothing."""

from collections.abc import AsyncIterator

import pytest_asyncio

from .harness.client import Refused
from .harness.history import is_complete, is_suspended
from .harness.installation import set_policy
from .harness.line import CAPACITY, SLICES, Line
from .harness.manifests import deployment, job, pod
from .harness.policy import suite_policy
from .harness.scene import Scene, Team
from .harness.serving import Fairslice
from .harness.shapes import a100
from .harness.waiting import eventually, shown

_EXPERIMENT = {"fairslice.io/class": "experiment"}
_TRAINING = {"fairslice.io/class": "training"}
_FREED_SECONDS = 10.0


async def _switch(scene: Scene, mode: str) -> None:
    """Set the mode of every feature."""
    policy = suite_policy(scene.target.run_id, scene.target.exempt_namespace, mode)
    await set_policy(scene.api, policy)


async def _heeded(scene: Scene, team: Team, mode: str) -> None:
    """Wait until the webhook acts by the mode, as a dry run shows."""
    probe = pod("probe", team.namespace, labels=_EXPERIMENT)

    async def look() -> bool:
        try:
            made = (await scene.api.create(probe, dry_run=True)).obj
        except Refused:
            return mode == "Enforce"
        return ("priorityClassName" in made["spec"]) == (mode == "Enforce")

    await eventually(f"the webhook acts by {mode}", look, within=10)


@pytest_asyncio.fixture(loop_scope="session")
async def audited(scene: Scene) -> AsyncIterator[Scene]:
    """A scene under Audit; Enforce afterwards."""
    await _switch(scene, "Audit")
    yield scene
    await _switch(scene, "Enforce")


async def test_audit_changes_and_denies_nothing_and_reports_what_it_would_have(
    audited: Scene, fairslice: Fairslice
) -> None:
    scene = audited
    await scene.node(a100(4, mig_1g_10gb=2))
    team = await scene.team("nlp", {"a100": ("0.125", "0.125")})
    scene.audited.add(team.namespace)
    await _heeded(scene, team, "Audit")
    whole = {"nvidia.com/gpu": "1"}

    shrunk = await team.create(pod("shrunk", team.namespace, labels=_EXPERIMENT))
    await team.create(pod("denied", team.namespace, labels=_EXPERIMENT))
    await team.create(job("queued", team.namespace, labels=_TRAINING, seconds=600))

    for name in ("shrunk", "denied"):
        stored = await scene.running(name, team.namespace)
        assert stored["spec"]["containers"][0]["resources"]["limits"] == whole
        assert "priorityClassName" not in stored["spec"]
        assert "schedulingGates" not in stored["spec"]
    assert not is_suspended(await scene.api.get("Job", "queued", team.namespace))
    await eventually("the Job runs", lambda: scene.started(team.namespace, "queued"))
    assert any(text.startswith("[audit]") for text in shrunk.warnings), shrunk.warnings

    async def report() -> list[str]:
        rows = await fairslice.audit_report()
        return [shown(row) for row in rows if team.namespace in shown(row)]

    await eventually(
        "the report names all three",
        report,
        lambda rows: all(
            any(name in row for row in rows) for name in ("shrunk", "denied", "queued")
        ),
        within=10,
    )


async def test_switching_to_enforce_and_back_loses_nothing(scene: Scene) -> None:
    line = await Line.of(scene, seconds=2, whole=True)
    await line.submit_all()
    await eventually(
        "seven wait", line.jobs, lambda jobs: sum(map(is_suspended, jobs)) == SLICES - CAPACITY
    )
    try:
        await _switch(scene, "Audit")
        scene.audited.update(team.namespace for team in line.teams)
        await eventually(
            "what waited is let go",
            line.jobs,
            lambda jobs: not any(map(is_suspended, jobs)),
            within=_FREED_SECONDS,
        )
    finally:
        await _switch(scene, "Enforce")
    await line.all_complete()
    line.check_nothing_ran_twice()
    assert line.most_at_once() <= CAPACITY


async def test_enforcing_takes_what_already_runs_into_the_books_untouched(scene: Scene) -> None:
    await _switch(scene, "Audit")
    try:
        await scene.node(a100(2))
        team = await scene.team("nlp", {"a100": ("2", "2")})
        scene.audited.add(team.namespace)
        await _heeded(scene, team, "Audit")
        await team.create(job("old", team.namespace, labels=_TRAINING, seconds=4))
        await team.create(deployment("kept", team.namespace, labels=_TRAINING))
        await eventually(
            "both run", lambda: scene.started(team.namespace), lambda runs: len(runs) == 2
        )
    finally:
        await _switch(scene, "Enforce")
    await _heeded(scene, team, "Enforce")

    # The running two hold both GPUs, so a third has to wait for the first to end.
    await team.create(job("new", team.namespace, labels=_TRAINING, seconds=0.5))

    assert is_suspended(await scene.api.get("Job", "new", team.namespace))
    await scene.settled("Job", "old", team.namespace, "completes", is_complete)
    await scene.settled("Job", "new", team.namespace, "completes", is_complete)
    assert len(scene.runs(team.namespace)) == 3
