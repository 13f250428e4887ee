"""Jobs: started at once, suspended, held, and never made to fail by preemption."""

import json
from copy import deepcopy
from typing import Any

import pytest

from .conftest import MakeCluster
from .scene import (
    GPU,
    JOB_CONTROLLER,
    QUEUE,
    SLICE_10,
    Cluster,
    Verdict,
    container,
    job,
    modes,
    owner,
    pod,
    policy,
    team,
    view,
)

STATE = "system.fairslice.io/state"
BOOKING = "system.fairslice.io/booking"
ASSIGNMENT = "system.fairslice.io/assignment"
EXPERIMENT = {"fairslice.io/class": "experiment"}


def small(limit: str, **spec: Any) -> Any:
    return view(teams=(team(pools=[{"pool": "a100", "limit": limit}], **spec),))


def pod_of(stored: Verdict, number: int = 0, uid: str = "") -> dict[str, Any]:
    """A pod as the Job controller makes it from a stored Job."""
    meta = stored.obj["metadata"]
    template = stored.spec["template"]
    made = pod(
        "",
        generateName=f"{meta['name']}-",
        labels={**(template["metadata"].get("labels") or {}), "test/number": str(number)},
        annotations=dict(template["metadata"].get("annotations") or {}),
        ownerReferences=[owner("Job", meta["name"], uid=uid or meta["uid"])],
    )
    containers = deepcopy(template["spec"]["containers"])
    for item in containers:
        item["resources"]["requests"] = dict(item["resources"]["limits"])
    made["spec"]["containers"] = containers
    return made


