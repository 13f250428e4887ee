"""Whatever a pod is made of: once stored, no container of it sees a GPU that it does not hold.

Judged by a model of what opens devices, written from NVIDIA's container toolkit, the CDI and NRI
plugins and Kubernetes' own privileges, with the worst of images and config maps.
"""

import json
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fairslice.v1alpha1.policy import DeviceListStrategy
from fairslice_webhook.decide import Phase, decide, without_ledger
from fairslice_webhook.decision import Answer, Bind
from fairslice_webhook.patching import apply
from fairslice_webhook.review import decode_review
from fairslice_webhook.view import Call

from .scene import GPU, SLICE_10, policy, review, team, view

CALL = Call(1_800_000_000.0, "b" + "1" * 20, "p" + "1" * 20)
OWN = "what the plugin gave it"

NAMES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VERSION",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_GDRCOPY",
    "CUDA_MPS_PIPE_DIRECTORY",
    "DOCKER_RESOURCE_GPU",
    "PATH",
)
OPENING = {*NAMES} - {"NVIDIA_VISIBLE_DEVICES", "CUDA_VERSION", "PATH"}
PATHS = (
    "/data",
    "/",
    "/dev",
    "/dev/null",
    "/dev/../dev/nvidia0",
    "//dev//nvidiactl",
    "/mnt/../run/nvidia",
    "/var/run/nvidia/driver",
    "/var",
    "/var/lib/kubelet/device-plugins/kubelet.sock",
    "/run/containerd/containerd.sock",
    "/run",
    "/etc/cdi",
    "/var/run/cdi",
    "/srv/models",
    "/developers",
)
MOUNTS = (
    "/data",
    "/var/run/nvidia-container-devices/all",
    "/var/run/./nvidia-container-devices/cdi/nvidia.com/gpu/all",
    "/var/run/nvidia-container-devices-/all",
    "/tmp/../var/run/nvidia-container-devices/imex/0",
    "/var/run/nvidia-container-toolkit",
)
ANNOTATIONS = (
    "cdi.k8s.io/x",
    "nvidia.cdi.k8s.io",
    "nvidia.cdi.k8s.io/pod",
    "nvidia.cdi.k8s.io/container.c0",
    "devices.nri.io/container.c0",
    "cdi-devices.nri.io/pod",
    "mounts.nri.io",
    "devices.gke.io/pod",
    "devices.noderesource.dev/container.c0",
    "io.kubernetes.cri-o.Devices",
    "example.com/note",
    "my.cdi.k8s.io.example.com/x",
)
INJECTORS = ANNOTATIONS[:-2]
# What leads to devices, or to those who hand them out; /var/run is /run.
ROOTS = ("dev", "run/nvidia", "etc/cdi", "run/cdi", "var/lib/kubelet", "run/containerd")

