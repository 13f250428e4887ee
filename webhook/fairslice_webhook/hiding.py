"""Keep containers from seeing GPUs that they do not hold, through their environment.

A variable in the pod's spec beats the device plugin's, which beats the image's. So a container
without GPUs gets exactly one `NVIDIA_VISIBLE_DEVICES=void` (not `none`, which still injects
driver libraries), and one with GPUs loses the variable where the plugin uses it to hand out
devices. Source: nvidia-container-toolkit, internal/config/image; k8s-device-plugin.
"""

from collections.abc import Container as Names
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairslice.hidden_env import (
    ALWAYS_HIDDEN,
    MPS_PREFIX,
    RUNTIME_CLASS_PREFIX,
    VISIBLE_DEVICES,
    VOID,
)
from fairslice.kube.objects import Container, EnvVar, PodSpec
from fairslice.quantity import QuantityError, parse_quantity
from fairslice.resource_names import ResourceNameError, parse_resource
from fairslice.v1alpha1.policy import DeviceListStrategy, HidingSpec
from fairslice_webhook.patching import Op, add, remove, remove_items

__all__ = [
    "Hiding",
    "blinded",
    "containers_of",
    "hide_container",
    "hide_pod",
    "hides",
    "holds_gpu",
    "is_device",
    "names_gpu",
]

# Images of what watches or hands out a node's GPUs without asking for any, as most charts name
# them: they count on the image's own NVIDIA_VISIBLE_DEVICES=all.
_WATCHERS = ("dcgm", "gpu-feature-discovery", "k8s-device-plugin", "gpu-exporter", "gpu_exporter")

# Beyond this, one new list is smaller than one operation for each entry.
_MAX_ITEM_OPS = 32


@dataclass(frozen=True, slots=True)
class Hiding:
    """What hiding changes. `told` names variables that a user had set, worth a warning."""

    ops: tuple[Op, ...] = ()
    told: tuple[str, ...] = ()


def containers_of(spec: PodSpec) -> Iterator[tuple[str, Container]]:
    """Yield every container with the JSON pointer to it, ephemeral ones last."""
    for field, items in (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
        ("ephemeralContainers", spec.ephemeral_containers),
    ):
        for index, container in enumerate(items or ()):
            yield f"/spec/{field}/{index}", container


def holds_gpu(container: Container, given_by_claims: Names[str] = ()) -> bool:
    """Say whether the device plugin will give this container a GPU.

    What DRA hands out comes through CDI, past the variable; `given_by_claims` are resource
    names that stand for that.
    """
    resources = container.resources
    if resources is None:
        return False
    for amounts in (resources.limits, resources.requests):
        for name, amount in (amounts or {}).items():
            if is_device(name) and name not in given_by_claims and not _is_zero(amount):
                return True
    return False


def names_gpu(container: Container) -> bool:
    """Say whether a container's resources name GPUs at all, if only to ask for none."""
    resources = container.resources
    if resources is None:
        return False
    return any(map(is_device, resources.limits or ())) or any(
        map(is_device, resources.requests or ())
    )


def is_device(name: str) -> bool:
    """Say whether a resource name is one under which a device plugin hands out GPUs."""
    try:
        resource = parse_resource(name)
    except ResourceNameError:
        # Mistyped, it is still a GPU that is asked for: refused, or never scheduled.
        return True
    return resource is not None and not resource.device_class


def hide_pod(spec: PodSpec, hiding: HidingSpec, given_by_claims: Names[str] = ()) -> Hiding:
    """Hide what a pod's containers do not hold; remove a GPU runtime class it has no use for."""
    ops: list[Op] = []
    told: list[str] = []
    any_gpu = bool(spec.resource_claims)
    for path, container in containers_of(spec):
        holds = holds_gpu(container, given_by_claims)
        any_gpu = any_gpu or holds or holds_gpu(container)
        hidden = hide_container(path, container, holds=holds, hiding=hiding)
        ops += hidden.ops
        told += hidden.told
    runtime_class = spec.runtime_class_name or ""
    # With an overhead, the API server would miss the runtime class that accounts for it.
    if runtime_class.startswith(RUNTIME_CLASS_PREFIX) and not any_gpu and spec.overhead is None:
        ops.append(remove("/spec/runtimeClassName"))
        told.append(f"runtimeClassName {runtime_class}")
    return Hiding(tuple(ops), tuple(told))


def blinded(spec: PodSpec) -> str:
    """Name the container that watches a node's GPUs and would no longer see them; or none."""
    for container in spec.containers:
        if any(name in container.image for name in _WATCHERS) and not holds_gpu(container):
            return container.name
    return ""


def hides(name: str, hiding: HidingSpec) -> bool:
    """Say whether a variable chooses devices, or leads to them."""
    return (
        name == VISIBLE_DEVICES
        or name in ALWAYS_HIDDEN
        or name.startswith(MPS_PREFIX)
        or name in hiding.extra_env
    )


def hide_container(path: str, container: Container, *, holds: bool, hiding: HidingSpec) -> Hiding:
    """Hide what one container does not hold; its resources are left alone."""
    env = container.env or ()
    want_void = not holds or hiding.device_list_strategy is not DeviceListStrategy.ENVVAR
    kept: int | None = None
    dropped: list[int] = []
    for index, variable in enumerate(env):
        name = variable.name
        if name == VISIBLE_DEVICES:
            if want_void and kept is None:
                kept = index
            else:
                dropped.append(index)
        elif hides(name, hiding):
            dropped.append(index)
    overwrite = kept is not None and not _is_void(env[kept])
    told = tuple(
        dict.fromkeys(
            f"{container.name}: {env[index].name}"
            for index in (*((kept,) if overwrite and kept is not None else ()), *dropped)
        )
    )
    if len(dropped) > _MAX_ITEM_OPS:
        gone = set(dropped)
        rest = [
            _VOID if index == kept else _plain(variable)
            for index, variable in enumerate(env)
            if index not in gone
        ]
        return Hiding((add(f"{path}/env", rest + [_VOID] * (want_void and kept is None)),), told)
    ops: list[Op] = []
    if overwrite:
        ops.append(Op("replace", f"{path}/env/{kept}", _VOID))
    ops += remove_items(f"{path}/env", dropped)
    if want_void and kept is None:
        absent = container.env is None
        ops.append(add(f"{path}/env", [_VOID]) if absent else add(f"{path}/env/-", _VOID))
    return Hiding(tuple(ops), told)


_VOID = {"name": VISIBLE_DEVICES, "value": VOID}


def _is_void(variable: EnvVar) -> bool:
    return variable.value == VOID and variable.value_from is None


def _plain(variable: EnvVar) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": variable.name}
    if variable.value is not None:
        plain["value"] = variable.value
    if variable.value_from is not None:
        plain["valueFrom"] = variable.value_from
    return plain


def _is_zero(amount: str | int | float) -> bool:
    if amount in ("1", "0"):
        return amount == "0"
    try:
        return parse_quantity(str(amount)) == 0
    except QuantityError:
        return False  # the API server refuses it
