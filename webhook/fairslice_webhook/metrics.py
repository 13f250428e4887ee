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

        # Looking a child up by its labels costs more than counting.
        self._answered: dict[tuple[str, str, str, str], Counter] = {}
        self._taken = {phase: self.duration.labels(phase) for phase in ("mutate", "validate")}

    def answered(self, phase: str, kind: str, operation: str, outcome: str, seconds: float) -> None:
        """Count a review, answered in so many seconds."""
        key = (phase, kind, operation, outcome)
        counter = self._answered.get(key)
        if counter is None:
            counter = self._answered[key] = self.requests.labels(*key)
        counter.inc()
        self._taken[phase].observe(seconds)

    def failed(self, phase: str) -> None:
        """Count a request that could not be answered as a review."""
        self.requests.labels(phase, "", "", "failed").inc()
