"""Creating Jobs on a real control plane: without any webhook, on the fast path, queued."""

import asyncio
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.cluster.harness.client import Api
from tests.cluster.harness.history import is_suspended
from tests.cluster.harness.installation import installed
from tests.cluster.harness.kinds import Obj, collection
from tests.cluster.harness.manifests import job
from tests.cluster.harness.scene import Scene
from tests.cluster.harness.serving import Fairslice
from tests.cluster.harness.shapes import a100
from tests.cluster.harness.target import Target
from tests.cluster.harness.waiting import eventually

from fairslice.kube.client import KubeClient

from .control_plane import paused, process_of, writes, writes_between
from .measuring import cpu_seconds, peak_mib
from .report import Figure, Report

__all__ = ["measure_creating", "own_processes"]

_CLIENTS = 32
_NODES, _GPUS = 16, 64
_QUIET_SECONDS = 2.0
_WITHIN = 300.0


async def measure_creating(
    report: Report, kubeconfig: str, jobs: int, controllers: Sequence[int]
) -> None:
    """Measure rates and writes, with the controllers stopped if they were named."""
    stopped = "stopped" if controllers else "running, unless you stopped them (see --controllers)"
    report.note(
        f"jobs: {jobs:,} Jobs by {_CLIENTS} clients, {_NODES} nodes of {_GPUS} GPUs; controllers "
        f"{stopped}; writes are the API server's own count, leases and access reviews aside"
    )
    api = await Api.connect(kubeconfig)
    async with Target("real", kubeconfig, api) as target, await KubeClient.connect(kubeconfig) as c:
        measure = partial(_Submission, c, target, jobs)
        before = await measure("floor", controllers).run()
        with tempfile.TemporaryDirectory(prefix="fairslice-bench-") as directory:
            async with installed(target, Path(directory)) as fairslice:
                scene = Scene(target)
                await asyncio.gather(*(scene.node(a100(whole=_GPUS)) for _ in range(_NODES)))
                # Each with a team of its own, whose books don't hold what the other left.
                fast = await measure("fast", controllers, scene).run()
                queued = await measure("queued", controllers, scene, constrained=True).run()
                _tell_processes(report, fairslice)
        after = await measure("floor", controllers).run()
    floor = (before.rate + after.rate) / 2
    report.add(
        Figure(
            subject="no webhook at all",
            measure="Jobs created",
            value=floor,
            unit="Jobs/s",
            ratio=1.0,
            note=f"before {before.rate:.0f}, after {after.rate:.0f}; "
            f"{before.each(jobs):.2f} writes a Job",
        )
    )
    for name, done, ratio, most in (
        ("capacity for all, fast path", fast, 0.55, 1.3),
        ("every Job queued, then released", queued, 0.2, 3.0),
    ):
        report.add(
            Figure(
                subject=name,
                measure="Jobs created" if done is fast else "Jobs created and released",
                value=done.rate,
                unit="Jobs/s",
                ratio=done.rate / floor,
                p50_ms=done.p50_ms,
                p99_ms=done.p99_ms,
                required=f">= {ratio} of floor",
                met=done.rate / floor >= ratio,
                note=done.note,
            )
        )
        each = done.each(jobs)
        listed = ", ".join(f"{key} {count}" for key, count in done.counted.most_common(5))
        report.add(
            Figure(
                subject=name,
                measure="API writes",
                value=each,
                unit="a Job",
                required=f"<= {most}",
                met=each <= most,
                note=listed,
            )
        )


def own_processes() -> dict[str, int]:
    """Find fairslice's processes on this machine, as the suite starts them."""
    found = {name: process_of(f"serve {name}") for name in ("webhook", "queue")}
    found["redis"] = process_of("unixsocket:")
    return {name: pid for name, pid in found.items() if pid is not None}


def _tell_processes(report: Report, fairslice: Fairslice) -> None:
    for name, pid in own_processes().items():
        report.add(
            Figure(
                subject=f"fairslice's {name}",
                measure="memory, peak",
                value=peak_mib(pid),
                unit="MiB",
                note=f"CPU {cpu_seconds(pid):.1f} s",
            )
        )


