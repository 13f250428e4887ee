"""`SharingPolicy`: how a cluster's GPUs are shared. One cluster-scoped object named `default`."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from fairslice.v1alpha1.scalars import Date, DnsName, Duration, Mode, Money, Rate, keyed_by

__all__ = [
    "CapacityType",
    "ClassSpec",
    "DeviceListStrategy",
    "ExemptSpec",
    "HidingSpec",
    "IsolationNeed",
    "MatchSpec",
    "ModesSpec",
    "Overflow",
    "PoolSpec",
    "Preempts",
    "PriceSpec",
    "QueueSpec",
    "RewriteSpec",
    "SharingMode",
    "SharingPolicySpec",
    "Unassigned",
    "WithinTeam",
]


# Unknown fields are skipped, so that a newer CRD does not stop an older binary; what users
# write is checked strictly by the API server and by `fairslice check`.
class _Spec(Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class Unassigned(StrEnum):
    """What a namespace of no team may do with GPUs."""

    ALLOW = "Allow"
    DENY = "Deny"


class CapacityType(StrEnum):
    """How a pool's machines are paid for, and whether they can be taken away."""

    ON_DEMAND = "OnDemand"
    SPOT = "Spot"
    OWNED = "Owned"


class SharingMode(StrEnum):
    """The ways a GPU can be given out."""

    MIG = "mig"
    MPS = "mps"
    TIMESLICE = "timeslice"
    WHOLE = "whole"


class IsolationNeed(StrEnum):
    """Whether a class accepts neighbours on the same memory."""

    REQUIRED = "Required"
    OPTIONAL = "Optional"


class Overflow(StrEnum):
    """What becomes of a pod that finds no room."""

    QUEUE = "Queue"
    REJECT = "Reject"


class Preempts(StrEnum):
    """Whom a class may push out."""

    EVERYONE = "Everyone"
    BORROWERS = "Borrowers"
    NOBODY = "Nobody"


class DeviceListStrategy(StrEnum):
    """The device plugin's list strategy: by which channel a container learns its GPUs."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


class WithinTeam(StrEnum):
    """The order among one team's equals."""

    FIFO = "Fifo"
    FAIR_BY_USER = "FairByUser"


class ModesSpec(_Spec, frozen=True):
    """Off, Audit or Enforce for each feature."""

    hide: Mode = Mode.AUDIT
    guards: Mode = Mode.AUDIT
    rewrite: Mode = Mode.AUDIT
    quota: Mode = Mode.AUDIT
    queue: Mode = Mode.AUDIT


class ExemptSpec(_Spec, frozen=True):
    """ServiceAccounts of a namespace whose pods are never touched."""

    namespace: DnsName
    service_accounts: Annotated[tuple[str, ...], Meta(min_length=1, max_length=64)] = ("*",)


class PriceSpec(_Spec, frozen=True):
    """A price, from a day on."""

    start: Annotated[Date, Meta(description="First day of this price.")] = field(name="from")
    per_gpu_hour: Money
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}$")] = "USD"


class PoolSpec(_Spec, frozen=True):
    """GPUs that can stand for each other."""

    name: DnsName
    products: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    node_selector: dict[str, str] = {}
    capacity_type: CapacityType = CapacityType.OWNED
    rate: Rate = "1.0"
    prices: Annotated[tuple[PriceSpec, ...], Meta(max_length=128)] = ()
    autoscale_max_gpus: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class MatchSpec(_Spec, frozen=True):
    """A rule that puts pods into a class: all of what it names must hold."""

    pod_labels: dict[str, str] = {}
    owner_kinds: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()


class ClassSpec(_Spec, frozen=True):
    """A kind of work: what it is given, how it waits, whom it pushes out."""

    name: DnsName
    priority_class_name: str = ""
    memory: Annotated[str, Meta(pattern=r"^([0-9]+(\.[0-9]+)?(G|Gi|GB|M|Mi|MB))?$")] = ""
    modes: Annotated[tuple[SharingMode, ...], Meta(min_length=1, max_length=4)] = (
        SharingMode.WHOLE,
    )
    isolation: IsolationNeed = IsolationNeed.OPTIONAL
    overflow: Overflow = Overflow.QUEUE
    preempts: Preempts = Preempts.BORROWERS
    preemptible: bool = True
    restart: bool = False
    min_runtime: Duration = "0s"
    max_runtime: Duration = ""
    notice: Duration = "0s"
    grace: Duration = "30s"
    match: Annotated[tuple[MatchSpec, ...], Meta(max_length=64)] = ()


class RewriteSpec(_Spec, frozen=True):
    """Details of rewriting."""

    fractions: Annotated[
        str, Meta(pattern="^(Memory|Reject)$", description="What nvidia.com/gpu: 0.5 means.")
    ] = "Reject"


class HidingSpec(_Spec, frozen=True):
    """Details of hiding."""

    device_list_strategy: DeviceListStrategy = DeviceListStrategy.ENVVAR
    strict_env_from: bool = False
    extra_env: Annotated[tuple[str, ...], Meta(max_length=64)] = ()


class QueueSpec(_Spec, frozen=True):
    """Settings of the queue."""

    half_life: Duration = "168h"
    reserve_after: Duration = "10m"
    start_timeout: Duration = "10m"
    evict_grace: Duration = "5m"
    aging: Annotated[
        Duration, Meta(description="After this wait, work ranks before all but production.")
    ] = "24h"
    within_team: WithinTeam = WithinTeam.FIFO
    restart_limit: Annotated[int, Meta(ge=0, le=100)] = 5
    leave_to_kueue: bool = True
    time_zone: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}$",
            description="A time zone such as UTC or Europe/Berlin.",
        ),
    ] = "UTC"


DEFAULT_CLASSES = (
    ClassSpec(
        name="production",
        priority_class_name="fairslice-production",
        memory="20G",
        modes=(SharingMode.MIG, SharingMode.WHOLE),
        isolation=IsolationNeed.REQUIRED,
        preempts=Preempts.EVERYONE,
        preemptible=False,
    ),
    ClassSpec(
        name="training",
        priority_class_name="fairslice-training",
        modes=(SharingMode.WHOLE,),
        min_runtime="15m",
        notice="2m",
        grace="10m",
    ),
    ClassSpec(
        name="experiment",
        priority_class_name="fairslice-experiment",
        memory="10G",
        modes=(SharingMode.MIG, SharingMode.MPS, SharingMode.TIMESLICE, SharingMode.WHOLE),
        overflow=Overflow.REJECT,
        min_runtime="5m",
    ),
)


class SharingPolicySpec(_Spec, frozen=True):
    """The spec of a `SharingPolicy`. Every default is safe on an untouched cluster."""

    plural: ClassVar[str] = "sharingpolicies"

    mode: ModesSpec = ModesSpec()
    unassigned_namespaces: Unassigned = Unassigned.ALLOW
    warnings: Annotated[bool, Meta(description="Audit warns the submitter.")] = True
    exempt: Annotated[tuple[ExemptSpec, ...], Meta(max_length=64)] = (
        ExemptSpec(namespace="gpu-operator"),
    )
    pools: Annotated[
        tuple[PoolSpec, ...], Meta(max_length=64, extra_json_schema=keyed_by("name"))
    ] = ()
    classes: Annotated[
        tuple[ClassSpec, ...], Meta(max_length=32, extra_json_schema=keyed_by("name"))
    ] = DEFAULT_CLASSES
    rewrite: RewriteSpec = RewriteSpec()
    hiding: HidingSpec = HidingSpec()
    queue: QueueSpec = QueueSpec()
