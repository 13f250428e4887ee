"""Devices: what nodes advertise, who is given what, and what containers really see."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice_sandbox.model.devices import (
    AllocationError,
    Device,
    Inventory,
    allocate,
    inventory,
)
from fairslice_sandbox.model.nodes import NodeSpec, node_object
from fairslice_sandbox.model.visibility import Runtime, visible

Obj = dict[str, Any]
GPU = "nvidia.com/gpu"
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def node(**spec: Any) -> Obj:
    return node_object(NodeSpec(**{"name": "n", "model": "a100-80gb", "gpus": 2, **spec}), NOW)


def container(name: str, resource: str = GPU, count: int = 0, **more: Any) -> Obj:
    limits = {resource: str(count)} if count else {}
    return {"name": name, "image": "x", "resources": {"limits": limits}, **more}


@pytest.mark.parametrize(
    ("spec", "allocatable", "labels"),
    [
        ({}, {GPU: "2"}, {"gpu.product": "NVIDIA-A100-SXM4-80GB", "gpu.replicas": "1"}),
        (
            {"slices": {"1g.10gb": 4, "3g.40gb": 2}},
            {"nvidia.com/mig-1g.10gb": "4", "nvidia.com/mig-3g.40gb": "2"},
            {"mig.strategy": "mixed", "gpu.replicas": "0", "mig-1g.10gb.count": "4"},
        ),
        (
            {"slices": {"1g.10gb+me": 1}, "whole": 1},
            {GPU: "1", "nvidia.com/mig-1g.10gb.me": "1"},
            {"gpu.count": "2", "gpu.replicas": "1"},
        ),
        (
            {"slices": {"1g.10gb": 14}, "single": True},
            {GPU: "14"},
            {"gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "gpu.count": "14"},
        ),
        (
            {"model": "t4", "gpus": 1, "replicas": 4},
            {GPU: "4"},
            {"gpu.product": "Tesla-T4-SHARED", "gpu.sharing-strategy": "time-slicing"},
        ),
        (
            {"model": "t4", "gpus": 1, "replicas": 4, "renamed": True},
            {"nvidia.com/gpu.shared": "4"},
            {"gpu.product": "Tesla-T4", "gpu.replicas": "4"},
        ),
    ],
)
def test_nodes_advertise_as_the_operator_leaves_them(
    spec: Obj, allocatable: dict[str, str], labels: dict[str, str]
) -> None:
    made = node(**spec)
    shown = made["status"]["allocatable"]
    assert {name: shown[name] for name in shown if "/" in name} == allocatable
    for name, value in labels.items():
        assert made["metadata"]["labels"][f"nvidia.com/{name}"] == value


def test_replicas_stand_for_one_device_and_are_spread_over_devices() -> None:
    found = inventory(node(model="t4", replicas=3))
    assert len(found.devices[GPU]) == 6
    assert len(found.uuids) == 2
    first = allocate({"containers": [container("a", count=1)]}, found, [])["a"]
    second = allocate({"containers": [container("b", count=1)]}, found, first)["b"]
    assert first[0].uuid != second[0].uuid


def test_mig_devices_are_named_as_such() -> None:
    found = inventory(node(slices={"1g.10gb": 2}))
    assert all(device.uuid.startswith("MIG-") for device in found.devices["nvidia.com/mig-1g.10gb"])
    single = inventory(node(slices={"1g.10gb": 14}, single=True))
    assert all(device.uuid.startswith("MIG-") for device in single.devices[GPU])


def test_main_containers_reuse_what_init_containers_had_but_sidecars_keep_theirs() -> None:
    spec = {
        "initContainers": [
            container("init", count=1),
            container("side", count=1, restartPolicy="Always"),
        ],
        "containers": [container("main", count=1)],
    }
    got = allocate(spec, inventory(node()), [])
    assert got["main"] != got["side"]
    assert set(got["main"]) <= set(got["init"]) | set(got["side"]) | set(got["main"])
    assert len({device for units in got.values() for device in units}) == 2


def test_overcommit_is_refused_in_the_kubelets_words() -> None:
    with pytest.raises(AllocationError) as caught:
        allocate({"containers": [container("m", count=3)]}, inventory(node()), [])
    assert str(caught.value) == (
        "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. "
        "Requested: 3, Available: 2, which is unexpected"
    )


@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ({"fail_greater_than_one": True}, True),
        ({"fail_greater_than_one": False}, False),
        ({}, False),
        ({"sharing": "mps"}, True),
    ],
)
def test_several_replicas_are_refused_where_the_plugin_is_set_so(spec: Obj, refused: bool) -> None:
    found = inventory(node(model="t4", gpus=1, replicas=4, **spec))
    asked = {"containers": [container("m", count=2)]}
    if refused:
        with pytest.raises(AllocationError, match="maximum request size for shared resources is 1"):
            allocate(asked, found, [])
    else:
        got = allocate(asked, found, [])["m"]
        assert len({device.uuid for device in got}) == 1


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=6))
def test_no_unit_is_given_to_two_containers(pods: list[list[int]]) -> None:
    found = inventory(node(gpus=6))
    taken: list[Device] = []
    for counts in pods:
        spec = {"containers": [container(f"c{i}", count=n) for i, n in enumerate(counts)]}
        try:
            got = allocate(spec, found, taken)
        except AllocationError:
            assert sum(counts) > 6 - len(taken)
            continue
        taken += [device for units in got.values() for device in units]
    assert len(taken) == len(set(taken)) <= 6


FOUND = inventory(node(gpus=3))
ALL = tuple(sorted(FOUND.uuids))
MINE = FOUND.devices[GPU][1]
VARIABLE = "NVIDIA_VISIBLE_DEVICES"


def sees(
    held: bool = False,
    runtime: Runtime | None = None,
    pod: Obj | None = None,
    maps: Mapping[str, Mapping[str, str]] | None = None,
    found: Inventory = FOUND,
    **made: Any,
) -> tuple[str, ...]:
    body = {"metadata": {}, "spec": {}, **(pod or {})}
    units = [MINE] if held else []
    read = maps or {}
    box = container("m", **made)
    return visible(body, box, units, found, runtime or Runtime(), lambda _, name: read[name])


def env(value: str) -> list[Obj]:
    return [{"name": VARIABLE, "value": value}]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({}, ()),
        ({"held": True}, (MINE.uuid,)),
        ({"image": "nvidia/cuda:12.4.1-base"}, ALL),
        ({"image": "docker.io/nvidia/cuda:12.4.1-base"}, ALL),
        ({"image": "nvidia/cuda:12.4.1-base", "held": True}, (MINE.uuid,)),
        ({"image": "nvidia/cuda:12.4.1-base", "env": env("void")}, ()),
        ({"image": "nvidia/cuda:8.0-devel"}, ALL),
        ({"image": "nvidia/cuda:8.0-devel", "env": env("void")}, ()),
        ({"env": env("all")}, ALL),
        ({"env": env("all"), "held": True}, ALL),
        ({"env": env("void"), "held": True}, ()),
        ({"env": env("none")}, ()),
        ({"env": env("")}, ()),
        ({"env": env("1")}, (FOUND.uuids[1],)),
        ({"env": env(f"{ALL[0]},{ALL[2]}")}, (ALL[0], ALL[2])),
        ({"env": env(f"{ALL[0]},all")}, ALL),
        ({"env": env("runtime.nvidia.com/gpu=all")}, ALL),
        ({"env": env("GPU-unknown")}, ()),
        ({"env": [{"name": "CUDA_VERSION", "value": "9"}]}, ALL),
        ({"env": [*env("all"), *env("void")]}, ()),
        ({"securityContext": {"privileged": True}, "env": env("void")}, ALL),
    ],
)
def test_the_last_environment_wins(made: Obj, expected: tuple[str, ...]) -> None:
    assert sees(**made) == expected


def test_values_from_elsewhere_count_like_plain_ones() -> None:
    maps = {"cm": {"VISIBLE_DEVICES": "all", VARIABLE: "all"}}
    ref = {"name": "cm"}
    keyed = [{"name": VARIABLE, "valueFrom": {"configMapKeyRef": {**ref, "key": VARIABLE}}}]
    assert sees(maps=maps, env=keyed) == ALL
    prefixed = [{"prefix": "NVIDIA_", "configMapRef": ref}]
    assert sees(maps=maps, envFrom=prefixed, held=True) == ALL
    assert sees(maps=maps, envFrom=prefixed, env=env("void")) == ()
    field = [{"name": VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['x']"}}}]
    assert sees(pod={"metadata": {"labels": {"x": "all"}}}, env=field) == ALL
    assert sees(env=[{"name": "X", "value": "all"}, *env("$(X)")]) == ALL


def test_mounts_and_annotations_open_devices_too() -> None:
    mounts = [{"name": "v", "mountPath": "/var/run/../run/nvidia-container-devices/all"}]
    assert sees(volumeMounts=mounts) == ()
    by_mounts = Runtime(strategy="volume-mounts")
    assert sees(volumeMounts=mounts, runtime=by_mounts) == ALL
    assert sees(held=True, env=env("void"), runtime=by_mounts) == (MINE.uuid,)
    noted = {"metadata": {"annotations": {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"}}}
    assert sees(pod=noted) == ALL
    host = {"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/dev"}}]}}
    assert sees(pod=host, volumeMounts=[{"name": "v", "mountPath": "/x"}]) == ALL


def test_without_the_runtime_by_default_a_container_must_ask_for_it() -> None:
    plain = Runtime(is_default=False)
    assert sees(image="nvidia/cuda:12.4.1", runtime=plain) == ()
    asked = {"spec": {"runtimeClassName": "nvidia"}}
    assert sees(image="nvidia/cuda:12.4.1", runtime=plain, pod=asked) == ALL
