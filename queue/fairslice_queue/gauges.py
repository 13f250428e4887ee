"""The gauges that are read off the books when they are scraped."""

from collections import Counter

from fairslice_queue.books import Books
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.outlook import team_shares
from fairslice_queue.pacing import paced
from fairslice_queue.spending import budget_states
from fairslice_queue.usage import Meter
from fairslice_queue.watching import Watch

__all__ = ["clear_gauges", "set_gauges"]

_TEAMS_AT_ONCE = 20
_AT_ONCE = 1000


def clear_gauges(metrics: QueueMetrics) -> None:
    """Say nothing of the books."""
    for gauge in (metrics.pending, metrics.oldest, metrics.held, metrics.guaranteed,
                  metrics.limit, metrics.share, metrics.gpu_hours,
                  metrics.budget_used):  # fmt: skip
        gauge.clear()


async def set_gauges(
    metrics: QueueMetrics, books: Books, watch: Watch, meter: Meter, now: float
) -> None:
    """Set all anew, with pauses: for a thousand teams it takes a tenth of a second."""
    clear_gauges(metrics)
    pending: Counter[tuple[str, str]] = Counter()
    oldest: dict[tuple[str, str], float] = {}
    async for booking in paced(list(books.waiting()), _AT_ONCE):
        key = (booking.team, booking.work_class or "unclassified")
        pending[key] += 1
        oldest[key] = max(oldest.get(key, 0.0), now - booking.queued_at)
    async for key in paced(pending, _AT_ONCE):
        metrics.pending.labels(*key).set(pending[key])
        metrics.oldest.labels(*key).set(oldest[key])
    async for held in paced(books.tally.pools, _AT_ONCE):
        if held[0]:
            milli = books.tally.pools[held] + books.tally.surge[held]
            metrics.held.labels(*held).set(milli / 1000)
    async for team, share in paced(team_shares(watch, meter, now).items(), _AT_ONCE):
        metrics.share.labels(team).set(share)
    async for item in paced(watch.teams.teams, _TEAMS_AT_ONCE):
        for pool in item.quotas:
            guaranteed = item.quota(pool, now).guaranteed
            metrics.guaranteed.labels(item.name, pool).set(guaranteed / 1000)
            limit = item.limit(pool, now)
            if limit is not None:
                metrics.limit.labels(item.name, pool).set(limit / 1000)
        for state in budget_states(item, watch.policy, meter.spending, now):
            amount = float(state.budget.amount)
            used = float(state.spent) / amount if amount else 1.0
            metrics.budget_used.labels(item.name, state.budget.text).set(used)
    async for used_by, reading in paced(meter.readings(now).items(), _AT_ONCE):
        metrics.gpu_hours.labels(*used_by).set(reading.total / 3_600_000)
