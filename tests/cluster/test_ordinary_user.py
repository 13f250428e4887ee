"""What an ordinary user tries to get round admission: refused, put back or of no use."""

import asyncio

import pytest

from .harness.client import Refused
from .harness.history import is_suspended, phase
from .harness.kinds import Obj
from .harness.manifests import deployment, job, pod
from .harness.scene import Scene, Team
from .harness.shapes import a100
from .harness.waiting import eventually, stays

_TRAINING = {"fairslice.io/class": "training"}
_EXPERIMENT = {"fairslice.io/class": "experiment"}
_GATE = "fairslice.io/queued"
_OURS = "system.fairslice.io/"
_BOOKING = f"{_OURS}booking"
_STATE = f"{_OURS}state"


async def _full(scene: Scene) -> Team:
    """A team of one GPU that a Job holds until it is deleted; the cluster has four."""
    await scene.node(a100(4))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    await team.create(job("holds", team.namespace, labels=_TRAINING, seconds=None))
    await eventually("the Job runs", lambda: scene.started(team.namespace, "holds"))
    return team


async def _nothing_more(scene: Scene, team: Team, seconds: float = 0.5) -> None:
    """Fail if anything but the one Job that fits comes to run."""
    await stays(
        "only what fits runs",
        lambda: scene.started(team.namespace),
        lambda runs: sum(sum(run.resources.values()) for run in runs) == 1,
        seconds,
    )


def _is_gated(found: Obj) -> bool:
    return any(gate["name"] == _GATE for gate in found["spec"].get("schedulingGates") or ())


async def test_forged_stamps_are_dropped(scene: Scene) -> None:
    team = await _full(scene)
    forged = {
        _BOOKING: "b00000000000000000000",
        f"{_OURS}user": "somebody-else",
        f"{_OURS}queued-at": "2001-01-01T00:00:00Z",
        f"{_OURS}restarts": "7",
    }
    labels = {_STATE: "released", f"{_OURS}managed": "false", **_TRAINING}

    asked = pod("forged", team.namespace, labels=labels, annotations=forged)
    made = (await team.create(asked)).obj

    assert _is_gated(made)
    assert made["metadata"]["labels"][_STATE] == "queued"
    assert made["metadata"]["labels"][f"{_OURS}managed"] == "true"
    kept = made["metadata"]["annotations"]
    assert not {forged[key] for key in forged} & set(kept.values()) - {forged[_BOOKING]}
    plain = pod("plain", team.namespace, 0, labels=labels, annotations=forged)
    meta = (await team.create(plain, dry_run=True)).obj["metadata"]
    assert not [
        key for field in ("labels", "annotations") for key in meta.get(field, ()) if _OURS in key
    ]
    await _nothing_more(scene, team)


async def test_a_released_jobs_name_and_assignment_make_no_further_pod(scene: Scene) -> None:
    team = await _full(scene)
    released = await scene.api.get("Job", "holds", team.namespace)
    template = released["spec"]["template"]["metadata"]
    reference = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "holds",
        "uid": released["metadata"]["uid"],
    }
    for number, controls in enumerate((True, False)):
        forged = pod(
            f"forged-{number}",
            team.namespace,
            labels={**template["labels"], "job-name": "other"},
            annotations=template["annotations"],
        )
        forged["metadata"]["ownerReferences"] = [{**reference, "controller": controls}]
        assert _is_gated((await team.create(forged)).obj)
    copied = deployment("copies", team.namespace, replicas=2, labels=_TRAINING)
    copied["spec"]["template"]["metadata"]["annotations"] = template["annotations"]
    await team.create(copied)
    await eventually(
        "the Deployment's pods wait, too",
        lambda: scene.pods(team.namespace, "app=copies"),
        lambda pods: len(pods) == 2 and all(map(_is_gated, pods)),
    )
    await _nothing_more(scene, team)


