"""What answers reviews while admission is measured, each in processes of its own.

`floor` is a constant-reply server on TLS that reads the body: an aiohttp application of one
route. `floors` is as many of it, on one port, as the webhook has processes; `stock` is the same as
`floor` on asyncio's own event loop instead of uvloop, as aiohttp runs by itself; `bare` is on
uvloop without application and routing, the least that aiohttp can do. `webhook` is the webhook
itself with its ledger, of as many processes as is said; its view stands still, for watches
are not what is measured.
"""

import asyncio
import os
import ssl
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

import msgspec
import uvloop
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler
from msgspec import Struct
from prometheus_client import CollectorRegistry

from fairslice.redis_connection import RedisConnection
from fairslice.settings import Address
from fairslice_certs.authority import ServingNames, create_authority, issue_certificate
from fairslice_certs.serving import ServingContext
from fairslice_queue.ledger import Ledger
from fairslice_webhook.admission import Admission
from fairslice_webhook.answering import spare_collections
from fairslice_webhook.audit import LedgerAuditSink
from fairslice_webhook.figures import page
from fairslice_webhook.metrics import WebhookMetrics
from fairslice_webhook.review import MAX_BODY_BYTES, encode_response
from fairslice_webhook.server import HealthServer, WebhookServer

from .measuring import cpu_seconds, peak_mib, resident_mib
from .scenery import view

__all__ = ["SECRET", "Certificate", "Part", "Served"]

SECRET = "bench-secret-path"
_START_SECONDS = 20.0


class Part(StrEnum):
    """What a process is."""

    FLOOR = "floor"
    FLOORS = "floors"
    STOCK = "stock"
    BARE = "bare"
    WEBHOOK = "webhook"


class Certificate(Struct, frozen=True):
    """PEM texts: the authority's certificate, and a leaf with its key."""

    authority: str
    leaf: str
    key: str

    @classmethod
    def make(cls) -> "Certificate":
        """Make one for localhost, as the webhook makes its own (ECDSA, P-256)."""
        now = datetime.now(UTC)
        authority = create_authority(now, timedelta(days=1))
        names = ServingNames.of_hosts(("localhost",))
        leaf = issue_certificate(authority, names, now, timedelta(days=1))
        return cls(
            authority.certificate_pem().decode(),
            leaf.certificate_pem().decode(),
            leaf.key_pem().decode(),
        )


class _Order(Struct, frozen=True):
    part: Part
    certificate: Certificate
    redis_url: str
    core: int | None
    shared: bool
    port: int


class _Ports(Struct, frozen=True):
    port: int
    health: int = 0


_SEVERAL = (Part.FLOORS, Part.WEBHOOK)


@dataclass
class Served:
    """Processes that answer reviews on one port. Make them with `start`."""

    processes: list[asyncio.subprocess.Process]
    port: int
    healths: list[int]

    @classmethod
    async def start(
        cls,
        part: Part,
        certificate: Certificate,
        redis_url: str,
        core: int | None,
        workers: int,
    ) -> "Served":
        """Start a part, and wait until it listens. One process alone is pinned to the core."""
        count = workers if part in _SEVERAL else 1
        served = cls([], 0, [])
        for _ in range(count):
            order = _Order(
                part=part,
                certificate=certificate,
                redis_url=redis_url,
                core=core if count == 1 else None,
                shared=count > 1,
                port=served.port,
            )
            await served._add(order)
        return served

    async def _add(self, order: _Order) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.served"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[1],
        )
        self.processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        async with asyncio.timeout(_START_SECONDS):
            ports = msgspec.json.decode(await process.stdout.readline(), type=_Ports)
        self.port = ports.port
        self.healths.append(ports.health)

    @property
    def cpu_seconds(self) -> float:
        """CPU time that all have used."""
        return sum(cpu_seconds(process.pid) for process in self.processes)

    @property
    def resident_mib(self) -> float:
        """Memory that all hold now, in MiB."""
        return sum(resident_mib(process.pid) for process in self.processes)

    @property
    def peak_mib(self) -> float:
        """The most memory that each ever held, added up, in MiB."""
        return sum(peak_mib(process.pid) for process in self.processes)

    async def stop(self) -> None:
        """End the processes."""
        for process in self.processes:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def _constant(request: web.BaseRequest) -> web.StreamResponse:
    await request.read()
    return web.Response(body=_CONSTANT, content_type="application/json")


_CONSTANT = encode_response(
    "00000000-0000-4000-8000-000000000000",
    allowed=True,
    patch=[{"op": "add", "path": "/metadata/labels/constant", "value": "reply"}],
)


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    return web.BaseRequest(
        message, payload, protocol, writer, task, asyncio.get_running_loop(),
        client_max_size=MAX_BODY_BYTES,
    )  # fmt: skip


async def _serve_floor(order: _Order, tls: ssl.SSLContext) -> None:
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post(f"/{SECRET}/mutate", _constant)
    await _serve_constant(web.AppRunner(app, access_log=None), order, tls)


async def _serve_bare(order: _Order, tls: ssl.SSLContext) -> None:
    server = web.Server(_constant, request_factory=_request, access_log=None)
    await _serve_constant(web.ServerRunner(server), order, tls)


async def _serve_constant(runner: web.BaseRunner, order: _Order, tls: ssl.SSLContext) -> None:
    await runner.setup()
    site = web.TCPSite(
        runner,
        "127.0.0.1",
        order.port,
        ssl_context=tls,
        backlog=1024,
        reuse_port=order.shared or None,
    )
    await site.start()
    _tell(_Ports(runner.addresses[0][1]))
    await asyncio.Event().wait()


async def _serve_webhook(order: _Order, tls: ssl.SSLContext) -> None:
    async with RedisConnection.parse(order.redis_url) as redis:
        ledger, registry, seen = Ledger(redis), CollectorRegistry(), view()
        metrics, sink = WebhookMetrics(registry), LedgerAuditSink(ledger)
        server = WebhookServer(Admission(ledger, metrics, sink), lambda: seen, metrics, SECRET)

        async def figures() -> bytes:
            return page(registry, ())

        health = HealthServer(list, figures, metrics)
        address = await server.start(Address("127.0.0.1", order.port), tls, shared=order.shared)
        about = await health.start(Address("127.0.0.1", 0))
        spare_collections()
        _tell(_Ports(address.port, about.port))
        await sink.run()


def _tell(ports: _Ports) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(ports) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Serve what the line on stdin orders, until terminated."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Order)
    if order.core is not None:
        os.sched_setaffinity(0, {order.core})
    serving = ServingContext()
    serving.load(order.certificate.leaf.encode(), order.certificate.key.encode())
    loop = None if order.part is Part.STOCK else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop) as runner:
        match order.part:
            case Part.FLOOR | Part.FLOORS | Part.STOCK:
                runner.run(_serve_floor(order, serving.context))
            case Part.BARE:
                runner.run(_serve_bare(order, serving.context))
            case Part.WEBHOOK:
                runner.run(_serve_webhook(order, serving.context))


if __name__ == "__main__":
    main()
