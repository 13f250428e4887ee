"""Every suspendable kind with a real manifest: suspended and stamped, released, left alone."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonpatch
import msgspec
import pytest
import yaml

from fairslice.booking import Option, State
from fairslice.gangs import read_members
from fairslice.pod_sets import at_pointer
from fairslice.workloads import ADAPTERS, Adapter, adapter_for
from fairslice_queue.bookkeeping import Limits
from fairslice_queue.fact_reading import FactReader
from fairslice_queue.lean_objects import CustomObject
from fairslice_queue.release_patch import release_patch

from .conftest import MakeCluster
from .scene import (
    JOB_CONTROLLER,
    QUEUE,
    SLICE_10,
    SLICE_20,
    Cluster,
    a100_node,
    container,
    owner,
    pod,
    policy,
    team,
    view,
)

KINDS = Path(__file__).parent.parent / "kinds"
STATE = "system.fairslice.io/state"
BOOKING = "system.fairslice.io/booking"
ASSIGNMENT = "system.fairslice.io/assignment"
CLASS = "fairslice.io/class"

# What each is booked as: pods, and their sizes where they differ. How it looks when it is over.
COMPLETE = {"conditions": [{"type": "Complete", "status": "True"}]}
SUCCEEDED = {"conditions": [{"type": "Succeeded", "status": "True"}]}
TABLE: dict[str, tuple[int, tuple[int, ...], dict[str, Any] | None]] = {
    "Job": (2, (), COMPLETE),
    "JobSet": (5, (1, 2), {"conditions": [{"type": "Completed", "status": "True"}]}),
    "RayJob": (2, (), {"jobDeploymentStatus": "Complete"}),
    "RayCluster": (2, (), None),
    "RayService": (2, (), None),
    "MPIJob": (2, (), SUCCEEDED),
    "PyTorchJob": (3, (), SUCCEEDED),
    "TFJob": (3, (), SUCCEEDED),
    "XGBoostJob": (3, (), SUCCEEDED),
    "PaddleJob": (2, (), SUCCEEDED),
    "JAXJob": (2, (), SUCCEEDED),
    "TrainJob": (2, (), COMPLETE),
    "AppWrapper": (2, (), {"phase": "Succeeded"}),
    "SparkApplication": (2, (), {"applicationState": {"state": "COMPLETED"}}),
}
every_kind = pytest.mark.parametrize("kind", TABLE)


def manifest(kind: str, work_class: str = "training") -> dict[str, Any]:
    made = yaml.safe_load((KINDS / f"{kind.lower()}.yaml").read_text())
    assert isinstance(made, dict)
    made["metadata"] |= {"namespace": "nlp", "labels": {CLASS: work_class}}
    return made


def row(kind: str) -> Adapter:
    return next(adapter for adapter in ADAPTERS if adapter.kind.kind == kind)


def assignments(kind: str, obj: dict[str, Any]) -> list[Option | None]:
    """What is said to the pods of each set that asks for GPUs."""
    found: list[Option | None] = []
    for member in read_members(row(kind).pod_sets(obj)):
        text = (member.pod_set.template.metadata.annotations or {}).get(ASSIGNMENT)
        option = None
        if text is not None:
            option = msgspec.convert(json.loads(text)["option"], Option)
            assert option.units == member.ask.units
        found.append(option)
    return found


WIDE = (a100_node(whole=8),)
LIMITS = Limits(pools={"a100": None})


def filler() -> dict[str, Any]:
    """A Job that takes all GPUs."""
    other = manifest("Job")
    other["metadata"]["name"] = "other"
    other["spec"] |= {"parallelism": 8, "completions": 8}
    return other


def test_every_kind_of_the_table_is_tried() -> None:
    assert [adapter.kind.kind for adapter in ADAPTERS] == list(TABLE)


@every_kind
async def test_a_kind_waits_suspended_and_its_release_reaches_all_its_pods(
    cluster: MakeCluster, kind: str
) -> None:
    wide = view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE)
    place = await cluster(wide)
    await place.create(filler())
    pods, sizes, _ = TABLE[kind]
    done = await place.create(manifest(kind))
    adapter = row(kind)
    assert done.allowed, done.message
    assert adapter.is_suspended(done.obj)
    assert done.labels[STATE] == "queued"
    assert set(assignments(kind, done.obj)) == {None}
    booking = await place.ledger.get(done.annotations[BOOKING])
    assert booking is not None
    assert (booking.state, booking.pods, booking.sizes) == (State.QUEUED, pods, sizes)
    assert booking.ref.kind == kind

    stored = deepcopy(done.obj)
    stored["metadata"]["resourceVersion"] = "7"
    option = booking.options[0]
    patch = [msgspec.to_builtins(op) for op in release_patch(adapter, stored, booking.id, option)]
    released = jsonpatch.apply_patch(stored, patch)
    assert not adapter.is_suspended(released)
    assert None not in assignments(kind, released)
    assert released["metadata"]["labels"][STATE] == "released"
    seen = await place.update(released, stored, user=QUEUE)
    assert (seen.allowed, seen.patch) == (True, [])


@every_kind
async def test_a_kind_that_fits_starts_at_once_with_its_pods_assigned(
    cluster: MakeCluster, kind: str
) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE))
    done = await place.create(manifest(kind))
    assert done.allowed, done.message
    # Pods of several sizes are placed by the queue.
    waits = bool(TABLE[kind][1])
    assert row(kind).is_suspended(done.obj) is waits
    assert (None in assignments(kind, done.obj)) is waits


@every_kind
async def test_a_kind_that_is_set_free_by_hand_is_put_back(cluster: MakeCluster, kind: str) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE))
    await place.create(filler())
    waiting = (await place.create(manifest(kind))).obj
    freed = merged(waiting, row(kind).suspend_body(suspend=False))
    done = await place.update(freed, waiting)
    assert row(kind).is_suspended(done.obj)
    assert any("still queued" in text for text in done.warnings)


@every_kind
async def test_what_can_never_fit_is_refused(cluster: MakeCluster, kind: str) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "1"}]),)))
    done = await place.create(manifest(kind))
    assert not done.allowed
    assert "nlp" in done.message


@every_kind
async def test_what_others_look_after_is_left_alone(cluster: MakeCluster, kind: str) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE))
    adapter = row(kind)
    kueue = manifest(kind)
    kueue["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "lq"
    strangers = [kueue]
    if adapter.managed_by:
        *above, last = adapter.managed_by.split("/")[1:]
        body: Any = {last: "kueue.x-k8s.io/multikueue"}
        for step in reversed(above):
            body = {step: body}
        strangers.append(merged(manifest(kind), body))
    child = manifest(kind)
    child["metadata"]["ownerReferences"] = [
        owner("AppWrapper", "w", "workload.codeflare.dev/v1beta2")
    ]
    strangers.append(child)
    for obj in strangers:
        done = await place.mutate(obj)
        assert done.allowed
        assert done.patch == []
    if adapter.manager:
        *above, last = adapter.managed_by.split("/")[1:]
        own: Any = {last: adapter.manager}
        for step in reversed(above):
            own = {step: own}
        assert BOOKING in (await place.mutate(merged(manifest(kind), own))).annotations


@every_kind
def test_a_kind_says_when_it_is_over(kind: str) -> None:
    adapter = row(kind)
    obj = manifest(kind)
    running = msgspec.convert({**obj, "status": {}}, CustomObject)
    facts = FactReader().workload(adapter, running)
    assert (facts.finished, facts.desired) == (False, TABLE[kind][0])
    over = TABLE[kind][2]
    if over is None:
        return
    done = FactReader().workload(adapter, msgspec.convert({**obj, "status": over}, CustomObject))
    assert (done.finished, done.failed, done.desired) == (True, False, 0)


async def test_kueues_work_is_queued_where_the_policy_wants_that(cluster: MakeCluster) -> None:
    place = await cluster(view(policy(queue={"leaveToKueue": False})))
    obj = manifest("RayJob")
    obj["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "lq"
    assert BOOKING in (await place.mutate(obj)).annotations


async def test_a_child_takes_its_parents_assignment_when_it_is_resumed(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    old = manifest("Job")
    old["metadata"]["ownerReferences"] = [owner("JobSet", "set", "jobset.x-k8s.io/v1alpha2")]
    old["spec"]["suspend"] = True
    new = deepcopy(old)
    new["spec"]["suspend"] = False
    new["spec"]["template"]["metadata"] = {"annotations": {ASSIGNMENT: "{}"}}
    done = await place.update(new, old)
    assert done.patch == []


CHILDREN = [
    ("JobSet", "Job", "batch/v1"),
    ("RayJob", "RayCluster", "ray.io/v1"),
    ("RayService", "RayCluster", "ray.io/v1"),
    ("TrainJob", "Job", "batch/v1"),
    ("AppWrapper", "PyTorchJob", "kubeflow.org/v1"),
    ("SparkApplication", "Pod", "v1"),
]


def pod_of(stored: dict[str, Any], member: int, maker: dict[str, Any], n: int) -> dict[str, Any]:
    """A pod as a kind's controller makes it, for one of the sets that ask for GPUs."""
    adapter = adapter_for(stored["apiVersion"], stored["kind"])
    assert adapter is not None
    found = read_members(adapter.pod_sets(stored))[member]
    meta = found.pod_set.template.metadata
    (gpus,) = found.ask.units.values()
    return pod(
        "",
        container(gpus=gpus),
        generateName=f"{maker['name']}-",
        labels={**(meta.labels or {}), "test/number": str(n)},
        annotations=dict(meta.annotations or {}),
        ownerReferences=[maker],
    )


