"""No container sees a GPU that it does not hold, judged by a model of the container toolkit."""

from typing import Any

import jsonpatch
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.kube.objects import PodSpec
from fairslice.v1alpha1.policy import DeviceListStrategy, HidingSpec
from fairslice_webhook.hiding import hide_pod

from .conftest import MakeCluster
from .scene import (
    GPU,
    SLICE_10,
    container,
    modes,
    notebook,
    pod,
    policy,
    review,
    team,
    view,
)

GRANTED = "GPU-granted-by-the-plugin"
HIDDEN = (
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_GDS",
    "CUDA_MPS_PIPE_DIRECTORY",
    "DOCKER_RESOURCE_GPU",
)
NAMES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "PATH", *HIDDEN)
VALUES = ("all", "none", "void", "", "0,1", "GPU-other", GRANTED, "runtime.nvidia.com/gpu=all")

variables = st.builds(
    lambda name, value: {"name": name, **value},
    st.sampled_from(NAMES),
    st.sampled_from(VALUES).map(lambda value: {"value": value})
    | st.just({"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}),
)
amounts = st.sampled_from([{}, {GPU: "1"}, {GPU: "0"}, {SLICE_10: "1"}, {"cpu": "2"}])
containers = st.builds(
    lambda env, resources, sources: {
        "name": "c",
        "image": "x",
        "resources": {"limits": resources, "requests": resources},
        **({"env": env} if env is not None else {}),
        **({"envFrom": [{"configMapRef": {"name": "c"}}]} if sources else {}),
    },
    st.none() | st.lists(variables, max_size=6) | st.lists(variables, min_size=60, max_size=64),
    amounts,
    st.booleans(),
)
specs = st.builds(
    lambda apps, inits: {"containers": apps, **({"initContainers": inits} if inits else {})},
    st.lists(containers, min_size=1, max_size=3),
    st.lists(containers, max_size=2),
)
strategies = st.sampled_from(list(DeviceListStrategy))


def sees(item: dict[str, Any], strategy: DeviceListStrategy) -> set[str]:
    """What a container sees with the worst of images and config maps, by the toolkit's rules.

    Image, plugin, envFrom, env: the last one wins. Devices granted by mount or CDI come first;
    the variable then counts for nothing.
    """
    limits = item["resources"]["limits"]
    holds = any(name.startswith("nvidia.com/") and value != "0" for name, value in limits.items())
    by_variable = strategy is DeviceListStrategy.ENVVAR
    if holds and not by_variable:
        return {GRANTED}
    layers = [{"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VERSION": "12"}]
    if holds:
        layers.append({"NVIDIA_VISIBLE_DEVICES": GRANTED})
    # What GPU containers read from config maps is closed by strictEnvFrom alone.
    if item.get("envFrom") and not holds:
        layers.append({"NVIDIA_VISIBLE_DEVICES": "all"})
    layers += [{entry["name"]: entry.get("value", "all")} for entry in item.get("env") or []]
    final: dict[str, str] = {}
    for layer in layers:
        final |= layer
    if any(name in HIDDEN for name in final):
        return {"more than devices"}
    value = final.get("NVIDIA_VISIBLE_DEVICES")
    if value is None:
        return {"all"} if "CUDA_VERSION" in final else set()
    return set() if value in ("", "void") else {value}


def patched(spec: dict[str, Any], hiding: HidingSpec) -> dict[str, Any]:
    found = hide_pod(msgspec.convert(spec, PodSpec), hiding)
    patch = [
        {
            key: getattr(op, key)
            for key in ("op", "path", "value")
            if getattr(op, key) is not msgspec.UNSET
        }
        for op in found.ops
    ]
    whole: dict[str, Any] = jsonpatch.apply_patch({"spec": spec}, patch)
    return whole["spec"]


@given(specs, strategies)
def test_no_container_sees_more_than_it_holds(
    spec: dict[str, Any], strategy: DeviceListStrategy
) -> None:
    hiding = HidingSpec(device_list_strategy=strategy, extra_env=("DOCKER_RESOURCE_GPU",))
    done = patched(spec, hiding)
    for item in (*done["containers"], *done.get("initContainers", ())):
        limits = item["resources"]["limits"]
        holds = any(n.startswith("nvidia.com/") and v != "0" for n, v in limits.items())
        assert sees(item, strategy) == ({GRANTED} if holds else set())


@given(specs, strategies)
def test_hiding_twice_changes_nothing_more(
    spec: dict[str, Any], strategy: DeviceListStrategy
) -> None:
    hiding = HidingSpec(device_list_strategy=strategy, extra_env=("DOCKER_RESOURCE_GPU",))
    done = patched(spec, hiding)
    assert patched(done, hiding) == done


@given(specs, strategies)
def test_hiding_leaves_every_other_variable_alone(
    spec: dict[str, Any], strategy: DeviceListStrategy
) -> None:
    hiding = HidingSpec(device_list_strategy=strategy, extra_env=("DOCKER_RESOURCE_GPU",))
    done = patched(spec, hiding)

    def others(of: dict[str, Any]) -> list[list[Any]]:
        return [
            [e for e in item.get("env") or [] if e["name"] in ("PATH", "CUDA_VERSION")]
            for item in of["containers"]
        ]

    assert others(done) == others(spec)


async def test_every_kind_of_container_gets_the_same_rules(cluster: MakeCluster) -> None:
    place = await cluster()
    peeping = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    asked = notebook(
        initContainers=[
            container("init", env=list(peeping)),
            container("side", env=list(peeping), restartPolicy="Always"),
        ]
    )
    asked["spec"]["containers"].append(container("logger", env=list(peeping)))
    done = await place.create(asked)
    void = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert [item["env"] for item in done.spec["initContainers"]] == [void, void]
    assert done.spec["containers"][1]["env"] == void
    assert not done.spec["containers"][0].get("env")
    assert any("NVIDIA_VISIBLE_DEVICES" in text for text in done.warnings)


async def test_hiding_needs_no_team(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=()))
    done = await place.mutate(pod("plain", container(), namespace="anywhere"))
    assert done.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert done.warnings == []


async def test_a_gpu_runtime_class_without_gpus_is_removed(cluster: MakeCluster) -> None:
    place = await cluster()
    assert (
        "runtimeClassName"
        not in (await place.mutate(pod("plain", container(), runtimeClassName="nvidia"))).spec
    )
    assert (await place.mutate(notebook(runtimeClassName="nvidia"))).spec["runtimeClassName"]


async def test_new_ephemeral_containers_are_blind_and_old_ones_untouched(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    stored = await place.create(notebook())
    old = stored.obj
    old["spec"]["ephemeralContainers"] = [{"name": "before", "image": "x"}]
    new = {**old, "spec": {**old["spec"]}}
    new["spec"]["ephemeralContainers"] = [
        {"name": "before", "image": "x"},
        {
            "name": "debug",
            "image": "x",
            "targetContainerName": "main",
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
        },
    ]
    body = review(new, old, subResource="ephemeralcontainers")
    done = await place.call(body, new)
    before, debug = done.spec["ephemeralContainers"]
    assert "env" not in before
    assert debug["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    new["spec"]["ephemeralContainers"][1]["securityContext"] = {"privileged": True}
    assert not (await place.call(review(new, old, subResource="ephemeralcontainers"), new)).allowed


async def test_a_resize_is_left_alone(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(notebook())
    body = review(stored.obj, stored.obj, subResource="resize")
    assert (await place.call(body, stored.obj)).patch == []


async def test_thousands_of_variables_are_answered_by_one_operation(cluster: MakeCluster) -> None:
    place = await cluster()
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": str(n)} for n in range(5000)]
    done = await place.mutate(pod("many", container(env=env)))
    assert len(done.patch) == 1
    assert done.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize("strategy", ["volume-mounts", "cdi-annotations", "cdi-cri"])
async def test_where_the_variable_grants_nothing_it_is_void_everywhere(
    cluster: MakeCluster, strategy: str
) -> None:
    place = await cluster(view(policy(hiding={"deviceListStrategy": strategy})))
    assert (await place.create(notebook())).env() == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_strict_env_from_is_refused_on_gpu_containers(cluster: MakeCluster) -> None:
    sources = [{"configMapRef": {"name": "c"}}]
    asked = pod("nb", container(gpus=1, envFrom=sources))
    strict = await cluster(view(policy(hiding={"strictEnvFrom": True})))
    assert "envFrom" in (await strict.mutate(asked)).message
    lax = await cluster()
    assert any("envFrom" in text for text in (await lax.mutate(asked)).warnings)


async def test_a_team_can_turn_hiding_off(cluster: MakeCluster) -> None:
    place = await cluster(view(policy(modes()), (team(mode={"hide": "Off"}),)))
    done = await place.mutate(pod("plain", container()))
    assert done.patch == []
