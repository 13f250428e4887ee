"""Scenario 6: whoever is pushed out comes back by itself when the surge is over."""

from functools import partial

import pytest

from .harness.history import has_condition, is_suspended
from .harness.kinds import Obj
from .harness.manifests import deployment, job, manifest, pod
from .harness.nodes import RUN_LABEL
from .harness.scene import Scene, Team
from .harness.shapes import h100
from .harness.waiting import eventually, stays

_PRODUCTION = {"fairslice.io/class": "production"}
_TRAINING = {"fairslice.io/class": "training"}
_EXPERIMENT = {"fairslice.io/class": "experiment"}
_AGAIN = {"fairslice.io/restart": "true"}
_STATUS = "system.fairslice.io/status"
_NOTICE = "system.fairslice.io/preemption"


async def _with_victims(scene: Scene) -> Team:
    """Fill a node of two GPUs with a Job that may not fail and a bare pod that asks for return."""
    await scene.node(h100(2))
    team = await scene.team("research", {"h100": ("0", "2")})
    await team.create(job("train", team.namespace, labels=_TRAINING, seconds=600))
    await eventually("the Job runs", lambda: scene.started(team.namespace, "train"))
    await team.create(pod("nb", team.namespace, labels=_EXPERIMENT, annotations=_AGAIN))
    await scene.running("nb", team.namespace)
    return team


async def _both_run_again(scene: Scene, team: Team) -> None:
    for name in ("train", "nb"):
        await eventually(
            f"{name} runs again",
            partial(scene.started, team.namespace, name),
            lambda runs: len(runs) == 2,
        )
    train = await scene.api.get("Job", "train", team.namespace)
    assert not has_condition(train, "Failed")
    assert (train.get("status") or {}).get("failed", 0) == 0
    await scene.running("nb", team.namespace)


async def test_victims_of_production_run_again_when_the_surge_ends(scene: Scene) -> None:
    team = await _with_victims(scene)
    serving = await scene.team("serving", {"h100": ("2", "2")}, classes=("production",))

    await serving.create(deployment("surge", serving.namespace, replicas=2, labels=_PRODUCTION))

    await eventually(
        "production runs", lambda: scene.started(serving.namespace), lambda runs: len(runs) == 2
    )
    for kind, name, waits in (("Job", "train", is_suspended), ("Pod", "nb", _is_gated)):
        await scene.settled(kind, name, team.namespace, "is in line again", waits)
        assert any(serving.name in text for text in _told(scene, team, kind, name)), name
    await stays(
        "nobody comes back during the surge",
        lambda: scene.started(team.namespace),
        lambda runs: len(runs) == 2,
        1.0,
    )

    await scene.api.delete("Deployment", "surge", serving.namespace)

    await _both_run_again(scene, team)


def _told(scene: Scene, team: Team, kind: str, name: str) -> list[str]:
    """All that an object ever said of its standing and of who pushed it out."""
    seen = scene.seen(team.namespace, kind, name)
    notes = [event.obj["metadata"].get("annotations") or {} for event in seen]
    return [f"{found.get(_STATUS, '')} {found.get(_NOTICE, '')}" for found in notes]


def _is_gated(pod: Obj) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


async def test_victims_of_the_kube_scheduler_run_again_too(scene: Scene) -> None:
    team = await _with_victims(scene)
    urgent = manifest("PriorityClass", f"suite-{scene.target.run_id}-urgent", value=10_000_000)
    await scene.target.own(urgent)
    name = urgent["metadata"]["name"]
    outside = scene.target.exempt_namespace
    here = {RUN_LABEL: scene.target.run_id}

    await scene.api.create(pod("intruder", outside, 2, priorityClassName=name, nodeSelector=here))

    await scene.running("intruder", outside)
    await stays(
        "nobody comes back while the GPUs are taken",
        lambda: scene.started(team.namespace),
        lambda runs: len(runs) == 2,
        1.0,
    )

    await scene.api.delete("Pod", "intruder", outside)
    await scene.gone("Pod", "intruder", outside)
    await _both_run_again(scene, team)
    await scene.target.disown("PriorityClass", name)


@pytest.mark.parametrize("annotations", [_AGAIN, {}], ids=["asking for it", "silent"])
async def test_a_pod_of_jupyterhub_is_left_to_jupyterhub(
    scene: Scene, annotations: dict[str, str]
) -> None:
    await scene.node(h100(1))
    team = await scene.team("research", {"h100": ("0", "1")})
    labels = {**_EXPERIMENT, "component": "singleuser-server", "app": "jupyterhub"}
    notes = {**annotations, "hub.jupyter.org/username": "alice"}
    await team.create(pod("jupyter-alice", team.namespace, labels=labels, annotations=notes))
    await scene.running("jupyter-alice", team.namespace)
    serving = await scene.team("serving", {"h100": ("1", "1")}, classes=("production",))

    await serving.create(deployment("surge", serving.namespace, labels=_PRODUCTION))

    await eventually("production runs", lambda: scene.started(serving.namespace))
    await scene.gone("Pod", "jupyter-alice", team.namespace)
    await scene.api.delete("Deployment", "surge", serving.namespace)
    await eventually(
        "the surge is over",
        lambda: scene.pods(serving.namespace),
        lambda pods: not pods,
    )
    await stays("it stays away", lambda: scene.pods(team.namespace), lambda pods: not pods, 2.0)
