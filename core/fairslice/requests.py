"""What a pod asks for: its GPU requests read, checked, and summed as the kubelet sums them.

Sources: kubernetes component-helpers/resource (PodRequests: init containers in order, with
the native sidecars started before them) and apis/core/validation (extended resources).
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from fractions import Fraction

from msgspec import Struct, structs

from fairslice import messages
from fairslice.device_claims import DeviceNeed, Devices, UnseenTemplate
from fairslice.kube.objects import Container, PodSpec
from fairslice.memory_ask import MemoryAsk, parse_memory
from fairslice.quantity import QuantityError, parse_quantity
from fairslice.resource_names import GPU, GpuResource, ResourceNameError, parse_resource
from fairslice.stamps import GPU_MEMORY

__all__ = [
    "AskError",
    "ContainerAsk",
    "ContainerKind",
    "MemoryAsk",
    "PodAsk",
    "UnseenError",
    "by_claims",
    "parse_memory",
    "read_pod",
    "sum_containers",
]


class AskError(ValueError):
    """A request that can't be meant: container, value, way out, in one line for its author."""

    def __init__(self, message: str, *, container: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.container = container
        self.resource = resource


class UnseenError(AskError):
    """A pod that rests on something not there, or not seen yet: worth another look soon."""


class ContainerKind(StrEnum):
    """Which of a pod's lists a container is in, and how long it lives."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"
    EPHEMERAL = "ephemeral"


_MOST_OF_ONE = 10_000
"""More GPUs than that no node has; and totals beyond it would leave the range of exact numbers."""

_LISTS = {
    ContainerKind.INIT: "initContainers",
    ContainerKind.SIDECAR: "initContainers",
    ContainerKind.APP: "containers",
    ContainerKind.EPHEMERAL: "ephemeralContainers",
}


class ContainerAsk(Struct, frozen=True, kw_only=True, gc=False):
    """A container and the GPUs it asks for.

    `index` is the place in its own list. `count` is 0 and `resource` None without GPUs;
    `zero_keys` are GPU resources asked for with 0, which are to be dropped. `fraction_milli`
    is the part of one GPU asked for, in thousandths, where a fraction was asked.
    """

    name: str
    index: int
    kind: ContainerKind
    resource: GpuResource | None = None
    count: int = 0
    fraction_milli: int = 0
    zero_keys: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The JSON pointer of the container within the pod."""
        return f"/spec/{_LISTS[self.kind]}/{self.index}"


class PodAsk(Struct, frozen=True, kw_only=True):
    """All that a pod asks for in GPUs.

    `units` is what one pod takes of each asked resource. `needs` are the GPUs that it takes
    through DRA, by claims or implicit class names.
    """

    containers: tuple[ContainerAsk, ...]
    gpu_containers: tuple[ContainerAsk, ...]
    units: dict[str, int]
    memory: MemoryAsk | None = None
    needs: tuple[DeviceNeed, ...] = ()

    @property
    def is_gpu(self) -> bool:
        """Say whether the pod asks for GPUs."""
        return bool(self.gpu_containers or self.needs)

    @property
    def declared_memory_mib(self) -> int:
        """Declared GPU memory in MiB; 0 if none was declared."""
        return self.memory.mib if self.memory is not None else 0

    @property
    def fraction_milli(self) -> int:
        """The largest fraction of a GPU that a container asks for, in thousandths."""
        return max((item.fraction_milli for item in self.gpu_containers), default=0)

    @property
    def has_zero_keys(self) -> bool:
        """Say whether there are keys to drop."""
        return any(item.zero_keys for item in self.containers)

    @property
    def most_in_one_container(self) -> int:
        """The highest count that a single container asks for."""
        return max((item.count for item in self.gpu_containers), default=0)


def sum_containers(kinds_and_amounts: list[tuple[ContainerKind, int]]) -> int:
    """Sum one resource over a pod's containers as scheduler and kubelet do.

    Init containers run one after another, each beside the sidecars started before it;
    app containers run together, beside all sidecars.
    """
    apps = sidecars = peak = 0
    for kind, amount in kinds_and_amounts:
        if kind is ContainerKind.APP:
            apps += amount
        elif kind is ContainerKind.SIDECAR:
            sidecars += amount
            peak = max(peak, sidecars)
        elif kind is ContainerKind.INIT:
            peak = max(peak, sidecars + amount)
    return max(apps + sidecars, peak)


_NO_DEVICES = Devices()


def read_pod(
    spec: PodSpec,
    annotations: Mapping[str, str] | None,
    *,
    fractions: bool = False,
    namespace: str = "",
    devices: Devices = _NO_DEVICES,
) -> PodAsk:
    """Read a pod's GPU requests. `fractions` lets 0.5 pass, as a part of one GPU.

    `devices` says what its claims, which are of its namespace, come to. Raises AskError for
    requests that can't be meant, UnseenError for a claim template that isn't there.
    """
    containers: list[ContainerAsk] = []
    for index, container in enumerate(spec.init_containers or ()):
        sidecar = container.restart_policy == "Always"
        kind = ContainerKind.SIDECAR if sidecar else ContainerKind.INIT
        containers.append(_read_container(container, index, kind, fractions))
    for index, container in enumerate(spec.containers):
        containers.append(_read_container(container, index, ContainerKind.APP, fractions))
    for index, container in enumerate(spec.ephemeral_containers or ()):
        containers.append(_read_container(container, index, ContainerKind.EPHEMERAL, fractions))
    found: list[ContainerAsk] = []
    needs: list[DeviceNeed] = []
    for item in containers:
        if item.resource is None:
            continue
        if item.resource.device_class:
            unit = devices.unit(item.resource.device_class) or GPU
            needs.append(((unit, item.count),))
        else:
            found.append(item)
    asking = tuple(found)
    if devices.known:
        needs += _other_needs(spec, namespace, devices)
    memory = None
    declared = annotations.get(GPU_MEMORY) if annotations else None
    if declared is not None and asking:
        memory = _declared_memory(declared, asking)
    return PodAsk(
        containers=tuple(containers),
        gpu_containers=asking,
        units=_units(asking),
        memory=memory,
        needs=tuple(needs),
    )


def by_claims(ask: PodAsk, names: Mapping[str, str]) -> PodAsk:
    """Take some resource names for what they stand for: devices that DRA gives.

    Init containers get devices of their own (kubernetes#134880): here they add up.
    """
    needs: list[DeviceNeed] = []
    others: list[ContainerAsk] = []
    for item in ask.gpu_containers:
        if item.resource is not None and item.resource.name in names:
            needs.append(((names[item.resource.name], item.count),))
        else:
            others.append(item)
    if not needs:
        return ask
    kept = tuple(others)
    return structs.replace(
        ask,
        gpu_containers=kept,
        units=_units(kept),
        memory=ask.memory if kept else None,
        needs=(*ask.needs, *needs),
    )


def _other_needs(spec: PodSpec, namespace: str, devices: Devices) -> Iterator[DeviceNeed]:
    """Read claims, and resource names that stand for GPUs only because a device class says so."""
    try:
        yield from devices.needs_of_pod(namespace, spec.resource_claims or ())
    except UnseenTemplate as error:
        raise UnseenError(messages.ask_template_unseen(str(error), namespace)) from None
    for container in (*(spec.init_containers or ()), *spec.containers):
        resources = container.resources
        limits = (resources.limits or {}) if resources is not None else {}
        for name, limit in limits.items():
            unit = devices.names.get(name)
            if unit is None or _is_gpu_name(name):
                continue
            amount = _amount(container.name, name, limit, None)
            if amount > 0:
                yield ((unit, -(-amount.numerator // amount.denominator)),)


def _is_gpu_name(name: str) -> bool:
    try:
        return parse_resource(name) is not None
    except ResourceNameError:
        return False


def _units(asking: tuple[ContainerAsk, ...]) -> dict[str, int]:
    if len(asking) == 1:
        only = asking[0]
        return {only.resource.name: only.count} if only.resource is not None else {}
    amounts: dict[str, list[tuple[ContainerKind, int]]] = {}
    for item in asking:
        if item.resource is not None:
            amounts.setdefault(item.resource.name, []).append((item.kind, item.count))
    return {name: sum_containers(parts) for name, parts in amounts.items()}


def _declared_memory(text: str, asking: tuple[ContainerAsk, ...]) -> MemoryAsk:
    if len(asking) > 1:
        raise AskError(messages.ask_memory_containers(text, len(asking)))
    try:
        return parse_memory(text)
    except QuantityError as error:
        raise AskError(messages.ask_memory_malformed(text)) from error


def _read_container(
    container: Container, index: int, kind: ContainerKind, fractions: bool
) -> ContainerAsk:
    resources = container.resources
    limits = (resources.limits or {}) if resources is not None else {}
    requests = (resources.requests or {}) if resources is not None else {}
    found: ContainerAsk | None = None
    zero_keys: list[str] = []
    names = list(limits)
    names += [name for name in requests if name not in limits]
    for name in names:
        try:
            resource = parse_resource(name)
        except ResourceNameError as error:
            raise AskError(
                messages.ask_mistyped(container.name, name),
                container=container.name,
                resource=name,
            ) from error
        if resource is None:
            continue
        amount = _amount(container.name, name, limits.get(name), requests.get(name))
        if amount == 0:
            zero_keys.append(name)
            continue
        if found is not None and found.resource is not None:
            raise AskError(
                messages.ask_two_kinds(container.name, found.resource.name, name),
                container=container.name,
                resource=name,
            )
        found = _accept(container.name, index, kind, resource, amount, fractions)
    if found is None:
        if not zero_keys:
            return ContainerAsk(name=container.name, index=index, kind=kind)
        return ContainerAsk(name=container.name, index=index, kind=kind, zero_keys=tuple(zero_keys))
    if zero_keys:
        return ContainerAsk(
            name=found.name,
            index=index,
            kind=kind,
            resource=found.resource,
            count=found.count,
            fraction_milli=found.fraction_milli,
            zero_keys=tuple(zero_keys),
        )
    return found


def _amount(
    container: str, name: str, limit: str | int | float | None, request: str | int | float | None
) -> Fraction:
    asked = _quantity(container, name, request) if request is not None else None
    if limit is None:
        if asked is None or asked == 0:
            return Fraction(0)
        raise AskError(
            messages.ask_requests_only(container, name, str(request)),
            container=container,
            resource=name,
        )
    capped = _quantity(container, name, limit)
    if asked is not None and asked != capped:
        raise AskError(
            messages.ask_disagrees(container, name, str(limit), str(request)),
            container=container,
            resource=name,
        )
    return capped


def _quantity(container: str, name: str, value: str | int | float) -> Fraction:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        amount = Fraction(int(value))
    else:
        try:
            amount = parse_quantity(str(value))
        except QuantityError as error:
            raise AskError(
                messages.ask_not_a_number(container, name, str(value)),
                container=container,
                resource=name,
            ) from error
    if amount < 0:
        raise AskError(
            messages.ask_negative(container, name, str(value)), container=container, resource=name
        )
    if amount > _MOST_OF_ONE:
        raise AskError(
            messages.ask_too_many(container, name, str(value)), container=container, resource=name
        )
    return amount


def _accept(
    container: str,
    index: int,
    kind: ContainerKind,
    resource: GpuResource,
    amount: Fraction,
    fractions: bool,
) -> ContainerAsk:
    name = resource.name
    fraction_milli = 0
    if amount.denominator != 1:
        if not fractions or amount > 1 or resource.profile or resource.shared:
            shown = f"{float(amount):.6g}"
            raise AskError(
                messages.ask_fraction(container, name, shown), container=container, resource=name
            )
        fraction_milli = -((-amount.numerator * 1000) // amount.denominator)
        amount = Fraction(1)
    if resource.shared and amount > 1:
        raise AskError(
            messages.ask_several_replicas(container, name, str(int(amount))),
            container=container,
            resource=name,
        )
    return ContainerAsk(
        name=container,
        index=index,
        kind=kind,
        resource=resource,
        count=int(amount),
        fraction_milli=fraction_milli,
    )
