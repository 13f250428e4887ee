"""HTTP for reviews: aiohttp's bare server, with bounds on sizes and times.

Routing is left out: there is one resource, and finding it would cost as much as a small
decision. So would putting together the head that nearly all answers have in common.
"""

import asyncio
import logging
import ssl
import time
from asyncio import Task
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler
from msgspec import Struct

from fairslice.settings import Address

__all__ = ["HttpServer", "Request", "Response"]

# So long a request may take to arrive, and so long a client may keep an idle connection. API
# servers give theirs up after 90 s; one that closes first may cut off a POST, which nobody repeats.
_REQUEST_SECONDS = 30.0
_IDLE_SECONDS = 600.0
_LINGER_SECONDS = 0.5
_SWEEP_SECONDS = 5.0
_SHUTDOWN_SECONDS = 5.0
_BACKLOG = 1024
_JSON = "application/json"


class Request(Struct, frozen=True):
    """A request that has arrived as a whole. `target` is path and query."""

    method: str
    target: str
    body: bytes


class Response(Struct, frozen=True):
    """What to answer. `allow` names the methods there are, beside 405."""

    status: int
    body: bytes
    content_type: str = "text/plain"
    allow: str = ""

    @classmethod
    def json(cls, body: bytes) -> "Response":
        """Answer with a JSON document."""
        return cls(200, body, _JSON)

    @classmethod
    def text(cls, status: int, line: str = "", *, allow: str = "") -> "Response":
        """Answer with a line of text."""
        return cls(status, (line or HTTPStatus(status).phrase).encode(), allow=allow)


Handler = Callable[[Request], Response | Awaitable[Response]]
"""Answers a request at once, or later; what it raises is answered with a 500."""


class _OnceASecond(logging.Filter):
    """Lets one record a second pass: whoever sends nonsense must not fill the log with it."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether to log a record."""
        now = time.monotonic()
        passes = now >= self._next
        if passes:
            self._next = now + 1.0
        return passes


_failures = logging.getLogger(f"{__name__}.failures")
_failures.addFilter(_OnceASecond())


class HttpServer:
    """Has requests answered. `closing` makes every answer the last of its connection."""

    def __init__(self, handler: Handler, max_body_bytes: int) -> None:
        self.closing = False
        self._handler = handler
        self._max_body_bytes = max_body_bytes
        self._server = _Listed(
            self._answer,
            request_factory=self._request,
            access_log=None,
            logger=_failures,
            keepalive_timeout=_IDLE_SECONDS,
            lingering_time=_LINGER_SECONDS,
        )
        self._runner = web.ServerRunner(self._server, handle_signals=False)
        self._site: web.TCPSite | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeping: Task[None] | None = None
        self._busy: set[RequestHandler] = set()

    def __len__(self) -> int:
        """Say how many connections are open, or still have something decided for them."""
        return len({*self._server.connections, *self._busy})

    @property
    def listening(self) -> bool:
        """Say whether connections are accepted."""
        return self._site is not None

    async def start(
        self, address: Address, tls: ssl.SSLContext | None, *, shared: bool = False
    ) -> Address:
        """Listen; return the address, with the port that was chosen for port 0.

        With `shared`, other processes may listen there, too, and get their part of the
        connections. Raises OSError for an address that can't be had.
        """
        # To ask for it in every request takes a system call (Python 3.11).
        self._loop = asyncio.get_running_loop()
        await self._runner.setup()
        self._site = web.TCPSite(
            self._runner,
            address.host,
            address.port,
            ssl_context=tls,
            backlog=_BACKLOG,
            reuse_port=shared or None,
        )
        await self._site.start()
        self._sweeping = self._loop.create_task(self._sweep())
        return Address(address.host, self._runner.addresses[0][1])

    async def stop_listening(self) -> None:
        """Accept nothing more; what is connected stays."""
        site, self._site = self._site, None
        if site is not None:
            await site.stop()

    async def stop(self) -> None:
        """Close all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._site = None
        await asyncio.wait_for(self._runner.cleanup(), _SHUTDOWN_SECONDS)

    def drop_stale(self, now: float) -> None:
        """Close what has been idle, or has kept a request unfinished, for too long."""
        for connection in self._server.connections:
            since, has_asked = self._server.since.get(connection, (now, False))
            if connection in self._busy or connection.transport is None:
                continue
            if now - since > (_IDLE_SECONDS if has_asked else _REQUEST_SECONDS):
                connection.transport.abort()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.drop_stale(time.monotonic())
            self._server.forget_closed()

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "Task[None]",
    ) -> web.BaseRequest:
        loop, most = self._loop, self._max_body_bytes
        assert loop is not None
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=most)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection, content = request.protocol, request.content
        self._busy.add(connection)
        try:
            # Most bodies have come along with their heads; a timer costs more than to look.
            body = content.read_nowait() if content.is_eof() else await self._read(request)
            if isinstance(body, Response):
                found = body
            elif len(body) > self._max_body_bytes:
                found = self._too_large()
            else:
                asked = self._handler(Request(request.method, request.raw_path, body))
                found = asked if isinstance(asked, Response) else await asked
        except Exception:  # noqa: BLE001 - the boundary of one request: others must go on
            _failures.exception("a review failed")
            found = Response.text(500, "a review failed; see the webhook's log")
        finally:
            self._busy.discard(connection)
            self._server.since[connection] = (time.monotonic(), True)
        if (
            found.content_type is _JSON
            and not self.closing
            and request.keep_alive
            and request.version == HttpVersion11
        ):
            return _Found(found.body)
        response = web.Response(
            status=found.status, body=found.body, content_type=found.content_type
        )
        if found.allow:
            response.headers["Allow"] = found.allow
        if self.closing or found.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            response.force_close()
        return response

    async def _read(self, request: web.BaseRequest) -> bytes | Response:
        """Wait for a body; say instead what is wrong with it."""
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                if hdrs.EXPECT in request.headers:
                    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    request.writer.output_size = 0
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            return self._too_large()
        except TimeoutError:
            return Response.text(408)

    def _too_large(self) -> Response:
        return Response.text(413, f"more than {self._max_body_bytes} bytes")


class _Found(web.StreamResponse):
    """A JSON document on a connection that stays open; written in one piece, head and all."""

    def __init__(self, document: bytes) -> None:
        # The base class would only make room for what puts a head together.
        self._document = document

    @property
    def keep_alive(self) -> bool:
        """Keep the connection."""
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Write all there is, as fast as the client reads."""
        document, writer = self._document, request.writer
        await writer.write_eof(
            b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (_HEAD, _date(), len(document), document)
        )
        return writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing more."""


_HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {_JSON}\r\nDate: ".encode()


def _date() -> bytes:
    """Return the time as HTTP writes it."""
    return _date_of(int(time.time()))


@lru_cache(maxsize=1)
def _date_of(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


class _Listed(web.Server):
    """Knows since when each connection has been idle, and whether it ever asked anything."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.since: dict[RequestHandler, tuple[float, bool]] = {}

    def __call__(self) -> RequestHandler:
        """Make the protocol of a new connection."""
        connection = super().__call__()
        self.since[connection] = (time.monotonic(), False)
        return connection

    def forget_closed(self) -> None:
        """Drop what is known of connections that are no more."""
        there = set(self.connections)
        self.since = {each: known for each, known in self.since.items() if each in there}
