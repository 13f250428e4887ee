"""The device plugin and the kubelet's device manager: which devices a node has, who gets them.

Device names follow NVIDIA's plugin: `GPU-…` and `MIG-…` uuids, with `::n` for a replica.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import NAMESPACE_DNS, uuid5

from fairslice_sandbox.model.objects import Obj, annotations, labels
from fairslice_sandbox.model.resources import amounts, container_requests, is_sidecar

__all__ = [
    "DEVICES",
    "FAIL_GREATER_THAN_ONE",
    "Allocation",
    "AllocationError",
    "Device",
    "Inventory",
    "allocate",
    "inventory",
    "recorded",
]

DEVICES = "sandbox.fairslice.io/devices"
FAIL_GREATER_THAN_ONE = "sandbox.fairslice.io/fail-requests-greater-than-one"
_VENDOR = "nvidia.com/"


class AllocationError(Exception):
    """The kubelet refuses the pod; the text is the reason it gives."""


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """One unit of an extended resource: `id` names the unit, `uuid` the device behind it."""

    resource: str
    id: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a node's plugin advertises; `shared` names resources whose units are replicas."""

    devices: Mapping[str, tuple[Device, ...]]
    shared: frozenset[str]
    one_replica_only: bool

    @property
    def uuids(self) -> tuple[str, ...]:
        """Every device of the node, whole GPUs first."""
        found = {device.uuid for units in self.devices.values() for device in units}
        return tuple(sorted(found, key=lambda uuid: (uuid.startswith("MIG-"), uuid)))


Allocation = dict[str, tuple[Device, ...]]


def inventory(node: Obj) -> Inventory:
    """Derive a node's devices from what it advertises; the same node gives the same uuids."""
    name, tags = node["metadata"]["name"], labels(node)
    devices: dict[str, tuple[Device, ...]] = {}
    shared: set[str] = set()
    for resource, count in amounts((node.get("status") or {}).get("allocatable")).items():
        if not resource.startswith(_VENDOR):
            continue
        base = resource.removesuffix(".shared")
        replicas = max(1, int(tags.get(f"{base}.replicas", "1")))
        is_mig = (
            base.startswith("nvidia.com/mig-") or tags.get("nvidia.com/mig.strategy") == "single"
        )
        prefix = "MIG" if is_mig else "GPU"
        units: list[Device] = []
        for number in range(count):
            uuid = f"{prefix}-{uuid5(NAMESPACE_DNS, f'{name}/{base}/{number // replicas}')}"
            unit = uuid if replicas == 1 else f"{uuid}::{number % replicas}"
            units.append(Device(resource, unit, uuid))
        devices[resource] = tuple(units)
        if replicas > 1:
            shared.add(resource)
    strict = annotations(node).get(FAIL_GREATER_THAN_ONE)
    # The plugin lets several time-slices through unless told otherwise; MPS the other way round.
    by_default = tags.get("nvidia.com/gpu.sharing-strategy") == "mps"
    one_only = strict == "true" if strict is not None else by_default
    return Inventory(devices, frozenset(shared), one_only)


def allocate(spec: Obj, available: Inventory, taken: Iterable[Device]) -> Allocation:
    """Give every container of a pod its devices.

    Later containers reuse what ordinary init containers had, but not what sidecars keep.
    Raises AllocationError in the kubelet's words if a container can't be served.
    """
    used = set(taken)
    reusable: list[Device] = []
    result: Allocation = {}
    inits = spec.get("initContainers") or ()
    for container in (*inits, *(spec.get("containers") or ())):
        got: list[Device] = []
        for resource, wanted in sorted(container_requests(container).items()):
            if resource.startswith(_VENDOR) and wanted:
                got.extend(_take(resource, wanted, available, used, reusable))
        result[container["name"]] = tuple(got)
        used.update(got)
        if container in inits and not is_sidecar(container):
            reusable = [*reusable, *(device for device in got if device not in reusable)]
        else:
            reusable = [device for device in reusable if device not in got]
    return result


def _take(
    resource: str,
    wanted: int,
    available: Inventory,
    used: set[Device],
    reusable: Sequence[Device],
) -> list[Device]:
    if resource in available.shared and available.one_replica_only and wanted > 1:
        raise AllocationError(
            f"Allocate failed due to rpc error: code = Unknown desc = request for '{resource}: "
            f"{wanted}' invalid: maximum request size for shared resources is 1; found {wanted}, "
            "which is unexpected"
        )
    units = available.devices.get(resource, ())
    got = [device for device in reusable if device.resource == resource][:wanted]
    free = [device for device in units if device not in used]
    if len(got) + len(free) < wanted:
        raise AllocationError(
            f"Allocate failed due to requested number of devices unavailable for {resource}. "
            f"Requested: {wanted}, Available: {len(got) + len(free)}, which is unexpected"
        )
    while len(got) < wanted:
        # Replicas are spread over the devices that have most of theirs left.
        load = {unit.uuid: 0 for unit in units}
        for device in (*used, *got):
            load[device.uuid] = load.get(device.uuid, 0) + (device.resource == resource)
        best = min(free, key=lambda device: (load[device.uuid], units.index(device)))
        free.remove(best)
        got.append(best)
    return got


def recorded(pod: Obj, available: Inventory) -> Allocation:
    """Read back the devices that a pod was given, as far as the node still has them."""
    known = {unit.id: unit for units in available.devices.values() for unit in units}
    noted: dict[str, list[str]] = json.loads(annotations(pod).get(DEVICES, "{}"))
    return {
        container: tuple(known[unit] for unit in units if unit in known)
        for container, units in noted.items()
    }
