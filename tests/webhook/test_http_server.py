"""HTTP as an API server speaks it, and as nobody should."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from fairslice.settings import Address
from fairslice_webhook.http_server import HttpServer, Request, Response

LIMIT = 1000


@dataclass
class Place:
    """A server that tells what was asked, and connections to it."""

    server: HttpServer
    port: int
    gate: asyncio.Event
    seen: list[Request] = field(default_factory=list)

    async def ask(self, *parts: bytes, pause: float = 0.0) -> bytes:
        """Send, and read until the server closes or says nothing for a while."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        found = b""
        try:
            while True:
                data = await asyncio.wait_for(reader.read(65536), 0.2)
                if not data:
                    break
                found += data
        except TimeoutError:
            pass
        writer.close()
        await writer.wait_closed()
        return found


@pytest_asyncio.fixture
async def place() -> AsyncIterator[Place]:
    gate, seen = asyncio.Event(), list[Request]()

    async def slow(request: Request) -> Response:
        await gate.wait()
        return Response.json(b"slow " + request.body)

    def respond(request: Request) -> Response | Awaitable[Response]:
        seen.append(request)
        if request.target == "/slow":
            return slow(request)
        if request.target == "/broken":
            raise RuntimeError("boom")
        return Response.json(f"{request.method} {request.target} ".encode() + request.body)

    server = HttpServer(respond, LIMIT)
    address = await server.start(Address("127.0.0.1", 0), None)
    yield Place(server, address.port, gate, seen)
    gate.set()
    await server.stop()


def post(body: bytes = b"", target: bytes = b"/x", *headers: bytes) -> bytes:
    lines = [b"POST %b HTTP/1.1" % target, b"Host: h", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def statuses(found: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", found)]


async def test_an_answer_has_what_http_asks_for(place: Place) -> None:
    found = await place.ask(post(b"{}"))
    head, _, body = found.partition(b"\r\n\r\n")
    assert body == b"POST /x {}"
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: application/json" in head
    assert b"Content-Length: 10" in head
    assert b"Connection:" not in head


async def test_a_request_may_come_byte_by_byte(place: Place) -> None:
    raw = post(b"body")
    found = await place.ask(*(raw[at : at + 1] for at in range(len(raw))))
    assert found.endswith(b"POST /x body")
    assert len(place.seen) == 1


async def test_a_body_may_come_in_chunks(place: Place) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    found = await place.ask(head, b"3\r\nabc\r\n", b"2\r\nde\r\n0\r\n\r\n", pause=0.01)
    assert found.endswith(b"POST /x abcde")


async def test_a_connection_is_kept_and_pipelined_requests_are_answered_in_order(
    place: Place,
) -> None:
    asking = asyncio.ensure_future(
        place.ask(post(b"1"), post(b"2", b"/slow") + post(b"3") + post(b"4", b"/slow"), post(b"5"))
    )
    await asyncio.sleep(0.1)
    # The third waits for the second's answer, though it would need no waiting itself.
    assert [request.body for request in place.seen] == [b"1", b"2"]
    place.gate.set()
    found = await asking
    assert re.findall(rb"(?:x|slow) (\d)", found) == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_client_that_waits_for_leave_to_send_is_given_it(place: Place) -> None:
    raw = post(b"body", b"/x", b"Expect: 100-continue")
    head, _, body = raw.partition(b"\r\n\r\n")
    found = await place.ask(head + b"\r\n\r\n", body, pause=0.05)
    assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00", 400),
        (post(b"", b"/x", b"Content-Length: 7"), 400),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400),
        (post(b"", b"/" + b"x" * 40_000), 400),
        (post(b"", b"/x", *(b"X-%d: y" % n for n in range(1000))), 400),
        (post(b"x" * (LIMIT + 1)), 413),
    ],
)
async def test_what_can_not_be_read_is_refused_and_the_connection_closed(
    place: Place, raw: bytes, status: int
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(raw)
    found = await asyncio.wait_for(reader.read(), 5)
    assert statuses(found) == [status]
    assert place.seen == []
    writer.close()
    await writer.wait_closed()


async def test_a_failure_is_answered_and_the_connection_goes_on(place: Place) -> None:
    assert statuses(await place.ask(post(b"", b"/broken"), post())) == [500, 200]


async def test_many_failures_do_not_fill_the_log(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    await asyncio.sleep(1.0)  # of what another test did
    await place.ask(*[post(b"", b"/broken")] * 200)
    assert 1 <= len(caplog.records) <= 2
    assert "boom" in caplog.text


async def test_a_client_that_wants_no_more_is_told_so(place: Place) -> None:
    found = await place.ask(post(b"", b"/x", b"Connection: close"))
    assert b"Connection: close" in found
    assert (await place.ask(b"GET /x HTTP/1.0\r\n\r\n")).endswith(b"GET /x ")
    assert len(place.server) == 0


async def test_while_closing_every_answer_is_the_last_of_its_connection(place: Place) -> None:
    asking = asyncio.ensure_future(place.ask(post(b"1", b"/slow"), post(b"2")))
    await asyncio.sleep(0.05)
    place.server.closing = True
    place.gate.set()
    found = await asking
    assert statuses(found) == [200]
    assert b"Connection: close" in found


async def test_a_client_that_left_is_still_waited_for(place: Place) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(post(b"1", b"/slow"))
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.05)
    assert len(place.server) == 1
    place.gate.set()
    await asyncio.sleep(0.05)
    assert len(place.server) == 0


async def test_unfinished_requests_and_idle_connections_are_given_up(place: Place) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\n")
    await asyncio.sleep(0.05)
    now = asyncio.get_running_loop().time()
    place.server.drop_stale(now + 29)
    writer.write(b"Content-Length: 0\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(len("POST /x "))
    place.server.drop_stale(now + 100)  # longer than an API server keeps it
    assert statuses(await place.ask(post())) == [200]
    writer.write(post())
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(len("POST /x "))
    place.server.drop_stale(now + 700)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 1) == b""
    writer.close()


async def test_who_never_finishes_a_first_request_is_given_up(place: Place) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(b"POST /x HTTP/1.1\r\nHost: h\r\n")
    await asyncio.sleep(0.05)
    place.server.drop_stale(asyncio.get_running_loop().time() + 31)
    with suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 1) == b""
    writer.close()


async def test_a_client_that_reads_slowly_is_not_read_from_either(place: Place) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(client, ("127.0.0.1", place.port))
        # Until the server takes no more: its answers stand in the way.
        unsent = post(b"x" * LIMIT) * 20_000
        with suppress(TimeoutError):
            while unsent:
                count = await asyncio.wait_for(_send(client, unsent[:65536]), 0.5)
                unsent = unsent[count:]
        answered = len(place.seen)
        assert unsent
        assert answered > 0
        async with asyncio.timeout(5):
            while len(place.seen) == answered:
                await loop.sock_recv(client, 65536)


async def _send(client: socket.socket, data: bytes) -> int:
    while True:
        try:
            return client.send(data)
        except BlockingIOError:
            await asyncio.sleep(0.01)
