"""`Team`: who shares, with how much. Cluster-scoped."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType, field

from fairslice.v1alpha1.scalars import ClockTime, Date, DnsName, Gpus, Mode, Money, keyed_by

__all__ = [
    "BudgetSpec",
    "BudgetStatus",
    "Day",
    "Exhausted",
    "LoanSpec",
    "Period",
    "PoolStatus",
    "QuotaCut",
    "Running",
    "SpentStatus",
    "TeamModesSpec",
    "TeamPoolSpec",
    "TeamSpec",
    "TeamStatus",
    "UrgentStatus",
    "UseStatus",
    "WindowSpec",
]


# Unknown fields are skipped, so that a newer CRD does not stop an older binary; what users
# write is checked strictly by the API server and by `fairslice check`.
class _Spec(Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class Period(StrEnum):
    """When a budget starts anew."""

    DAILY = "Daily"
    WEEKLY = "Weekly"
    MONTHLY = "Monthly"


class Exhausted(StrEnum):
    """What happens to work once a budget is gone."""

    WAIT = "Wait"
    SCAVENGE = "Scavenge"


class Running(StrEnum):
    """What happens to work that runs when its team's budget is gone."""

    FINISH = "Finish"
    DEGRADE = "Degrade"
    STOP = "Stop"


class QuotaCut(StrEnum):
    """What happens to work that holds more than its team's limit, once that was lowered."""

    KEEP = "Keep"
    EVICT = "Evict"


class Day(StrEnum):
    """A day of the week."""

    MONDAY = "Mon"
    TUESDAY = "Tue"
    WEDNESDAY = "Wed"
    THURSDAY = "Thu"
    FRIDAY = "Fri"
    SATURDAY = "Sat"
    SUNDAY = "Sun"


class WindowSpec(_Spec, frozen=True):
    """When another quota holds, by the clock of queue.timeZone. What it leaves out stays.

    A window that ends at or before its start ends on the next day; `days` are those on which it
    begins.
    """

    days: Annotated[tuple[Day, ...], Meta(min_length=1, max_length=7)] = tuple(Day)
    start: ClockTime = field(name="from", default="00:00")
    end: ClockTime = field(name="to", default="24:00")
    guaranteed: Gpus | UnsetType = UNSET
    limit: Gpus | UnsetType = UNSET
    lendable: Gpus | UnsetType = UNSET


class TeamPoolSpec(_Spec, frozen=True):
    """A team's quota in one pool. Without a limit, the team may borrow all that is idle."""

    pool: DnsName
    guaranteed: Gpus = "0"
    limit: Gpus | UnsetType = UNSET
    lendable: Gpus | UnsetType = UNSET
    windows: Annotated[
        tuple[WindowSpec, ...],
        Meta(max_length=16, description="Another quota at some times; the first open one counts."),
    ] = ()


class BudgetSpec(_Spec, frozen=True):
    """GPU-hours or money for a period, in one pool or in all."""

    pool: DnsName | UnsetType = UNSET
    gpu_hours: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    money: Money | UnsetType = UNSET
    period: Period = Period.MONTHLY
    on_exhausted: Exhausted = Exhausted.WAIT
    running: Running | UnsetType = UNSET


class LoanSpec(_Spec, frozen=True):
    """Extra limit in a pool until a day."""

    pool: DnsName
    gpus: Gpus
    until: Date


class TeamModesSpec(_Spec, frozen=True):
    """A team's own modes, where they differ from the policy's."""

    hide: Mode | UnsetType = UNSET
    guards: Mode | UnsetType = UNSET
    rewrite: Mode | UnsetType = UNSET
    quota: Mode | UnsetType = UNSET
    queue: Mode | UnsetType = UNSET


class TeamSpec(_Spec, frozen=True):
    """The spec of a `Team`."""

    plural: ClassVar[str] = "teams"

    namespaces: Annotated[tuple[DnsName, ...], Meta(max_length=1024)] = ()
    namespace_selector: dict[str, str] = {}
    weight: Annotated[int, Meta(ge=1, le=1000)] = 1
    pools: Annotated[
        tuple[TeamPoolSpec, ...], Meta(max_length=64, extra_json_schema=keyed_by("pool"))
    ] = ()
    resources: Annotated[
        dict[str, Annotated[int, Meta(ge=0)]],
        Meta(description="Exact caps by resource name, such as nvidia.com/mig-1g.10gb: 4."),
    ] = {}
    allowed_classes: tuple[DnsName, ...] = ("training", "experiment")
    class_limits: dict[str, Gpus] = {}
    user_limit: Gpus | UnsetType = UNSET
    default_class: DnsName | UnsetType = UNSET
    namespace_classes: Annotated[
        dict[str, str], Meta(description="Default class by namespace of the team.")
    ] = {}
    mode: TeamModesSpec = TeamModesSpec()
    budgets: Annotated[tuple[BudgetSpec, ...], Meta(max_length=16)] = ()
    loans: Annotated[tuple[LoanSpec, ...], Meta(max_length=64)] = ()
    on_quota_cut: QuotaCut = QuotaCut.KEEP
    urgent_per_week: Annotated[
        int,
        Meta(ge=0, le=1000, description="How much waiting work it may mark as urgent in a week."),
    ] = 0


class PoolStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where a team stands in one pool, in GPUs.

    `until` is when guarantee and limit change next, by a window or a loan: RFC 3339.
    """

    pool: str
    used: str = "0"
    guaranteed: str = "0"
    limit: str = ""
    until: str = ""


class SpentStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A checkpoint of what was used in a period, exactly.

    `held` is milli-GPU-microseconds, `cost` what they cost in the finest unit of account; both
    are texts, being larger than JSON numbers are safe to be. `at` is in Unix microseconds.
    """

    period: Period
    held: str = "0"
    cost: str = "0"
    at: int = 0


class BudgetStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Where a budget stands. Times are RFC 3339, in the policy's time zone."""

    budget: str
    pool: str = ""
    spent: str = "0"
    ends: str = ""
    exhausted: bool = False
    on_exhausted: Exhausted = Exhausted.WAIT
    forecast: str = ""


class UseStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A checkpoint of a team's use of a pool: milli-GPU-seconds, as of `at` (Unix seconds)."""

    pool: str
    total: int = 0
    decayed: int = 0
    at: int = 0
    spent: tuple[SpentStatus, ...] = ()


class UrgentStatus(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A token that a team's lead spent: for which work, who, and when (RFC 3339)."""

    booking: str
    workload: str = ""
    by: str = ""
    at: str = ""


class TeamStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where a team stands; written by the queue, shown by `kubectl get teams`.

    Defaults are written, too: a field left out of a merge patch would keep what it was.
    """

    used: str = ""
    guaranteed: str = ""
    limit: str = ""
    queued: int = 0
    running: int = 0
    gpu_hours: str = "0"
    pools: tuple[PoolStatus, ...] = ()
    budgets: tuple[BudgetStatus, ...] = ()
    use: tuple[UseStatus, ...] = ()
    urgent_left: int = 0
    urgent: tuple[UrgentStatus, ...] = ()
