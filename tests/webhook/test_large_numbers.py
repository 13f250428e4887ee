"""Numbers beyond all reason are refused in words, and break nothing."""

from typing import Any

import pytest

from fairslice.device_claims import DeviceClass, Devices
from fairslice.kube.objects import ObjectMeta

from .conftest import MakeCluster
from .scene import GPU, RS_CONTROLLER, container, job, pod, replica, team, view
from .test_kinds import TABLE, manifest

HUGE = ["10001", "1e12", "9223372036854775807", "1E60", "1Ei", "1" * 60]


def rich(**fields: Any) -> Any:
    """Of a team without any limit."""
    return view(teams=(team(pools=[{"pool": "a100"}]),), **fields)


@pytest.mark.parametrize("amount", HUGE)
async def test_gpus_without_number_are_refused_to_persons_and_controllers(
    cluster: MakeCluster, amount: str
) -> None:
    place = await cluster(rich())
    asked = {"limits": {GPU: amount}, "requests": {GPU: amount}}
    made = replica("a")
    made["spec"]["containers"][0]["resources"] = asked
    for refused in (
        await place.mutate(pod("p", {**container(), "resources": asked})),
        await place.mutate(made, RS_CONTROLLER),
        await place.mutate(
            job(template={"spec": {"containers": [{**container(), "resources": asked}]}})
        ),
    ):
        assert refused.code == 422
        assert "no node has as many" in refused.message


async def test_as_many_as_may_be_asked_for_in_every_container_are_counted(
    cluster: MakeCluster,
) -> None:
    place = await cluster(rich())
    made = replica("a")
    made["spec"]["containers"] = [container(f"c{n}", gpus=10_000) for n in range(1000)]
    done = await place.create(made, RS_CONTROLLER)
    assert done.gated
    booking = await place.ledger.get(done.annotations["system.fairslice.io/booking"])
    assert booking is not None
    assert booking.options[0].milli == 10_000_000_000


@pytest.mark.parametrize("pods", [10**6, 10**12, 10**18, 2**63 - 1])
@pytest.mark.parametrize("kind", ["Job", "RayCluster", "PyTorchJob", "SparkApplication"])
async def test_pods_without_number_are_refused(cluster: MakeCluster, kind: str, pods: int) -> None:
    place = await cluster(rich())
    assert kind in TABLE
    body = manifest(kind)
    spec = body["spec"]
    if kind == "Job":
        spec |= {"parallelism": pods, "completions": pods}
    elif kind == "RayCluster":
        spec["workerGroupSpecs"][0] |= {"replicas": pods, "maxReplicas": pods}
    elif kind == "PyTorchJob":
        spec["pytorchReplicaSpecs"]["Worker"]["replicas"] = pods
    else:
        spec["executor"]["instances"] = pods
    refused = await place.mutate(body)
    assert refused.code == 403
    assert "can never run" in refused.message


async def test_a_claim_of_devices_without_number_is_counted(cluster: MakeCluster) -> None:
    classes = [DeviceClass(metadata=ObjectMeta(name="gpu.nvidia.com"))]
    place = await cluster(rich(devices=Devices.build(classes, (), ())))
    exactly = {"deviceClassName": "gpu.nvidia.com", "count": 2**63 - 1}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "nlp"},
        "spec": {"devices": {"requests": [{"name": "all", "exactly": exactly}]}},
    }
    done = await place.create(claim)
    assert done.allowed, done.message
    assert (await place.ledger.held("nlp")).pools == {"a100": 10_000_000}