class _Submission:
    """One batch of Jobs, from the first creation to the last release."""

    def __init__(
        self,
        client: KubeClient,
        target: Target,
        jobs: int,
        name: str,
        controllers: Sequence[int],
        scene: Scene | None = None,
        *,
        constrained: bool = False,
    ) -> None:
        self._client = client
        self._target = target
        self._jobs = jobs
        self._name = name
        self._controllers = controllers
        self._scene = scene
        self._constrained = constrained
        self._unreleased: set[str] = set()
        self._all_released = asyncio.Event()
        self._last_release = 0.0
        self.rate = 0.0
        self.p50_ms = self.p99_ms = float("nan")
        self.counted: Counter[str] = Counter()
        self.note = ""

    def each(self, jobs: int) -> float:
        """Writes a Job, with those of its Events."""
        return self.counted.total() / jobs

    async def run(self) -> "_Submission":
        """Create, wait for the last release and for quiet, clean up."""
        namespace = await self._namespace()
        bodies = [self._body(number, namespace) for number in range(self._jobs)]
        self._unreleased = {body["metadata"]["name"] for body in bodies}
        self._target.jobs.listen(lambda seen: self._hear(seen.obj, namespace, seen.at))
        await self._quiet()  # controllers first finish what came before
        with paused(self._controllers):
            before = await writes(self._client)
            started = time.monotonic()
            times = await self._create(bodies)
            created = time.monotonic()
            try:
                async with asyncio.timeout(_WITHIN):
                    await self._all_released.wait()
            except TimeoutError:
                self.note = f"{len(self._unreleased)} were never released; "
            ended = self._last_release if self._constrained else created
            self.rate = self._jobs / (ended - started)
            await self._quiet()
            self.counted = writes_between(before, await writes(self._client))
            times.sort()
            self.p50_ms = times[len(times) // 2] * 1000
            self.p99_ms = times[int(len(times) * 0.99) - 1] * 1000
            self.note += f"creations {self._jobs / (created - started):.0f}/s"
            await self._target.api.delete_all("Job", namespace)
        await eventually(
            f"{namespace} has no Jobs",
            lambda: self._target.api.list("Job", namespace),
            lambda found: not found,
            within=60,
        )
        return self

    async def _namespace(self) -> str:
        if self._scene is None:
            return await self._target.make_namespace(stem=self._name)
        team = await self._scene.team(self._name, {"a100": ("0", str(2 * self._jobs))})
        return team.namespace

    def _body(self, number: int, namespace: str) -> Obj:
        name = f"bench-{secrets.token_hex(2)}-{number}"
        body = job(name, namespace, labels={"fairslice.io/class": "training"})
        if self._constrained:  # it is the queue that chooses its nodes then
            body["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/os": "linux"}
        return body

    def _hear(self, obj: Obj, namespace: str, at: float) -> None:
        meta = obj["metadata"]
        if meta["namespace"] == namespace and not is_suspended(obj):
            if meta["name"] in self._unreleased:
                self._last_release = at
            self._unreleased.discard(meta["name"])
            if not self._unreleased:
                self._all_released.set()

    async def _create(self, bodies: list[Obj]) -> list[float]:
        waiting = iter(bodies)
        times: list[float] = []

        async def one_client() -> None:
            for body in waiting:
                started = time.monotonic()
                path = collection("Job", body["metadata"]["namespace"])
                await self._client.create(path, body, within=60.0)
                times.append(time.monotonic() - started)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(_CLIENTS):
                tasks.create_task(one_client())
        return times

    async def _quiet(self) -> None:
        """Wait until nothing is written any more, for what comes after a release counts too."""
        seen = (await writes(self._client)).total()
        for _ in range(30):
            await asyncio.sleep(_QUIET_SECONDS)
            now = (await writes(self._client)).total()
            if now == seen:
                return
            seen = now
