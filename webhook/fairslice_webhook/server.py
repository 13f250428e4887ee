"""The webhook over TLS, and its health over plain HTTP.

After `drain` began every answer closes its connection, since an API server keeps using old ones
and does not repeat a POST that a closing server cut off.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Awaitable, Callable
from hmac import compare_digest

from aiohttp import web
from msgspec import DecodeError
from prometheus_client import CONTENT_TYPE_LATEST

from fairslice.messages import line
from fairslice.settings import Address
from fairslice_webhook.admission import Admission
from fairslice_webhook.decide import Phase
from fairslice_webhook.explain_endpoint import MAX_EXPLAIN_BYTES
from fairslice_webhook.http_server import HttpServer, Request, Response
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
# An object stays text where nobody reads it, and may turn out to be no JSON when it is patched.
_UNREADABLE = (ReviewError, DecodeError)
_TIMEOUT = re.compile(r"(?:^|&)timeout=(\d{1,3})s(?:&|$)", re.ASCII)
_DEFAULT_SECONDS = 10.0
# Left for the way back, and for concluding.
_MARGIN = 0.2
_HANDSHAKE_SECONDS = 0.1
_LAST_ANSWERS_SECONDS = 2.0
_MAX_TARGETS = 64


class WebhookServer:
    """Answers POSTs below a secret path. `view` gives the newest view, None before there is one."""

    def __init__(
        self,
        admission: Admission,
        view: Callable[[], View | None],
        metrics: WebhookMetrics,
        secret_path: str,
    ) -> None:
        self._admission = admission
        self._view = view
        self._metrics = metrics
        self._secret = f"/{secret_path.strip('/')}".encode()
        self._targets: dict[str, tuple[Phase, float]] = {}
        self._http = HttpServer(self._respond, MAX_BODY_BYTES)

    @property
    def draining(self) -> bool:
        """Say whether every answer is the last of its connection."""
        return self._http.closing

    @property
    def listening(self) -> bool:
        """Say whether connections are accepted."""
        return self._http.listening

    async def start(
        self, address: Address, tls: ssl.SSLContext, *, shared: bool = False
    ) -> Address:
        """Listen; return the address, with the port that was chosen for port 0.

        With `shared`, other processes may listen there, too, and get their part of the
        connections. Raises OSError for an address that can't be had.
        """
        return await self._http.start(address, tls, shared=shared)

    async def drain(self, seconds: float) -> None:
        """Go on answering for a while, every answer the last of its connection; then stop."""
        self._http.closing = True
        await asyncio.sleep(seconds)
        await self._http.stop_listening()
        # What was accepted last is still shaking hands, and then asks its question.
        deadline = asyncio.get_running_loop().time() + _LAST_ANSWERS_SECONDS
        await asyncio.sleep(_HANDSHAKE_SECONDS)
        while len(self._http) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_HANDSHAKE_SECONDS)

    async def stop(self) -> None:
        """Close all connections."""
        await self._http.stop()

    def _respond(self, request: Request) -> Response | Awaitable[Response]:
        target = self._targets.get(request.target) or self._read(request.target)
        if target is None:
            return Response.text(404)
        phase, within = target
        if request.method != "POST":
            return Response.text(405, allow="POST")
        view = self._view()
        if view is None:
            return Response.text(503, "not ready: the cluster is not known yet")
        try:
            answer = self._admission.begin(request.body, view, phase, within)
        except _UNREADABLE as error:
            return self._refused(phase, error)
        except Exception:
            self._metrics.failed(phase.value)
            raise
        return Response.json(answer) if isinstance(answer, bytes) else self._later(answer, phase)

    def _read(self, target: str) -> tuple[Phase, float] | None:
        """Read a request's target: phase and time limit, if it has the secret path."""
        path, _, query = target.partition("?")
        secret, _, last = path.rstrip("/").rpartition("/")
        phase = _PHASES.get(last)
        if phase is None or not compare_digest(secret.encode(), self._secret):
            return None
        read = (phase, _within(query))
        # An API server names the same few, again and again.
        if len(self._targets) < _MAX_TARGETS:
            self._targets[target] = read
        return read

    async def _later(self, answer: Awaitable[bytes], phase: Phase) -> Response:
        try:
            return Response.json(await answer)
        except _UNREADABLE as error:
            return self._refused(phase, error)
        except Exception:
            self._metrics.failed(phase.value)
            raise

    def _refused(self, phase: Phase, error: Exception) -> Response:
        self._metrics.failed(phase.value)
        return Response.text(400, line(str(error)))


def _within(query: str) -> float:
    """Take the deadline that the API server names in the query."""
    match = _TIMEOUT.search(query)
    seconds = float(match[1]) if match else _DEFAULT_SECONDS
    return max(0.05, seconds - _MARGIN)


class HealthServer:
    """/livez, /readyz, /metrics, and /explain where there is something that explains.

    `problems` lists what keeps this replica from being ready, `notice` is told by one that is;
    `figures` writes the page of metrics.
    """

    def __init__(
        self,
        problems: Callable[[], list[str]],
        figures: Callable[[], Awaitable[bytes]],
        metrics: WebhookMetrics,
        notice: Callable[[], str] = str,
        explain: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None,
    ) -> None:
        self._problems = problems
        self._notice = notice
        self._figures = figures
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
            body=await self._figures(), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )
