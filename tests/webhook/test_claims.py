"""GPUs that come through DRA claims count in the same budget, once."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from msgspec import convert

from fairslice.device_claims import (
    DeviceClass,
    Devices,
    ResourceClaim,
    ResourceClaimTemplate,
)
from fairslice_webhook.decide import Phase
from fairslice_webhook.view import View

from .conftest import MakeCluster
from .scene import (
    A100,
    GPU,
    JOB_CONTROLLER,
    Cluster,
    container,
    job,
    modes,
    node,
    owner,
    pod,
    policy,
    review,
    team,
    view,
)

IMPLICIT = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
MAKER = "system:serviceaccount:kube-system:resource-claim-controller"
TRAINING = {"fairslice.io/class": "training"}
CLASS = convert(
    {
        "metadata": {"name": "gpu.nvidia.com"},
        "spec": {
            "extendedResourceName": GPU,
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
        },
    },
    DeviceClass,
)


def asking(count: int = 1, device_class: str = "gpu.nvidia.com", **fields: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": device_class, "count": count, **fields}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def claim(name: str = "shared", count: int = 1, **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "nlp", **meta},
        "spec": asking(count),
    }


def template(name: str, count: int) -> ResourceClaimTemplate:
    return convert(
        {"metadata": {"name": name, "namespace": "nlp"}, "spec": {"spec": asking(count)}},
        ResourceClaimTemplate,
    )


def dra(*claims: dict[str, Any], limit: str = "4", nodes: Any = None, **fields: Any) -> View:
    """A cluster whose nodes show GPUs to DRA alone."""
    devices = Devices.build(
        [CLASS],
        [convert(item, ResourceClaim) for item in claims],
        [template("one", 1), template("three", 3)],
    )
    nodes = nodes or (node("a1", A100, {}),)
    teams = (team(pools=[{"pool": "a100", "limit": limit}]),)
    return replace(view(nodes=nodes, teams=teams, **fields), devices=devices)


def claiming(name: str = "p", *entries: dict[str, str], **fields: Any) -> dict[str, Any]:
    listed = list(entries) or [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    fields = {"labels": TRAINING, **fields}
    return pod(name, container(), resourceClaims=listed, **fields)


async def held(place: Cluster) -> dict[str, int]:
    return dict((await place.ledger.held("nlp")).pools)


async def test_each_pod_of_a_template_counts_and_waits_beyond_the_limit(
    cluster: MakeCluster,
) -> None:
    place = await cluster(dra(limit="2"))
    for number, waits in enumerate([False, False, True]):
        done = await place.create(claiming(f"p{number}"))
        assert done.allowed, done.message
        assert done.gated is waits
        assert done.spec["resourceClaims"][0]["resourceClaimTemplateName"] == "one"
    assert await held(place) == {"a100": 2000}


async def test_implicit_names_count_as_claims_do(cluster: MakeCluster) -> None:
    place = await cluster(dra(limit="2"))
    implicit = pod("i", container(gpus=2, resource=IMPLICIT), labels=TRAINING)
    done = await place.create(implicit)
    assert not done.gated
    assert done.limits() == {IMPLICIT: "2"}
    assert await held(place) == {"a100": 2000}
    assert (await place.create(claiming("next"))).gated


async def test_an_extended_resource_that_a_class_gives_counts_the_same(
    cluster: MakeCluster,
) -> None:
    place = await cluster(dra(limit="2"))
    done = await place.create(pod("e", container(gpus=2), labels=TRAINING))
    assert done.allowed, done.message
    assert done.limits() == {GPU: "2"}
    # No device plugin sets the variable here, so the image's must not count.
    assert done.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert await held(place) == {"a100": 2000}
    # What the scheduler then makes for it is not counted again.
    made = claim("e-extended", 2, ownerReferences=[owner("Pod", "e", "v1")])
    made["metadata"]["annotations"] = {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert (await place.create(made, "system:kube-scheduler")).allowed
    assert await held(place) == {"a100": 2000}


async def test_a_shared_claim_counts_once_however_many_pods_use_it(cluster: MakeCluster) -> None:
    place = await cluster(dra())
    shared = await place.create(claim(count=2))
    assert shared.allowed, shared.message
    assert await held(place) == {"a100": 2000}
    place.view = dra(shared.obj)
    for number in range(3):
        user = claiming(f"p{number}", {"name": "gpu", "resourceClaimName": "shared"})
        done = await place.create(user)
        assert done.allowed, done.message
        assert not done.gated
    assert await held(place) == {"a100": 2000}


async def test_a_claim_that_finds_no_room_is_refused_with_the_numbers_and_the_way_to_wait(
    cluster: MakeCluster,
) -> None:
    place = await cluster(dra(limit="4"))
    assert (await place.create(claim("a", 3))).allowed
    refused = await place.create(claim("b", 2))
    assert "3 of 4 GPUs in use, 2 asked" in refused.message
    assert "ResourceClaimTemplate" in refused.message
    assert "can never run" in (await place.create(claim("c", 5))).message
    assert await held(place) == {"a100": 3000}


async def test_only_those_who_make_claims_for_pods_are_believed_to(cluster: MakeCluster) -> None:
    place = await cluster(dra())
    made = claim("p-gpu-x", 2, ownerReferences=[owner("Pod", "p", "v1")])
    made["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    assert (await place.create(made, MAKER)).allowed
    assert await held(place) == {}
    assert (await place.create(deepcopy(made))).allowed
    assert await held(place) == {"a100": 2000}


async def test_a_claim_with_a_forged_stamp_is_booked_all_the_same(cluster: MakeCluster) -> None:
    place = await cluster(dra())
    forged = claim("f", 2, annotations={"system.fairslice.io/booking": "b" + "a" * 20})
    stored = await place.create(forged)
    assert await held(place) == {"a100": 2000}
    # Nor is one accepted later.
    bare = claim("older", 2)
    stamped = deepcopy(bare)
    stamped["metadata"]["annotations"] = {"system.fairslice.io/booking": "b" + "a" * 20}
    put_back = await place.update(stamped, bare)
    assert "system.fairslice.io/booking" not in put_back.annotations
    cut = deepcopy(stored.obj)
    del cut["metadata"]["annotations"]
    assert (await place.update(cut, stored.obj)).annotations == stored.annotations


async def test_another_pods_claim_counts_with_whoever_uses_it_by_name(
    cluster: MakeCluster,
) -> None:
    made = claim("p-gpu-x", 2, ownerReferences=[owner("Pod", "p", "v1")])
    place = await cluster(dra(made))
    await place.create(claiming("thief", {"name": "gpu", "resourceClaimName": "p-gpu-x"}))
    assert await held(place) == {"a100": 2000}


async def test_a_template_not_yet_seen_is_waited_for_and_then_named(cluster: MakeCluster) -> None:
    place = await cluster(dra())
    late = claiming("p", {"name": "gpu", "resourceClaimTemplateName": "late"})
    refused = await place.mutate(late)
    assert refused.code == 422
    assert "ResourceClaimTemplate late does not exist in namespace nlp" in refused.message
    seen = dra()
    newer = replace(
        seen,
        devices=replace(seen.devices, templates={("nlp", "late"): template("late", 1).spec.spec}),
    )
    place.admission._newest = lambda: newer
    assert (await place.mutate(late)).allowed


async def test_a_job_of_claims_is_booked_and_its_pods_attach(cluster: MakeCluster) -> None:
    place = await cluster(dra(limit="6"))
    body = {
        "metadata": {},
        "spec": {
            "containers": [{"name": "main", "image": "x"}],
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "three"}],
        },
    }
    started = await place.create(job(pods=2, template=body))
    assert started.allowed, started.message
    assert await held(place) == {"a100": 6000}
    assert started.spec["suspend"] is False
    stamp = started.spec["template"]["metadata"]["annotations"]
    uid = started.obj["metadata"]["uid"]
    made = pod(
        "",
        container(),
        generateName="train-",
        annotations=dict(stamp),
        labels=dict(started.spec["template"]["metadata"]["labels"]),
        ownerReferences=[owner("Job", "train", uid=uid)],
        resourceClaims=body["spec"]["resourceClaims"],  # type: ignore[index]
    )
    done = await place.create(made, JOB_CONTROLLER)
    assert done.allowed, done.message
    assert not done.gated
    # A larger claim under the same stamp is none of what was booked.
    larger = deepcopy(made)
    larger["spec"]["resourceClaims"].append({"name": "more", "resourceClaimTemplateName": "three"})
    assert (await place.create(larger, JOB_CONTROLLER)).gated
    assert await held(place) == {"a100": 6000}


async def test_claims_for_other_devices_are_none_of_our_business(cluster: MakeCluster) -> None:
    place = await cluster(dra(limit="0"))
    nic = claim("nic")
    nic["spec"] = asking(4, "nic.example.com")
    assert (await place.create(nic)).patch == []
    uses = await place.create(claiming("p", {"name": "n", "resourceClaimName": "nic"}))
    assert uses.allowed
    assert not uses.gated


async def test_claims_outside_teams_and_under_audit_pass(cluster: MakeCluster) -> None:
    place = await cluster(dra(limit="1", rules=policy(modes("Audit"))))
    done = await place.create(claim(count=2))
    assert done.allowed
    assert done.patch == []
    assert [record.feature for record in place.sink.records][:1] == ["quota"]
    elsewhere = claim(count=64)
    elsewhere["metadata"]["namespace"] = "elsewhere"
    assert (await place.create(elsewhere)).patch == []


async def test_a_dry_run_of_a_claim_leaves_no_trace(cluster: MakeCluster) -> None:
    place = await cluster(dra())
    body = claim(count=2)
    done = await place.call(review(body, dryRun=True), body)
    assert done.allowed
    assert await held(place) == {}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_administrators_access_is_refused_in_every_shape(
    cluster: MakeCluster, version: str
) -> None:
    place = await cluster(dra())
    body = claim()
    body["apiVersion"] = f"resource.k8s.io/{version}"
    request = {"name": "all", "deviceClassName": "gpu.nvidia.com", "adminAccess": True}
    if version == "v1":
        request = {"name": "all", "exactly": {"deviceClassName": "x", "adminAccess": True}}
    body["spec"] = {"devices": {"requests": [request]}}
    assert "adminAccess" in (await place.mutate(body)).message


async def test_the_label_that_grants_it_is_refused_on_a_teams_namespace(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    label = {"resource.kubernetes.io/admin-access": "true"}

    def namespace(name: str, labels: dict[str, str]) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels},
        }

    plain, granted = namespace("nlp", {}), namespace("nlp", label)
    refused = await place.call(review(granted, plain), granted, Phase.VALIDATE)
    assert "admin-access" in refused.message
    assert not (await place.validate(granted)).allowed
    # What is granted already, and what belongs to no team, is left alone.
    assert (await place.call(review(granted, granted), granted, Phase.VALIDATE)).allowed
    assert (await place.validate(namespace("gpu-admin", label))).allowed