@pytest.mark.parametrize(("kind", "maker", "version"), CHILDREN)
async def test_pods_of_children_are_of_the_topmost_booking(
    cluster: MakeCluster, kind: str, maker: str, version: str
) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE))
    stored = (await place.create(manifest(kind))).obj
    if row(kind).is_suspended(stored):
        stored = await release(place, stored)
    booking = stored["metadata"]["annotations"][BOOKING]
    last = len(read_members(row(kind).pod_sets(stored))) - 1
    child = owner(maker, "child", version)
    made = [await place.create(pod_of(stored, last, child, n)) for n in range(3)]
    assert [item.annotations[BOOKING] == booking for item in made] == [True, True, False]
    assert [item.gated for item in made] == [False, False, True]
    assert made[2].annotations["system.fairslice.io/claimed"] == booking
    # A controller of another kind is no child: the pod counts by itself.
    forged = await place.create(pod_of(stored, last, owner("Deployment", "x", "apps/v1"), 9))
    assert forged.annotations[BOOKING] != booking


async def test_pods_of_several_sizes_are_counted_by_size(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE))
    stored = await release(place, (await place.create(manifest("JobSet"))).obj)
    child = owner("Job", "child")
    assert (await place.ledger.held("nlp")).pools == {"a100": 5000}
    workers = [await place.create(pod_of(stored, 1, child, n)) for n in range(2)]
    assert [item.gated for item in workers] == [False, False]
    assert workers[0].annotations["system.fairslice.io/pod"].endswith("x2")
    # A third worker has no room left, though the leader has; nor has a pod of a size of its own.
    assert (await place.create(pod_of(stored, 1, child, 2))).gated
    large = pod_of(stored, 0, child, 3)
    large["spec"]["containers"] = [container(gpus=3)]
    assert (await place.create(large)).gated
    assert not (await place.create(pod_of(stored, 0, child, 4))).gated
    assert (await place.ledger.held("nlp")).pools == {"a100": 5000}


