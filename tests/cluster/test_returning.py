"""Pushed out, lost or unable to start: what comes back by itself, what stays away, and why."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from .harness.history import has_condition, is_suspended
from .harness.installation import get_policy, set_policy
from .harness.kinds import Obj
from .harness.manifests import job, manifest, pod
from .harness.nodes import RUN_LABEL
from .harness.scene import Scene
from .harness.shapes import h100
from .harness.waiting import eventually, stays

_TRAINING = {"fairslice.io/class": "training"}
_EXPERIMENT = {"fairslice.io/class": "experiment"}
_AGAIN = {"fairslice.io/restart": "true"}
_STATUS = "system.fairslice.io/status"
_HISTORY = "system.fairslice.io/history"


def _past(obj: Obj) -> dict[str, Any]:
    text = (obj["metadata"].get("annotations") or {}).get(_HISTORY)
    return dict(json.loads(text)) if text else {}


async def test_a_guarantee_is_taken_back_from_a_borrower_that_runs_again_afterwards(
    scene: Scene,
) -> None:
    await scene.node(h100(2))
    borrower = await scene.team("research", {"h100": ("0", "2")})
    owner = await scene.team("owner", {"h100": ("1", "2")})
    await borrower.create(job("wide", borrower.namespace, 2, labels=_TRAINING, seconds=600))
    await eventually("it borrows", lambda: scene.started(borrower.namespace, "wide"))

    await owner.create(job("mine", owner.namespace, labels=_TRAINING, seconds=1))

    await eventually("the owner runs", lambda: scene.started(owner.namespace, "mine"))
    wide = await scene.settled("Job", "wide", borrower.namespace, "waits again", is_suspended)
    assert (wide.get("status") or {}).get("failed", 0) == 0
    past = _past(wide)
    assert past["pushed"] == 1
    assert owner.name in past["last"][-1]["why"]
    await eventually(
        "it runs again",
        lambda: scene.started(borrower.namespace, "wide"),
        lambda runs: len(runs) == 2,
    )


async def test_a_tenants_disruption_budget_is_honoured_for_a_while(scene: Scene) -> None:
    await scene.node(h100(1))
    borrower = await scene.team("research", {"h100": ("0", "1")})
    owner = await scene.team("owner", {"h100": ("1", "1")})
    labels = {**_TRAINING, "app": "guarded"}
    await borrower.create(pod("guarded", borrower.namespace, labels=labels))
    budget = manifest("PodDisruptionBudget", "keep", borrower.namespace)
    budget["spec"] = {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}}
    await scene.api.create(budget)
    await scene.running("guarded", borrower.namespace)

    await owner.create(job("mine", owner.namespace, labels=_TRAINING, seconds=1))

    await stays(
        "the budget keeps it",
        lambda: scene.pods(borrower.namespace),
        lambda pods: len(pods) == 1 and "deletionTimestamp" not in pods[0]["metadata"],
        1.5,
    )
    await eventually("the owner runs", lambda: scene.started(owner.namespace, "mine"))
    await scene.gone("Pod", "guarded", borrower.namespace)


async def test_work_on_a_reclaimed_node_runs_again_elsewhere(scene: Scene) -> None:
    spot = await scene.node(h100(2))
    team = await scene.team("research", {"h100": ("2", "4")})
    await team.create(job("train", team.namespace, labels=_TRAINING, seconds=600))
    await team.create(pod("nb", team.namespace, labels=_EXPERIMENT, annotations=_AGAIN))
    await scene.running("nb", team.namespace)
    await eventually("the Job runs", lambda: scene.started(team.namespace, "train"))
    await scene.settled("PodTemplate", "fairslice-pod-nb", team.namespace, "is stored", bool)
    node = await scene.api.get("Node", spot)
    taint = {"key": "suite/reclaimed", "effect": "NoExecute"}
    await scene.api.patch("Node", spot, {"spec": {"taints": [*node["spec"]["taints"], taint]}})

    await scene.node(h100(2))

    for name in ("train", "nb"):
        await eventually(
            f"{name} runs again",
            lambda name=name: scene.started(team.namespace, name),
            lambda runs: len(runs) == 2,
        )
    train = await scene.api.get("Job", "train", team.namespace)
    assert not has_condition(train, "Failed")
    assert _past(await scene.api.get("Pod", "nb", team.namespace))["restarted"] == 1


async def test_what_fails_by_itself_or_is_deleted_stays_away(scene: Scene) -> None:
    await scene.node(h100(2))
    team = await scene.team("research", {"h100": ("2", "2")})
    bad = job("bad", team.namespace, labels=_TRAINING, seconds=0.2, exit_code=1)
    await team.create(bad)
    await team.create(pod("nb", team.namespace, labels=_EXPERIMENT, annotations=_AGAIN))
    await scene.running("nb", team.namespace)
    await scene.settled("PodTemplate", "fairslice-pod-nb", team.namespace, "is stored", bool)
    failed = await scene.settled(
        "Job", "bad", team.namespace, "fails", lambda obj: has_condition(obj, "Failed")
    )

    await team.api.delete("Pod", "nb", team.namespace)

    await scene.gone("Pod", "nb", team.namespace)
    await scene.gone("PodTemplate", "fairslice-pod-nb", team.namespace)
    await stays(
        "both stay away",
        lambda: scene.started(team.namespace),
        lambda runs: len(runs) == 2,
        3.0,
    )
    again = await scene.api.get("Job", "bad", team.namespace)
    assert again["metadata"]["uid"] == failed["metadata"]["uid"]


@asynccontextmanager
async def _start_timeout(scene: Scene, seconds: str) -> AsyncIterator[None]:
    before = await get_policy(scene.api)
    assert before is not None
    queue = {**before["spec"].get("queue", {}), "startTimeout": seconds}
    await set_policy(scene.api, {"spec": {**before["spec"], "queue": queue}})
    try:
        yield
    finally:
        await set_policy(scene.api, {"spec": before["spec"]})


async def test_what_finds_no_node_goes_back_and_leaves_its_room_to_others(scene: Scene) -> None:
    await scene.node(h100(1))
    team = await scene.team("research", {"h100": ("0", "1")})
    other = await scene.team("other", {"h100": ("0", "1")})
    here = {RUN_LABEL: scene.target.run_id}
    shy = pod("shy", team.namespace, 0, labels={"app": "shy"}, nodeSelector=here)
    await team.create(shy)
    await scene.running("shy", team.namespace)
    # What the kube-scheduler minds, and the queue doesn't know of.
    term = {"labelSelector": {"matchLabels": {"app": "shy"}}, "topologyKey": RUN_LABEL}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    async with _start_timeout(scene, "3s"):
        lost = job("lost", team.namespace, labels=_TRAINING, affinity=apart)
        await team.create(lost)
        await scene.settled("Job", "lost", team.namespace, "is released", _is_released)
        await other.create(job("next", other.namespace, labels=_TRAINING, seconds=1))

        await eventually("the next one runs", lambda: scene.started(other.namespace, "next"))

        obj = await scene.settled(
            "Job", "lost", team.namespace, "says why", lambda obj: "kept back" in _told(obj)
        )
        assert is_suspended(obj)
        assert "affinity" in _told(obj)
        assert _past(obj)["failed"] == 1
        assert not scene.runs(team.namespace, "lost")


def _is_released(obj: Obj) -> bool:
    return not is_suspended(obj)


def _told(obj: Obj) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(_STATUS, ""))