async def test_waiting_work_is_not_set_free_by_hand(scene: Scene) -> None:
    team = await _full(scene)
    place = team.namespace
    await team.create(job("waits", place, labels=_TRAINING))

    free = {"suspend": False}
    meta = {"name": "waits", "namespace": place}
    stripped = {"labels": {_STATE: None, f"{_OURS}managed": None}, "annotations": {_BOOKING: None}}
    answers = (
        await team.api.patch("Job", "waits", {"spec": free}, place),
        await team.api.patch("Job", "waits", {"metadata": stripped, "spec": free}, place),
        await team.api.patch("Job", "waits", {"metadata": {"labels": None}, "spec": free}, place),
        await team.api.apply(
            {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": free}
        ),
    )

    for answer in answers:
        assert is_suspended(answer.obj)
        assert answer.obj["metadata"]["labels"][_STATE] == "queued"
        assert any("still queued" in text for text in answer.warnings)
    await _nothing_more(scene, team)


async def test_a_gate_stays_until_the_queue_takes_it_off(scene: Scene) -> None:
    team = await _full(scene)
    place = team.namespace
    await team.create(pod("waits", place, labels=_TRAINING))
    spec = {"schedulingGates": None}

    with pytest.raises(Refused, match="removed by the queue"):
        await team.api.patch("Pod", "waits", {"spec": spec}, place)
    meta = {"labels": {_STATE: "released", f"{_OURS}managed": None}}
    with pytest.raises(Refused, match="removed by the queue"):
        await team.api.patch("Pod", "waits", {"metadata": meta, "spec": spec}, place)
    # Not even by somebody who administers the cluster.
    with pytest.raises(Refused, match="removed by the queue"):
        await scene.api.patch("Pod", "waits", {"spec": spec}, place)

    await _nothing_more(scene, team)
    await team.api.delete("Job", "holds", place)
    await scene.running("waits", place)


async def test_labels_and_class_of_a_running_pod_are_put_back(scene: Scene) -> None:
    await scene.node(a100(1, mig_1g_10gb=2))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    made = (await team.create(pod("nb", team.namespace, labels=_EXPERIMENT))).obj
    wanted = {
        "labels": {
            "fairslice.io/class": "production",
            f"{_OURS}managed": None,
            "mine": "kept",
        },
        "annotations": {_BOOKING: None, f"{_OURS}assignment": "{}"},
    }

    answer = await team.api.patch("Pod", "nb", {"metadata": wanted}, team.namespace)

    before, after = made["metadata"], answer.obj["metadata"]
    assert after["labels"] == {**before["labels"], "mine": "kept"}
    assert after["annotations"] == before["annotations"]
    assert any("put back" in text for text in answer.warnings)


async def test_a_waiting_jobs_request_does_not_grow(scene: Scene) -> None:
    team = await _full(scene)
    await team.create(job("waits", team.namespace, labels=_TRAINING))

    async def grow() -> None:
        # The queue writes beside us where a place in line changes.
        while True:
            try:
                found = await team.api.get("Job", "waits", team.namespace)
                (container,) = found["spec"]["template"]["spec"]["containers"]
                container["resources"] = {
                    "limits": {"nvidia.com/gpu": "4"},
                    "requests": {"nvidia.com/gpu": "4"},
                }
                await team.api.replace(found)
                return
            except Refused as refusal:
                if refusal.reason != "Conflict":
                    raise

    with pytest.raises(Refused, match="submit it again"):
        await grow()


async def test_a_held_jobs_request_may_change_and_is_booked_as_it_is_then(scene: Scene) -> None:
    await scene.node(a100(4))
    team = await scene.team("nlp", {"a100": ("2", "2")})
    held = job("held", team.namespace, labels=_TRAINING, seconds=None)
    held["spec"]["suspend"] = True
    made = (await team.create(held)).obj
    assert made["metadata"]["labels"][_STATE] == "held"
    container = made["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {key: {"nvidia.com/gpu": "2"} for key in ("limits", "requests")}
    template = {"template": {"spec": {"containers": [container]}}}

    try:
        await team.api.patch("Job", "held", {"spec": template}, team.namespace)
    except Refused as refusal:
        if "field is immutable" in refusal.message:
            pytest.skip("this API server is older than 1.36")
        raise
    await team.api.patch("Job", "held", {"spec": {"suspend": False}}, team.namespace)

    runs = await eventually("it runs", lambda: scene.started(team.namespace, "held"))
    assert [dict(run.resources) for run in runs] == [{"nvidia.com/gpu": 2}]
    waits = await team.create(job("more", team.namespace, labels=_TRAINING))
    assert is_suspended(waits.obj)


async def test_ways_round_the_scheduler_are_closed(scene: Scene) -> None:
    await scene.node(a100(2))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    place = team.namespace
    (node,) = scene.nodes

    with pytest.raises(Refused, match="skips scheduler and queue"):
        await team.create(pod("pinned", place, labels=_TRAINING, nodeName=node))
    await team.create(job("pinned", place, labels=_TRAINING, nodeName=node))
    await eventually("it is booked", lambda: _state(scene, place, "pinned"))
    other = pod("other", place, labels=_TRAINING, schedulerName="my-scheduler")
    made = (await team.create(other)).obj
    assert made["metadata"]["annotations"][_BOOKING]
    assert _is_gated(made)  # The Job has the one GPU of the team.
    assert scene.runs(place) == []


async def _state(scene: Scene, namespace: str, name: str) -> str:
    found = await scene.api.get("Job", name, namespace)
    return str(found["metadata"]["labels"].get(_STATE, ""))


@pytest.mark.parametrize(
    "asks",
    [
        {"labels": {"fairslice.io/class": "production"}},
        {"priorityClassName": "fairslice-production"},
    ],
    ids=["label", "priority class"],
)
async def test_a_class_that_is_not_granted_is_refused(scene: Scene, asks: Obj) -> None:
    await scene.node(a100(1))
    team = await scene.team("nlp", {"a100": ("1", "1")}, classes=("training",))
    with pytest.raises(Refused, match="not granted to team"):
        await team.create(pod("grand", team.namespace, **asks))


async def test_another_systems_priority_gives_no_place_before_others(scene: Scene) -> None:
    await scene.node(a100(1))
    team = await scene.team("nlp", {"a100": ("1", "1")}, classes=("training",))
    asked = pod(
        "grand", team.namespace, labels=_TRAINING, priorityClassName="system-cluster-critical"
    )
    answer = await team.create(asked)
    assert answer.obj["spec"]["priorityClassName"] == "fairslice-training"
    assert answer.obj["spec"]["priority"] < 1_000_000
    assert any("system-cluster-critical" in text for text in answer.warnings)


async def test_pods_cut_loose_from_their_job_go_on_counting(scene: Scene) -> None:
    team = await _full(scene)
    (found,) = await scene.pods(team.namespace)
    name = found["metadata"]["name"]
    loose = {
        "ownerReferences": None,
        "finalizers": None,
        "labels": {key: None for key in found["metadata"]["labels"] if "job" in key},
    }
    loose["labels"] |= dict.fromkeys(("controller-uid", "batch.kubernetes.io/controller-uid"))

    await team.api.patch("Pod", name, {"metadata": loose}, team.namespace)
    await team.api.delete("Job", "holds", team.namespace)
    await scene.gone("Job", "holds", team.namespace)
    await asyncio.sleep(0.3)
    waits = await team.create(job("next", team.namespace, labels=_TRAINING))

    assert is_suspended(waits.obj)
    await _nothing_more(scene, team)
    assert phase(await scene.api.get("Pod", name, team.namespace)) == "Running"
    await team.api.delete("Pod", name, team.namespace)
    await eventually("the next runs", lambda: scene.started(team.namespace, "next"))


async def test_a_burst_under_one_prefix_is_admitted_up_to_the_limit(scene: Scene) -> None:
    await scene.node(a100(mig_1g_10gb=7))
    team = await scene.team("nlp", {"a100": ("0.5", "0.5")})
    asked = pod("", team.namespace, labels=_EXPERIMENT)
    del asked["metadata"]["name"]
    asked["metadata"]["generateName"] = "nb-"

    done = await asyncio.gather(*(team.create(asked) for _ in range(40)), return_exceptions=True)

    refused = [answer for answer in done if isinstance(answer, BaseException)]
    assert all(isinstance(answer, Refused) and answer.status == 403 for answer in refused)
    assert len(done) - len(refused) == 4