async def test_pods_with_nothing_in_common_start_one_by_one(cluster: MakeCluster) -> None:
    place = await cluster()
    obj = manifest("JobSet")
    leader, _ = obj["spec"]["replicatedJobs"]
    slices = {"limits": {"nvidia.com/mig-1g.10gb": "1"}}
    leader["template"]["spec"]["template"]["spec"]["containers"][0]["resources"] = slices
    done = await place.mutate(obj)
    assert done.patch == []
    assert any("one by one" in text for text in done.warnings)


def labelled(kind: str, *classes: str) -> dict[str, Any]:
    """A manifest whose pod sets that ask for GPUs have classes of their own, or none."""
    obj = manifest(kind)
    del obj["metadata"]["labels"]
    for member, work_class in zip(read_members(row(kind).pod_sets(obj)), classes, strict=True):
        if work_class:
            meta = {"metadata": {"labels": {CLASS: work_class}}}
            at = at_pointer(obj, member.pod_set.path)
            at |= {**meta, "spec": at["spec"]}
    return obj


async def test_pods_of_several_classes_keep_each_its_own(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE))
    obj = labelled("PyTorchJob", "experiment", "production")
    done = await place.mutate(obj)
    assert done.patch == []
    assert any("one by one" in text for text in done.warnings)
    made = {}
    for role, sets in obj["spec"]["pytorchReplicaSpecs"].items():
        labels = sets["template"]["metadata"]["labels"]
        reference = owner("PyTorchJob", "bert", "kubeflow.org/v1")
        body = pod(role.lower(), labels=dict(labels), ownerReferences=[reference])
        made[role] = (await place.create(body, JOB_CONTROLLER)).limits()
    assert made == {"Master": {SLICE_10: "1"}, "Worker": {SLICE_20: "1"}}


async def test_a_class_of_some_pods_makes_the_others_no_smaller(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE))
    for classes in (("", "experiment"), ("experiment", "")):
        obj = labelled("PyTorchJob", *classes)
        obj["metadata"]["name"] = f"of-{classes[0] or 'none'}"
        done = await place.create(obj)
        booking = await place.ledger.get(done.annotations[BOOKING])
        assert booking is not None
        # Those without a class were promised whole GPUs.
        assert (booking.work_class, {o.mode for o in booking.options}) == ("experiment", {"whole"})
    both = await place.create(labelled("PyTorchJob", "experiment", "experiment"))
    booking = await place.ledger.get(both.annotations[BOOKING])
    assert booking is not None
    assert booking.options[0].units == {SLICE_10: 1}


def merged(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    result = deepcopy(obj)
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


async def release(place: Cluster, waiting: dict[str, Any]) -> dict[str, Any]:
    """Let it go as the queue does."""
    booking = await place.ledger.get(waiting["metadata"]["annotations"][BOOKING])
    assert booking is not None
    outcome = await place.ledger.release(
        await place.ledger.lead(),
        booking.id,
        chosen=0,
        place={},
        limits=LIMITS,
        now=place.now,
    )
    assert outcome.verdict == "booked"
    adapter = row(waiting["kind"])
    stored = deepcopy(waiting)
    stored["metadata"]["resourceVersion"] = "7"
    patch = release_patch(adapter, stored, booking.id, booking.options[0])
    done = jsonpatch.apply_patch(stored, [msgspec.to_builtins(op) for op in patch])
    assert isinstance(done, dict)
    return done
