"""The sharing policy, compiled from its resource into what decisions read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from fnmatch import translate
from re import Pattern
from re import compile as compile_pattern

from fairslice.money import MICRO, NO_PRICES, Prices, parse_micro
from fairslice.periods import day_or_time, zone_named
from fairslice.quantity import parse_quantity
from fairslice.team import PolicyError, Team
from fairslice.v1alpha1.policy import (
    CapacityType,
    ClassSpec,
    HidingSpec,
    IsolationNeed,
    MatchSpec,
    Overflow,
    PoolSpec,
    Preempts,
    SharingMode,
    SharingPolicySpec,
    Unassigned,
    WithinTeam,
)
from fairslice.v1alpha1.scalars import Mode, duration_seconds

__all__ = [
    "UNPOOLED",
    "Modes",
    "Policy",
    "PolicyError",
    "Pool",
    "Team",
    "WorkClass",
]

UNPOOLED = "default"
"""The pool of GPUs that no declared pool claims."""


@dataclass(frozen=True, slots=True)
class Modes:
    """How far each feature goes, for one team."""

    hide: Mode = Mode.AUDIT
    guards: Mode = Mode.AUDIT
    rewrite: Mode = Mode.AUDIT
    quota: Mode = Mode.AUDIT
    queue: Mode = Mode.AUDIT


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs that can stand for each other."""

    name: str
    products: tuple[Pattern[str], ...]
    node_selector: Mapping[str, str]
    rate_millionths: int
    autoscale_max_gpus: int = 0
    capacity_type: CapacityType = CapacityType.OWNED
    prices: Prices = NO_PRICES

    def holds(self, product: str, labels: Mapping[str, str]) -> bool:
        """Say whether a node of this product and these labels belongs to the pool."""
        if any(labels.get(key) != value for key, value in self.node_selector.items()):
            return False
        if not self.products:
            return bool(self.node_selector)
        return any(pattern.match(product) for pattern in self.products)


