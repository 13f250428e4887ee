"""What an ordinary user edits on work that waits or runs, and what he may not write at all."""

import json

import pytest

from .harness.client import Refused
from .harness.kinds import Obj
from .harness.manifests import job, pod
from .harness.scene import Scene, Team
from .harness.shapes import a100
from .harness.waiting import eventually, stays

_TRAINING = {"fairslice.io/class": "training"}
_OURS = "system.fairslice.io/"
_BOOKING = f"{_OURS}booking"
_STATE = f"{_OURS}state"
_PODTEMPLATES = "/api/v1/namespaces/{}/podtemplates"


async def _waiting(scene: Scene) -> tuple[Team, Obj]:
    await scene.node(a100(4))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    await team.create(job("holds", team.namespace, labels=_TRAINING, seconds=None))
    await eventually("the Job runs", lambda: scene.started(team.namespace, "holds"))
    return team, (await team.create(job("waits", team.namespace, labels=_TRAINING))).obj


async def _patched(team: Team, name: str, body: Obj) -> Obj:
    """Patch a Job; the queue may write beside us."""
    return (await team.api.patch("Job", name, body, team.namespace)).obj


@pytest.mark.parametrize("name", ["waits", "holds"])
async def test_the_class_of_a_job_is_put_back(scene: Scene, name: str) -> None:
    team, _ = await _waiting(scene)
    wanted = {"labels": {"fairslice.io/class": "production", "mine": "kept"}}
    done = await _patched(team, name, {"metadata": wanted})
    assert done["metadata"]["labels"]["fairslice.io/class"] == "training"
    assert done["metadata"]["labels"]["mine"] == "kept"
    gone = await _patched(team, name, {"metadata": {"labels": {"fairslice.io/class": None}}})
    assert gone["metadata"]["labels"]["fairslice.io/class"] == "training"


async def test_the_template_of_a_waiting_job_keeps_what_it_was_given(scene: Scene) -> None:
    team, before = await _waiting(scene)
    meta = {
        "labels": {"fairslice.io/class": "production"},
        "annotations": {f"{_OURS}assignment": json.dumps({"booking": "b" + "0" * 20})},
    }
    done = await _patched(team, "waits", {"spec": {"template": {"metadata": meta}}})
    after = done["spec"]["template"]["metadata"]
    assert after["labels"] == before["spec"]["template"]["metadata"]["labels"]
    assert f"{_OURS}assignment" not in after["annotations"]
    more = {"annotations": {"fairslice.io/gpu-memory": "70Gi"}}
    with pytest.raises(Refused, match="submit it again"):
        await _patched(team, "waits", {"spec": {"template": {"metadata": more}}})
    spec = {"template": {"spec": {"nodeName": scene.nodes[0]}}}
    with pytest.raises(Refused):
        await _patched(team, "waits", {"spec": spec})
    await stays(
        "only the first runs",
        lambda: scene.started(team.namespace),
        lambda runs: {run.owner for run in runs} == {"holds"},
        0.5,
    )


async def test_labels_of_a_waiting_job_are_put_back(scene: Scene) -> None:
    team, before = await _waiting(scene)
    wanted = {
        "labels": {_STATE: None, f"{_OURS}managed": "false"},
        "annotations": {_BOOKING: "b" + "f" * 20, f"{_OURS}queued-at": "2001-01-01T00:00:00Z"},
    }
    done = await _patched(team, "waits", {"metadata": wanted})
    assert done["metadata"]["labels"] == before["metadata"]["labels"]
    for key in (_BOOKING, f"{_OURS}queued-at"):
        assert done["metadata"]["annotations"][key] == before["metadata"]["annotations"][key]


@pytest.mark.parametrize(("kind", "name"), [("Pod", "plain"), ("Job", "waits")])
async def test_status_through_which_stamps_could_be_changed_is_nothing_to_a_user(
    scene: Scene, kind: str, name: str
) -> None:
    team, _ = await _waiting(scene)
    await team.create(pod("plain", team.namespace, 0))
    forged = {"metadata": {"annotations": {_BOOKING: "b" + "f" * 20}}}
    with pytest.raises(Refused) as refused:
        await team.api.patch(kind, name, forged, team.namespace, subresource="status")
    assert refused.value.status == 403


async def test_a_forged_manifest_is_not_brought_to_life(scene: Scene) -> None:
    team, _ = await _waiting(scene)
    # Of a namespace's owner, who may write PodTemplates.
    made = pod("risen", team.namespace, labels=_TRAINING)
    made["metadata"]["annotations"] |= {
        f"{_OURS}user": "boss",
        f"{_OURS}queued-at": "2001-01-01T00:00:00Z",
    }
    forged = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {
            "name": "fairslice-pod-risen",
            "namespace": team.namespace,
            "labels": {f"{_OURS}managed": "true"},
            "annotations": {f"{_OURS}manifest": json.dumps(made), f"{_OURS}disrupted": "x"},
        },
        "template": {"spec": made["spec"]},
    }
    path = _PODTEMPLATES.format(team.namespace)
    answer = (await scene.api.call("POST", path, forged)).obj
    assert _OURS not in json.dumps({**answer["metadata"], "managedFields": None})
    await stays(
        "nothing comes of it",
        lambda: scene.api.find("Pod", "risen", team.namespace),
        lambda found: found is None,
        1.5,
    )
