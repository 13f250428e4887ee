"""What the webhook counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["WebhookMetrics"]

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0, 5.0)


class WebhookMetrics:
    """The webhook's figures; names begin with `fairslice_`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "fairslice_admission_requests",
            "Reviews answered, by outcome: allowed, patched, denied, failed.",
            ("phase", "kind", "operation", "outcome"),
            registry=registry,
        )
        self.duration = Histogram(
            "fairslice_admission_duration_seconds",
            "Time from a review's last byte to its answer.",
            ("phase",),
            buckets=_BUCKETS,
            registry=registry,
        )
        self.rewrites = Counter(
            "fairslice_rewrites",
            "Pods given another share of a GPU than they named, by mode of sharing.",
            ("pool", "mode"),
            registry=registry,
        )
        self.bookings = Counter(
            "fairslice_bookings",
            "What wishes to book came to: booked, queued, denied, unavailable.",
            ("kind", "verdict"),
            registry=registry,
        )
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

        # A counter of one's own is found anew for every count, which costs more than counting.
        self._children: dict[tuple[object, ...], Counter] = {}
        self._taken = {phase: self.duration.labels(phase) for phase in ("mutate", "validate")}

    def answered(self, phase: str, kind: str, operation: str, outcome: str, seconds: float) -> None:
        """Count a review, answered in so many seconds."""
        self._child(self.requests, phase, kind, operation, outcome).inc()
        self._taken[phase].observe(seconds)

    def failed(self, phase: str) -> None:
        """Count a request that could not be answered as a review."""
        self._child(self.requests, phase, "", "", "failed").inc()

    def booked(self, kind: str, verdict: str) -> None:
        """Count a wish to book and what it came to."""
        self._child(self.bookings, kind, verdict).inc()

    def rewritten(self, pool: str, mode: str) -> None:
        """Count a pod that was given another share than it named."""
        self._child(self.rewrites, pool, mode).inc()

    def _child(self, counter: Counter, *labels: str) -> Counter:
        key = (counter, *labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = counter.labels(*labels)
        return child
