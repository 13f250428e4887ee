"""What users write is kept: nothing changes but what had to, and that is said."""

from copy import deepcopy
from typing import Any

import pytest

from .conftest import MakeCluster
from .made_pods import MADE
from .scene import (
    A100,
    GPU,
    SLICE_10,
    T4,
    T4_SHARED,
    a100_node,
    container,
    job,
    node,
    notebook,
    pod,
    policy,
    team,
    view,
)
from .test_kinds import TABLE, WIDE, filler, manifest

OURS = "system.fairslice.io/"
EXPERIMENT = {"fairslice.io/class": "experiment"}

RICH = notebook(
    annotations={"owner": "ada", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
    nodeSelector={"kubernetes.io/hostname": "a1"},
    affinity={
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
    },
    tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}],
    schedulingGates=[{"name": "own/gate"}],
    terminationGracePeriodSeconds=77,
    runtimeClassName="nvidia",
    securityContext={"fsGroup": 100},
    topologySpreadConstraints=[{"maxSkew": 1}],
    imagePullSecrets=[{"name": "reg"}],
    dnsConfig={"nameservers": ["10.0.0.1"]},
    volumes=[{"name": "dshm", "emptyDir": {"medium": "Memory"}}],
)
RICH["spec"]["containers"][0] |= {
    "command": ["sleep"],
    "env": [
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,video"},
        {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=12"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "0"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
    "resources": {
        "limits": {GPU: "1", "cpu": "4", "memory": "16Gi", "rdma/hca": "1"},
        "requests": {GPU: "1", "cpu": "2", "memory": "16Gi", "rdma/hca": "1"},
    },
    "livenessProbe": {"exec": {"command": ["true"]}},
    "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}],
}
PODS = {"a notebook with everything": (RICH, "alice")} | {
    kind: (made.obj, made.sender) for kind, made in MADE.items()
}


def without_gpus(amounts: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in amounts.items() if not name.startswith("nvidia.com/")}


def plain(obj: dict[str, Any]) -> dict[str, Any]:
    """An object less what admission may write, or take away."""
    found = deepcopy(obj)
    meta, spec = found["metadata"], found["spec"]
    meta.pop("uid", None)
    meta.pop("name", None)
    for field in ("annotations", "labels"):
        kept = {k: v for k, v in (meta.get(field) or {}).items() if not k.startswith(OURS)}
        meta[field] = kept
    for field in ("priority", "preemptionPolicy", "priorityClassName"):
        spec.pop(field, None)
    gates = [item for item in spec.get("schedulingGates") or [] if item["name"] == "own/gate"]
    spec["schedulingGates"] = gates
    for item in [*spec["containers"], *spec.get("initContainers", [])]:
        item["env"] = [e for e in item.get("env") or [] if e["name"] != "NVIDIA_VISIBLE_DEVICES"]
        for field in ("limits", "requests"):
            amounts = item.get("resources", {}).get(field, {})
            item.setdefault("resources", {})[field] = without_gpus(amounts)
    return found


@pytest.mark.parametrize("what", PODS)
async def test_a_pod_keeps_all_that_is_not_about_gpus(cluster: MakeCluster, what: str) -> None:
    body, sender = PODS[what]
    place = await cluster()
    done = await place.create(body, sender)
    assert done.allowed, done.message
    assert plain(done.obj) == plain(body)


async def test_a_required_affinity_is_narrowed_and_never_widened(cluster: MakeCluster) -> None:
    nodes = (node("shared", T4_SHARED, {GPU: 4}), node("plain", T4, {GPU: 2}))
    teams = (team(pools=[{"pool": "t4", "limit": "3"}]),)
    place = await cluster(view(teams=teams, nodes=nodes))
    zone = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["shared", "plain"]}
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    wanted = {
        "nodeAffinity": {
            field: {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {}]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}],
        },
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
    }
    done = await place.create(pod("p", labels=EXPERIMENT, affinity=wanted))
    kept = done.spec["affinity"]
    first, empty = kept["nodeAffinity"][field]["nodeSelectorTerms"]
    assert first["matchExpressions"][0] == zone
    assert len(first["matchExpressions"]) == 2
    # An empty alternative selects nothing, and still does.
    assert empty == {}
    for key in ("podAffinity",):
        assert kept[key] == wanted[key]


