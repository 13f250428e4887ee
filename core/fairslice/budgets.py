"""Budgets: GPU-hours or money for a day, a week or a month, un-decayed.

Separate from fair shares, which forget; a hard limit must not (Slurm documents the same:
half-life 0 and a reset period).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import tzinfo
from fractions import Fraction
from typing import NamedTuple

from fairslice import messages
from fairslice.money import COST_UNIT, MICRO, format_micro
from fairslice.periods import moment_text, period_at
from fairslice.v1alpha1.team import Exhausted, Period, Running

__all__ = [
    "Budget",
    "BudgetState",
    "PoolSpending",
    "Spent",
    "Stop",
    "judge",
    "stop_for",
    "stops_of",
]

_RATE = 1_000_000
# milli-GPU-microseconds in a GPU-hour.
_GPU_HOUR = 1000 * 3600 * MICRO


class Spent(NamedTuple):
    """What was used in a period: milli-GPU-microseconds, and COST_UNIT-ths of a micro-unit."""

    gpu: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """A team's budget. `amount` is GPU-hours, or units of money.

    `pool` is empty for one over all pools, in which GPU-hours count by the pools' rates.
    """

    amount: Fraction
    in_money: bool
    period: Period
    on_exhausted: Exhausted
    pool: str = ""
    running: Running = Running.FINISH

    def covers(self, pool: str) -> bool:
        """Say whether use of a pool counts towards it."""
        return self.pool in ("", pool)

    @property
    def text(self) -> str:
        """The budget in words: `2000 GPU-hours a month of a100`."""
        noun = {Period.DAILY: "a day", Period.WEEKLY: "a week", Period.MONTHLY: "a month"}
        amount = format_micro(int(self.amount * MICRO)) if self.in_money else f"{self.amount}"
        unit = " of money" if self.in_money else " GPU-hours"
        where = f" of {self.pool}" if self.pool else ""
        return f"{amount}{unit} {noun[self.period]}{where}"


@dataclass(frozen=True, slots=True)
class PoolSpending:
    """What a team used of a pool this period, and the pace at which it goes on.

    `rate_millionths` is the pool's, `milli` what the team holds now, `price` the micro-units of
    a GPU-hour now.
    """

    spent: Spent
    rate_millionths: int = _RATE
    milli: int = 0
    price: int = 0


@dataclass(frozen=True, slots=True)
class BudgetState:
    """Where a budget stands. `spent` is in the budget's unit, times are Unix seconds.

    `forecast` is when it will be gone at the present pace; None: not within the period.
    """

    budget: Budget
    spent: Fraction
    start: float
    end: float
    forecast: float | None = None

    @property
    def exhausted(self) -> bool:
        """Say whether nothing is left of it."""
        return self.spent >= self.budget.amount


def judge(
    budget: Budget, pools: Mapping[str, PoolSpending], now: float, zone: tzinfo
) -> BudgetState:
    """Say where a budget stands, given what was spent in its present period."""
    spent = pace = Fraction(0)  # in the budget's unit; the pace is per hour
    for name, pool in pools.items():
        if not budget.covers(name):
            continue
        if budget.in_money:
            spent += Fraction(pool.spent.cost, COST_UNIT * MICRO)
            pace += Fraction(pool.milli * pool.price, 1000 * MICRO)
        else:
            rate = 1 if budget.pool else Fraction(pool.rate_millionths, _RATE)
            spent += Fraction(pool.spent.gpu, _GPU_HOUR) * rate
            pace += Fraction(pool.milli, 1000) * rate
    span = period_at(budget.period, now, zone)
    left = budget.amount - spent
    forecast: float | None = None
    if left <= 0:
        forecast = now
    elif pace > 0:
        gone = now + float(left / pace * 3600)
        forecast = gone if gone < span.end else None
    return BudgetState(budget, spent, span.start, span.end, forecast)


@dataclass(frozen=True, slots=True)
class Stop:
    """A budget that is gone: nothing new in this pool (empty: in none) until a moment.

    With `scavenges`, new work may still have what nobody else wants; `running` is what becomes
    of the work that runs.
    """

    pool: str
    scavenges: bool
    until: float
    reason: str
    running: Running = Running.FINISH

    @property
    def degrades(self) -> bool:
        """Say whether what runs has only what nobody else wants."""
        return self.scavenges or self.running is not Running.FINISH


def stops_of(team: str, states: Iterable[BudgetState], zone: tzinfo) -> tuple[Stop, ...]:
    """List what a team's exhausted budgets forbid."""
    return tuple(
        Stop(
            pool=state.budget.pool,
            scavenges=state.budget.on_exhausted is Exhausted.SCAVENGE,
            until=state.end,
            reason=messages.budget_exhausted(team, state.budget.text, moment_text(state.end, zone)),
            running=state.budget.running,
        )
        for state in states
        if state.exhausted
    )


def stop_for(stops: Iterable[Stop], pool: str, now: float) -> Stop | None:
    """Find what stands in the way of work in a pool: what waits longest, else what scavenges."""
    found = [stop for stop in stops if stop.pool in ("", pool) and stop.until > now]
    return max(found, key=lambda stop: (not stop.scavenges, stop.until), default=None)
