"""Short Jobs on few slots of a real control plane, against the bare kube-scheduler.

The suite's kubelet plays the pods. All of the control plane is at work.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.harness.client import Api
from tests.cluster.harness.history import is_complete
from tests.cluster.harness.installation import installed
from tests.cluster.harness.kinds import Obj
from tests.cluster.harness.manifests import job
from tests.cluster.harness.scene import Scene
from tests.cluster.harness.shapes import a100
from tests.cluster.harness.target import Target

from .control_plane import controller_qps
from .creating import own_processes
from .measuring import cpu_seconds, peak_mib
from .report import Figure, Report

__all__ = ["measure_churn"]

_NODES, _GPUS = 8, 8
_SECONDS = 2.0
_CLIENTS = 16
_WITHIN = 300.0


async def measure_churn(
    report: Report, kubeconfig: str, jobs: int, controllers: Sequence[int]
) -> None:
    """Measure how long the Jobs take all in all, without and with fairslice."""
    ideal = jobs * _SECONDS / (_NODES * _GPUS)
    report.note(
        f"churn: {jobs} Jobs of {_SECONDS:g} s on {_NODES * _GPUS} slots (ideal {ideal:g} s); "
        f"controller-manager's QPS: {controller_qps(controllers)}"
    )
    async with Target("real", kubeconfig, await Api.connect(kubeconfig)) as target:
        scene = Scene(target)
        await _add_nodes(scene)
        before = await _complete(target, await target.make_namespace(stem="bare"), jobs)
        with tempfile.TemporaryDirectory(prefix="fairslice-bench-") as directory:
            async with installed(target, Path(directory)):
                team = await scene.team("churn", {"a100": ("0", str(2 * _NODES * _GPUS))})
                used = {name: cpu_seconds(pid) for name, pid in own_processes().items()}
                ours = await _complete(target, team.namespace, jobs)
                spent = ", ".join(
                    f"{name} {cpu_seconds(pid) - used[name]:.1f} s CPU {peak_mib(pid):.0f} MiB"
                    for name, pid in own_processes().items()
                )
        await _add_nodes(scene)
        after = await _complete(target, await target.make_namespace(stem="bare"), jobs)
    floor = (before + after) / 2
    report.add(
        Figure(
            subject="bare kube-scheduler",
            measure="all complete",
            value=floor,
            unit="s",
            ratio=1.0,
            note=f"before {before:.1f} s, after {after:.1f} s",
        )
    )
    report.add(
        Figure(
            subject="fairslice",
            measure="all complete",
            value=ours,
            unit="s",
            ratio=ours / floor,
            required="<= 1.2 of bare",
            met=ours <= 1.2 * floor,
            note=spent,
        )
    )


async def _add_nodes(scene: Scene) -> None:
    await asyncio.gather(*(scene.node(a100(whole=_GPUS)) for _ in range(_NODES)))


async def _complete(target: Target, namespace: str, jobs: int) -> float:
    """Create the Jobs and wait for the last to complete; return the seconds."""
    labels = {"fairslice.io/class": "training"}
    bodies = [
        job(f"churn-{n}", namespace, labels=labels, seconds=_SECONDS, backoff_limit=6)
        for n in range(jobs)
    ]
    left = {body["metadata"]["name"] for body in bodies}
    done, ended = asyncio.Event(), 0.0

    def hear(obj: Obj, at: float) -> None:
        nonlocal ended
        if obj["metadata"]["namespace"] == namespace and is_complete(obj):
            left.discard(obj["metadata"]["name"])
            if not left and not done.is_set():
                ended = at
                done.set()

    target.jobs.listen(lambda seen: hear(seen.obj, seen.at))
    waiting = iter(bodies)

    async def one_client() -> None:
        for body in waiting:
            await target.api.create(body)

    started = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(_CLIENTS):
            tasks.create_task(one_client())
    async with asyncio.timeout(_WITHIN):
        await done.wait()
    target.check_alive()
    await target.api.delete_all("Job", namespace)
    return ended - started