@pytest.mark.parametrize("kind", TABLE)
@pytest.mark.parametrize("full", [False, True], ids=["started", "queued"])
async def test_the_templates_of_a_workload_keep_the_requests_that_they_had(
    cluster: MakeCluster, kind: str, full: bool
) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE))
    if full:
        await place.create(filler())
    body = manifest(kind)
    done = await place.mutate(body)
    assert done.allowed, done.message
    # Kueue's words for templates that can't be written into are written beside them.
    added = {"suspend", "podReplacementPolicy", "podFailurePolicy", "runtimePatches"}
    assert _lost(body["spec"], done.spec, added) == []


def _lost(before: Any, after: Any, added: set[str], path: str = "") -> list[str]:
    """Name what was there before and isn't as it was."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            found
            for key, value in before.items()
            if key not in added
            for found in _lost(value, after.get(key), added, f"{path}/{key}")
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            found
            for index, value in enumerate(before)
            for found in _lost(value, after[index], added, f"{path}/{index}")
        ]
    return [] if before == after else [path]


# MPS, with its memory limit.

MPS_A100 = {
    **{key: value for key, value in T4_SHARED.items() if "memory" not in key},
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.sharing-strategy": "mps",
}


def under_mps(renamed: bool) -> Any:
    labels = dict(MPS_A100)
    name = GPU
    if renamed:
        name = "nvidia.com/gpu.shared"
        labels["nvidia.com/gpu.product"] = A100["nvidia.com/gpu.product"]
    rules = policy(classes=[{"name": "experiment", "memory": "10G", "modes": ["mps", "whole"]}])
    return view(rules, nodes=(node("m", labels, {name: 4}),))


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize(
    ("memory", "fits"), [("", True), ("18Gi", True), ("20Gi", True), ("21Gi", False)]
)
async def test_a_share_under_mps_is_given_up_to_its_memory_limit_and_told_with_it(
    cluster: MakeCluster, renamed: bool, memory: str, fits: bool
) -> None:
    place = await cluster(under_mps(renamed))
    annotations = {"fairslice.io/gpu-memory": memory} if memory else {}
    done = await place.create(pod("p", labels=EXPERIMENT, annotations=annotations))
    if not fits:
        # A quarter of the card is all that the MPS daemon lets it allocate.
        assert done.code == 422
        assert f"with {memory} of memory" in done.message
        assert "1/4" in done.message
        return
    assert done.allowed, done.message
    assert done.limits() == {"nvidia.com/gpu.shared" if renamed else GPU: "1"}
    assert any(
        "1 of 4 MPS shares" in text and "20 GiB: no fault isolation" in text
        for text in done.warnings
    )
    assert (await place.ledger.held("nlp")).pools == {"a100": 250}


async def test_several_shares_under_mps_are_none_for_one_container(cluster: MakeCluster) -> None:
    place = await cluster(under_mps(False))
    refused = await place.mutate(pod("p", container(gpus=2), labels=EXPERIMENT))
    assert refused.code == 422
    assert "several GPUs must be whole ones" in refused.message


async def test_users_variables_of_mps_are_set_aside(cluster: MakeCluster) -> None:
    place = await cluster(under_mps(False))
    env = [
        {"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": "0=60G"},
        {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "100"},
    ]
    done = await place.create(pod("p", container(gpus=1, env=env), labels=EXPERIMENT))
    assert done.env() == {}
    assert any("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" in text for text in done.warnings)


async def test_a_pinned_job_and_a_slice_by_name_are_given_as_asked(cluster: MakeCluster) -> None:
    place = await cluster(view(nodes=(a100_node(),)))
    body = job()
    limits = {"limits": {SLICE_10: "1"}}
    body["spec"]["template"]["spec"]["containers"][0]["resources"] = limits
    done = await place.create(body)
    assert done.spec["template"]["spec"]["containers"][0]["resources"] == limits
    assert (await place.ledger.held("nlp")).pools == {"a100": 125}
