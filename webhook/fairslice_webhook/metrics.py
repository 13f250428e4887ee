"""What the webhook counts, for Prometheus.

What every review counts is kept in plain numbers and handed over when somebody asks: counting
with the library's locks and labels would cost more than answering some of them.
"""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

__all__ = ["WebhookMetrics"]

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 5.0)
_BOUNDS = (*map(str, _BUCKETS), "+Inf")


class _Times:
    """How long something took, by bucket."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.seconds += seconds


class _Plain(Collector):
    """Plain numbers, as the library wants them."""

    def __init__(self) -> None:
        self.requests = Tally[tuple[str, ...]]()
        self.rewrites = Tally[tuple[str, ...]]()
        self.bookings = Tally[tuple[str, ...]]()
        self.times = {"mutate": _Times(), "validate": _Times()}

    def describe(self) -> Iterable[Metric]:
        """Name what is counted."""
        return list(self.collect())

    def collect(self) -> Iterator[Metric]:
        """Hand over what was counted."""
        yield _counter(
            "fairslice_admission_requests",
            "Reviews answered, by outcome: allowed, patched, denied, failed.",
            ("phase", "kind", "operation", "outcome"),
            self.requests,
        )
        times = HistogramMetricFamily(
            "fairslice_admission_duration_seconds",
            "Time from a review's last byte to its answer.",
            labels=("phase",),
        )
        for phase, taken in self.times.items():
            buckets = list(zip(_BOUNDS, accumulate(taken.counts), strict=True))
            times.add_metric((phase,), buckets, taken.seconds)
        yield times
        yield _counter(
            "fairslice_rewrites",
            "Pods given another share of a GPU than they named, by mode of sharing.",
            ("pool", "mode"),
            self.rewrites,
        )
        yield _counter(
            "fairslice_bookings",
            "What wishes to book came to: booked, queued, denied, unavailable.",
            ("kind", "verdict"),
            self.bookings,
        )


def _counter(
    name: str, text: str, labels: tuple[str, ...], tally: Tally[tuple[str, ...]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, count in tally.items():
        family.add_metric(values, count)
    return family


class WebhookMetrics:
    """The webhook's figures; names begin with `fairslice_`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._plain = _Plain()
        registry.register(self._plain)
        self.audit = Counter(
            "fairslice_audit",
            "What Enforce would have done: change, deny, queue.",
            ("feature", "outcome"),
            registry=registry,
        )
        self.inapplicable = Counter(
            "fairslice_patches_inapplicable",
            "Patches that did not apply to the object they were made for; none was sent.",
            registry=registry,
        )
        self.ledger_away = Counter(
            "fairslice_ledger_away",
            "Reviews answered conservatively, without the ledger.",
            registry=registry,
        )
        self.ready = Gauge(
            "fairslice_webhook_ready", "1 while this replica is ready.", registry=registry
        )
        self.brake = Gauge(
            "fairslice_brake",
            "1 while the brake keeps fairslice out of the admission path.",
            registry=registry,
        )

    def answered(self, phase: str, kind: str, operation: str, outcome: str, seconds: float) -> None:
        """Count a review, answered in so many seconds."""
        self._plain.requests[phase, kind, operation, outcome] += 1
        self._plain.times[phase].add(seconds)

    def failed(self, phase: str) -> None:
        """Count a request that could not be answered as a review."""
        self._plain.requests[phase, "", "", "failed"] += 1

    def booked(self, kind: str, verdict: str) -> None:
        """Count a wish to book and what it came to."""
        self._plain.bookings[kind, verdict] += 1

    def rewritten(self, pool: str, mode: str) -> None:
        """Count a pod that was given another share than it named."""
        self._plain.rewrites[pool, mode] += 1
