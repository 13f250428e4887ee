import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from fairslice.kube.objects import Pod
from fairslice.quantity import QuantityError
from fairslice.requests import AskError, ContainerKind, parse_memory, read_pod, sum_containers

from .clusters import pod

_SHARED = Path(os.environ.get("FAIRSLICE_SHARED", Path(__file__).parents[3] / "shared"))
_FIXTURES = _SHARED / "fixtures" / "admission"

GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"


def _container(name: str, resources: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": name, "resources": resources, **fields}


def test_a_pod_without_gpus_asks_for_nothing() -> None:
    ask = read_pod(pod({"cpu": "1"}), None)
    assert not ask.is_gpu
    assert ask.units == {}
    assert len(ask.containers) == 1


@pytest.mark.parametrize("value", ["1", 1, 1.0, "1000m", "1e0", "0.001k"])
def test_one_gpu_is_one_gpu_however_it_is_written(value: object) -> None:
    assert read_pod(pod({GPU: value}), None).units == {GPU: 1}


def test_limits_alone_are_enough_as_in_templates() -> None:
    both = _container("c", {"limits": {GPU: "2"}, "requests": {GPU: "2000m"}})
    assert read_pod(pod(both), None).units == {GPU: 2}
    assert read_pod(pod({GPU: "2"}), None).units == {GPU: 2}


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"limits": {GPU: "8"}, "requests": {GPU: "6"}}, "limit 8 but request 6"),
        ({"requests": {GPU: "1"}}, "sets no limit"),
        ({"limits": {GPU: "0"}, "requests": {GPU: "1"}}, "limit 0 but request 1"),
        ({"limits": {GPU: "-1"}}, "-1 is negative"),
        ({"limits": {GPU: "0.5"}}, "0.5 is not a whole number"),
        ({"limits": {GPU: "500m"}}, "0.5 is not a whole number"),
        ({"limits": {GPU: "many"}}, "'many' is not a number"),
        ({"limits": {GPU: "1", SLICE: "1"}}, "see only one"),
        ({"limits": {SLICE: "1", "nvidia.com/mig-2g.20gb": "1"}}, "see only one"),
        ({"limits": {"nvidia.com/gpu.shared": "2"}}, "several replicas"),
        ({"limits": {"nvidia.com/mig-1g-10gb": "1"}}, "no MIG resource"),
    ],
)
def test_requests_that_cannot_be_meant_name_container_and_value(
    resources: dict[str, Any], says: str
) -> None:
    with pytest.raises(AskError) as error:
        read_pod(pod(_container("trainer", resources)), None)
    assert says in str(error.value)
    assert "trainer" in str(error.value)
    assert error.value.container == "trainer"
    assert len(str(error.value)) <= 256


@pytest.mark.parametrize("value", ["10001", "1e12", "9223372036854775807", "1E60", "1Ei"])
def test_more_than_any_node_has_is_refused(value: str) -> None:
    with pytest.raises(AskError, match="no node has as many"):
        read_pod(pod({GPU: value}), None)
    assert read_pod(pod({GPU: "10k"}), None).units == {GPU: 10_000}


def test_zero_keys_are_kept_for_dropping_and_ask_for_nothing() -> None:
    ask = read_pod(pod({GPU: "0", SLICE: "1"}, {GPU: "0m"}), None)
    assert ask.units == {SLICE: 1}
    assert [item.zero_keys for item in ask.containers] == [(GPU,), (GPU,)]
    assert ask.has_zero_keys
    requests_only = read_pod(pod(_container("c", {"requests": {GPU: "0"}})), None)
    assert requests_only.has_zero_keys
    assert not requests_only.is_gpu


def test_fractions_pass_as_part_of_one_gpu_where_they_are_allowed() -> None:
    ask = read_pod(pod({GPU: "250m"}), None, fractions=True)
    assert (ask.units, ask.fraction_milli) == ({GPU: 1}, 250)
    for resource, value in ((GPU, "1.5"), (SLICE, "0.5"), ("nvidia.com/gpu.shared", "0.5")):
        with pytest.raises(AskError):
            read_pod(pod({resource: value}), None, fractions=True)


def test_containers_say_where_they_stand_in_the_pod() -> None:
    spec = pod(
        {GPU: "1"},
        initContainers=[
            _container("setup", {}),
            _container("proxy", {"limits": {SLICE: "1"}}, restartPolicy="Always"),
        ],
        ephemeralContainers=[_container("debug", {})],
    )
    ask = read_pod(spec, None)
    assert [(item.path, item.kind) for item in ask.containers] == [
        ("/spec/initContainers/0", ContainerKind.INIT),
        ("/spec/initContainers/1", ContainerKind.SIDECAR),
        ("/spec/containers/0", ContainerKind.APP),
        ("/spec/ephemeralContainers/0", ContainerKind.EPHEMERAL),
    ]
    assert ask.units == {GPU: 1, SLICE: 1}


