"""fairslice as it runs on a cluster: webhook, queue and Redis, each a process of its own."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import json
from redis.asyncio import Redis

from fairslice.redis_embedded import EmbeddedRedis

from .processes import Program, Result, command, free_port, frozen, run_command
from .waiting import eventually

__all__ = ["Fairslice"]

_LOGGING = {"FAIRSLICE_LOG_FORMAT": "plain", "FAIRSLICE_LOG_LEVEL": "debug"}


class Fairslice:
    """An installation: its parts can be killed and started again one by one.

    `may_uninstall` says that nobody's teams were there before.
    """

    def __init__(self, kubeconfig: str, directory: Path, *, may_uninstall: bool) -> None:
        self.kubeconfig = kubeconfig
        self.may_uninstall = may_uninstall
        self.port = free_port()
        self.webhook_health = f"127.0.0.1:{free_port()}"
        self.queue_status = f"127.0.0.1:{free_port()}"
        self._redis_directory = Path(tempfile.mkdtemp(prefix="fs-")) / "redis"
        self.redis = EmbeddedRedis(self._redis_directory)
        self._redis_url = f"unix://{self._redis_directory}/redis.sock"
        self.webhook = self._program("webhook", directory)
        self.queue = self._program("queue", directory)
        self.all_in_one = self._program("all", directory)

    def _program(self, part: str, directory: Path) -> Program:
        argv = [
            *(command("fairslice"), "serve", part, "--kubeconfig", self.kubeconfig),
            *("--listen", f"127.0.0.1:{self.port}"),
            *("--advertise", f"https://127.0.0.1:{self.port}"),
            *("--health-listen", self.webhook_health, "--status-listen", self.queue_status),
            *("--redis-url", self._redis_url),
            *("--data-dir", str(directory / part)),
        ]
        return Program(part, argv, directory / f"{part}.log", _LOGGING)

    @property
    def programs(self) -> tuple[Program, ...]:
        """Its processes, where each part has its own."""
        return (self.webhook, self.queue)

    async def start(self) -> None:
        """Install and serve; returns when all parts are ready."""
        await self.redis.start()
        await self.serve()

    async def serve(self) -> None:
        """Install for enforcement, start webhook and queue, and wait for them."""
        result = await self.command("install", "--mode", "enforce", within=60)
        assert result.code == 0, result
        for program in self.programs:
            await program.start()
        await self.ready()

    async def stop(self) -> None:
        """End all parts; what is installed stays."""
        for program in (*self.programs, self.all_in_one):
            await program.stop()
        await self.redis.stop()
        shutil.rmtree(self._redis_directory.parent, ignore_errors=True)

    async def lose_redis(self, *, data: bool) -> None:
        """Kill Redis, with all it knows if `data`, and bring it back a moment later."""
        await self.redis.kill()
        if data:
            shutil.rmtree(self._redis_directory)
        await asyncio.sleep(0.5)
        await self.redis.start()

    @asynccontextmanager
    async def redis_frozen(self) -> AsyncIterator[None]:
        """Have Redis hold its connections and answer nothing for a while."""
        async with Redis(unix_socket_path=str(self.redis.socket)) as client:
            pid = int((await client.info("server"))["process_id"])
        with frozen(pid):
            yield

    async def restart(self, program: Program, **env: str) -> None:
        """Kill a part, leave it dead for a moment, and start it again."""
        await program.kill()
        await asyncio.sleep(0.5)
        await program.start(**env)
        await self.ready()

    async def ready(self) -> None:
        """Wait until webhook and queue say that they are."""
        for program, status in (
            (self.webhook, self.webhook_health),
            (self.queue, self.queue_status),
        ):
            await self.ready_one(program, status)

    async def ready_one(self, program: Program, status: str) -> None:
        """Wait until a process says at its status address that it is ready."""
        await eventually(
            f"{program.name} is ready",
            partial(self._readiness, program, status),
            lambda state: state == 200,
            within=30,
        )

    async def _readiness(self, program: Program, status: str) -> int | str:
        if not program.is_running:
            raise AssertionError(f"{program.name} has ended\n{program.tail()}")
        try:
            return (await self._get(status, "/readyz"))[0]
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"

    async def status(self, path: str) -> Any:
        """Read the queue's status endpoint as JSON."""
        code, body = await self._get(self.queue_status, path)
        assert code == 200, f"{path} answers {code}: {body!r}"
        return body

    async def _get(self, address: str, path: str) -> tuple[int, Any]:
        timeout = aiohttp.ClientTimeout(total=5)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"http://{address}{path}") as response,
        ):
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    async def command(self, *args: str, within: float = 30.0) -> Result:
        """Run the `fairslice` command against this installation."""
        argv: Sequence[str] = (command("fairslice"), *args, "--kubeconfig", self.kubeconfig)
        return await run_command(argv, within=within)

    async def audit_report(self) -> list[Any]:
        """Run `fairslice audit report` and read its rows."""
        url = f"http://{self.queue_status}"
        argv = (command("fairslice"), "audit", "report", "-o", "json", "--status-url", url)
        result = await run_command(argv)
        assert result.code == 0, result
        rows: list[Any] = json.decode(result.out)
        return rows

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(program.tail() for program in self.programs)
