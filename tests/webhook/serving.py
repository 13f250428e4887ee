"""A webhook that listens, and a client that trusts it."""

import io
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import aiohttp

from fairslice.settings import Address
from fairslice_certs.authority import ServingNames, create_authority, issue_certificate
from fairslice_certs.bundle import encode
from fairslice_certs.serving import ServingContext
from fairslice_webhook.server import WebhookServer

from .scene import Cluster

__all__ = ["SECRET", "Served", "serve"]

SECRET = "a-random-path"


@dataclass
class Served:
    """The server of a cluster's webhook, and a session with it."""

    place: Cluster
    server: WebhookServer
    port: int
    tls: ssl.SSLContext
    session: aiohttp.ClientSession

    @property
    def base(self) -> str:
        """Its URL, without a path."""
        return f"https://localhost:{self.port}"

    async def post(self, body: bytes, path: str = f"/{SECRET}/mutate") -> tuple[int, bytes]:
        """Post a body; return status and text."""
        data = io.BytesIO(body)
        async with self.session.post(self.base + path, data=data, ssl=self.tls) as response:
            return response.status, await response.read()


@asynccontextmanager
async def serve(place: Cluster) -> AsyncIterator[Served]:
    """Serve with a certificate of its own."""
    now = datetime.now(UTC)
    authority = create_authority(now, timedelta(days=1))
    names = ServingNames.of_hosts(("localhost",))
    leaf = issue_certificate(authority, names, now, timedelta(days=1))
    context = ServingContext()
    context.load(leaf.certificate_pem(), leaf.key_pem())
    trusting = ssl.create_default_context(cadata=encode((authority.certificate,)).decode())
    server = WebhookServer(place.admission, lambda: place.view, place.metrics, SECRET)
    address = await server.start(Address("127.0.0.1", 0), context.context)
    async with aiohttp.ClientSession() as session:
        yield Served(place, server, address.port, trusting, session)
    await server.stop()