@dataclass(frozen=True, slots=True)
class WorkClass:
    """A kind of work. Rank 0 is the most important; times are in seconds."""

    name: str
    rank: int
    priority_class: str
    priority: int
    memory: str
    modes: tuple[SharingMode, ...]
    isolation: IsolationNeed
    overflow: Overflow
    preempts: Preempts
    preemptible: bool
    restart: bool
    min_runtime: int
    max_runtime: int
    notice: int
    grace: int
    match: tuple[MatchSpec, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy that decisions read. Times are in seconds."""

    modes: Modes
    unassigned: Unassigned
    warnings: bool
    exempt: Mapping[str, frozenset[str]]
    pools: tuple[Pool, ...]
    classes: Mapping[str, WorkClass]
    hiding: HidingSpec
    fractions_as_memory: bool
    half_life: int
    reserve_after: int
    start_timeout: int
    evict_grace: int
    aging: int
    within_team: WithinTeam
    restart_limit: int
    leave_to_kueue: bool
    zone: tzinfo = UTC

    def pool_named(self, name: str) -> Pool | None:
        """Find a declared pool."""
        return next((pool for pool in self.pools if pool.name == name), None)

    def pool_of(self, product: str, labels: Mapping[str, str]) -> str:
        """Name the pool that a node belongs to: the first declared one that holds it."""
        for pool in self.pools:
            if pool.holds(product, labels):
                return pool.name
        return UNPOOLED

    def is_exempt(self, namespace: str, service_account: str) -> bool:
        """Say whether pods of this ServiceAccount are never touched."""
        accounts = self.exempt.get(namespace)
        return accounts is not None and (
            "*" in accounts or (service_account or "default") in accounts
        )

    def class_of_priority(self, priority_class: str) -> WorkClass | None:
        """Find the class that owns a PriorityClass."""
        if not priority_class:
            return None
        for work_class in self.classes.values():
            if work_class.priority_class == priority_class:
                return work_class
        return None

    def modes_for(self, team: Team | None) -> Modes:
        """Return the modes that hold for a team's objects."""
        if team is None:
            return self.modes
        own = team.modes

        def pick(theirs: object, ours: Mode) -> Mode:
            return theirs if isinstance(theirs, Mode) else ours

        return Modes(
            hide=pick(own.hide, self.modes.hide),
            guards=pick(own.guards, self.modes.guards),
            rewrite=pick(own.rewrite, self.modes.rewrite),
            quota=pick(own.quota, self.modes.quota),
            queue=pick(own.queue, self.modes.queue),
        )

    @classmethod
    def compile(cls, spec: SharingPolicySpec) -> "Policy":
        """Make a policy from its resource.

        Raises PolicyError where the fields contradict each other.
        """
        classes: dict[str, WorkClass] = {}
        for rank, item in enumerate(spec.classes):
            if item.name in classes:
                raise PolicyError(f"spec.classes[{rank}].name: {item.name} is named twice")
            classes[item.name] = _compile_class(rank, item)
        names = [pool.name for pool in spec.pools]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise PolicyError(f"spec.pools[{index}].name: {name} is named twice")
        mode, queue = spec.mode, spec.queue
        try:
            zone = zone_named(queue.time_zone)
        except ValueError as error:
            raise PolicyError(f"spec.queue.timeZone: {error}") from None
        _check_currencies(spec.pools)
        return cls(
            modes=Modes(mode.hide, mode.guards, mode.rewrite, mode.quota, mode.queue),
            unassigned=spec.unassigned_namespaces,
            warnings=spec.warnings,
            exempt={item.namespace: frozenset(item.service_accounts) for item in spec.exempt},
            pools=tuple(_compile_pool(i, pool, zone) for i, pool in enumerate(spec.pools)),
            classes=classes,
            hiding=spec.hiding,
            fractions_as_memory=spec.rewrite.fractions == "Memory",
            half_life=duration_seconds(queue.half_life),
            reserve_after=duration_seconds(queue.reserve_after),
            start_timeout=duration_seconds(queue.start_timeout),
            evict_grace=duration_seconds(queue.evict_grace),
            aging=duration_seconds(queue.aging),
            within_team=queue.within_team,
            restart_limit=queue.restart_limit,
            leave_to_kueue=queue.leave_to_kueue,
            zone=zone,
        )


# The built-in system classes start at two billion; ours stay well below and leave gaps.
_TOP_PRIORITY = 1_000_000
_PRIORITY_STEP = 10_000


def _compile_class(rank: int, spec: ClassSpec) -> WorkClass:
    return WorkClass(
        name=spec.name,
        rank=rank,
        priority_class=spec.priority_class_name,
        priority=_TOP_PRIORITY - rank * _PRIORITY_STEP,
        memory=spec.memory,
        modes=spec.modes,
        isolation=spec.isolation,
        overflow=spec.overflow,
        preempts=spec.preempts,
        preemptible=spec.preemptible,
        restart=spec.restart,
        min_runtime=duration_seconds(spec.min_runtime),
        max_runtime=duration_seconds(spec.max_runtime) if spec.max_runtime else 0,
        notice=duration_seconds(spec.notice),
        grace=duration_seconds(spec.grace),
        match=spec.match,
    )


def _compile_pool(index: int, spec: PoolSpec, zone: tzinfo) -> Pool:
    entries: list[tuple[int, int]] = []
    for number, price in enumerate(spec.prices):
        try:
            start = day_or_time(price.start, zone)
        except ValueError as error:
            where = f"spec.pools[{index}].prices[{number}].from"
            raise PolicyError(f"{where}: {price.start}: {error}") from None
        entries.append((round(start * MICRO), parse_micro(price.per_gpu_hour)))
    return Pool(
        name=spec.name,
        products=tuple(compile_pattern(translate(product)) for product in spec.products),
        node_selector=spec.node_selector,
        rate_millionths=int(parse_quantity(spec.rate) * 1_000_000),
        autoscale_max_gpus=spec.autoscale_max_gpus,
        capacity_type=spec.capacity_type,
        prices=Prices.of(entries, spec.prices[0].currency if spec.prices else ""),
    )


def _check_currencies(pools: Sequence[PoolSpec]) -> None:
    """See that all prices are in one currency: budgets of money add them up."""
    first = ""
    for index, pool in enumerate(pools):
        for number, price in enumerate(pool.prices):
            first = first or price.currency
            if price.currency != first:
                raise PolicyError(
                    f"spec.pools[{index}].prices[{number}].currency: {price.currency} beside "
                    f"{first}: give all prices in one currency"
                )
