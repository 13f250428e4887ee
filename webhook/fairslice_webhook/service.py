"""The webhook as a service: certificate, watches, server; and its way in and out of the cluster."""

import asyncio
import logging
import os
import secrets
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry

from fairslice.brake import Brake
from fairslice.election import LeaderElection
from fairslice.install import ensure_secret_path
from fairslice.kube.client import KubeClient
from fairslice.kube.connection import QUEUE_ACCOUNT, WEBHOOK_ACCOUNT, connect_as
from fairslice.redis_connection import RedisConnection
from fairslice.settings import Settings, SettingsError
from fairslice.webhook_configuration import Target
from fairslice_certs.authority import ServingNames
from fairslice_certs.kubernetes import (
    CONFIGURATIONS,
    ClusterConfigurations,
    ClusterSecret,
    ServiceEndpoints,
)
from fairslice_certs.replicas import OwnReplica, ProbedReplicas, Replicas
from fairslice_certs.rotation import CertificatePolicy
from fairslice_certs.rotator import CertificateRotator
from fairslice_certs.serving import ServingContext
from fairslice_queue.ledger import Ledger, LedgerUnavailable
from fairslice_webhook.admission import Admission
from fairslice_webhook.audit import LedgerAuditSink
from fairslice_webhook.explain import Explainer
from fairslice_webhook.explain_endpoint import ExplainEndpoint
from fairslice_webhook.metrics import WebhookMetrics
from fairslice_webhook.registrar import Registrar
from fairslice_webhook.server import HealthServer, WebhookServer
from fairslice_webhook.watching import ViewKeeper

__all__ = ["serve"]

_log = logging.getLogger(__name__)

LEASE = "fairslice-webhook"
"""Name of the Lease whose holder writes certificates."""

_SERVICE = "fairslice-webhook"
# Behind a Service, API servers go on calling until its endpoints have changed everywhere.
# Under a URL of our own nobody takes over: what is being answered is all there is to wait for.
_DRAIN_BEHIND_SERVICE = 12.0
_DRAIN_ALONE = 0.5
_POLL_SECONDS = 0.05


async def serve(settings: Settings) -> None:
    """Run the webhook until cancelled.

    Raises SettingsError, ApiError and OSError (address in use), for one clear line.
    """
    if settings.redis_url is None:
        raise SettingsError("the webhook needs a Redis: set --redis-url")
    async with (
        connect_as(settings, WEBHOOK_ACCOUNT) as client,
        RedisConnection.parse(settings.redis_url) as redis,
    ):
        ledger = Ledger(redis)
        # Not needed to serve; the log says from the start that Redis is away.
        with suppress(LedgerUnavailable):
            await ledger.ready()
        await _Webhook(settings, client, ledger).run()


class _Webhook:
    """What one replica holds together."""

    def __init__(self, settings: Settings, client: KubeClient, ledger: Ledger) -> None:
        self._settings = settings
        self._client = client
        account = f"system:serviceaccount:{settings.namespace}:{QUEUE_ACCOUNT}"
        self._views = ViewKeeper(client, frozenset({account}))
        self._brake = Brake(client, settings.namespace)
        registry = CollectorRegistry()
        self._metrics = WebhookMetrics(registry)
        self._metrics.brake.set_function(lambda: float(self._brake.on))
        self._sink = LedgerAuditSink(ledger)
        self._admission = Admission(
            ledger, self._metrics, self._sink, newest=lambda: self._views.view
        )
        self._election = LeaderElection(
            client,
            namespace=settings.namespace,
            name=LEASE,
            identity=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
        )
        self._serving = ServingContext()
        self._rotator = self._new_rotator()
        self._health = HealthServer(
            self._problems,
            registry,
            self._metrics,
            lambda: self._brake.text,
            ExplainEndpoint(Explainer(ledger), lambda: self._views.view).handle,
        )
        self._server: WebhookServer | None = None

    async def run(self) -> None:
        """Come up, register, answer; on cancellation drain first."""
        settings = self._settings
        # Fail at once, and in one line, where the API server can't be asked at all.
        path = await ensure_secret_path(self._client, settings.namespace)
        server = WebhookServer(self._admission, lambda: self._views.view, self._metrics, path)
        health = await self._health.start(settings.health_listen)
        try:
            address = await server.start(settings.listen, self._serving.context)
            self._server = server
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._views.run())
                tasks.create_task(self._brake.run())
                tasks.create_task(self._sink.run())
                tasks.create_task(self._campaign())
                tasks.create_task(self._rotator.run())
                _log.info("webhook on https://%s, health on http://%s", address, health)
                try:
                    await self._keep_registered(path)
                finally:
                    alone = settings.advertise is not None
                    await server.drain(_DRAIN_ALONE if alone else _DRAIN_BEHIND_SERVICE)
                    await self._sink.flush()
        finally:
            await server.stop()
            await self._health.stop()

    async def _keep_registered(self, path: str) -> None:
        """Register once everything is there that an answer needs; then keep it up to date."""
        # Several parts come up by themselves; there is no one event to wait for.
        while self._problems():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        registrar = Registrar(
            self._client,
            self._brake,
            target=lambda: Target(
                namespace=self._settings.namespace,
                secret_path=path,
                ca_bundle=self._rotator.status.ca_bundle,
                url=self._settings.advertise,
                service=_SERVICE,
            ),
            view=lambda: self._views.view,
            is_ready=lambda: not self._problems(),
            registered=self._rotator.look,
            hide_by=self._settings.hide_by,
        )
        await registrar.come_up()
        await registrar.run()

    async def _campaign(self) -> None:
        """Campaign for the right to write certificates."""
        while True:
            await self._election.run(self._lead)
            await asyncio.sleep(1.0)

    async def _lead(self) -> None:
        await self._rotator.look()
        await asyncio.Event().wait()

    def _problems(self) -> list[str]:
        """List what keeps this replica from being ready."""
        found = []
        if self._views.view is None:
            found.append("the cluster is not listed yet")
        if not self._brake.synced.is_set():
            found.append("the brake is not known yet")
        status = self._rotator.status
        if status.serial is None:
            found.append(status.problem or "no certificate yet")
        elif status.untrusting:
            found.append(f"caBundle not in place: {', '.join(status.untrusting)}")
        if self._server is None or self._server.draining:
            found.append("stopping" if self._server is not None else "not listening yet")
        return found

    def _new_rotator(self) -> CertificateRotator:
        settings = self._settings
        extra: tuple[str, ...] = ()
        replicas: Replicas
        if settings.advertise is not None:
            extra = (urlsplit(settings.advertise).hostname or "",)
            replicas = OwnReplica(self._serving)
        else:
            endpoints = ServiceEndpoints(
                self._client, settings.namespace, _SERVICE, settings.listen.port
            )
            replicas = ProbedReplicas(endpoints)
        return CertificateRotator(
            store=ClusterSecret(self._client, settings.namespace),
            configurations=ClusterConfigurations(self._client),
            references=CONFIGURATIONS,
            replicas=replicas,
            serving=self._serving,
            policy=CertificatePolicy(
                ServingNames.of_service(_SERVICE, settings.namespace, extra=extra)
            ),
            is_leader=lambda: self._election.leading,
        )
