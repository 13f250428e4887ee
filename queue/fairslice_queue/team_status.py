"""Each team's standing in its own status, which `kubectl get teams` shows.

It is the checkpoint of use too: what a loss of Redis can't take away.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, tzinfo
from math import inf

from msgspec import to_builtins
from msgspec.structs import replace

from fairslice.budgets import BudgetState
from fairslice.kube.client import MERGE_PATCH, ApiError, KubeClient
from fairslice.money import MICRO, format_micro
from fairslice.periods import period_at
from fairslice.policy import Policy, Team
from fairslice.quantity import format_milli
from fairslice.v1alpha1.resources import TEAMS
from fairslice.v1alpha1.team import (
    BudgetStatus,
    Period,
    PoolStatus,
    TeamStatus,
    UrgentStatus,
    UseStatus,
)
from fairslice_queue.books import Books
from fairslice_queue.spending import budget_states
from fairslice_queue.urgent_tokens import spent_in_week
from fairslice_queue.usage import Meter, Reading
from fairslice_queue.watching import Watch

__all__ = ["publish_team_status", "restore_use", "team_statuses", "tokens_on_record"]

_log = logging.getLogger(__name__)

_PERIOD_SECONDS = 2.0
_AT_ONCE = 20
_MILLI_SECONDS_PER_GPU_HOUR = 3_600_000.0
# Use grows all the time; its checkpoint is written this often even if nothing else changed.
_CHECKPOINT_SECONDS = 60.0


def team_statuses(
    teams: Iterable[Team],
    policy: Policy,
    books: Books,
    meter: Meter,
    now: float,
    spent: Mapping[str, Sequence[UrgentStatus]],
) -> dict[str, TeamStatus]:
    """Sum up teams: holdings and rights by pool, queue, GPU-hours, budgets, use, tokens.

    `spent` are the tokens that are on record, by team.
    """
    return dict(_each_status(teams, policy, books, meter, now, spent))


def _each_status(
    teams: Iterable[Team],
    policy: Policy,
    books: Books,
    meter: Meter,
    now: float,
    spent: Mapping[str, Sequence[UrgentStatus]],
) -> Iterator[tuple[str, TeamStatus]]:
    week = period_at(Period.WEEKLY, now, policy.zone).start
    pools: defaultdict[str, set[str]] = defaultdict(set)
    for name, pool in (*books.tally.pools, *books.tally.surge, *meter.known()):
        pools[name].add(pool)
    for team in teams:
        tokens = tuple(spent.get(team.name, ()))
        yield (
            team.name,
            replace(
                _status(team, policy, books, meter, now, pools[team.name]),
                urgent_left=max(0, team.urgent_per_week - spent_in_week(tokens, week)),
                urgent=tokens,
            ),
        )


def tokens_on_record(watch: Watch) -> dict[str, Sequence[UrgentStatus]]:
    """Read which tokens teams have spent."""
    return {item.metadata.name: item.status.urgent for item in watch.team_resources}


def _status(
    team: Team,
    policy: Policy,
    books: Books,
    meter: Meter,
    now: float,
    known: Set[str],
) -> TeamStatus:
    pools: list[PoolStatus] = []
    names = sorted({*team.quotas, *known})
    total = guaranteed = limit = 0
    unlimited = not team.quotas
    for pool in names:
        quota = team.quota(pool, now)
        held = books.tally.pools[team.name, pool] + books.tally.surge[team.name, pool]
        if not held and pool not in team.quotas:
            continue
        total += held
        guaranteed += quota.guaranteed
        most, until = team.limit(pool, now), team.next_change(now, pool)
        unlimited |= most is None
        limit += most or 0
        pools.append(
            PoolStatus(
                pool=pool,
                used=format_milli(held),
                guaranteed=format_milli(quota.guaranteed),
                limit="" if most is None else format_milli(most),
                until="" if until == inf else _rfc3339(until, policy.zone),
            )
        )
    metered = sorted(pool for pool in known if (team.name, pool) in meter.known())
    readings = {pool: meter.read(team.name, pool, now) for pool in metered}
    hours = sum(reading.total for reading in readings.values()) / _MILLI_SECONDS_PER_GPU_HOUR
    return TeamStatus(
        used=format_milli(total),
        guaranteed=format_milli(guaranteed),
        limit="none" if unlimited else format_milli(limit),
        queued=books.waiting_of(team.name),
        running=books.holding_of(team.name),
        gpu_hours=f"{hours:.2f}",
        pools=tuple(pools),
        budgets=tuple(
            _budget_status(state, policy.zone)
            for state in budget_states(team, policy, meter.spending, now)
        ),
        use=tuple(
            UseStatus(
                pool=pool,
                total=round(reading.total),
                decayed=round(reading.decayed),
                at=round(reading.at),
                spent=meter.spending.checkpoint(team.name, pool, now),
            )
            for pool, reading in readings.items()
        ),
    )


def _budget_status(state: BudgetState, zone: tzinfo) -> BudgetStatus:
    budget = state.budget
    spent = int(state.spent * MICRO)
    return BudgetStatus(
        budget=budget.text,
        pool=budget.pool,
        spent=format_micro(spent),
        ends=_rfc3339(state.end, zone),
        exhausted=state.exhausted,
        on_exhausted=budget.on_exhausted,
        # To the minute: it moves a little all the time.
        forecast=""
        if state.forecast is None or state.exhausted
        else _rfc3339(state.forecast // 60 * 60, zone),
    )


def _rfc3339(moment: float, zone: tzinfo) -> str:
    return datetime.fromtimestamp(moment, zone).isoformat(timespec="seconds")


def restore_use(watch: Watch, meter: Meter, now: float) -> None:
    """Take use up from the checkpoints in the teams' status."""
    meter.spending.use_policy(watch.policy, now)
    for resource in watch.team_resources:
        for use in resource.status.use:
            meter.restore(
                resource.metadata.name,
                use.pool,
                Reading(float(use.total), float(use.decayed), float(use.at)),
            )
            meter.spending.restore(resource.metadata.name, use.pool, use.spent)


