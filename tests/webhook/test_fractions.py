"""`nvidia.com/gpu: 0.5`, which reaches admission as 500m."""

from typing import Any

import pytest

from .conftest import MakeCluster
from .scene import (
    A100,
    GPU,
    JOB_CONTROLLER,
    SLICE_10,
    SLICE_20,
    T4_SHARED,
    Cluster,
    container,
    job,
    modes,
    node,
    owner,
    pod,
    policy,
    team,
    view,
)

SLICE_40 = "nvidia.com/mig-3g.40gb"
EXPERIMENT = {"fairslice.io/class": "experiment"}


def as_memory(**others: Any) -> Any:
    rules = policy(rewrite={"fractions": "Memory"}, **others)
    slices = node("a1", A100, {GPU: 2, SLICE_10: 7, SLICE_20: 3, SLICE_40: 2})
    replicas = node("t", T4_SHARED, {GPU: 4})
    pools = [{"pool": "a100", "limit": "4"}, {"pool": "t4", "limit": "1"}]
    return view(rules, (team(pools=pools),), (slices, replicas))


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("500m", SLICE_40),
        ("0.5", SLICE_40),
        ("250m", SLICE_20),
        ("200m", SLICE_20),
        ("0.1", SLICE_10),
        ("125m", SLICE_10),
        ("900m", GPU),
    ],
)
async def test_a_fraction_becomes_the_smallest_share_that_is_no_less(
    cluster: MakeCluster, asked: str, given: str
) -> None:
    place = await cluster(as_memory())
    done = await place.create(pod("f", container(gpus=asked), labels=EXPERIMENT))
    assert done.allowed, done.message
    assert done.limits() == {given: "1"}
    assert done.spec["containers"][0]["resources"]["requests"] == {given: "1"}
    assert sum((await place.ledger.held("nlp")).pools.values()) >= 1000 * _number(asked)


def _number(text: str) -> float:
    return int(text[:-1]) / 1000 if text.endswith("m") else float(text)


async def test_a_fraction_of_work_without_a_class_is_a_slice_too(cluster: MakeCluster) -> None:
    place = await cluster(as_memory())
    assert (await place.create(pod("f", container(gpus="500m")))).limits() == {SLICE_40: "1"}


@pytest.mark.parametrize("asked", ["1500m", "2.5", "0.5"])
async def test_what_is_no_part_of_one_gpu_is_refused_with_the_way_out(
    cluster: MakeCluster, asked: str
) -> None:
    place = await cluster(as_memory() if asked != "0.5" else view())
    refused = await place.mutate(pod("f", container("trainer", gpus=asked)))
    assert refused.code == 422
    for word in ("container trainer", asked.replace("1500m", "1.5"), "fairslice.io/gpu-memory"):
        assert word in refused.message


@pytest.mark.parametrize("asked", ["500m"])
async def test_fractions_of_slices_and_replicas_are_none(cluster: MakeCluster, asked: str) -> None:
    place = await cluster(as_memory())
    refused = await place.mutate(pod("f", container(gpus=asked, resource=SLICE_10)))
    assert refused.code == 422


async def test_audit_and_off_change_no_fraction(cluster: MakeCluster) -> None:
    for mode in ("Audit", "Off"):
        place = await cluster(as_memory(mode=modes(mode)))
        done = await place.mutate(pod("f", container(gpus="500m"), labels=EXPERIMENT))
        assert done.allowed
        assert done.patch == []


async def test_a_jobs_fraction_is_given_to_its_pods(cluster: MakeCluster) -> None:
    place = await cluster(as_memory())
    meta = {"labels": dict(EXPERIMENT)}
    body = job(metadata=meta)
    body["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {GPU: "500m"}}
    started = await place.create(body)
    assert started.allowed, started.message
    # What its user wrote stays.
    template = started.spec["template"]
    assert template["spec"]["containers"][0]["resources"] == {"limits": {GPU: "500m"}}
    made = await _pod_of(place, started.obj)
    assert made.limits() == {SLICE_40: "1"}
    assert not made.gated
    assert (await place.ledger.held("nlp")).pools == {"a100": 500}


async def _pod_of(place: Cluster, workload: dict[str, Any]) -> Any:
    meta = workload["spec"]["template"]["metadata"]
    made = pod(
        "",
        container(gpus="500m"),
        generateName="train-",
        annotations=dict(meta["annotations"]),
        labels=dict(meta["labels"]),
        ownerReferences=[owner("Job", "train", uid=workload["metadata"]["uid"])],
    )
    return await place.create(made, JOB_CONTROLLER)
