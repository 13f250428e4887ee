"""What SREs see of the queue. Labels name teams and classes, never pods."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

__all__ = ["QueueMetrics"]

_WAIT_BUCKETS = (0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)


class QueueMetrics:
    """The queue's metrics in one registry. Seconds, GPUs; prefix `fairslice_`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        team_class = ("team", "class")
        self.pending = Gauge(
            "fairslice_queue_pending", "Workloads in line.", team_class, registry=registry
        )
        self.oldest = Gauge(
            "fairslice_queue_oldest_pending_seconds",
            "Wait of the longest waiting workload.",
            team_class,
            registry=registry,
        )
        self.waited = Histogram(
            "fairslice_queue_wait_seconds",
            "Time from first in line to release.",
            team_class,
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self.released = Counter(
            "fairslice_released_total", "Workloads released.", team_class, registry=registry
        )
        self.preempted = Counter(
            "fairslice_preemptions_total",
            "Workloads pushed out, by us or by others.",
            team_class,
            registry=registry,
        )
        self.restarted = Counter(
            "fairslice_restarts_total", "Objects created again.", registry=registry
        )
        self.lost_seconds = Counter(
            "fairslice_lost_work_seconds_total",
            "Work lost to preemption since the last declared checkpoint.",
            ("team",),
            registry=registry,
        )
        self.start_failures = Counter(
            "fairslice_start_failures_total",
            "Releases that could not start and went back in line.",
            registry=registry,
        )
        self.round_seconds = Histogram(
            "fairslice_queue_round_seconds",
            "One round of reconciling, planning and acting.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
            registry=registry,
        )
        self.held = Gauge(
            "fairslice_team_gpus_held",
            "GPUs that a team holds.",
            ("team", "pool"),
            registry=registry,
        )
        self.guaranteed = Gauge(
            "fairslice_team_gpus_guaranteed",
            "GPUs that a team always gets back.",
            ("team", "pool"),
            registry=registry,
        )
        self.limit = Gauge(
            "fairslice_team_gpus_limit",
            "GPUs that a team may hold at most.",
            ("team", "pool"),
            registry=registry,
        )
        self.budget_used = Gauge(
            "fairslice_team_budget_used_ratio",
            "What of a budget is used in its present period; 1 is all of it.",
            ("team", "budget"),
            registry=registry,
        )
        self.share = Gauge(
            "fairslice_team_share_ratio",
            "Weighted dominant share of decayed use.",
            ("team",),
            registry=registry,
        )
        self.gpu_hours = Gauge(
            "fairslice_team_gpu_hours",
            "GPU-hours held since the team was made.",
            ("team", "pool"),
            registry=registry,
        )
        self.drift = Gauge(
            "fairslice_ledger_drift",
            "Totals in the ledger that don't add up, and bookings unlike their objects.",
            registry=registry,
        )
        self.drift_repaired = Counter(
            "fairslice_ledger_drift_repaired_total",
            "Drift that was found and put right.",
            registry=registry,
        )
        self.redis_up = Gauge(
            "fairslice_redis_up", "Whether the ledger answers.", registry=registry
        )
        self.leader = Gauge(
            "fairslice_leader", "Whether this process leads the queue.", registry=registry
        )
        self.brake = Gauge(
            "fairslice_brake",
            "1 while the brake keeps fairslice out of the admission path.",
            registry=registry,
        )
