"""What teams used in the present day, week and month: un-decayed, exact, for budgets.

Held milli-GPU are integrated between events in whole microseconds, at the pool's price of the
time; where a period turned in between, only what lies after it counts.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from fairslice.budgets import BudgetState, PoolSpending, Spent, judge
from fairslice.money import MICRO, NO_PRICES, Prices
from fairslice.periods import Span, period_at
from fairslice.policy import Policy, Team
from fairslice.v1alpha1.team import Period, SpentStatus

__all__ = ["Spending", "budget_states"]

_NOTHING = Spent()


@dataclass(slots=True)
class _Account:
    """`held` is None from a checkpoint on until it is known what is held."""

    at: int
    held: int | None = 0
    spent: dict[Period, Spent] = field(default_factory=dict)


class Spending:
    """Use by team and pool, in the present period of each kind. Times are Unix seconds."""

    def __init__(self) -> None:
        self._accounts: dict[str, dict[str, _Account]] = {}
        self._policy: Policy | None = None
        self._zone: tzinfo = UTC
        self._prices: Mapping[str, Prices] = {}
        self._spans: dict[Period, Span] = {}
        self._changes: Counter[str] = Counter()

    def changes(self, team: str) -> int:
        """Count the changes of what a team holds: while there are none, its pace is the same."""
        return self._changes[team]

    def use_policy(self, policy: Policy, now: float) -> None:
        """Go by a policy's time zone and prices from now on; what was charged stays."""
        if policy is self._policy:
            return
        self._policy = policy
        prices = {pool.name: pool.prices for pool in policy.pools}
        if prices == self._prices and policy.zone == self._zone:
            return
        for pools in self._accounts.values():
            for pool, account in pools.items():
                self._advance(pool, account, now)
        self._prices, self._zone, self._spans = prices, policy.zone, {}

    def hold(self, team: str, pool: str, milli: int, now: float) -> None:
        """Record that from now on the team holds this much.

        The first after a checkpoint counts since the checkpoint: nothing nearer is known.
        """
        pools = self._accounts.setdefault(team, {})
        account = pools.get(pool)
        if account is None:
            account = pools[pool] = _Account(_micros(now))
        elif account.held is None:
            account.held = milli
        self._advance(pool, account, now)
        if account.held != milli:
            self._changes[team] += 1
        account.held = milli

    def pools_of(self, team: str) -> tuple[str, ...]:
        """Name the pools of which a team ever held anything."""
        return tuple(self._accounts.get(team, ()))

    def held(self, team: str, pool: str) -> int:
        """Return what a team holds now, in milli-GPU."""
        account = self._accounts.get(team, {}).get(pool)
        return (account.held or 0) if account is not None else 0

    def spent(self, team: str, pool: str, period: Period, now: float) -> Spent:
        """Return what a team used in the present period, up to now."""
        account = self._accounts.get(team, {}).get(pool)
        if account is None:
            return _NOTHING
        return self._after(pool, account, period, _micros(now))

    def checkpoint(self, team: str, pool: str, now: float) -> tuple[SpentStatus, ...]:
        """Write down what restores this account."""
        account = self._accounts.get(team, {}).get(pool)
        if account is None:
            return ()
        at = max(_micros(now), account.at)
        found = []
        for period in Period:
            spent = self._after(pool, account, period, at)
            found.append(
                SpentStatus(period=period, held=str(spent.gpu), cost=str(spent.cost), at=at)
            )
        return tuple(found)

    def restore(self, team: str, pool: str, checkpoint: tuple[SpentStatus, ...]) -> None:
        """Start from a checkpoint; use since then is added when what is held is known."""
        if not checkpoint:
            return
        pools = self._accounts.setdefault(team, {})
        self._changes[team] += 1
        known = pools.get(pool)
        pools[pool] = _Account(
            at=max(item.at for item in checkpoint),
            held=known.held if known is not None else None,
            spent={item.period: Spent(int(item.held), int(item.cost)) for item in checkpoint},
        )

    def _advance(self, pool: str, account: _Account, now: float) -> None:
        moment = _micros(now)
        if moment <= account.at:  # a clock set back adds nothing and takes nothing away
            return
        account.spent = {period: self._after(pool, account, period, moment) for period in Period}
        account.at = moment

    def _after(self, pool: str, account: _Account, period: Period, moment: int) -> Spent:
        """Return what was used of the period that a moment lies in, up to then."""
        start = _micros(self._span(period, moment / MICRO).start)
        before = account.spent.get(period, _NOTHING) if account.at >= start else _NOTHING
        since, held = max(account.at, start), account.held or 0
        if moment <= since or held <= 0:
            return before
        prices = self._prices.get(pool, NO_PRICES)
        return Spent(
            gpu=before.gpu + held * (moment - since),
            cost=before.cost + prices.cost(held, since, moment),
        )

    def _span(self, period: Period, moment: float) -> Span:
        span = self._spans.get(period)
        if span is None or not span.start <= moment < span.end:
            span = self._spans[period] = period_at(period, moment, self._zone)
        return span


def budget_states(
    team: Team, policy: Policy, spending: Spending, now: float
) -> tuple[BudgetState, ...]:
    """Say where each of a team's budgets stands."""
    states: list[BudgetState] = []
    moment = _micros(now)
    for budget in team.budgets:
        pools: dict[str, PoolSpending] = {}
        for name in spending.pools_of(team.name):
            pool = policy.pool_named(name)
            pools[name] = PoolSpending(
                spent=spending.spent(team.name, name, budget.period, now),
                rate_millionths=pool.rate_millionths if pool is not None else MICRO,
                milli=spending.held(team.name, name),
                price=pool.prices.at(moment) if pool is not None else 0,
            )
        states.append(judge(budget, pools, now, policy.zone))
    return tuple(states)


def _micros(seconds: float) -> int:
    return round(seconds * MICRO)
