"""A load generator of its own process: keep-alive connections over TLS, next to no work each.

Reads a `Plan` as JSON from stdin and writes a `Result` as MessagePack to stdout. Closed loop:
each connection sends again as soon as it has its answer. Open loop: requests fall due at a
fixed rate, and a latency counts from when its request was due, so that no stall stays unseen.
"""

import asyncio
import os
import ssl
import sys
import time
from collections import deque
from itertools import count
from typing import cast

import msgspec
import uvloop
from msgspec import Struct

__all__ = ["NAME", "TEAM", "TOKEN", "Plan", "Result"]

NAME = b"bench-000000000"
"""Stands for a name that is new in every request."""

TEAM = b"bench-team-000"
"""Stands for one team's namespace after the other."""

TOKEN = b"kube-api-access-00000"
"""Stands for a token volume, which the API server names at random."""

_ALLOWED = b'"allowed":true'


class Plan(Struct, frozen=True, kw_only=True):
    """What to send. `bodies` are sent in turn; `rate` 0 is a closed loop."""

    port: int
    authority: str
    path: str
    bodies: tuple[bytes, ...]
    seconds: float
    connections: int = 16
    rate: float = 0.0
    teams: int = 1
    first_name: int = 0
    core: int | None = None
    warm_up: float = 0.3


class Result(Struct, frozen=True, kw_only=True):
    """What came of it. Latencies in seconds; `refused` are denials, `failed` any but 200."""

    answers: int
    seconds: float
    latencies: tuple[float, ...]
    refused: int
    failed: int
    last_name: int
    cpu_seconds: float


class _Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self, load: "_Load") -> None:
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._pending = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has no such base

    def send(self, request: bytes, since: float) -> None:
        """Send a request whose time counts from `since`."""
        assert self._transport is not None
        self._sent = since
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        pending = self._pending + data if self._pending else data
        head = pending.find(b"\r\n\r\n")
        if head < 0:
            self._pending = pending
            return
        start = pending.find(b"ontent-Length: ") + 15
        length = int(pending[start : pending.index(b"\r\n", start)])
        if len(pending) < head + 4 + length:
            self._pending = pending
            return
        self._pending = b""
        self._load.answered(self, pending, self._sent)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lost()

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()


class _Load:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._heads = [_head(plan, body) + body for body in plan.bodies]
        self._names = count(plan.first_name)
        self._name = plan.first_name
        self._idle: deque[_Connection] = deque()
        self._due: deque[float] = deque()
        self._counting = False
        self._stopping = False
        self._latencies: list[float] = []
        self._refused = self._failed = 0

    async def run(self) -> Result:
        """Send for as long as planned."""
        plan, loop = self._plan, asyncio.get_running_loop()
        tls = ssl.create_default_context(cadata=plan.authority)
        connections = []
        for _ in range(plan.connections):
            _, connection = await loop.create_connection(
                lambda: _Connection(self), "127.0.0.1", plan.port, ssl=tls,
                server_hostname="localhost",
            )  # fmt: skip
            connections.append(connection)
        self._idle.extend(connections)
        ticking = loop.create_task(self._tick()) if plan.rate else None
        if not plan.rate:
            while self._idle:
                self._send(self._idle.popleft(), time.perf_counter())
        await asyncio.sleep(plan.warm_up)
        self._counting, started, used = True, time.perf_counter(), time.process_time()
        await asyncio.sleep(plan.seconds)
        self._counting = False
        elapsed = time.perf_counter() - started
        self._stopping = True
        if ticking is not None:
            ticking.cancel()
        for connection in connections:
            connection.close()
        return Result(
            answers=len(self._latencies),
            seconds=elapsed,
            latencies=tuple(self._latencies),
            refused=self._refused,
            failed=self._failed,
            last_name=self._name,
            cpu_seconds=time.process_time() - used,
        )

    def answered(self, connection: _Connection, answer: bytes, since: float) -> None:
        """Take an answer, and go on."""
        now = time.perf_counter()
        if self._counting:
            self._latencies.append(now - since)
            self._failed += not answer.startswith(b"HTTP/1.1 200")
            self._refused += _ALLOWED not in answer
        if self._stopping:
            return
        if not self._plan.rate:
            self._send(connection, now)
        elif self._due:
            self._send(connection, self._due.popleft())
        else:
            self._idle.append(connection)

    def lost(self) -> None:
        """Count a connection that the other side closed."""
        self._failed += not self._stopping

    async def _tick(self) -> None:
        """Have requests fall due at the rate."""
        started, sent = time.perf_counter(), 0
        while True:
            now = time.perf_counter()
            while (due := started + sent / self._plan.rate) <= now:
                sent += 1
                if self._idle:
                    self._send(self._idle.popleft(), due)
                else:
                    self._due.append(due)
            await asyncio.sleep(due - now)

    def _send(self, connection: _Connection, since: float) -> None:
        self._name = number = next(self._names)
        request = self._heads[number % len(self._heads)]
        request = request.replace(NAME, b"bench-%09d" % number)
        request = request.replace(TOKEN, b"kube-api-access-%05d" % (number % 100_000))
        connection.send(request.replace(TEAM, b"bench-team-%03d" % (number % self._plan.teams)),
                        since)  # fmt: skip


def _head(plan: Plan, body: bytes) -> bytes:
    return (
        f"POST {plan.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode()


def main() -> None:
    """Run the plan that comes on stdin."""
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=Plan)
    if plan.core is not None:
        os.sched_setaffinity(0, {plan.core})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(msgspec.msgpack.encode(runner.run(_Load(plan).run())))


if __name__ == "__main__":
    main()
