"""A small HTTP server that answers as told, and misbehaves on purpose."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web

from fairslice.kube.client import KubeClient
from fairslice.kube.configuration import Endpoint

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def eventually(holds: Callable[[], bool], seconds: float = 5) -> None:
    """Wait until something holds; fail with TimeoutError if it doesn't."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class FixedToken:
    """Credentials that never change."""

    def __init__(self, header: str | None = None) -> None:
        self.header = header

    async def authorization(self, *, rejected: bool = False) -> str | None:
        return self.header


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    at: float


class ScriptedServer:
    """Answers each request with the next handler of the script, then with `default`."""

    def __init__(self, *script: Handler, default: Handler | None = None) -> None:
        self.script = deque(script)
        self.default = default or status(500, "nothing scripted")
        self.asked: list[Asked] = []
        self.busy = 0
        self.most_busy = 0
        self.url = ""

    def client(self, header: str | None = None) -> KubeClient:
        return KubeClient(Endpoint(url=self.url, credentials=FixedToken(header)))

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        (address,) = self._runner.addresses
        self.url = f"http://127.0.0.1:{address[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._runner.cleanup()

    async def wait_busy(self, count: int) -> None:
        """Wait until so many requests are being answered."""
        await eventually(lambda: self.busy >= count)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(
            Asked(
                request.method,
                request.path,
                dict(request.query),
                dict(request.headers),
                await request.read(),
                asyncio.get_running_loop().time(),
            )
        )
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            handler = self.script.popleft() if self.script else self.default
            return await handler(request)
        finally:
            self.busy -= 1


def answer(body: object, code: int = 200, headers: dict[str, str] | None = None) -> Handler:
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=data, status=code, headers=headers, content_type="application/json"
        )

    return handle


def status(
    code: int, message: str, reason: str = "", headers: dict[str, str] | None = None
) -> Handler:
    return answer(
        {"kind": "Status", "code": code, "message": message, "reason": reason}, code, headers
    )


def page(version: str, *items: dict[str, Any], more: str = "") -> Handler:
    metadata = {"resourceVersion": version, **({"continue": more} if more else {})}
    return answer({"kind": "PodList", "metadata": metadata, "items": list(items)})


def pod(name: str, version: str, *, uid: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "nlp",
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": version,
        },
        "spec": spec,
    }


def event(kind: str, obj: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": obj}) + b"\n"


def expired_event() -> bytes:
    return event(
        "ERROR",
        {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old", "metadata": {}},
    )


def stream(*chunks: bytes, then: str = "hang") -> Handler:
    """Send chunks, then `end` cleanly, `hang` with the connection open, or `reset` it."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_type = "application/json"
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        if then == "hang":
            await asyncio.sleep(3600)
        if then == "reset":
            await asyncio.sleep(0.05)
            assert request.transport is not None
            request.transport.abort()
        return response

    return handle


def slow(seconds: float) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return web.Response(body=b"{}")

    return handle
