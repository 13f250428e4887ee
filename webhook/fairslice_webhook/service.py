"""The webhook as a service: certificate, watches, server; and its way in and out of the cluster."""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from fairslice.brake import Brake
from fairslice.election import LeaderElection
from fairslice.install import ensure_secret_path
from fairslice.kube.client import KubeClient
from fairslice.kube.connection import WEBHOOK_ACCOUNT, connect_as
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
from fairslice_certs.serving import ServedCertificate, ServingContext
from fairslice_queue.ledger import Ledger, LedgerUnavailable
from fairslice_webhook.answering import Answering, spare_collections
from fairslice_webhook.explain import Explainer
from fairslice_webhook.explain_endpoint import ExplainEndpoint
from fairslice_webhook.figures import page
from fairslice_webhook.registrar import Registrar
from fairslice_webhook.server import HealthServer
from fairslice_webhook.workers import Workers, usual_count

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
        # Fail at once, and in one line, where the API server can't be asked at all.
        path = await ensure_secret_path(client, settings.namespace)
        await _Webhook(settings, client, ledger, path).run()


class _SharedServing(ServingContext):
    """The serving certificate of this process, passed on to the others."""

    def __init__(self, pass_on: Callable[[bytes, bytes], None]) -> None:
        super().__init__()
        self._pass_on = pass_on

    def load(self, certificate_pem: bytes, key_pem: bytes) -> ServedCertificate:
        served = super().load(certificate_pem, key_pem)
        self._pass_on(certificate_pem, key_pem)
        return served


class _Webhook:
    """What one replica holds together: its first process, which answers too, and the workers."""

    def __init__(
        self, settings: Settings, client: KubeClient, ledger: Ledger, secret_path: str
    ) -> None:
        self._settings = settings
        self._client = client
        self._path = secret_path
        self._parts = Answering.of(settings, client, ledger, secret_path)
        self._views, self._server = self._parts.views, self._parts.server
        self._workers = Workers((settings.workers or usual_count()) - 1, settings)
        self._brake = Brake(client, settings.namespace)
        self._parts.metrics.brake.set_function(lambda: float(self._brake.on))
        self._election = LeaderElection(
            client,
            namespace=settings.namespace,
            name=LEASE,
            identity=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
        )
        self._serving = _SharedServing(self._workers.certify)
        self._rotator = self._new_rotator()
        self._health = HealthServer(
            self._problems,
            self._figures,
            self._parts.metrics,
            lambda: self._brake.text,
            ExplainEndpoint(Explainer(ledger), lambda: self._views.view).handle,
        )

    async def run(self) -> None:
        """Come up, register, answer; on cancellation drain first."""
        settings, server = self._settings, self._server
        health = await self._health.start(settings.health_listen)
        try:
            address = await server.start(
                settings.listen, self._serving.context, shared=self._workers.any
            )
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._views.run())
                tasks.create_task(self._brake.run())
                tasks.create_task(self._parts.sink.run())
                tasks.create_task(self._campaign())
                tasks.create_task(self._rotator.run())
                tasks.create_task(self._workers.run(self._path, address.port))
                _log.info("webhook on https://%s, health on http://%s", address, health)
                try:
                    await self._keep_registered()
                finally:
                    await self._drain()
        finally:
            await server.stop()
            await self._health.stop()

    async def _drain(self) -> None:
        alone = self._settings.advertise is not None
        seconds = _DRAIN_ALONE if alone else _DRAIN_BEHIND_SERVICE
        await asyncio.gather(self._server.drain(seconds), self._workers.drain(seconds))
        await self._parts.sink.flush()

    async def _keep_registered(self) -> None:
        """Register once everything is there that an answer needs; then keep it up to date."""
        # Several parts come up by themselves; there is no one event to wait for.
        while self._problems():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        spare_collections()
        registrar = Registrar(
            self._client,
            self._brake,
            target=lambda: Target(
                namespace=self._settings.namespace,
                secret_path=self._path,
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
        if self._server.draining:
            found.append("stopping")
        elif not self._server.listening:
            found.append("not listening yet")
        return found + self._workers.problems(str(status.serial))

    async def _figures(self) -> bytes:
        return page(self._parts.registry, await self._workers.families())

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
