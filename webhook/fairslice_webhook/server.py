"""The webhook over TLS, and its health over plain HTTP.

aiohttp's bare server without routing: there is one resource, and routing costs as much as a
small decision. After `drain` began every answer closes its connection, since an API server
keeps using old ones and does not repeat a POST that a closing server cut off.
"""

import asyncio
import logging
import re
import ssl
from asyncio import Task
from collections.abc import Awaitable, Callable
from hmac import compare_digest

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from fairslice.settings import Address
from fairslice_webhook.admission import Admission
from fairslice_webhook.decide import Phase
from fairslice_webhook.explain_endpoint import MAX_EXPLAIN_BYTES
from fairslice_webhook.metrics import WebhookMetrics
from fairslice_webhook.review import MAX_BODY_BYTES, ReviewError
from fairslice_webhook.view import View

__all__ = ["HealthServer", "WebhookServer"]

_log = logging.getLogger(__name__)

_PHASES = {
    "mutate": Phase.MUTATE,
    "hide": Phase.MUTATE,
    "validate": Phase.VALIDATE,
    "advise": Phase.VALIDATE,
    "resources": Phase.VALIDATE,
}
_TIMEOUT = re.compile(r"(\d{1,3})s", re.ASCII)
_DEFAULT_SECONDS = 10.0
# Left for the way back, and for concluding.
_MARGIN = 0.2
_SHUTDOWN_SECONDS = 5.0
_HANDSHAKE_SECONDS = 0.1
_LAST_ANSWERS_SECONDS = 2.0
_BACKLOG = 1024


class WebhookServer:
    """Answers POSTs below a secret path. `view` gives the newest view, None before there is one."""

    def __init__(
        self,
        admission: Admission,
        view: Callable[[], View | None],
        metrics: WebhookMetrics,
        secret_path: str,
    ) -> None:
        self.draining = False
        self._admission = admission
        self._view = view
        self._metrics = metrics
        self._secret = secret_path.strip("/").encode()
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._site: web.TCPSite | None = None

    async def start(self, address: Address, tls: ssl.SSLContext) -> Address:
        """Listen; return the address, with the port that was chosen for port 0.

        Raises OSError for an address that can't be had.
        """
        self._server = web.Server(self._handle, request_factory=_request, access_log=None)
        self._runner = web.ServerRunner(self._server)
        await self._runner.setup()
        self._site = web.TCPSite(
            self._runner, address.host, address.port, ssl_context=tls, backlog=_BACKLOG
        )
        await self._site.start()
        return Address(address.host, self._runner.addresses[0][1])

    async def drain(self, seconds: float) -> None:
        """Go on answering for a while, every answer the last of its connection; then stop."""
        self.draining = True
        await asyncio.sleep(seconds)
        if self._site is None or self._server is None:
            return
        await self._site.stop()
        # What was accepted last is still shaking hands, and then asks its question.
        deadline = asyncio.get_running_loop().time() + _LAST_ANSWERS_SECONDS
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        while self._server.connections and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_HANDSHAKE_SECONDS)

    async def stop(self) -> None:
        """Close all connections."""
        if self._runner is not None:
            await asyncio.wait_for(self._runner.cleanup(), _SHUTDOWN_SECONDS)
            self._server = self._runner = self._site = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._respond(request)
        if self.draining:
            response.force_close()
        return response

    async def _respond(self, request: web.BaseRequest) -> web.Response:
        secret, _, last = request.path.strip("/").rpartition("/")
        phase = _PHASES.get(last)
        if phase is None or not compare_digest(secret.encode(), self._secret):
            return web.Response(status=404)
        if request.method != "POST":
            return web.Response(status=405, headers={"Allow": "POST"})
        view = self._view()
        if view is None:
            return web.Response(status=503, text="not ready: the cluster is not known yet")
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return web.Response(status=413, text=f"more than {MAX_BODY_BYTES} bytes")
        try:
            answer = await self._admission.answer(body, view, phase, _within(request))
        except ReviewError as error:
            self._metrics.requests.labels(phase.value, "", "", "failed").inc()
            return web.Response(status=400, text=str(error))
        except Exception:  # noqa: BLE001 - the boundary of one review: others must go on
            self._metrics.requests.labels(phase.value, "", "", "failed").inc()
            _log.exception("a review failed")
            return web.Response(status=500, text="a review failed; see the webhook's log")
        return web.Response(body=answer, content_type="application/json")


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: "Task[None]",
) -> web.BaseRequest:
    return web.BaseRequest(
        message,
        payload,
        protocol,
        writer,
        task,
        asyncio.get_running_loop(),
        client_max_size=MAX_BODY_BYTES,
    )


def _within(request: web.BaseRequest) -> float:
    """Take the deadline that the API server names in the query."""
    match = _TIMEOUT.fullmatch(request.query.get("timeout", ""))
    seconds = float(match[1]) if match else _DEFAULT_SECONDS
    return max(0.05, seconds - _MARGIN)


class HealthServer:
    """/livez, /readyz, /metrics, and /explain where there is something that explains.

    `problems` lists what keeps this replica from being ready, `notice` is told by one that is.
    """

    def __init__(
        self,
        problems: Callable[[], list[str]],
        registry: CollectorRegistry,
        metrics: WebhookMetrics,
        notice: Callable[[], str] = str,
        explain: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None,
    ) -> None:
        self._problems = problems
        self._notice = notice
        self._registry = registry
        self._metrics = metrics
        self._explain = explain
        self._runner: web.AppRunner | None = None

    async def start(self, address: Address) -> Address:
        """Listen. Raises OSError for an address that can't be had."""
        app = web.Application(client_max_size=MAX_EXPLAIN_BYTES)
        if self._explain is not None:
            app.router.add_post("/explain", self._explain)
        app.router.add_get("/livez", self._live)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._show)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, address.host, address.port).start()
        return Address(address.host, self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        problems = self._problems()
        self._metrics.ready.set(not problems)
        if problems:
            return web.Response(status=503, text="not ready: " + "; ".join(problems) + "\n")
        notice = self._notice()
        return web.Response(text=f"ok; {notice}\n" if notice else "ok\n")

    async def _show(self, _: web.Request) -> web.Response:
        self._metrics.ready.set(not self._problems())
        return web.Response(
            body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )
