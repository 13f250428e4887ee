"""The model in virtual time, and the work queue that paces it."""

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from fairslice_sandbox.api import Api
from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.model.cluster import Cluster, ClusterSettings
from fairslice_sandbox.model.controller import Backoff, WorkQueue
from fairslice_sandbox.model.nodes import NodeSpec
from fairslice_sandbox.store import Store
from fairslice_sandbox.users import ADMIN

START = datetime(2026, 11, 30, tzinfo=UTC)


class VirtualClock:
    """Time that jumps to the next sleeper as soon as nobody has anything else to do."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now(self) -> datetime:
        return START + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        return self._elapsed

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), woken))
        await woken

    async def pass_time(self) -> None:
        while True:
            # Long enough for every chain of wake-ups to come to rest.
            for _ in range(50):
                await asyncio.sleep(0)
            while self._sleepers and self._sleepers[0][2].done():
                heapq.heappop(self._sleepers)
            if self._sleepers:
                due, _, woken = heapq.heappop(self._sleepers)
                self._elapsed = max(self._elapsed, due)
                woken.set_result(None)

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.pass_time())
        try:
            yield
        finally:
            task.cancel()


async def test_hours_of_jobs_pass_in_a_moment() -> None:
    clock = VirtualClock()
    api = Api(Store(), clock)
    settings = ClusterSettings(heartbeat_seconds=600, pod_gc_seconds=600)
    cluster = Cluster(api, clock, settings)
    notes = {"sandbox.fairslice.io/run-seconds": "3600"}
    box = {"name": "m", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {
        "metadata": {"annotations": notes},
        "spec": {"containers": [box], "restartPolicy": "Never"},
    }
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"parallelism": 4, "completions": 4, "template": template},
    }
    async with clock.passing(), cluster.running():
        await cluster.add_node(NodeSpec(name="n", model="h100-80gb", gpus=2))
        await api.create("jobs.batch", "default", body, user=ADMIN)
        with api.store.subscribe("jobs.batch") as changes:
            async for change in changes:
                status: dict[str, Any] = change.object.get("status", {})
                if status.get("completionTime"):
                    break
    ran = datetime.fromisoformat(status["completionTime"]) - START
    assert timedelta(hours=2) <= ran < timedelta(hours=2, seconds=5)
    await api.close()


async def test_a_key_is_worked_on_by_one_worker_and_marks_are_kept() -> None:
    clock = VirtualClock()
    running: list[int] = []
    seen: list[int] = []

    async def work(key: int) -> None:
        assert key not in running
        running.append(key)
        await clock.sleep(1)
        running.remove(key)
        seen.append(key)

    queue = WorkQueue(work, clock, Backoff(1, 60))
    async with clock.passing():
        task = asyncio.create_task(queue.run())
        for _ in range(5):
            queue.add(1)
            queue.add(2)
        await clock.sleep(0.5)
        queue.add(1)
        queue.add(1)
        await clock.sleep(10)
        task.cancel()
    assert sorted(seen) == [1, 1, 2]


async def test_refused_work_is_tried_at_doubling_distances() -> None:
    clock = VirtualClock()
    times: list[float] = []

    async def work(key: str) -> None:
        times.append(clock.monotonic())
        if len(times) < 6:
            raise ApiError(403, "Forbidden", "no")

    queue = WorkQueue(work, clock, Backoff(10, 60))
    async with clock.passing():
        task = asyncio.create_task(queue.run())
        queue.add("job")
        await clock.sleep(1000)
        task.cancel()
    assert times == [0, 10, 30, 70, 130, 190]