async def publish_team_status(
    client: KubeClient,
    watch: Watch,
    books: Callable[[], Books],
    meter: Meter,
    clock: Callable[[], float],
) -> None:
    """Write what changed, every two seconds; while leading."""
    written: dict[str, tuple[TeamStatus, float]] = {}
    while True:
        now = clock()
        meter.spending.use_policy(watch.policy, now)
        statuses = _each_status(
            watch.teams.teams, watch.policy, books(), meter, now, tokens_on_record(watch)
        )
        for number, (name, status) in enumerate(statuses, 1):
            if not number % _AT_ONCE:
                await asyncio.sleep(0)  # decisions don't wait for a thousand teams
            last, at = written.get(name, (None, 0.0))
            if last is not None and _alike(last, status) and now - at < _CHECKPOINT_SECONDS:
                continue
            # What is spent is written where it is spent.
            written_now = to_builtins(status)
            del written_now["urgent"]
            body = {"status": written_now}
            try:
                await client.patch(f"{TEAMS}/{name}/status", body, MERGE_PATCH)
                written[name] = (status, now)
            except ApiError as error:
                _log.debug("status of team %s not written: %s", name, error)
        await asyncio.sleep(_PERIOD_SECONDS)


def _alike(first: TeamStatus, second: TeamStatus) -> bool:
    return _telling(first) == _telling(second)


def _telling(status: TeamStatus) -> tuple[object, ...]:
    """What is written as soon as it changes; the rest grows all the time."""
    budgets = tuple((item.budget, item.ends, item.exhausted) for item in status.budgets)
    pools, limit, left = status.pools, status.limit, status.urgent_left
    return status.used, status.queued, status.running, pools, limit, left, budgets
