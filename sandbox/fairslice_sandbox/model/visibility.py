"""Which GPUs a container really sees, by the rules of the NVIDIA container toolkit.

Follows nvidia-container-toolkit's internal/config/image: the container's environment is the
image's, then the device plugin's, then the pod's, and the last one wins.
"""

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from fairslice_sandbox.model.devices import Device, Inventory
from fairslice_sandbox.model.objects import Obj, annotations, labels

__all__ = ["IMAGES", "Runtime", "visible"]

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
MOUNTS = "/var/run/nvidia-container-devices"
_MODERN = {VARIABLE: "all", "NVIDIA_REQUIRE_CUDA": "cuda>=12.0", "CUDA_VERSION": "12.4.1"}

# What well-known images bake into their environment; the first pattern that matches counts.
IMAGES: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("nvidia/cuda:[1-8].*", {"CUDA_VERSION": "8.0.61"}),
    ("nvidia/cuda:*", _MODERN),
    ("nvcr.io/nvidia/*", _MODERN),
    ("pytorch/pytorch:*", _MODERN),
    ("tensorflow/tensorflow:*gpu*", _MODERN),
    ("vllm/*", _MODERN),
    ("*pytorch-notebook:cuda*", _MODERN),
)

# Reads a ConfigMap or Secret of the pod's namespace: kind and name to its data.
Read = Callable[[str, str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a node's plugin and toolkit are set up; the defaults are the GPU operator's.

    `strategy` is the plugin's device list strategy (`envvar`, `volume-mounts`); `is_default`
    says that containers get the NVIDIA runtime without asking by runtimeClassName.
    """

    strategy: str = "envvar"
    is_default: bool = True
    accept_env: bool = True
    images: Sequence[tuple[str, Mapping[str, str]]] = field(default=IMAGES)


def visible(
    pod: Obj,
    container: Obj,
    held: Sequence[Device],
    available: Inventory,
    runtime: Runtime,
    read: Read,
) -> tuple[str, ...]:
    """Give the uuids of all devices of the node that the container can reach, sorted."""
    everything = available.uuids
    if _is_privileged(container) or _mounts_devices(pod, container):
        return tuple(sorted(everything))
    asked = _by_annotation(pod, container)
    runtime_class = pod["spec"].get("runtimeClassName") or ""
    if runtime.is_default or runtime_class.startswith("nvidia"):
        mounted = _by_mount(container)
        if runtime.strategy == "volume-mounts" and (mounted or held):
            asked += [*mounted, *(device.uuid for device in held)]
        elif runtime.accept_env:
            asked += _by_environment(_environment(pod, container, held, runtime, read))
    return tuple(sorted({uuid for item in asked for uuid in _resolve(item, everything)}))


def _resolve(asked: str, everything: Sequence[str]) -> Sequence[str]:
    """Find the devices that one item of a device list names."""
    name = asked.rpartition("=")[2]
    if name == "all":
        return everything
    whole = [uuid for uuid in everything if not uuid.startswith("MIG-")]
    if name.isdigit():
        return whole[int(name) : int(name) + 1]
    first, _, second = name.partition(":")
    if first.isdigit() and second.isdigit():
        mig = [uuid for uuid in everything if uuid.startswith("MIG-")]
        return mig[int(second) : int(second) + 1]
    return [uuid for uuid in everything if uuid == name]


def _by_environment(env: Mapping[str, str]) -> list[str]:
    value = env.get(VARIABLE)
    if value is None:
        # An image from before the variable existed: it expects every GPU.
        legacy = "CUDA_VERSION" in env and "NVIDIA_REQUIRE_CUDA" not in env
        return ["all"] if legacy else []
    if value in ("", "void", "none"):
        return []
    return [item.strip() for item in value.split(",") if item.strip()]


def _environment(
    pod: Obj, container: Obj, held: Sequence[Device], runtime: Runtime, read: Read
) -> dict[str, str]:
    image = container.get("image", "").removeprefix("docker.io/")
    baked = next((env for pattern, env in runtime.images if fnmatchcase(image, pattern)), {})
    env = dict(baked)
    if held:
        # Each resource returns the variable; the kubelet keeps one of them.
        resource = min(device.resource for device in held)
        mine = dict.fromkeys(device.uuid for device in held if device.resource == resource)
        env[VARIABLE] = ",".join(mine) if runtime.strategy == "envvar" else MOUNTS
    for source in container.get("envFrom") or ():
        for kind in ("configMapRef", "secretRef"):
            if kind in source:
                data = read(kind, source[kind]["name"])
                prefix = source.get("prefix") or ""
                env.update({prefix + name: value for name, value in data.items()})
    own: dict[str, str] = {}
    for item in container.get("env") or ():
        value = item.get("value")
        if "valueFrom" in item:
            value = _value_from(item["valueFrom"], pod, read)
        else:
            value = _expand(value or "", {**env, **own})
        if value is not None:
            own[item["name"]] = value
    return {**env, **own}


def _expand(text: str, known: Mapping[str, str]) -> str:
    def put(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]+)\)", put, text)


def _value_from(source: Obj, pod: Obj, read: Read) -> str | None:
    for kind, ref in (("configMapKeyRef", "configMapRef"), ("secretKeyRef", "secretRef")):
        if kind in source:
            return read(ref, source[kind]["name"]).get(source[kind]["key"])
    path = (source.get("fieldRef") or {}).get("fieldPath", "")
    match = re.fullmatch(r"metadata\.(annotations|labels)\['([^']+)'\]", path)
    if match:
        return (annotations if match[1] == "annotations" else labels)(pod).get(match[2], "")
    return str(pod["metadata"].get(path.removeprefix("metadata."), ""))


def _by_annotation(pod: Obj, container: Obj) -> list[str]:
    asked: list[str] = []
    for name, value in annotations(pod).items():
        group, _, scope = name.partition("/")
        if group == "nvidia.cdi.k8s.io" and scope in ("", "pod", f"container.{container['name']}"):
            asked.extend(value.split(","))
    return asked


def _by_mount(container: Obj) -> list[str]:
    paths = [posixpath.normpath(item["mountPath"]) for item in container.get("volumeMounts") or ()]
    return [path.removeprefix(MOUNTS + "/") for path in paths if path.startswith(MOUNTS + "/")]


def _is_privileged(container: Obj) -> bool:
    context = container.get("securityContext") or {}
    return bool(context.get("privileged"))


def _mounts_devices(pod: Obj, container: Obj) -> bool:
    mounted = {item["name"] for item in container.get("volumeMounts") or ()}
    for volume in pod["spec"].get("volumes") or ():
        path = posixpath.normpath((volume.get("hostPath") or {}).get("path") or ".")
        if volume["name"] in mounted and (
            path == "/" or path == "/dev" or path.startswith("/dev/nvidia")
        ):
            return True
    return False