async def test_a_job_that_fits_starts_at_once_and_carries_its_assignment(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    done = await place.create(job(pods=2))
    assert done.allowed
    assert done.spec["suspend"] is False
    assert done.labels[STATE] == "released"
    assignment = json.loads(done.spec["template"]["metadata"]["annotations"][ASSIGNMENT])
    assert assignment["booking"] == done.annotations[BOOKING]
    assert done.spec["template"]["spec"]["containers"][0]["resources"] == {"limits": {GPU: "1"}}
    assert (await place.ledger.held("nlp")).pools == {"a100": 2000}


async def test_preemption_never_counts_as_a_jobs_failure(cluster: MakeCluster) -> None:
    place = await cluster()
    done = await place.create(job())
    assert done.spec["podReplacementPolicy"] == "Failed"
    assert done.spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    own = job("own", podFailurePolicy={"rules": [{"action": "FailJob"}]})
    assert (await place.create(own)).spec["podFailurePolicy"] == {"rules": [{"action": "FailJob"}]}
    restarting = job("restarting")
    restarting["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    assert "podFailurePolicy" not in (await place.create(restarting)).spec


async def test_ten_jobs_on_a_limit_of_three_start_three(cluster: MakeCluster) -> None:
    place = await cluster(small("3"))
    done = [await place.create(job(f"j{n}")) for n in range(10)]
    assert [item.spec["suspend"] for item in done] == [False] * 3 + [True] * 7
    waiting = done[3]
    assert waiting.labels[STATE] == "queued"
    assert ASSIGNMENT not in (waiting.spec["template"]["metadata"].get("annotations") or {})
    assert any("3 of 3" in text for text in waiting.warnings)


async def test_a_job_that_can_never_run_is_refused_with_what_would_fit(
    cluster: MakeCluster,
) -> None:
    place = await cluster(small("2"))
    refused = await place.create(job(pods=3))
    assert not refused.allowed
    assert "at most 2 of 3 pods" in refused.message
    big = await cluster(small("100"))
    refused = await big.create(job(pods=30))
    assert "at most 4 of 30 pods" in refused.message


async def test_a_job_waits_whatever_its_class_does_with_pods(cluster: MakeCluster) -> None:
    place = await cluster(small("0.125"))
    assert (await place.create(job("a", metadata={"labels": EXPERIMENT}))).allowed
    assert (await place.create(job("b", metadata={"labels": EXPERIMENT}))).spec["suspend"] is True


async def test_node_constraints_leave_placement_to_the_queue(cluster: MakeCluster) -> None:
    place = await cluster()
    asked = job()
    asked["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "a1"}
    assert (await place.create(asked)).spec["suspend"] is True


@pytest.mark.parametrize(
    ("toleration", "waits"),
    [
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
        ({"operator": "Exists"}, False),
        ({"key": "team", "operator": "Equal", "value": "nlp"}, True),
    ],
)
async def test_only_unusual_taints_leave_placement_to_the_queue(
    cluster: MakeCluster, toleration: dict[str, str], waits: bool
) -> None:
    place = await cluster()
    asked = job()
    asked["spec"]["template"]["spec"]["tolerations"] = [toleration]
    assert (await place.create(asked)).spec["suspend"] is waits


async def test_a_job_that_its_user_suspends_is_held_without_a_booking(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    done = await place.create(job(suspend=True))
    assert done.labels[STATE] == "held"
    assert done.spec["suspend"] is True
    assert await place.ledger.get(done.annotations[BOOKING]) is None


async def test_children_and_others_jobs_are_left_alone(cluster: MakeCluster) -> None:
    place = await cluster()
    for foreign in (
        job(metadata={"ownerReferences": [owner("JobSet", "set", "jobset.x-k8s.io/v1alpha2")]}),
        job(managedBy="kueue.x-k8s.io/multikueue"),
        job(metadata={"labels": {"kueue.x-k8s.io/queue-name": "lq"}}),
    ):
        done = await place.mutate(foreign)
        assert done.allowed
        assert done.patch == []


async def test_pods_of_a_released_job_are_bound_to_its_slice(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(job(metadata={"labels": EXPERIMENT}))
    made = await place.create(pod_of(stored), JOB_CONTROLLER)
    assert made.allowed, made.message
    assert made.limits() == {SLICE_10: "1"}
    assert made.spec["priorityClassName"] == "fairslice-experiment"
    assert made.annotations[BOOKING] == stored.annotations[BOOKING]
    assert not made.gated
    assert (await place.ledger.held("nlp")).pools == {"a100": 125}


async def test_pods_beyond_the_booked_count_or_size_are_gated(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(job(pods=1))
    assert not (await place.create(pod_of(stored, 0), JOB_CONTROLLER)).gated
    assert (await place.create(pod_of(stored, 1), JOB_CONTROLLER)).gated
    larger = await place.create(job("larger"))
    swollen = pod_of(larger)
    swollen["spec"]["containers"] = [container(gpus=2)]
    assert (await place.create(swollen, JOB_CONTROLLER)).gated


async def test_a_forged_owner_gets_no_part_of_a_released_job(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(job())
    forged = pod_of(stored, uid="someone-else")
    assert (await place.create(forged)).gated


async def update(place: Cluster, stored: Verdict, user: str = "alice", **spec: Any) -> Verdict:
    new = deepcopy(stored.obj)
    new["spec"].update(spec)
    return await place.update(new, stored.obj, user)


async def test_unsuspending_queued_work_by_hand_is_put_back(cluster: MakeCluster) -> None:
    place = await cluster(small("1"))
    await place.create(job("first"))
    waiting = await place.create(job("second"))
    done = await update(place, waiting, suspend=False)
    assert done.allowed
    assert done.spec["suspend"] is True
    assert any("still queued" in text for text in done.warnings)
    released = await update(place, waiting, QUEUE, suspend=False)
    assert released.patch == []


async def test_suspending_holds_and_resuming_queues_again(cluster: MakeCluster) -> None:
    place = await cluster()
    running = await place.create(job())
    held = await update(place, running, suspend=True)
    assert held.labels[STATE] == "held"
    assert held.spec["suspend"] is True
    resumed = await update(place, held, suspend=False)
    assert resumed.labels[STATE] == "queued"
    assert resumed.spec["suspend"] is True
    assert resumed.annotations["system.fairslice.io/queued-at"]


async def test_what_is_held_may_ask_for_something_else_and_is_booked_anew(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    held = await place.create(job(suspend=True))
    labelled = deepcopy(held.obj)
    labelled["metadata"]["labels"]["mine"] = "x"
    assert (await place.update(labelled, held.obj)).annotations[BOOKING] == held.annotations[
        BOOKING
    ]
    new = deepcopy(held.obj)
    new["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] = "4"
    edited = await place.update(new, held.obj)
    assert edited.labels[STATE] == "held"
    assert edited.annotations[BOOKING] != held.annotations[BOOKING]
    # Edited and resumed at once: the same.
    new["spec"]["suspend"] = False
    resumed = await place.update(new, held.obj)
    assert resumed.labels[STATE] == "queued"
    assert resumed.spec["suspend"] is True
    assert resumed.annotations[BOOKING] != held.annotations[BOOKING]


async def test_stamps_and_class_can_not_be_edited(cluster: MakeCluster) -> None:
    place = await cluster(small("1"))
    await place.create(job("first"))
    waiting = await place.create(job("second"))
    new = deepcopy(waiting.obj)
    del new["metadata"]["annotations"][BOOKING]
    new["metadata"]["labels"][STATE] = "released"
    new["metadata"]["labels"]["fairslice.io/class"] = "production"
    new["metadata"]["annotations"]["system.fairslice.io/user"] = "boss"
    done = await place.update(new, waiting.obj)
    assert done.obj["metadata"] == waiting.obj["metadata"]
    new = deepcopy(waiting.obj)
    new["spec"]["template"]["metadata"]["annotations"] = {ASSIGNMENT: "{}"}
    done = await place.update(new, waiting.obj)
    assert not done.spec["template"]["metadata"]["annotations"]


async def test_a_queued_request_can_not_grow(cluster: MakeCluster) -> None:
    place = await cluster(small("1"))
    await place.create(job("first"))
    waiting = await place.create(job("second"))
    new = deepcopy(waiting.obj)
    new["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"][GPU] = "2"
    refused = await place.update(new, waiting.obj)
    assert not refused.allowed
    new = deepcopy(waiting.obj)
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    assert (await place.update(new, waiting.obj)).patch == []


async def test_forged_stamps_on_a_new_job_are_dropped(cluster: MakeCluster) -> None:
    place = await cluster(small("1"))
    first = await place.create(job("first"))
    copied = deepcopy(first.obj)
    copied["metadata"]["name"] = "copy"
    del copied["metadata"]["uid"]
    done = await place.mutate(copied)
    assert done.annotations[BOOKING] != first.annotations[BOOKING]
    assert done.spec["suspend"] is True
    assert ASSIGNMENT not in (done.spec["template"]["metadata"].get("annotations") or {})


async def test_audited_jobs_are_only_talked_about(cluster: MakeCluster) -> None:
    rules = policy(modes("Audit"))
    place = await cluster(view(rules, (team(pools=[{"pool": "a100", "limit": "0.5"}]),)))
    done = await place.mutate(job())
    assert done.patch == []
    assert all(text.startswith("[audit]") for text in done.warnings)
    assert [record.outcome for record in place.sink.records] == ["deny"]


@pytest.mark.parametrize("broken", [{"template": None}, {"template": 5}, {"parallelism": "x"}])
async def test_a_job_of_the_wrong_shape_is_left_to_the_api_server(
    cluster: MakeCluster, broken: dict[str, Any]
) -> None:
    place = await cluster()
    asked = job()
    asked["spec"].update(broken)
    assert (await place.mutate(asked)).allowed
