"""What every process that answers reviews holds: its view, its way to the ledger, its server."""

import gc
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from fairslice.kube.client import KubeClient
from fairslice.kube.connection import QUEUE_ACCOUNT
from fairslice.settings import Settings
from fairslice_queue.ledger import Ledger
from fairslice_webhook.admission import Admission
from fairslice_webhook.audit import LedgerAuditSink
from fairslice_webhook.metrics import WebhookMetrics
from fairslice_webhook.server import WebhookServer
from fairslice_webhook.watching import ViewKeeper

__all__ = ["Answering", "spare_collections"]

# So many objects, some hundreds of reviews', are made between two collections (Python: 700).
_YOUNG = 20_000


def spare_collections() -> None:
    """Leave what is there now, and stays, out of garbage collection, and have it come seldom.

    To look through all that libraries and the first view brought would take tens of
    milliseconds, in the middle of some answer. Reviews leave next to no cycles behind.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)


@dataclass(frozen=True, slots=True)
class Answering:
    """The parts, wired up; whoever holds them runs `views` and `sink` as tasks."""

    views: ViewKeeper
    sink: LedgerAuditSink
    registry: CollectorRegistry
    metrics: WebhookMetrics
    server: WebhookServer

    @classmethod
    def of(
        cls, settings: Settings, client: KubeClient, ledger: Ledger, secret_path: str
    ) -> "Answering":
        """Wire the parts up; nothing runs yet."""
        account = f"system:serviceaccount:{settings.namespace}:{QUEUE_ACCOUNT}"
        views = ViewKeeper(client, frozenset({account}))
        registry = CollectorRegistry()
        metrics, sink = WebhookMetrics(registry), LedgerAuditSink(ledger)
        admission = Admission(ledger, metrics, sink, newest=lambda: views.view)
        server = WebhookServer(admission, lambda: views.view, metrics, secret_path)
        return cls(views, sink, registry, metrics, server)