variables = st.builds(
    lambda name, value: {"name": name, **value},
    st.sampled_from(NAMES),
    st.sampled_from(["all", "none", "void", "", "0", "GPU-x"]).map(lambda value: {"value": value})
    | st.just({"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}),
)
securities = st.sampled_from(
    [
        None,
        None,
        None,
        {"privileged": False},
        {"privileged": True},
        {"capabilities": {"add": ["NET_ADMIN"]}},
        {"capabilities": {"add": ["CAP_SYS_ADMIN"]}},
        {"capabilities": {"add": ["all"]}},
    ]
)
rarely = st.integers(0, 9).map(lambda n: n == 0)


@st.composite
def containers(draw: st.DrawFn, name: str) -> dict[str, Any]:
    asked = draw(st.sampled_from([{}, {}, {GPU: "1"}, {GPU: "0"}, {SLICE_10: "1"}, {"cpu": "1"}]))
    made: dict[str, Any] = {
        "name": name,
        "image": "x",
        "resources": {"limits": dict(asked), "requests": dict(asked)},
    }
    if draw(st.booleans()):
        made["env"] = draw(st.lists(variables, max_size=5))
    if draw(rarely):
        made["envFrom"] = [
            {"secretRef": {"name": "s"}, "prefix": draw(st.sampled_from(["", "A_"]))}
        ]
    if draw(rarely):
        made["volumeMounts"] = [{"name": "v", "mountPath": draw(st.sampled_from(MOUNTS))}]
    if (security := draw(securities)) is not None and draw(rarely):
        made["securityContext"] = security
    return made


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "containers": [draw(containers(f"c{n}")) for n in range(draw(st.integers(1, 2)))]
    }
    if draw(st.booleans()):
        spec["initContainers"] = [
            {**draw(containers("i")), **draw(st.sampled_from([{}, {"restartPolicy": "Always"}]))}
        ]
    if draw(st.integers(0, 2)) == 0:
        path = draw(st.sampled_from(PATHS))
        spec["volumes"] = [{"name": "v", "hostPath": {"path": path}}]
    for field in ("hostPID", "hostIPC"):
        if draw(rarely):
            spec[field] = True
    if draw(rarely):
        spec["nodeName"] = "a1"
    if draw(rarely):
        spec["runtimeClassName"] = "nvidia"
    training = {"fairslice.io/class": "training"}
    meta: dict[str, Any] = {"name": "p", "namespace": "nlp", "labels": training}
    if draw(st.integers(0, 4)) == 0:
        meta["annotations"] = {draw(st.sampled_from(ANNOTATIONS)): "nvidia.com/gpu=all"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def normal(path: str) -> str:
    """A path of the node, each `..` and doubled slash followed, as the kernel does."""
    steps: list[str] = []
    for step in path.split("/"):
        if step == "..":
            steps = steps[:-1]
        elif step not in ("", "."):
            steps.append(step)
    plain = "/".join(steps)
    return plain.removeprefix("var/") if f"{plain}/".startswith("var/run/") else plain


def opens(path: str) -> bool:
    """Whether a directory of the node holds a way to devices, or lies within one."""
    at = normal(path)
    if at == "" or at.startswith("run/nvidia"):
        return True
    above = any(f"{root}/".startswith(f"{at}/") for root in ROOTS)
    # /var/run is a link to /run, so that /var leads there, too.
    return above or at == "var" or any(f"{at}/".startswith(f"{root}/") for root in ROOTS)


def holds(item: dict[str, Any]) -> bool:
    return any(
        name.startswith("nvidia.com/") and amount != "0"
        for name, amount in item["resources"].get("limits", {}).items()
    )


def sees(pod: dict[str, Any], item: dict[str, Any], strategy: DeviceListStrategy) -> set[str]:
    spec, found = pod["spec"], set()
    security = item.get("securityContext") or {}
    added = (security.get("capabilities") or {}).get("add") or []
    if security.get("privileged") or {"CAP_SYS_ADMIN", "all"} & set(added):
        found.add("all: privileged")
    for mount in item.get("volumeMounts") or []:
        if ("/" + normal(mount["mountPath"])).startswith("/run/nvidia-container-devices"):
            found.add("all: by mount")
    if any(opens(volume["hostPath"]["path"]) for volume in spec.get("volumes") or []):
        found.add("all: by hostPath")
    if any(key in INJECTORS for key in pod["metadata"].get("annotations") or {}):
        found.add("all: injected")
    gpu = any(holds(other) for other in [*spec["containers"], *(spec.get("initContainers") or [])])
    if gpu and (spec.get("hostPID") or spec.get("hostIPC")):
        found.add("others' processes")
    if gpu and spec.get("nodeName"):
        found.add("a node that nobody chose")
    if not gpu and str(spec.get("runtimeClassName", "")).startswith("nvidia"):
        found.add("driver libraries")
    # Image, plugin, envFrom, env: the last one wins.
    by_variable = strategy is DeviceListStrategy.ENVVAR
    layers = [{"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VERSION": "12"}]
    if holds(item) and by_variable:
        layers.append({"NVIDIA_VISIBLE_DEVICES": OWN})
    prefixes = [source["prefix"] for source in item.get("envFrom") or []]
    if any("NVIDIA_VISIBLE_DEVICES".startswith(prefix) for prefix in prefixes):
        layers.append({"NVIDIA_VISIBLE_DEVICES": "all"})
    # Beside `void` the toolkit heeds none of the others.
    if holds(item) and by_variable:
        named = [name for name in OPENING if any(map(name.startswith, prefixes))]
        layers.append(dict.fromkeys(named, "all"))
    layers += [{entry["name"]: entry.get("value", "all")} for entry in item.get("env") or []]
    final: dict[str, str] = {}
    for layer in layers:
        final |= layer
    found |= {name for name in final if name in OPENING}
    value = final["NVIDIA_VISIBLE_DEVICES"]
    if value not in ("", "void"):
        found.add(value)
    if holds(item) and not by_variable:
        found.add(OWN)
    return found


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(pods(), st.sampled_from(list(DeviceListStrategy)))
def test_no_stored_pod_sees_more_than_it_holds(
    obj: dict[str, Any], strategy: DeviceListStrategy
) -> None:
    hiding = {
        "deviceListStrategy": strategy.value,
        "strictEnvFrom": True,
        "extraEnv": ["DOCKER_RESOURCE_GPU"],
    }
    seen = view(policy(hiding=hiding), (team(pools=[{"pool": "a100", "limit": "9"}]),))
    wish = decide(decode_review(review(obj)), seen, CALL, Phase.MUTATE)
    # With the books away, what could be booked waits behind its gate, rewritten all the same.
    answer = wish if isinstance(wish, Answer) else without_ledger(wish)
    if answer.denial is not None:
        event("refused")
        return
    event("stored")
    stored = apply(answer.ops, json.dumps(obj).encode())
    stored["metadata"]["uid"] = "u"
    checked = decide(decode_review(review(stored)), seen, CALL, Phase.VALIDATE)
    assert isinstance(checked, Bind) or (isinstance(checked, Answer) and checked.denial is None)
    for item in [*stored["spec"]["containers"], *(stored["spec"].get("initContainers") or [])]:
        assert sees(stored, item, strategy) == ({OWN} if holds(item) else set())


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(pods(), st.sampled_from(list(DeviceListStrategy)))
def test_nothing_that_sees_more_passes_the_validating_call_unmutated(
    obj: dict[str, Any], strategy: DeviceListStrategy
) -> None:
    hiding = {
        "deviceListStrategy": strategy.value,
        "strictEnvFrom": True,
        "extraEnv": ["DOCKER_RESOURCE_GPU"],
    }
    seen = view(policy(hiding=hiding))
    obj["metadata"]["uid"] = "u"
    checked = decide(decode_review(review(obj)), seen, CALL, Phase.VALIDATE)
    if isinstance(checked, Answer) and checked.denial is not None:
        return
    for item in [*obj["spec"]["containers"], *(obj["spec"].get("initContainers") or [])]:
        assert sees(obj, item, strategy) == ({OWN} if holds(item) else set())
