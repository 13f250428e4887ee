"""One HTTP/1.1 connection on which reviews come in, and what is answered on it.

llhttp parses (through httptools); what an API server needs of a server besides is little enough
to stand here, and costs a third of what a general server's requests and responses do. Requests
of one connection are answered one after the other, pipelined ones too.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple, cast

import httptools

__all__ = ["Connections", "HttpConnection", "Request", "Response"]

_log = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 32 * 1024
# So long a request may take to arrive, and so long a client may keep an idle connection. API
# servers give theirs up after 90 s; one that closes first may cut off a POST, which nobody repeats.
_REQUEST_SECONDS = 30.0
_IDLE_SECONDS = 600.0
_LINGER_SECONDS = 0.5
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


class Request(NamedTuple):
    """A request that has arrived as a whole."""

    method: bytes
    target: bytes
    body: bytes


class Response(NamedTuple):
    """What to answer. `allow` names the methods there are, beside 405."""

    status: int
    body: bytes
    content_type: str = _TEXT
    allow: str = ""

    @classmethod
    def json(cls, body: bytes) -> "Response":
        """Answer with a JSON document."""
        return cls(200, body, _JSON)

    @classmethod
    def text(cls, status: int, line: str = "", *, allow: str = "") -> "Response":
        """Answer with a line of text."""
        return cls(status, (line or HTTPStatus(status).phrase).encode(), _TEXT, allow)


Handler = Callable[[Request], Response | Awaitable[Response]]
"""Answers a request at once, or later; what it raises is answered with a 500."""


class Connections:
    """The connections of one server: who answers on them, and until when.

    `closing` makes every answer the last of its connection.
    """

    def __init__(self, handler: Handler, max_body_bytes: int) -> None:
        self.handler = handler
        self.max_body_bytes = max_body_bytes
        self.closing = False
        self.open: set[HttpConnection] = set()
        self._second = self._told = 0
        self._date = b""

    def __len__(self) -> int:
        """Say how many are open."""
        return len(self.open)

    def protocol(self) -> "HttpConnection":
        """Make the protocol of a new connection."""
        return HttpConnection(self)

    def date(self) -> bytes:
        """Return the time as HTTP writes it, worked out once a second."""
        second = int(time.time())
        if second != self._second:
            self._second, self._date = second, formatdate(second, usegmt=True).encode()
        return self._date

    def broken(self) -> Response:
        """Answer where an error comes out of the handler; it is logged, but once a second."""
        second = int(time.time())
        if second != self._told:
            self._told = second
            _log.exception("a review failed")
        return Response.text(500, "a review failed; see the webhook's log")

    def drop_stale(self) -> None:
        """Close what has been idle, or has kept a request unfinished, for too long."""
        now = asyncio.get_running_loop().time()
        for connection in [item for item in self.open if item.stale(now)]:
            connection.abort()

    def abort(self) -> None:
        """Close all at once."""
        for connection in list(self.open):
            connection.abort()


class HttpConnection(asyncio.Protocol):
    """Reads requests, has them answered in turn, and writes the answers."""

    __slots__ = (
        "_arrived",
        "_busy",
        "_chunks",
        "_connections",
        "_head",
        "_last",
        "_loop",
        "_parser",
        "_reading",
        "_receiving",
        "_refused",
        "_since",
        "_size",
        "_target",
        "_task",
        "_transport",
        "_writable",
    )

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._arrived: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._chunks: list[bytes] = []
        self._target = b""
        self._size = 0
        self._head = 0  # bytes of a head that is still coming
        self._since = self._loop.time()
        self._receiving = False  # a request has begun
        self._reading = True  # the transport is not paused
        self._busy = False  # an answer is awaited
        self._refused = False  # nothing more is read
        self._last = False  # the next answer is the last one
        self._writable = True

    # Of the connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no such base
        self._connections.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._arrived.clear()
        # What is being decided goes on, since a booking may be on its way; and is waited for.
        if not self._busy:
            self._connections.open.discard(self)

    def pause_writing(self) -> None:
        self._writable = False
        self._read_on()

    def resume_writing(self) -> None:
        self._writable = True
        self._answer_next()

    def stale(self, now: float) -> bool:
        """Say whether nothing came of this connection for longer than is allowed."""
        if self._busy:
            return False
        return now - self._since > (_REQUEST_SECONDS if self._receiving else _IDLE_SECONDS)

    def abort(self) -> None:
        """Close without waiting for anything."""
        if self._transport is not None:
            self._transport.abort()

    # Of what arrives.

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if not self._receiving:
            self._since = self._loop.time()
            self._receiving = True
        # Set back by every body: a head without an end must not fill the memory.
        self._head += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(Response.text(400, "there is nothing to upgrade to"))
        except httptools.HttpParserError as error:
            self._refuse(Response.text(400, f"not HTTP: {error}".splitlines()[0]))
        if self._head > _MAX_HEAD_BYTES:
            self._refuse(Response.text(431))
        if self._arrived:
            self._answer_next()

    def on_message_begin(self) -> None:
        self._receiving = True
        self._chunks = []
        self._size = 0
        self._target = b""

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 6 and name.lower() == b"expect" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_headers_complete(self) -> None:
        self._head = 0

    def on_body(self, part: bytes) -> None:
        self._head = 0
        self._size += len(part)
        if self._size <= self._connections.max_body_bytes:
            self._chunks.append(part)
        else:
            limit = self._connections.max_body_bytes
            self._refuse(Response.text(413, f"more than {limit} bytes"))

    def on_message_complete(self) -> None:
        self._receiving = False
        self._head = 0
        if self._refused:
            return
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        request = Request(self._parser.get_method(), self._target, body)
        self._arrived.append((request, self._parser.should_keep_alive()))

    # Of what is answered.

    def _answer_next(self) -> None:
        """Answer what has arrived, until one takes its time or the client reads too slowly."""
        while self._arrived and not self._busy and self._writable and self._transport is not None:
            request, keeps = self._arrived.popleft()
            self._last = self._last or not keeps
            try:
                found = self._connections.handler(request)
            except Exception:  # noqa: BLE001 - the boundary of one request: others must go on
                found = self._connections.broken()
            if isinstance(found, Response):
                self._write(found)
            else:
                self._busy = True
                self._task = self._loop.create_task(self._answer_later(found))
        self._read_on()

    async def _answer_later(self, answer: Awaitable[Response]) -> None:
        try:
            response = await answer
        except Exception:  # noqa: BLE001 - as above
            response = self._connections.broken()
        finally:
            self._busy = False
            self._task = None
        if self._transport is None:
            self._connections.open.discard(self)
            return
        self._write(response)
        self._answer_next()

    def _read_on(self) -> None:
        """Read on only while nothing that has arrived waits, so that no queue grows."""
        reading = self._writable and not self._arrived
        if reading is self._reading or self._transport is None:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _write(self, response: Response) -> None:
        transport = self._transport
        assert transport is not None
        last = self._last or self._connections.closing
        self._since = self._loop.time()
        transport.write(_written(response, self._connections.date(), last=last))
        if last:
            self._refused = True
            self._arrived.clear()
            transport.close()

    def _refuse(self, response: Response) -> None:
        """Read no further: answer so after what is being answered, and close."""
        if self._refused:
            return
        self._refused = self._last = True
        self._arrived.clear()
        self._chunks = []
        if self._busy or self._transport is None:
            return
        self._transport.write(_written(response, self._connections.date(), last=True))
        # What the client still sends is taken in, or it would see a reset before the answer.
        self._loop.call_later(_LINGER_SECONDS, self._transport.close)


_FOUND = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: "


def _written(response: Response, date: bytes, *, last: bool) -> bytes:
    """Write an answer out, head and body."""
    if response.status == 200 and response.content_type is _JSON:
        head = _FOUND
    else:
        status = HTTPStatus(response.status)
        allow = f"\r\nAllow: {response.allow}" if response.allow else ""
        kind = f"\r\nContent-Type: {response.content_type}\r\nDate: "
        head = f"HTTP/1.1 {status.value} {status.phrase}{allow}{kind}".encode()
    close = b"\r\nConnection: close" if last else b""
    body = response.body
    return b"%b%b\r\nContent-Length: %d%b\r\n\r\n%b" % (head, date, len(body), close, body)
