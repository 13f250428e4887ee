"""A replica that is told to end answers what it was asked: no request is lost under load.

A replica is of two processes here, each with connections of its own to end.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

from .harness.client import Refused
from .harness.manifests import pod
from .harness.processes import Program, free_port
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.shapes import a100
from .harness.waiting import eventually

_EXPERIMENT = {"fairslice.io/class": "experiment"}
_CUSTOMERS = 12


class _Service:
    """What a Service is to an API server: new connections go to the endpoint of the moment."""

    def __init__(self, endpoint: int) -> None:
        self.endpoint = endpoint
        self.port = 0
        # An event loop refers to its tasks but weakly.
        self._forwarding: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["_Service"]:
        """Forward connections meanwhile."""
        async with AsyncExitStack() as stack:
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            stack.push_async_callback(self._stop)
            stack.callback(server.close)
            self.port = server.sockets[0].getsockname()[1]
            yield self

    async def _stop(self) -> None:
        for task in self._forwarding:
            task.cancel()
        await asyncio.gather(*self._forwarding, return_exceptions=True)

    async def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._forwarding.add(task)
        try:
            await self._forward(near, back)
        finally:
            self._forwarding.discard(task)

    async def _forward(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with closing(back):
            try:
                far, out = await asyncio.open_connection("127.0.0.1", self.endpoint)
            except OSError:
                back.transport.abort()
                return
            with closing(out):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_copy(near, out))
                    tasks.create_task(_copy(far, back))


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    with suppress(OSError):
        target.write_eof()


async def test_a_replica_that_ends_under_load_loses_no_request(
    scene: Scene, fairslice: Fairslice, tmp_path: Path
) -> None:
    await scene.node(a100(mig_1g_10gb=7))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    await fairslice.webhook.stop()
    first, second = free_port(), free_port()
    try:
        async with _Service(first).serving() as service, AsyncExitStack() as stack:
            replicas = []
            for name, port in (("first", first), ("second", second)):
                replica, health = _replica(fairslice, name, port, service.port, tmp_path)
                stack.push_async_callback(replica.stop)
                await replica.start()
                await fairslice.ready_one(replica, health)
                replicas.append(replica)

            answered, lost, stop = 0, list[str](), asyncio.Event()

            async def customer(gpus: int) -> None:
                nonlocal answered
                asked = pod("asks", team.namespace, gpus, labels=_EXPERIMENT)
                if not gpus:
                    asked["metadata"]["labels"]["system.fairslice.io/x"] = "sent to the webhook"
                while not stop.is_set():
                    try:
                        await team.create(asked, dry_run=True)
                        answered += 1
                    except Refused as refusal:
                        lost.append(str(refusal))

            await eventually(
                "the webhook answers",
                lambda: _answers(
                    team.create(pod("asks", team.namespace, 1, labels=_EXPERIMENT), dry_run=True)
                ),
            )
            async with asyncio.TaskGroup() as customers:
                for number in range(_CUSTOMERS):
                    customers.create_task(customer(number % 2))
                await asyncio.sleep(0.5)
                before = answered
                ending = asyncio.create_task(replicas[0].stop())
                await asyncio.sleep(0.1)  # Endpoints follow a moment later.
                service.endpoint = second
                code = await ending
                at_end = answered
                await asyncio.sleep(0.5)
                stop.set()
        assert lost == []
        assert code == 0
        assert 0 < before < at_end < answered
    finally:
        await fairslice.webhook.start()
        await fairslice.ready()
        await _is_called_again(scene, fairslice)


async def _is_called_again(scene: Scene, fairslice: Fairslice) -> None:
    """Wait until the API server calls the suite's own webhook, and no replica behind a Service."""
    argv = fairslice.webhook.argv
    advertised = argv[argv.index("--advertise") + 1]

    async def called() -> set[str]:
        found: set[str] = set()
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
            registered = await scene.api.get(kind, "fairslice")
            found |= {entry["clientConfig"].get("url", "") for entry in registered["webhooks"]}
        return found

    await eventually(
        "the suite's own webhook is registered again",
        called,
        lambda urls: bool(urls) and all(url.startswith(advertised) for url in urls),
    )


async def _answers(request: Awaitable[object]) -> bool:
    try:
        await request
    except Refused:
        return False
    return True


def _replica(
    fairslice: Fairslice, name: str, port: int, advertised: int, directory: Path
) -> tuple[Program, str]:
    """Make a replica of the webhook behind a Service; return it and its health address."""
    health = f"127.0.0.1:{free_port()}"
    changed = {
        "--listen": f"127.0.0.1:{port}",
        "--advertise": f"https://127.0.0.1:{advertised}",
        "--health-listen": health,
        "--data-dir": str(directory / name),
    }
    argv = [*fairslice.webhook.argv, "--workers", "2"]
    for option, value in changed.items():
        argv[argv.index(option) + 1] = value
    return Program(name, argv, directory / f"{name}.log", {"FAIRSLICE_LOG_FORMAT": "plain"}), health
