"""One node read: its GPU model, pool, and the kinds of share that it advertises.

Sources: NVIDIA/k8s-device-plugin internal/lm (labels) and internal/rm (names under the MIG
strategies and under sharing); GKE's own labels stand in where GPU feature discovery is
missing.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from fairslice.catalog import slice_milli
from fairslice.devices import Offer
from fairslice.kube.objects import Node, Taint
from fairslice.placement import NodeState, is_plain_extended, whole_units
from fairslice.policy import Policy
from fairslice.quantity import QuantityError, parse_milli
from fairslice.resource_names import (
    GpuResource,
    ResourceKind,
    ResourceNameError,
    parse_resource,
)
from fairslice.v1alpha1.policy import SharingMode

__all__ = ["LABELS_THAT_TELL", "PRODUCT", "UNKNOWN", "NodeFacts", "read_node"]

PRODUCT = "nvidia.com/gpu.product"
_STRATEGY = "nvidia.com/gpu.sharing-strategy"
_GKE_PRODUCT = "cloud.google.com/gke-accelerator"
_GKE_SLICE = "cloud.google.com/gke-gpu-partition-size"
_GKE_STRATEGY = "cloud.google.com/gke-gpu-sharing-strategy"
_GKE_CLIENTS = "cloud.google.com/gke-max-shared-clients-per-gpu"

LABELS_THAT_TELL = (PRODUCT, _STRATEGY, _GKE_PRODUCT, _GKE_SLICE, _GKE_STRATEGY, _GKE_CLIENTS)
"""Labels by which nodes that advertise one name for different things can be told apart."""

UNKNOWN = "unknown"
"""The product of a node that no label tells the GPU model of."""

_SHARED_SUFFIX = "-SHARED"
_MIG_SUFFIX = re.compile(r"-MIG-(?P<profile>INVALID|\d+g\.\d+gb\S*)$", re.ASCII)
_SIZE = re.compile(r"\d+g\.(\d+)gb", re.ASCII)
# While the geometry changes, the plugin is paused and allocatable is stale.
_SETTLED = ("", "success")


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What counts about a node. `shares` are its offers (requirements open) and how many.

    cpu in thousandths, memory in bytes. `in_service`: ready, not cordoned, no MIG change.
    """

    name: str
    pool: str
    product: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    in_service: bool
    cpu_milli: int
    memory: int
    pods: int
    extended: Mapping[str, int]
    shares: tuple[tuple[Offer, int], ...]

    def state(self) -> NodeState:
        """Make the node's state as if nothing ran on it."""
        return NodeState(
            name=self.name,
            labels=self.labels,
            taints=self.taints,
            cpu_milli=self.cpu_milli,
            memory=self.memory,
            pods=self.pods,
            units={offer.key: units for offer, units in self.shares},
            extended=dict(self.extended),
        )


def read_node(node: Node, policy: Policy) -> NodeFacts:
    """Read a node. Values that the API server would refuse count as nothing."""
    labels = node.metadata.labels or {}
    allocatable = node.status.allocatable or {}
    amounts = {name: _amount(name, value) for name, value in allocatable.items()}
    product, profile = _product(labels)
    pool = policy.pool_of(product, labels)
    shares: list[tuple[Offer, int]] = []
    for name, units in amounts.items():
        offer = _offer(name, units, pool, product, profile, labels) if units > 0 else None
        if offer is not None:
            shares.append((offer, units))
    shares.sort(key=lambda item: item[0].key)
    return NodeFacts(
        name=node.metadata.name,
        pool=pool,
        product=product,
        labels=labels,
        taints=node.spec.taints or (),
        in_service=_in_service(node, labels),
        cpu_milli=amounts.get("cpu", 0),
        memory=amounts.get("memory", 0),
        pods=amounts.get("pods", 0),
        extended={name: units for name, units in amounts.items() if is_plain_extended(name)},
        shares=tuple(shares),
    )


def _in_service(node: Node, labels: Mapping[str, str]) -> bool:
    if node.spec.unschedulable or node.metadata.deletion_timestamp is not None:
        return False
    if labels.get("nvidia.com/mig.config.state", "") not in _SETTLED:
        return False
    return any(
        condition.type == "Ready" and condition.status == "True"
        for condition in node.status.conditions or ()
    )


