"""The queue's process dies at every await, and the next one makes good what it left.

A first run finds all the places at which the process waits; then it dies at each of them in
turn. Whatever died when (DESIGN §5): everything submitted comes to its end, nothing runs twice
at once or again without having been pushed out, no team goes over its limit, no more is given
out than there is, and in the end the books are empty and add up.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fairslice import stamps
from fairslice.kube.client import KubeClient
from fairslice.redis_connection import RedisConnection
from fairslice_queue import holding_back, reign, seat
from fairslice_queue.ledger import Ledger
from fairslice_queue.team_status import restore_use
from fairslice_queue.watching import Watch
from fairslice_sandbox.errors import ApiError

from .dying import Fate, Point, mortals, spawn
from .world import Leader, World, job, make_leader, node, pod, policy, run_watch, team, world

_LIMIT, _GPUS = 2, 2
# Of all points, each run of the suite tries every so-many-th; all of them with CRASH_STRIDE=1.
_STRIDE = int(os.environ.get("CRASH_STRIDE", "8"))


@dataclass
class Process:
    """A queue process that leads until it meets its fate."""

    leader: Leader
    client: KubeClient
    redis: RedisConnection
    fate: Fate
    task: asyncio.Task[Any] | None = None

    @classmethod
    async def begin(cls, box: World, fate: Fate) -> "Process":
        client = await KubeClient.connect(box.kubeconfig)
        redis = RedisConnection.parse(box.redis_url)
        made = cls(make_leader(Watch(client), client, Ledger(redis)), client, redis, fate)
        made.task = spawn(fate, made._run())
        return made

    async def _run(self) -> None:
        leader = self.leader
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_watch(leader.watch))
            await leader.watch.synced()
            restore_use(leader.watch, leader.meter, 0.0)
            tasks.create_task(leader.reign.run())
            tasks.create_task(leader.standing.run(self.client, leader.watch.paths))

    async def bury(self) -> None:
        """End it, if it still lives, and close what it left open."""
        assert self.task is not None
        await self.fate.bury()
        await self.client.close()
        await self.redis.aclose()
        assert not self.fate.haunts

    def has_died(self) -> bool:
        """Say whether it has met its fate; raise what else it ended by."""
        if self.task is not None and self.task.done():
            self.task.result()
        return self.fate.dead


@dataclass
class Life:
    """A cluster whose queue is led by one process after the other."""

    box: World
    name: str
    process: Process | None = None
    deaths: int = 0
    most: Counter[str] = field(default_factory=Counter)

    async def begin(self, fate: Fate) -> None:
        self.process = await Process.begin(self.box, fate)
        self.box.leader = self.process.leader

    async def end(self) -> None:
        if self.process is not None:
            await self.process.bury()
        self.process = self.box.leader = None

    async def until(self, holds: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Wait until it holds, with a new process where one has died."""
        for _ in range(int(seconds / 0.005)):
            assert self.process is not None
            if self.process.has_died():
                self.deaths += 1
                await self.process.bury()
                await self.begin(Fate())
            self._check()
            if found := holds():
                return found
            await asyncio.sleep(0.005)
        raise AssertionError(self.box.describe())

    def _check(self) -> None:
        books = self.box.books
        assert books.tally.pools["nlp", "default"] <= _LIMIT * 1000, self.box.describe()
        given = Counter[str]()
        for item in self.box.objects("Pod"):
            phase = item["status"].get("phase")
            if item["spec"].get("nodeName") and phase not in ("Succeeded", "Failed"):
                limits = item["spec"]["containers"][0]["resources"]["limits"]
                given[item["spec"]["nodeName"]] += int(limits["nvidia.com/gpu"])
            owners = item["metadata"].get("ownerReferences")
            if owners and phase == "Running":
                self.most[owners[0]["name"]] = 1
        assert all(count <= _GPUS for count in given.values()), self.box.describe()


async def _line_with_a_push(life: Life) -> None:
    """A borrower is pushed out by a guarantee, others wait in line; all come to their end."""
    box, name = life.box, life.name
    await box.create(job(f"wide-{name}", gpus=2, seconds=0.2), "nlp")
    await life.until(lambda: f"wide-{name}" in box.running())
    await box.create(job(f"owner-{name}", seconds=0.05), "cv")
    await box.create(job(f"array-{name}", seconds=0.02, completions=2), "nlp")
    names = {f"{kind}-{name}" for kind in ("wide", "owner", "array")}
    await life.until(lambda: names <= box.finished())
    started = Counter(box.doorman.started)
    assert started[f"owner-{name}"] == 1
    assert started[f"wide-{name}"] <= 3


async def _pod_that_returns(life: Life) -> None:
    """A bare pod that asks for it is pushed out, and made again when there is room."""
    box, name = life.box, f"nb-{life.name}"
    await box.create(pod(name, gpus=2, restart=True), "nlp")
    await life.until(lambda: name in box.running())
    await box.create(job(f"owner-{life.name}", seconds=0.05), "cv")
    await life.until(lambda: f"owner-{life.name}" in box.finished())

    def is_back() -> bool:
        restarts = box.note("Pod", name, "nlp", stamps.RESTARTS)
        return restarts in ("1", "2") and name in box.running()

    def is_looked_after() -> bool:
        found = box.objects("PodTemplate", "nlp")
        return len(found) == 1 and stamps.DISRUPTED not in found[0]["metadata"]["annotations"]

    await life.until(is_back)
    await life.until(is_looked_after)
    await box.delete("Pod", name, "nlp", grace=0)
    await life.until(lambda: not box.objects("PodTemplate", "nlp"))
    assert box.get("Pod", name, "nlp") is None


