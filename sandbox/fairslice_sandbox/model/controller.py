"""How controllers run: work queues with per-key backoff, and coalescing signals.

Keys and delays behave as client-go's rate-limited work queue: a key is worked on by one
worker at a time, marks set meanwhile are kept, errors back off exponentially.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fairslice_sandbox.model.client import ApiError, Clock

__all__ = ["Backoff", "Signal", "WorkQueue"]

_LOG = logging.getLogger(__name__)
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before retry n: `base` doubling up to `limit`."""

    base: float
    limit: float

    def after(self, failures: int) -> float:
        """Give the delay after this many failures in a row (from 1)."""
        return float(min(self.limit, self.base * 2 ** min(failures - 1, 60)))


class Signal:
    """A flag that whoever waits for it lowers, so that many sets are one wake-up."""

    def __init__(self, clock: Clock) -> None:
        """Start raised: the first wait returns at once."""
        self._clock = clock
        self._event = asyncio.Event()
        self._event.set()

    def set(self) -> None:
        """Raise the flag."""
        self._event.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until the flag is up or the time is over, and lower it."""
        if seconds is None:
            await self._event.wait()
        elif not self._event.is_set():
            tasks = [
                asyncio.ensure_future(self._clock.sleep(seconds)),
                asyncio.ensure_future(self._event.wait()),
            ]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
        self._event.clear()


class WorkQueue(Generic[K]):
    """Calls `reconcile(key)` for keys that were marked; it returns seconds to the next look."""

    def __init__(
        self,
        reconcile: Callable[[K], Awaitable[float | None]],
        clock: Clock,
        backoff: Backoff,
        workers: int = 4,
    ) -> None:
        """Errors of the API back off per key; any other error ends `run`."""
        self._reconcile = reconcile
        self._clock = clock
        self._backoff = backoff
        self._workers = workers
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._busy: set[K] = set()
        self._failures: dict[K, int] = {}
        self._due: dict[K, float] = {}
        self._available = asyncio.Semaphore(0)
        self._group: asyncio.TaskGroup | None = None

    def add(self, key: K) -> None:
        """Mark the key for work as soon as possible."""
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._busy:
            self._offer(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Mark the key for work later; an earlier appointment stands."""
        due = self._clock.monotonic() + max(seconds, 0.0)
        if self._group is None or self._due.get(key, due + 1) <= due:
            return
        self._due[key] = due
        self._group.create_task(self._later(key, due, max(seconds, 0.0)))

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            for _ in range(self._workers):
                group.create_task(self._work())

    def _offer(self, key: K) -> None:
        self._ready.append(key)
        self._available.release()

    async def _later(self, key: K, due: float, seconds: float) -> None:
        await self._clock.sleep(seconds)
        if self._due.get(key) == due:
            del self._due[key]
            self.add(key)

    async def _work(self) -> None:
        while True:
            await self._available.acquire()
            key = self._ready.popleft()
            self._dirty.discard(key)
            self._busy.add(key)
            try:
                again = await self._reconcile(key)
                self._failures.pop(key, None)
            except ApiError as error:
                self._failures[key] = self._failures.get(key, 0) + 1
                again = self._backoff.after(self._failures[key])
                _LOG.info("%s: again in %.1f s: %s", key, again, error)
            self._busy.discard(key)
            if key in self._dirty:
                self._offer(key)
            if again is not None:
                self.add_after(key, again)
