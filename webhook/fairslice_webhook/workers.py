"""The worker processes beside the first one: started, told, asked, and ended with it.

Each listens on the same port, where the kernel spreads new connections over all. One that ends
by itself, or no longer answers, takes the whole webhook down, to be started anew as a whole.
"""

import asyncio
import logging
import math
import os
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Sequence
from pathlib import Path

from fairslice.service import ServiceError
from fairslice.settings import Settings
from fairslice_webhook.figures import Family
from fairslice_webhook.worker_link import Certificate, Drain, Link, Look, Report, Start

__all__ = ["Workers", "usable_cores", "usual_count"]

_log = logging.getLogger(__name__)

_MOST_BY_DEFAULT = 2
_LOOK_SECONDS = 1.0
_SILENT_SECONDS = 30.0
_FRESH_SECONDS = 0.5
# Beyond the drain itself: last answers, last audit records.
_END_SECONDS = 5.0


def usual_count() -> int:
    """Say how many processes answer where nobody says otherwise.

    One does for any API server; the second keeps short answers from waiting for long ones. A
    core stays for whom they wait for: taking turns with Redis costs more than a second one saves.
    """
    return max(1, min(_MOST_BY_DEFAULT, usable_cores() - 1))


def usable_cores() -> int:
    """Say how many cores this process may use, by affinity and by its cgroup's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, _quota()))


def _quota(limits: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    try:
        quota, _, period = limits.read_text().partition(" ")
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return sys.maxsize  # none ("max"), or no such file


class _Worker:
    """One worker process, as the first one sees it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.report: Report | None = None
        self.heard = asyncio.Event()
        self.heard_at = asyncio.get_running_loop().time()
        self.link: Link | None = None
        self.ended = asyncio.Event()

    def problems(self, serial: str) -> list[str]:
        """List what keeps it from being ready to serve this certificate."""
        if self.report is None:
            return ["not started yet"]
        if self.report.problems or self.report.serial == serial:
            return list(self.report.problems)
        return ["serves another certificate"]

    async def look(self) -> None:
        """Wait a moment for a fresh report."""
        if self.link is None or self.ended.is_set():
            return
        self.heard.clear()
        self.link.send(Look())
        try:
            await asyncio.wait_for(self.heard.wait(), _FRESH_SECONDS)
        except TimeoutError:
            _log.debug("worker %d reports late", self.number)


class Workers:
    """All workers of a webhook; there may be none. Run `run` as a task."""

    def __init__(self, count: int, settings: Settings) -> None:
        self._settings = settings
        self._workers = [_Worker(number) for number in range(1, count + 1)]
        self._certificate: Certificate | None = None
        self._draining = False

    @property
    def any(self) -> bool:
        """Say whether there are any."""
        return bool(self._workers)

    async def run(self, secret_path: str, port: int) -> None:
        """Start the workers and keep an eye on them, until cancelled or drained.

        Raises ServiceError when one ends by itself or says nothing for 30 s.
        """
        start = Start(self._settings, secret_path, port)
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers:
                tasks.create_task(self._keep(worker, start))

    def certify(self, chain: bytes, key: bytes) -> None:
        """Have all serve this certificate (PEM)."""
        self._certificate = Certificate(chain, key)
        for worker in self._workers:
            if worker.link is not None:
                worker.link.send(self._certificate)

    def problems(self, serial: str) -> list[str]:
        """List what keeps workers from being ready to serve this certificate."""
        return [
            f"worker {worker.number}: {problem}"
            for worker in self._workers
            for problem in worker.problems(serial)
        ]

    async def families(self) -> Sequence[tuple[Family, ...]]:
        """Ask all for what they have counted."""
        await asyncio.gather(*(worker.look() for worker in self._workers))
        return [worker.report.families for worker in self._workers if worker.report is not None]

    async def drain(self, seconds: float) -> None:
        """Have all answer for so many seconds more and end; those that don't are ended."""
        self._draining = True
        for worker in self._workers:
            if worker.link is not None:
                worker.link.send(Drain(seconds))
        started = [worker for worker in self._workers if worker.link is not None]
        try:
            async with asyncio.timeout(seconds + _END_SECONDS):
                for worker in started:
                    await worker.ended.wait()
        except TimeoutError:
            _log.warning("a worker did not end in time")

    async def _keep(self, worker: _Worker, start: Start) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "fairslice_webhook.worker", str(theirs.fileno())),
                stdin=DEVNULL,
                pass_fds=(theirs.fileno(),),
            )
        try:
            link = await Link.over(ours)
            link.send(start)
            if self._certificate is not None:
                link.send(self._certificate)
            worker.link = link
            async with asyncio.TaskGroup() as tasks:
                watching = [
                    tasks.create_task(self._listen(worker, link)),
                    tasks.create_task(self._look(worker)),
                ]
                code = await process.wait()
                worker.ended.set()
                for task in watching:
                    task.cancel()
            link.close()
        finally:
            await _end(process)
        if not self._draining:
            raise ServiceError(f"webhook worker {worker.number} ended by itself (exit code {code})")

    async def _listen(self, worker: _Worker, link: Link) -> None:
        while True:
            report = await link.report()
            if report is None:
                return
            worker.report, worker.heard_at = report, asyncio.get_running_loop().time()
            worker.heard.set()

    async def _look(self, worker: _Worker) -> None:
        """Ask how it is, once a second."""
        while not self._draining:
            assert worker.link is not None
            worker.link.send(Look())
            await asyncio.sleep(_LOOK_SECONDS)
            if asyncio.get_running_loop().time() - worker.heard_at > _SILENT_SECONDS:
                raise ServiceError(f"webhook worker {worker.number} no longer answers")


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
