"""Custom kinds from end to end: webhook, ledger and queue, with their controllers played."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fairslice import stamps
from fairslice.booking import State
from fairslice.workloads import adapter_of_kind
from fairslice_queue import custom_kinds
from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.users import ADMIN

from .operators import Operators, crd, manifest, resource_of
from .porter import HOOKS, Porter
from .world import World, job, node, pod, policy, team, world

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
PLAYED = ("JobSet", "RayJob", "PyTorchJob")


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Two nodes of four GPUs; cv has four guaranteed, nlp may only borrow."""
    async with world(redis_url, tmp_path, door=Porter, hooks=()) as made:
        for kind in (*PLAYED, "RayCluster"):
            await made.api.create(CRDS, "", crd(kind), user=ADMIN)
        await made.create(policy())
        await made.create(team("cv", guaranteed=4))
        await made.create(team("nlp"))
        await made.cluster.add_node(node("gpu-1", gpus=4))
        await made.cluster.add_node(node("gpu-2", gpus=4))
        leader = await made.start()
        await made.until(lambda: len(leader.watch.inventory.node_states()) == 2)
        for hook in HOOKS:
            resource = f"{hook['kind'].lower()}s.admissionregistration.k8s.io"
            await made.api.create(resource, "", hook, user=ADMIN)
        played = asyncio.create_task(Operators(made.api).run())
        yield made
        made.check_alive()
        assert not played.done(), played.result()
        played.cancel()
        with suppress(asyncio.CancelledError):
            await played
        assert await made.audit() == []


def note(box: World, kind: str, name: str, ns: str = "nlp") -> str:
    obj = box.api.store.get(resource_of(kind), ns, name) or {"metadata": {}}
    return str((obj["metadata"].get("annotations") or {}).get(stamps.STATUS, ""))


async def submit(box: World, kind: str, name: str, seconds: float | None, ns: str = "nlp") -> Any:
    made = manifest(kind, name, seconds)
    made["metadata"]["namespace"] = ns
    return await box.api.create(resource_of(kind), ns, made, user=ADMIN)


def suspended(box: World, kind: str, name: str, ns: str = "nlp") -> bool:
    adapter, obj = adapter_of_kind(kind), box.api.store.get(resource_of(kind), ns, name)
    assert adapter is not None
    assert obj is not None
    return adapter.is_suspended(obj)


def finished(box: World, kind: str, name: str, ns: str = "nlp") -> bool:
    adapter, obj = adapter_of_kind(kind), box.api.store.get(resource_of(kind), ns, name)
    assert adapter is not None
    return obj is not None and adapter.end(obj).finished


def running(box: World, name: str, ns: str = "nlp") -> int:
    """How many pods with GPUs of a workload run."""
    return sum(
        1
        for item in box.objects("Pod", ns)
        if item["metadata"]["name"].startswith(name + "-")
        and (item.get("status") or {}).get("phase") == "Running"
        and stamps.BOOKING in (item["metadata"].get("annotations") or {})
    )


# GPUs and pods with GPUs of each kind's manifest.
SHAPES = {"JobSet": (5, 3), "RayJob": (2, 2), "PyTorchJob": (3, 3)}


@pytest.mark.parametrize("kind", PLAYED)
async def test_a_kind_waits_for_room_runs_and_lets_go(box: World, kind: str) -> None:
    gpus, pods = SHAPES[kind]
    await box.create(job("big", gpus=4, pods=2, seconds=None), "cv")
    await box.until(lambda: box.state_of("big") is State.RUNNING)
    await submit(box, kind, "mine", 0.4)
    await box.until(lambda: box.state_of("mine") is State.QUEUED)
    assert suspended(box, kind, "mine")
    await box.stays(lambda: running(box, "mine") == 0, 0.3)
    told = await box.until(lambda: note(box, kind, "mine"))
    assert told.startswith("Queued: position 1 of 1")
    await box.delete("Job", "big", "cv")
    await box.until(lambda: running(box, "mine") == pods)
    booking = box.booking_of("mine")
    assert booking is not None
    assert (booking.pods, sum(booking.place.values())) == (gpus, gpus)
    assert (await box.ledger.held("nlp")).pools == {"default": 1000 * gpus}
    await box.until(lambda: finished(box, kind, "mine"))
    await box.until(lambda: box.booking_of("mine") is None)
    assert (await box.ledger.held("nlp")).pools == {}


