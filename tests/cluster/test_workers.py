"""A webhook of several processes is one webhook: ready, counted, ended and broken as a whole."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from .harness.manifests import pod
from .harness.processes import free_port
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.shapes import a100
from .harness.waiting import eventually

_EXPERIMENT = {"fairslice.io/class": "experiment"}
_COUNT = 3


@asynccontextmanager
async def _webhook(
    fairslice: Fairslice, directory: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Run a webhook of three processes in the place of the suite's own."""
    health = f"127.0.0.1:{free_port()}"
    argv = [*fairslice.webhook.argv, "--workers", str(_COUNT)]
    argv[argv.index("--health-listen") + 1] = health
    await fairslice.webhook.stop()
    try:
        with (directory / "workers.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*argv, stdout=log, stderr=log)
        try:
            await eventually("all are ready", lambda: _text(health, "/readyz"), within=30)
            yield process, health
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    finally:
        await fairslice.webhook.start()
        await fairslice.ready()


async def _text(address: str, path: str) -> str:
    """Read a page; empty where there is none."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{address}{path}") as response,
        ):
            return await response.text() if response.status == 200 else ""
    except aiohttp.ClientError:
        return ""


async def _answered(health: str) -> float:
    page = await _text(health, "/metrics")
    found = re.findall(r"^fairslice_admission_requests_total\{.*\} (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


def _children(parent: int) -> Sequence[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in text.split()]


async def test_several_processes_answer_and_are_counted_as_one(
    scene: Scene, fairslice: Fairslice, tmp_path: Path
) -> None:
    await scene.node(a100(mig_1g_10gb=7))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    async with _webhook(fairslice, tmp_path) as (process, health):
        assert len(_children(process.pid)) == _COUNT - 1
        before = await _answered(health)
        asked = pod("asks", team.namespace, 1, labels=_EXPERIMENT)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(60):
                tasks.create_task(team.create(asked, dry_run=True))
        assert await _answered(health) - before >= 60
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 15) == 0


async def test_a_worker_that_dies_takes_the_webhook_down_to_be_started_anew(
    scene: Scene, fairslice: Fairslice, tmp_path: Path
) -> None:
    async with _webhook(fairslice, tmp_path) as (process, health):
        victim, other = _children(process.pid)
        os.kill(victim, signal.SIGKILL)
        assert await asyncio.wait_for(process.wait(), 20) == 1
        log = (tmp_path / "workers.log").read_text()
        assert "ended by itself (exit code -9)" in log
        assert not _is_alive(other)
        assert await _text(health, "/livez") == ""


async def test_workers_end_with_a_first_process_that_is_killed(
    scene: Scene, fairslice: Fairslice, tmp_path: Path
) -> None:
    async with _webhook(fairslice, tmp_path) as (process, _):
        children = _children(process.pid)
        process.kill()
        await process.wait()

        async def gone() -> bool:
            return not any(_is_alive(pid) for pid in children)

        await eventually("the workers are gone", gone, within=5)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
