"""A team, compiled from its resource into what decisions read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from fractions import Fraction
from math import inf

from msgspec import UNSET, UnsetType

from fairslice.budgets import Budget
from fairslice.periods import day_after
from fairslice.quantity import format_milli, parse_milli, parse_quantity
from fairslice.quotas import DAY_MINUTES, Loan, PoolQuota, Quota, Window
from fairslice.v1alpha1.team import (
    BudgetSpec,
    Day,
    Exhausted,
    QuotaCut,
    Running,
    TeamModesSpec,
    TeamPoolSpec,
    TeamSpec,
    WindowSpec,
)

__all__ = ["PolicyError", "Team"]

_NOTHING = PoolQuota(Quota(0, 0, None))
# Sixteen windows that open and close each day of a week.
_CHANGES_AHEAD = 2 * 16 * 7
_EVERYTHING = PoolQuota(Quota(0, None, None))


class PolicyError(ValueError):
    """A policy or team that contradicts itself: field path, reason, way out."""


@dataclass(frozen=True, slots=True)
class Team:
    """Who shares, with how much. `zone` is the one in which windows open."""

    name: str
    uid: str
    namespaces: frozenset[str]
    namespace_selector: Mapping[str, str]
    weight: int
    quotas: Mapping[str, PoolQuota]
    resources: Mapping[str, int]
    allowed_classes: frozenset[str]
    class_limits: Mapping[str, int]
    user_limit: int | None
    default_class: str
    namespace_classes: Mapping[str, str]
    modes: TeamModesSpec = field(default_factory=TeamModesSpec)
    loans: tuple[Loan, ...] = ()
    budgets: tuple[Budget, ...] = ()
    on_quota_cut: QuotaCut = QuotaCut.KEEP
    urgent_per_week: int = 0
    zone: tzinfo = UTC

    def quota(self, pool: str, now: float = inf) -> Quota:
        """Return the quota in a pool at a time (Unix seconds), or the usual one.

        A pool the team doesn't name gives it nothing; a team that names no pool at all has no
        limit anywhere.
        """
        return self._of(pool).at(now, self.zone)

    def limit(self, pool: str, now: float) -> int | None:
        """Return the most it may hold in a pool, loans that run included; None is no limit."""
        limit = self.quota(pool, now).limit
        if limit is None or not self.loans:
            return limit
        running = (loan for loan in self.loans if loan.pool == pool and now < loan.until)
        return limit + sum(loan.milli for loan in running)

    def most(self, pool: str, now: float = -inf) -> int | None:
        """Return what its limit can come to from now on, windows and loans included."""
        most = 0
        for quota in self._of(pool).quotas():
            if quota.limit is None:
                return None
            most = max(most, quota.limit)
        return most + sum(
            loan.milli for loan in self.loans if loan.pool == pool and now < loan.until
        )

    def next_change(self, now: float, pool: str | None = None) -> float:
        """Return when a window opens or closes next, or a loan ends, in a pool or in any.

        Unix seconds; inf if never.
        """
        pools = self.quotas.values() if pool is None else (self._of(pool),)
        moments = [quota.next_change(now, self.zone) for quota in pools if quota.windows]
        moments += [
            loan.until for loan in self.loans if pool in (None, loan.pool) and loan.until > now
        ]
        return min(moments, default=inf)

    def opens(self, pool: str, milli: int, now: float) -> float:
        """Return when its limit in a pool comes to so much next; inf if it is not foreseen.

        Unix seconds; now, if it has come to that.
        """
        moment = now
        for _ in range(_CHANGES_AHEAD):
            limit = self.limit(pool, moment)
            if moment == inf or limit is None or limit >= milli:
                return moment
            moment = self.next_change(moment, pool)
        return inf

    def _of(self, pool: str) -> PoolQuota:
        if not self.quotas:
            return _EVERYTHING
        return self.quotas.get(pool, _NOTHING)

    @classmethod
    def compile(cls, name: str, uid: str, spec: TeamSpec, zone: tzinfo = UTC) -> "Team":
        """Make a team from its resource; the zone says when days end.

        Raises PolicyError where the fields contradict each other.
        """
        quotas: dict[str, PoolQuota] = {}
        for index, pool in enumerate(spec.pools):
            if pool.pool in quotas:
                raise PolicyError(f"spec.pools[{index}].pool: {pool.pool} is named twice")
            quotas[pool.pool] = _compile_pool(f"spec.pools[{index}]", pool)
        return cls(
            name=name,
            uid=uid,
            namespaces=frozenset(spec.namespaces),
            namespace_selector=spec.namespace_selector,
            weight=spec.weight,
            quotas=quotas,
            resources=spec.resources,
            allowed_classes=frozenset(spec.allowed_classes),
            class_limits={key: parse_milli(gpus) for key, gpus in spec.class_limits.items()},
            user_limit=None if spec.user_limit is UNSET else parse_milli(str(spec.user_limit)),
            default_class="" if spec.default_class is UNSET else str(spec.default_class),
            namespace_classes=spec.namespace_classes,
            modes=spec.mode,
            loans=_compile_loans(spec, zone),
            budgets=tuple(
                budget
                for index, item in enumerate(spec.budgets)
                for budget in _compile_budget(index, item)
            ),
            on_quota_cut=spec.on_quota_cut,
            urgent_per_week=spec.urgent_per_week,
            zone=zone,
        )


def _compile_pool(path: str, spec: TeamPoolSpec) -> PoolQuota:
    usual = _quota(path, parse_milli(spec.guaranteed), _milli(spec.limit), _milli(spec.lendable))
    windows = (
        _compile_window(f"{path}.windows[{index}]", window, usual)
        for index, window in enumerate(spec.windows)
    )
    return PoolQuota(usual, tuple(windows))


def _compile_window(path: str, spec: WindowSpec, usual: Quota) -> Window:
    start, end = _minutes(spec.start), _minutes(spec.end)
    if start == DAY_MINUTES:
        raise PolicyError(f"{path}.from: 24:00 is where a day ends: write 00:00 of the next day")
    quota = _quota(
        path,
        usual.guaranteed if spec.guaranteed is UNSET else parse_milli(str(spec.guaranteed)),
        usual.limit if spec.limit is UNSET else _milli(spec.limit),
        usual.lendable if spec.lendable is UNSET else _milli(spec.lendable),
    )
    # At or before its start, the end is that of the next day.
    return Window(
        days=frozenset(_DAYS[day] for day in spec.days),
        start=start,
        end=end if end > start else end + DAY_MINUTES,
        quota=quota,
    )


def _quota(path: str, guaranteed: int, limit: int | None, lendable: int | None) -> Quota:
    if limit is not None and limit < guaranteed:
        raise PolicyError(
            f"{path}.limit: {format_milli(limit)} is below guaranteed "
            f"{format_milli(guaranteed)}: raise the limit or lower the guarantee"
        )
    return Quota(guaranteed, limit, lendable)


def _milli(gpus: str | UnsetType) -> int | None:
    return None if gpus is UNSET else parse_milli(str(gpus))


_DAYS = {day: number for number, day in enumerate(Day)}


def _minutes(clock: str) -> int:
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


def _compile_loans(spec: TeamSpec, zone: tzinfo) -> tuple[Loan, ...]:
    loans = []
    for index, item in enumerate(spec.loans):
        try:
            until = day_after(item.until, zone)
        except (ValueError, OverflowError) as error:
            raise PolicyError(f"spec.loans[{index}].until: {item.until}: {error}") from None
        loans.append(Loan(item.pool, parse_milli(item.gpus), until))
    return tuple(loans)


def _compile_budget(index: int, item: BudgetSpec) -> tuple[Budget, ...]:
    pool = "" if item.pool is UNSET else str(item.pool)
    amounts: list[tuple[Fraction, bool]] = []
    if not isinstance(item.gpu_hours, UnsetType):
        amounts.append((Fraction(item.gpu_hours), False))
    if not isinstance(item.money, UnsetType):
        amounts.append((parse_quantity(item.money), True))
    if not amounts:
        raise PolicyError(f"spec.budgets[{index}]: names no amount: set gpuHours or money")
    scavenges = item.on_exhausted is Exhausted.SCAVENGE
    running = item.running
    if isinstance(running, UnsetType):
        running = Running.DEGRADE if scavenges else Running.FINISH
    elif scavenges and running is Running.FINISH:
        raise PolicyError(
            f"spec.budgets[{index}].running: with onExhausted Scavenge, what runs can't keep "
            f"more rights than what starts: leave it out, or set Degrade or Stop"
        )
    return tuple(
        Budget(amount, in_money, item.period, item.on_exhausted, pool, running)
        for amount, in_money in amounts
    )