@pytest.mark.parametrize("kind", PLAYED)
async def test_a_kind_is_pushed_out_and_comes_back(box: World, kind: str) -> None:
    _, pods = SHAPES[kind]
    await box.create(job("other", gpus=1, pods=8 - SHAPES[kind][0], seconds=None), "nlp")
    await box.until(lambda: box.state_of("other") is State.RUNNING)
    await submit(box, kind, "mine", 1.2)
    await box.until(lambda: running(box, "mine") == pods)
    await box.create(job("owner", gpus=4, seconds=0.5), "cv")
    await box.until(lambda: box.running("cv") == {"owner"})
    assert {box.state_of("mine"), box.state_of("other")} & {State.QUEUED, State.PREEMPTED}
    await box.delete("Job", "other", "nlp")
    await box.until(lambda: finished(box, kind, "mine"), 15.0)
    await box.until(lambda: box.booking_of("mine") is None)


@pytest.mark.parametrize("kind", PLAYED)
async def test_a_kind_survives_the_loss_of_the_books(box: World, kind: str) -> None:
    gpus, pods = SHAPES[kind]
    await submit(box, kind, "mine", 1.5)
    await box.until(lambda: running(box, "mine") == pods)
    await submit(box, kind, "next", 0.2)
    await submit(box, kind, "third", 0.2)
    await submit(box, kind, "fourth", 0.2)
    before = {b.ref.name: b.state for b in box.books}
    assert box.leader is not None
    await box.leader.stop()
    await box.redis.client.flushall()
    await box.start()
    await box.until(lambda: {b.ref.name for b in box.books} >= {"mine"})
    mine = box.booking_of("mine")
    assert mine is not None
    assert mine.pods == gpus
    assert set(before) >= {"mine", "next"}
    for name in ("mine", "next", "third", "fourth"):
        await box.until(partial(finished, box, kind, name), 20.0)
    await box.until(lambda: len(box.books) == 0)


async def test_a_kind_installed_later_is_followed_in_the_version_that_is_served(
    box: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_kinds, "_LOOK_SECONDS", 0.1)
    leader = await box.restart()
    # As the training operator brings it, which knows no v2beta1.
    await box.api.create(CRDS, "", crd("MPIJob", "v1"), user=ADMIN)
    made = manifest("MPIJob", "mpi", None)
    made["apiVersion"] = "kubeflow.org/v1"
    await box.api.create(resource_of("MPIJob"), "nlp", made, user=ADMIN)
    await box.until(lambda: leader.watch.workloads.get("MPIJob/nlp/mpi"))
    await box.until(lambda: box.state_of("mpi") in (State.QUEUED, State.RELEASED))
    await box.until(lambda: not suspended(box, "MPIJob", "mpi"))
    crd_name = resource_of("MPIJob")
    await box.api.delete(CRDS, "", crd_name, user=ADMIN)
    await box.until(lambda: box.booking_of("mpi") is None, 12.0)


async def test_a_cluster_that_grows_books_pod_by_pod_and_lets_go_when_it_shrinks(
    box: World,
) -> None:
    made = manifest("RayCluster", "mine", None)
    made["spec"]["workerGroupSpecs"][0] |= {"minReplicas": 1, "maxReplicas": 4}
    await box.api.create(resource_of("RayCluster"), "nlp", made, user=ADMIN)
    await box.until(lambda: running(box, "mine") == 2)
    await scale(box, 4)
    await box.until(lambda: running(box, "mine") == 4)
    assert (await box.ledger.held("nlp")).pools == {"default": 4000}
    assert sorted((b.ref.kind, b.pods) for b in box.books) == [
        ("Pod", 1),
        ("Pod", 1),
        ("RayCluster", 2),
    ]
    await scale(box, 1)
    await box.until(lambda: running(box, "mine") == 1)
    await box.until(lambda: [b.pods for b in box.books] == [1])
    assert (await box.ledger.held("nlp")).pools == {"default": 1000}


