"""Every way to see a GPU that one does not hold, tried on a real API server."""

import asyncio
import re
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from .harness.client import Refused
from .harness.installation import get_policy, set_policy
from .harness.jobsets import jobset
from .harness.kinds import Obj
from .harness.manifests import job, pod
from .harness.scene import Scene
from .harness.shapes import a100
from .harness.waiting import eventually

_EXPERIMENT = {"fairslice.io/class": "experiment"}
_TRAINING = {"fairslice.io/class": "training"}
_SEEN = "NVIDIA_VISIBLE_DEVICES"
_VOID = [{"name": _SEEN, "value": "void"}]
_PEEPING = [
    {"name": _SEEN, "value": "all"},
    {"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"},
    {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/tmp/mps"},
    {"name": _SEEN, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
]
_GOOD_TIME = 5.0
# What an API server's own search may take.
_SEARCH_TIME = 1.5
_SEARCHED = re.compile(
    r"^apiserver_admission_match_condition_evaluation_seconds_sum\{.*fairslice.*\} (\S+)$", re.M
)


def _with_env(obj: Obj, env: list[Obj]) -> Obj:
    spec = obj["spec"].get("template", obj)["spec"]
    spec["containers"][0]["env"] = env
    return obj


async def test_what_is_not_held_is_not_seen_by_any_kind_of_container(scene: Scene) -> None:
    await scene.node(a100(2, mig_1g_10gb=2))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    asked = pod("peeps", team.namespace, labels=_EXPERIMENT)
    asked["spec"]["containers"][0]["env"] = list(_PEEPING)
    asked["spec"]["containers"].append({"name": "beside", "image": "x", "env": list(_PEEPING)})
    asked["spec"]["initContainers"] = [
        {"name": "before", "image": "x", "env": list(_PEEPING)},
        {"name": "along", "image": "x", "restartPolicy": "Always"},
    ]

    await team.create(asked)

    made = await scene.running("peeps", team.namespace)
    holder, beside = made["spec"]["containers"]
    assert not holder.get("env")
    assert beside["env"] == _VOID
    assert [item["env"] for item in made["spec"]["initContainers"]] == [_VOID, _VOID]
    sights = {sight.container: sight for sight in scene.sights(team.namespace)}
    assert len(sights["main"].seen) == 1
    assert all(not sights[name].seen for name in ("beside", "before", "along"))


@pytest.mark.parametrize("gpus", [0, 1], ids=["without GPUs", "with a GPU"])
async def test_a_debugger_sees_no_gpu(scene: Scene, gpus: int) -> None:
    await scene.node(a100(mig_1g_10gb=1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    await team.create(pod("host", team.namespace, gpus, labels=_EXPERIMENT))

    async def debug(**more: object) -> Obj:
        found = await scene.api.get("Pod", "host", team.namespace)
        there = found["spec"].get("ephemeralContainers") or []
        new = {"name": f"debug-{len(there)}", "image": "x", "targetContainerName": "main", **more}
        body = {"spec": {"ephemeralContainers": [*there, new]}}
        answer = await scene.api.patch(
            "Pod", "host", body, team.namespace, subresource="ephemeralcontainers"
        )
        return answer.obj

    await debug(env=list(_PEEPING))
    made = await debug()
    assert [item["env"] for item in made["spec"]["ephemeralContainers"]] == [_VOID, _VOID]
    for opens in ({"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}):
        with pytest.raises(Refused, match="debug-2"):
            await debug(securityContext=opens)


_BREACHES: dict[str, Obj] = {
    "host path": {"volumes": [{"name": "d", "hostPath": {"path": "//dev/"}}]},
    "parent of the kubelet's": {"volumes": [{"name": "d", "hostPath": {"path": "/var"}}]},
    "privileged": {"securityContext": {"privileged": True}},
    "capability": {"securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}},
    "devices as mounts": {
        "volumeMounts": [{"name": "d", "mountPath": "//var/run/./nvidia-container-devices/all"}],
        "volumes": [{"name": "d", "emptyDir": {}}],
    },
    "CDI annotation": {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}},
    "NRI annotation": {"annotations": {"devices.nri.io/container.main": "- path: /dev/nvidia0"}},
    "NRI annotation of today": {
        "annotations": {"cdi-devices.noderesource.dev/pod": "- nvidia.com/gpu=all"}
    },
    "GKE's annotation": {"annotations": {"devices.gke.io/container.main": "- path: /dev/nvidia0"}},
    "toolkit annotation": {"annotations": {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"}},
}


def _opened(name: str, namespace: str, gpus: int, breach: Obj) -> Obj:
    asked = pod(
        name,
        namespace,
        gpus,
        labels=_EXPERIMENT,
        annotations=breach.get("annotations"),
        **({"volumes": breach["volumes"]} if "volumes" in breach else {}),
    )
    for field in ("securityContext", "volumeMounts"):
        if field in breach:
            asked["spec"]["containers"][0][field] = breach[field]
    return asked


async def test_every_breach_is_refused_to_a_team_and_to_nobody_else(scene: Scene) -> None:
    await scene.node(a100(mig_1g_10gb=1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    lenient = await scene.team("cv", {"a100": ("1", "1")}, mode={"guards": "Audit"})
    outside = await scene.namespace()
    for what, breach in _BREACHES.items():
        for gpus in (0, 1):
            with pytest.raises(Refused) as refused:
                await team.create(_opened("opens", team.namespace, gpus, breach))
            assert refused.value.status == 403, what
            assert "denied the request" in refused.value.message, what
        # Drivers, exporters and backups outside teams do just this.
        await scene.api.create(_opened("opens", outside, 0, breach), dry_run=True)
        warned = await lenient.create(_opened("opens", lenient.namespace, 1, breach), dry_run=True)
        assert any(text.startswith("[audit]") for text in warned.warnings), (what, warned.warnings)


async def test_a_runtime_class_for_gpus_is_taken_from_pods_without(scene: Scene) -> None:
    if scene.target.name != "real":
        pytest.skip("the sandbox has no RuntimeClasses")
    team = await scene.team("nlp", {"a100": ("1", "1")})
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    body = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia"}
    await scene.api.call("POST", path, {**body, "metadata": {"name": "nvidia-suite"}})
    try:
        asked = pod("plain", team.namespace, 0, runtimeClassName="nvidia-suite")
        made = await team.create(asked, dry_run=True)
        assert "runtimeClassName" not in made.obj["spec"]
    finally:
        await scene.api.call("DELETE", f"{path}/nvidia-suite")


async def test_devices_by_a_later_annotation_are_refused(scene: Scene) -> None:
    await scene.node(a100(mig_1g_10gb=1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    for gpus in (0, 1):
        name = f"nb-{gpus}"
        await team.create(pod(name, team.namespace, gpus, labels=_EXPERIMENT))
        for key in ("nvidia.cdi.k8s.io/container.main", "cdi.k8s.io/x", "devices.nri.io/pod"):
            change = {"metadata": {"annotations": {key: "nvidia.com/gpu=all"}}}
            with pytest.raises(Refused, match="injects devices"):
                await team.api.patch("Pod", name, change, team.namespace)
        harmless = {"metadata": {"annotations": {"example.com/note": "x"}}}
        await team.api.patch("Pod", name, harmless, team.namespace)


async def test_a_device_classs_own_name_for_gpus_is_counted(scene: Scene) -> None:
    await scene.node(a100(2))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    name = f"example.com/gpu-{scene.target.run_id}"
    path = "/apis/resource.k8s.io/v1/deviceclasses"
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": f"suite-{scene.target.run_id}"},
        "spec": {
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
            "extendedResourceName": name,
        },
    }
    # No label says that the pod is anything to fairslice.
    asked = pod("asks", team.namespace, 0)
    asked["spec"]["containers"][0]["resources"] = {"limits": {name: "8"}}

    async def refused() -> str:
        try:
            await team.create(asked, dry_run=True)
        except Refused as refusal:
            return refusal.message
        return ""

    try:
        await scene.api.call("POST", path, body)
    except Refused as refusal:
        if refusal.status == 404:
            pytest.skip("this API server has no DeviceClasses")
        raise
    try:
        text = await eventually("it is too much", refused, within=10)
        assert "can never run: asking for 8 exceeds" in text
    finally:
        await scene.api.call("DELETE", f"{path}/suite-{scene.target.run_id}")
    await eventually("it is a GPU no more", refused, lambda text: not text, within=10)


@pytest_asyncio.fixture(loop_scope="session", params=["volume-mounts", "cdi-cri"])
async def by_other_means(scene: Scene, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """A scene on a cluster whose device plugin does not set variables."""
    before = await get_policy(scene.api)
    assert before is not None
    hiding = {"deviceListStrategy": request.param}
    await set_policy(scene.api, {**before, "spec": {**before["spec"], "hiding": hiding}})
    yield scene
    await set_policy(scene.api, before)


async def test_where_devices_come_by_other_means_every_container_is_void(
    by_other_means: Scene,
) -> None:
    scene = by_other_means
    await scene.node(a100(mig_1g_10gb=1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    asked = _with_env(pod("nb", team.namespace, labels=_EXPERIMENT), list(_PEEPING))

    async def env() -> list[Obj]:
        made = (await team.create(asked, dry_run=True)).obj
        return list(made["spec"]["containers"][0].get("env") or ())

    await eventually("the strategy is in force", env, lambda found: found == _VOID, within=10)


async def _check_cost(scene: Scene, asked: Obj) -> Obj:
    """Try a creation twice, and fail if both take too long; return what came of it."""
    searches, taken = [], []
    for _ in range(2):
        before, started = await _searched(scene), time.monotonic()
        made = (await scene.api.create(asked, dry_run=True)).obj
        taken.append(time.monotonic() - started)
        searches.append(await _searched(scene) - before)
    assert min(searches) < _SEARCH_TIME
    # Nothing of this namespace is sent, or looked at.
    elsewhere = {**asked, "metadata": {**asked["metadata"], "namespace": "kube-system"}}
    started = time.monotonic()
    await scene.api.create(elsewhere, dry_run=True)
    assert min(taken) - (time.monotonic() - started) < _GOOD_TIME
    return made


async def _searched(scene: Scene) -> float:
    """Read how long the API server has evaluated our conditions, where it tells."""
    if scene.target.name != "real":
        return 0.0
    text = (await scene.api.call("GET", "/metrics")).obj["message"]
    return sum(map(float, _SEARCHED.findall(text)))


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize("gpus", [0, 1], ids=["without GPUs", "with a GPU"])
async def test_fifty_thousand_variables_are_answered_in_good_time(scene: Scene, gpus: int) -> None:
    await scene.node(a100(1, mig_1g_10gb=1))
    team = await scene.team("nlp", {"a100": ("2", "2")})
    names = (_SEEN, "NVIDIA_GDS", "OTHER")
    env = [{"name": names[n % 3], "value": "all"} for n in range(50_000)]
    asked = (
        _with_env(pod("many", team.namespace, gpus, labels=_EXPERIMENT), env),
        _with_env(job("many", team.namespace, gpus, labels=_TRAINING, seconds=None), env),
    )
    for obj in asked:
        # Half the size of what the store takes, and each name many times over.
        made = await _check_cost(scene, obj)
        if obj["kind"] == "Pod":
            left = {(item["name"], item["value"]) for item in made["spec"]["containers"][0]["env"]}
            assert left == {("OTHER", "all"), *([] if gpus else [(_SEEN, "void")])}
    # Others are not kept waiting meanwhile.
    slow = asyncio.create_task(team.create(asked[0], dry_run=True))
    started = time.monotonic()
    await team.create(pod("small", team.namespace, gpus, labels=_EXPERIMENT), dry_run=True)
    assert time.monotonic() - started < _GOOD_TIME
    await slow


async def test_absurd_metadata_is_answered_in_good_time(scene: Scene) -> None:
    await scene.node(a100(mig_1g_10gb=1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    many = {f"example.com/{number}": "x" for number in range(5_000)}
    for field in ("labels", "annotations"):
        asked = pod("many", team.namespace, labels=_EXPERIMENT)
        asked["metadata"][field] = {**asked["metadata"][field], **many}
        started = time.monotonic()
        made = (await team.create(asked, dry_run=True)).obj
        assert time.monotonic() - started < _GOOD_TIME
        assert "nvidia.com/mig-1g.10gb" in made["spec"]["containers"][0]["resources"]["limits"]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_as_many_templates_as_are_searched_are_answered_in_good_time(scene: Scene) -> None:
    """Up to each size guard at once: what the conditions cost most for."""
    if scene.target.name != "real":
        pytest.skip("the sandbox's expressions may go through fewer items than an API server's")
    await scene.node(a100(1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    amounts = {f"a/{number}": "1" for number in range(32)}
    containers = [
        {"name": f"c{number}", "image": "x", "resources": {"limits": amounts, "requests": amounts}}
        for number in range(32)
    ]
    asked = jobset("many", team.namespace, None)
    (first, *_) = asked["spec"]["replicatedJobs"]
    del asked["metadata"]["labels"]
    first["template"]["spec"]["template"]["spec"]["containers"] = containers
    asked["spec"]["replicatedJobs"] = [{**first, "name": f"r{number}"} for number in range(32)]
    await _check_cost(scene, asked)