async def _pushed_out_by_others(life: Life) -> None:
    """The kube-scheduler pushes out a Job that counts it as its failure: it is made again."""
    box, name = life.box, f"frail-{life.name}"
    own = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    await box.create(job(name, gpus=2, seconds=0.25, podFailurePolicy=own), "nlp")
    await life.until(lambda: name in box.running())
    with suppress(ApiError):
        await box.scheduler_preempts(seconds=0.05)
    await life.until(lambda: name in box.finished())
    assert not box.finished(kind="Failed")
    await life.until(lambda: not box.objects("PodTemplate", "nlp"))


async def _lost_books(life: Life) -> None:
    """Redis forgets everything while one runs and one waits."""
    box, name = life.box, life.name
    await box.create(job(f"wide-{name}", gpus=2, seconds=0.2), "nlp")
    await box.create(pod(f"bare-{name}", seconds=0.02), "cv")
    await box.create(job(f"next-{name}", seconds=0.02), "nlp")
    await life.until(lambda: len(box.running()) >= 1)
    await box.redis.client.flushall()
    await life.until(lambda: {f"wide-{name}", f"next-{name}"} <= box.finished())
    pods = box.objects("Pod", "cv")
    await life.until(lambda: all(p["status"].get("phase") == "Succeeded" for p in pods))
    started = Counter(box.doorman.started)
    assert started[f"next-{name}"] == 1


async def _failed_start(life: Life) -> None:
    """What finds no node goes back in line, and starts once there is one."""
    box, name = life.box, life.name
    shy = pod(f"shy-{name}", gpus=0)
    shy["metadata"]["labels"] = {"app": "shy"}
    await box.create(shy, "nlp")
    term = {
        "labelSelector": {"matchLabels": {"app": "shy"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    await life.until(lambda: f"shy-{name}" in box.running())
    lost = job(f"lost-{name}", seconds=0.05)
    lost["spec"]["template"]["spec"]["affinity"] = apart
    await box.create(lost, "nlp")
    await box.create(pod(f"nb-{name}", restart=True, seconds=0.05, affinity=apart), "nlp")

    def failed(kind: str, name: str) -> bool:
        return '"failed":' in box.note(kind, name, "nlp", stamps.HISTORY)

    await life.until(lambda: failed("Job", f"lost-{name}") and failed("Pod", f"nb-{name}"))
    await box.delete("Pod", f"shy-{name}", "nlp", grace=0)
    await life.until(lambda: f"lost-{name}" in box.finished())

    def is_done() -> bool:
        found = box.get("Pod", f"nb-{name}", "nlp")
        return found is not None and found["status"].get("phase") == "Succeeded"

    await life.until(is_done)
    await life.until(lambda: not box.objects("PodTemplate", "nlp"))


_SCENARIOS: dict[str, Callable[[Life], Awaitable[None]]] = {
    "a line with a push": _line_with_a_push,
    "a pod that returns": _pod_that_returns,
    "pushed out by others": _pushed_out_by_others,
    "lost books": _lost_books,
    "a failed start": _failed_start,
}


@asynccontextmanager
async def _cluster(redis_url: str, directory: Path) -> AsyncIterator[World]:
    """Two GPUs; cv has one guaranteed, nlp borrows and may hold two."""
    asyncio.get_running_loop().set_task_factory(mortals)
    async with world(redis_url, directory) as box:
        await box.create(policy(startTimeout="1s", restartLimit=100))
        await box.create(team("cv", guaranteed=1))
        await box.create(team("nlp", limit=_LIMIT))
        await box.cluster.add_node(node(gpus=_GPUS))
        # The doorman's view of the cluster outlives every queue process.
        await box.watching()
        yield box


async def _live(box: World, name: str, scenario: str, fate: Fate) -> int:
    """Run a scenario with a process that meets its fate; return how many died."""
    life = Life(box, name)
    await life.begin(fate)
    try:
        await _SCENARIOS[scenario](life)
        for item in box.objects("Job") + box.objects("Pod"):
            with suppress(ApiError):
                await box.delete(item["kind"], item["metadata"]["name"],
                                 item["metadata"]["namespace"], grace=0)  # fmt: skip
        await life.until(lambda: not box.objects("Job") and not box.objects("Pod"))
        await life.until(lambda: len(box.books) == 0)
        assert await box.audit() == []
    except AssertionError as error:
        raise AssertionError(f"died at {fate.point}, visit {fate.visit}: {error}") from error
    finally:
        await life.end()
    return life.deaths


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is looked at from time to time be looked at often."""
    monkeypatch.setattr(reign, "_TICK_SECONDS", 0.05)
    monkeypatch.setattr(reign, "_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(seat, "_REPEAT_SECONDS", 0.3)
    monkeypatch.setattr(holding_back, "_FIRST_SECONDS", 0.2)


@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("scenario", _SCENARIOS)
async def test_the_queue_may_die_at_any_await(
    scenario: str, redis_url: str, tmp_path: Path
) -> None:
    async with _cluster(redis_url, tmp_path) as box:
        points = Counter[Point]()
        for number in range(2):
            scout = Fate()
            assert await _live(box, f"scout{number}", scenario, scout) == 0
            # The very first opens new books: that is a scenario of its own.
            points = scout.seen
        chosen = sorted(points)[len(scenario) % _STRIDE :: _STRIDE]
        died = 0
        for number, point in enumerate(chosen):
            visit = 1 + number % 3 % points[point]
            found = await _live(box, f"{number}", scenario, Fate(point, visit))
            # What it waits at depends on what others do meanwhile: another chance.
            died += found or await _live(box, f"{number}-again", scenario, Fate(point))
        print(f"{scenario}: died {died} times at {len(chosen)} of {len(points)} points")
        assert died >= 0.7 * len(chosen)