def _amount(name: str, value: str | int | float) -> int:
    try:
        return parse_milli(str(value)) if name == "cpu" else whole_units(str(value))
    except QuantityError:
        return 0


def _product(labels: Mapping[str, str]) -> tuple[str, str]:
    """Read the model and, where nvidia.com/gpu is a slice, its profile."""
    raw = labels.get(PRODUCT) or labels.get(_GKE_PRODUCT) or UNKNOWN
    raw = raw.removesuffix(_SHARED_SUFFIX)
    match = _MIG_SUFFIX.search(raw)
    if match is not None:
        return raw[: match.start()], match["profile"]
    return raw, labels.get(_GKE_SLICE, "")


def _offer(
    name: str, units: int, pool: str, product: str, profile: str, labels: Mapping[str, str]
) -> Offer | None:
    try:
        resource = parse_resource(name)
    except ResourceNameError:
        return None
    if resource is None or resource.device_class:
        return None
    if resource.kind is ResourceKind.MIG:
        return _mig_offer(resource, pool, product, labels)
    if profile == "INVALID":
        return None
    memory = _number(labels, "nvidia.com/gpu.memory")
    replicas = _replicas(resource, units, profile, labels)
    mode = SharingMode.WHOLE
    milli, size_gb, variant = 1000, 0, []
    if profile:
        mode = SharingMode.MIG
        milli = slice_milli(product, profile)
        size_gb = _size(profile)
        variant.append(profile)
    if replicas > 1:
        mode = SharingMode.MPS if _is_mps(labels) else SharingMode.TIMESLICE
        milli, memory = max(milli // replicas, 1), memory // replicas
        variant.append(f"1/{replicas}")
    return Offer(
        pool=pool,
        product=":".join([product, *variant]),
        resource=name,
        mode=mode,
        milli=milli,
        memory_mib=memory,
        size_gb=size_gb,
        isolated=replicas == 1,
    )


def _mig_offer(resource: GpuResource, pool: str, product: str, labels: Mapping[str, str]) -> Offer:
    """Read a slice with a name of its own, as under the `mixed` strategy."""
    prefix = f"nvidia.com/mig-{resource.profile}"
    card = _number(labels, "nvidia.com/gpu.memory")
    milli = slice_milli(product, resource.profile, card)
    memory = _number(labels, prefix + ".memory")
    replicas = _number(labels, prefix + ".replicas", default=1)
    if resource.shared and replicas < 2:
        replicas = 2
    if replicas > 1:
        milli, memory = max(milli // replicas, 1), memory // replicas
    return Offer(
        pool=pool,
        product=f"{product}:1/{replicas}" if replicas > 1 else product,
        resource=resource.name,
        mode=SharingMode.TIMESLICE if replicas > 1 else SharingMode.MIG,
        milli=milli,
        memory_mib=memory,
        size_gb=resource.size_gb,
        isolated=replicas == 1,
    )


def _replicas(resource: GpuResource, units: int, profile: str, labels: Mapping[str, str]) -> int:
    """Find into how many replicas each GPU is split; 1 for none.

    Feature discovery may not know the plugin's configuration (k8s-device-plugin#732), but
    more units than GPUs give replicas away wherever none of them is MIG.
    """
    labelled = _number(labels, "nvidia.com/gpu.replicas", default=1)
    labelled = max(labelled, _number(labels, _GKE_CLIENTS, default=1))
    if labelled > 1:
        return labelled
    count = _number(labels, "nvidia.com/gpu.count")
    counted = units // count if count and not profile else 1
    if counted > 1:
        return counted
    told = (labels.get(PRODUCT) or "").endswith(_SHARED_SUFFIX)
    return 2 if resource.shared or told else 1


def _is_mps(labels: Mapping[str, str]) -> bool:
    return "mps" in (labels.get(_STRATEGY), labels.get(_GKE_STRATEGY))


def _size(profile: str) -> int:
    match = _SIZE.match(profile)
    return int(match[1]) if match is not None else 0


def _number(labels: Mapping[str, str], key: str, *, default: int = 0) -> int:
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else default
