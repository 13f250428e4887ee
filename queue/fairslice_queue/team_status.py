"""Each team's standing in its own status, which `kubectl get teams` shows.

It is the checkpoint of use too: what a loss of Redis can't take away.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Set

from msgspec import to_builtins

from fairslice.kube.client import MERGE_PATCH, ApiError, KubeClient
from fairslice.policy import Team
from fairslice.quantity import format_milli
from fairslice.v1alpha1.resources import TEAMS
from fairslice.v1alpha1.team import PoolStatus, TeamStatus, UseStatus
from fairslice_queue.books import Books
from fairslice_queue.usage import Meter, Reading
from fairslice_queue.watching import Watch

__all__ = ["publish_team_status", "restore_use", "team_statuses"]

_log = logging.getLogger(__name__)

_PERIOD_SECONDS = 2.0
_MILLI_SECONDS_PER_GPU_HOUR = 3_600_000.0
# Use grows all the time; its checkpoint is written this often even if nothing else changed.
_CHECKPOINT_SECONDS = 60.0


def team_statuses(
    teams: Iterable[Team], books: Books, meter: Meter, now: float
) -> dict[str, TeamStatus]:
    """Sum up teams: holdings and rights by pool, queue, GPU-hours, use."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for booking in books:
        if booking.state.waits or booking.state.holds:
            counts[booking.team]["queued" if booking.state.waits else "running"] += 1
    pools: defaultdict[str, set[str]] = defaultdict(set)
    for name, pool in (*books.tally.pools, *books.tally.surge, *meter.known()):
        pools[name].add(pool)
    return {
        team.name: _status(team, books, meter, now, counts[team.name], pools[team.name])
        for team in teams
    }


def _status(
    team: Team,
    books: Books,
    meter: Meter,
    now: float,
    counts: Mapping[str, int],
    known: Set[str],
) -> TeamStatus:
    pools: list[PoolStatus] = []
    names = sorted({*team.quotas, *known})
    total = guaranteed = limit = 0
    unlimited = not team.quotas
    for pool in names:
        quota = team.quota(pool)
        held = books.tally.pools[team.name, pool] + books.tally.surge[team.name, pool]
        if not held and pool not in team.quotas:
            continue
        total += held
        guaranteed += quota.guaranteed
        unlimited |= quota.limit is None
        limit += quota.limit or 0
        pools.append(
            PoolStatus(
                pool=pool,
                used=format_milli(held),
                guaranteed=format_milli(quota.guaranteed),
                limit="" if quota.limit is None else format_milli(quota.limit),
            )
        )
    metered = sorted(pool for pool in known if (team.name, pool) in meter.known())
    readings = {pool: meter.read(team.name, pool, now) for pool in metered}
    hours = sum(reading.total for reading in readings.values()) / _MILLI_SECONDS_PER_GPU_HOUR
    return TeamStatus(
        used=format_milli(total),
        guaranteed=format_milli(guaranteed),
        limit="none" if unlimited else format_milli(limit),
        queued=counts.get("queued", 0),
        running=counts.get("running", 0),
        gpu_hours=f"{hours:.2f}",
        pools=tuple(pools),
        use=tuple(
            UseStatus(
                pool=pool,
                total=round(reading.total),
                decayed=round(reading.decayed),
                at=round(reading.at),
            )
            for pool, reading in readings.items()
        ),
    )


def restore_use(watch: Watch, meter: Meter) -> None:
    """Take use up from the checkpoints in the teams' status."""
    for resource in watch.team_resources:
        for use in resource.status.use:
            meter.restore(
                resource.metadata.name,
                use.pool,
                Reading(float(use.total), float(use.decayed), float(use.at)),
            )


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
        for name, status in team_statuses(watch.teams.teams, books(), meter, now).items():
            last, at = written.get(name, (None, 0.0))
            if last is not None and _alike(last, status) and now - at < _CHECKPOINT_SECONDS:
                continue
            body = {"status": to_builtins(status)}
            try:
                await client.patch(f"{TEAMS}/{name}/status", body, MERGE_PATCH)
                written[name] = (status, now)
            except ApiError as error:
                _log.debug("status of team %s not written: %s", name, error)
        await asyncio.sleep(_PERIOD_SECONDS)


def _alike(first: TeamStatus, second: TeamStatus) -> bool:
    return (first.used, first.queued, first.running, first.pools, first.limit) == (
        second.used,
        second.queued,
        second.running,
        second.pools,
        second.limit,
    )