def test_a_sidecar_counts_beside_the_app() -> None:
    sidecar = _container("s", {"limits": {GPU: "1"}}, restartPolicy="Always")
    assert read_pod(pod({GPU: "1"}, initContainers=[sidecar]), None).units == {GPU: 2}
    init = _container("i", {"limits": {GPU: "1"}})
    assert read_pod(pod({GPU: "1"}, initContainers=[init]), None).units == {GPU: 1}
    assert read_pod(pod({GPU: "1"}, initContainers=[sidecar, init]), None).units == {GPU: 2}
    big = _container("b", {"limits": {GPU: "4"}})
    assert read_pod(pod({GPU: "1"}, initContainers=[sidecar, big]), None).units == {GPU: 5}
    assert read_pod(pod({GPU: "1"}, initContainers=[big, sidecar]), None).units == {GPU: 4}


def test_declared_memory_belongs_to_the_one_gpu_container() -> None:
    annotations = {"fairslice.io/gpu-memory": "18Gi"}
    ask = read_pod(pod({GPU: "1"}, {"cpu": "1"}), annotations)
    assert ask.declared_memory_mib == 18 * 1024
    with pytest.raises(AskError, match="this pod has 2"):
        read_pod(pod({GPU: "1"}, {GPU: "1"}), annotations)
    assert not read_pod(pod({"cpu": "1"}), annotations).is_gpu


@pytest.mark.parametrize("value", ["", "lots", "-1Gi", "0", "18 Gi", "GB"])
def test_memory_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(AskError, match="not an amount of memory"):
        read_pod(pod({GPU: "1"}), {"fairslice.io/gpu-memory": value})


@pytest.mark.parametrize(
    ("text", "mib", "names"),
    [
        ("20G", 19074, 20),
        ("20Gi", 20480, 20),
        ("20GB", 19074, 20),
        ("9500Mi", 9500, 0),
        ("1.5G", 1431, 0),
        ("20000M", 19074, 0),
        ("21474836480", 20480, 0),
        ("1Ti", 1024 * 1024, 0),
    ],
)
def test_a_size_may_name_a_slice(text: str, mib: int, names: int) -> None:
    memory = parse_memory(text)
    assert memory.names_gb == names
    assert abs(memory.mib - mib) <= 1


@given(st.text(max_size=12))
def test_any_memory_text_is_read_or_refused(text: str) -> None:
    with suppress(QuantityError):
        assert parse_memory(text).mib >= 1


def test_implicit_names_are_gpus_but_no_extended_resources() -> None:
    implicit = read_pod(pod({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "2"}), None)
    assert implicit.needs == (((GPU, 2),),)
    assert implicit.units == {}
    assert implicit.is_gpu


def _kubelet(apps: list[int], inits: list[tuple[bool, int]]) -> int:
    """Play a pod's life and note the most that is held at any time."""
    running: list[int] = []
    peak = 0
    for is_sidecar, amount in inits:
        peak = max(peak, sum(running) + amount)
        if is_sidecar:
            running.append(amount)
    return max(peak, sum(running) + sum(apps))


@given(
    st.lists(st.integers(0, 9), max_size=5),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=6),
)
def test_sums_agree_with_a_pod_played_through(
    apps: list[int], inits: list[tuple[bool, int]]
) -> None:
    parts = [
        (ContainerKind.SIDECAR if sidecar else ContainerKind.INIT, amount)
        for sidecar, amount in inits
    ] + [(ContainerKind.APP, amount) for amount in apps]
    assert sum_containers(parts) == _kubelet(apps, inits)
    spec = pod(
        *({GPU: str(amount)} for amount in apps),
        initContainers=[
            _container(
                f"i{index}",
                {"limits": {GPU: str(amount)}},
                restartPolicy="Always" if sidecar else None,
            )
            for index, (sidecar, amount) in enumerate(inits)
        ],
    )
    assert read_pod(spec, None).units.get(GPU, 0) == _kubelet(apps, inits)


@pytest.mark.skipif(not _FIXTURES.is_dir(), reason="the fixtures are not beside this repository")
def test_pods_that_a_real_control_plane_sent_are_read() -> None:
    asked = {}
    for path in _FIXTURES.glob("create-pod-*.json"):
        request = json.loads(path.read_bytes())["request"]
        found = convert(request["object"], Pod)
        asked[path.stem] = read_pod(found.spec, found.metadata.annotations).units
    assert asked["create-pod-nb-by-alice"] == {GPU: 1}
    assert asked["create-pod-multi-by-alice"] == {GPU: 1, SLICE: 1}
    assert asked["create-pod-plain-by-alice"] == {}
    assert asked["create-pod-of-job-train-crqjq-0-by-job-controller"] == {GPU: 1}