async def scale(box: World, replicas: int) -> None:
    """Change a Ray cluster's workers, and take away the pods that are too many."""
    groups = deepcopy(box.api.store.get(resource_of("RayCluster"), "nlp", "mine"))
    assert groups is not None
    groups["spec"]["workerGroupSpecs"][0]["replicas"] = replicas
    patch = json.dumps({"spec": {"workerGroupSpecs": groups["spec"]["workerGroupSpecs"]}})
    kind = "application/merge-patch+json"
    await box.api.patch(resource_of("RayCluster"), "nlp", "mine", patch.encode(), kind, user=ADMIN)
    for number in range(replicas, 4):
        name = f"mine-gpu-{number}"
        if box.get("Pod", name, "nlp") is not None:
            await box.delete("Pod", name, "nlp", grace=0)


def member(name: str, size: int = 3, gpus: int = 1, **fields: Any) -> Any:
    made = pod(name, gpus=gpus, **fields)
    made["metadata"]["labels"] |= {stamps.POD_GROUP: "eval", stamps.POD_GROUP_SIZE: str(size)}
    return made


def group_runs(box: World) -> set[str]:
    return {name for name in box.running("nlp") if name.startswith("e")}


async def test_a_pod_group_starts_when_all_its_pods_exist(box: World) -> None:
    for name in ("e1", "e2"):
        await box.create(member(name), "nlp")
    await box.until(lambda: "2 of its 3 pods exist" in box.note("Pod", "e1", "nlp"))
    await box.stays(lambda: group_runs(box) == set(), 0.3)
    # What is not complete is in nobody's way.
    await box.create(job("other", gpus=4, pods=2, seconds=0.5), "nlp")
    await box.until(lambda: box.running("nlp") == {"other"})
    await box.create(member("e3"), "nlp")
    await box.until(lambda: group_runs(box) == {"e1", "e2", "e3"})
    await box.until(lambda: box.running("nlp") == group_runs(box) and len(box.books) == 3)
    assert (await box.ledger.held("nlp")).pools == {"default": 3000}
    await box.delete("Pod", "e2", "nlp", grace=0)
    await box.until(lambda: len(box.books) == 2)


async def test_a_pod_group_is_let_go_whole_or_not_at_all(box: World) -> None:
    await box.create(job("big", gpus=3, seconds=None), "nlp")
    await box.until(lambda: box.state_of("big") is State.RUNNING)
    sizes = {"e1": 4, "e2": 1, "e3": 1}
    for name, gpus in sizes.items():
        await box.create(member(name, gpus=gpus), "nlp")
    # Five GPUs are free, on two nodes; six are wanted.
    await box.until(lambda: "position 1 of 1" in box.note("Pod", "e3", "nlp"))
    await box.stays(lambda: group_runs(box) == set(), 0.4)
    await box.delete("Job", "big", "nlp")
    await box.until(lambda: group_runs(box) == set(sizes))


async def test_a_pod_group_of_two_minds_waits_and_says_so(box: World) -> None:
    await box.create(member("e1", size=1), "nlp")
    await box.create(member("e2", size=2), "nlp")
    await box.until(lambda: "different sizes" in box.note("Pod", "e2", "nlp"))


async def test_a_pod_group_without_a_size_is_refused(box: World) -> None:
    with pytest.raises(ApiError, match=r"set fairslice\.io/pod-group-size"):
        await box.create(member("e1", size=0), "nlp")
