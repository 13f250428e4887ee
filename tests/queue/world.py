"""A cluster in a box, a real ledger, and a reign over both: what its tests act on and look at."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from fairslice import stamps
from fairslice.booking import Booking, State
from fairslice.kube.client import KubeClient
from fairslice.redis_connection import RedisConnection
from fairslice.v1alpha1.schema import definitions
from fairslice_queue.books import Books
from fairslice_queue.leads import Leads
from fairslice_queue.ledger import Ledger, LedgerUnavailable
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.mirror import Mirror
from fairslice_queue.reign import Reign
from fairslice_queue.standing import Standing
from fairslice_queue.team_status import restore_use
from fairslice_queue.usage import Meter
from fairslice_queue.watching import Watch
from fairslice_sandbox.api import Api
from fairslice_sandbox.clock import RealClock
from fairslice_sandbox.model.cluster import Cluster, ClusterSettings
from fairslice_sandbox.model.controller import Backoff
from fairslice_sandbox.model.nodes import NodeSpec
from fairslice_sandbox.server import ApiServer
from fairslice_sandbox.store import Obj, Store
from fairslice_sandbox.users import ADMIN, UserInfo

from .doorman import GPU, QUEUE_USER, Doorman, registration

PACE = ClusterSettings(pace=0.01, start_seconds=0.01, pod_gc_seconds=0.05, retry=Backoff(0.5, 5.0))
CLASSES = [
    {"name": "production", "preempts": "Everyone", "preemptible": False},
    {"name": "training", "preempts": "Borrowers", "notice": "0s", "grace": "1s"},
    {"name": "experiment", "preempts": "Nobody", "notice": "0s", "grace": "1s", "restart": True},
]


def policy(**queue: Any) -> Obj:
    """A policy that enforces everything, with quick classes."""
    modes = dict.fromkeys(("hide", "guards", "rewrite", "quota", "queue"), "Enforce")
    return {
        "apiVersion": "fairslice.io/v1alpha1",
        "kind": "SharingPolicy",
        "metadata": {"name": "default"},
        "spec": {"mode": modes, "classes": CLASSES, "queue": queue},
    }


def team(name: str, guaranteed: int = 0, limit: int | None = None) -> Obj:
    """A team of one namespace of the same name, with a quota of undeclared pools."""
    pool: Obj = {"pool": "default", "guaranteed": str(guaranteed)}
    if limit is not None:
        pool["limit"] = str(limit)
    return {
        "apiVersion": "fairslice.io/v1alpha1",
        "kind": "Team",
        "metadata": {"name": name},
        "spec": {
            "namespaces": [name],
            "pools": [pool],
            "allowedClasses": ["production", "training", "experiment"],
        },
    }


def _pod_spec(gpus: int, seconds: float | None, **spec: Any) -> Obj:
    notes = {} if seconds is None else {"sandbox.fairslice.io/run-seconds": str(seconds)}
    container = {"name": "main", "image": "cuda", "resources": {"limits": {GPU: str(gpus)}}}
    return {
        "metadata": {"annotations": notes},
        "spec": {"containers": [container], "restartPolicy": "Never", **spec},
    }


def job(
    name: str,
    *,
    gpus: int = 1,
    seconds: float | None = 0.1,
    work_class: str = "training",
    pods: int = 1,
    completions: int | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Obj:
    """A Job of GPU pods that run so long (None: until they are stopped)."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {stamps.CLASS: work_class},
            "annotations": annotations or {},
        },
        "spec": {
            "parallelism": pods,
            "completions": completions or pods,
            "backoffLimit": 0,
            "template": _pod_spec(gpus, seconds),
            **spec,
        },
    }


def pod(
    name: str,
    *,
    gpus: int = 1,
    seconds: float | None = None,
    work_class: str = "training",
    restart: bool = False,
    **spec: Any,
) -> Obj:
    """A bare GPU pod."""
    made = _pod_spec(gpus, seconds, **spec)
    notes = {**made["metadata"]["annotations"]}
    if restart:
        notes[stamps.RESTART] = "true"
    meta = {"name": name, "labels": {stamps.CLASS: work_class}, "annotations": notes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made["spec"]}


@dataclass
class Leader:
    """A reign, with all that a queue process holds."""

    ledger: Ledger
    watch: Watch
    mirror: Mirror
    meter: Meter
    standing: Standing
    reign: Reign
    metrics: QueueMetrics
    leads: Leads
    task: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Die at once."""
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task
            self.task = None


@dataclass
class World:
    """Everything, and what users do with it."""

    api: Api
    cluster: Cluster
    redis: RedisConnection
    ledger: Ledger
    doorman: Doorman
    client: KubeClient
    kubeconfig: str = ""
    redis_url: str = ""
    leader: Leader | None = None
    watches: list[asyncio.Task[None]] = field(default_factory=list)
    runs: list[tuple[str, str]] = field(default_factory=list)

    # The queue's process.

    async def start(
        self, *, client: KubeClient | None = None, ledger: Ledger | None = None
    ) -> Leader:
        """Start a queue process that leads."""
        leader = self.leader = await self.watching(client=client, ledger=ledger)
        leader.task = asyncio.create_task(self._lead(leader), name="reign")
        for _ in range(500):
            if await self.ledger.ready() or leader.task.done():
                break
            await asyncio.sleep(0.01)
        return leader

    async def watching(
        self, *, client: KubeClient | None = None, ledger: Ledger | None = None
    ) -> Leader:
        """Make a queue process that is about to lead; the doorman sees what it sees."""
        leader = make_leader(Watch(self.client), client or self.client, ledger or self.ledger)
        self.doorman.watch = leader.watch
        task = asyncio.create_task(run_watch(leader.watch))
        self.watches.append(task)
        await leader.watch.synced()
        restore_use(leader.watch, leader.meter, time.time())
        return leader

    async def _lead(self, leader: Leader) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(leader.reign.run())
            tasks.create_task(leader.standing.run(self.client))
            tasks.create_task(leader.leads.run())

    async def restart(self) -> Leader:
        """Kill the leader and start another."""
        assert self.leader is not None
        await self.leader.stop()
        return await self.start()

    async def close(self) -> None:
        """End the queue's process."""
        if self.leader is not None:
            await self.leader.stop()
        for task in self.watches:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def check_alive(self) -> None:
        """Raise what ended the leader, if it ended."""
        if self.leader is not None and self.leader.task is not None and self.leader.task.done():
            self.leader.task.result()

    # Users.

    async def create(self, obj: Obj, namespace: str = "") -> Obj:
        resource = _RESOURCES[obj["kind"]]
        body = {**obj, "metadata": {**obj["metadata"]}}
        if namespace:
            body["metadata"]["namespace"] = namespace
        return await self.api.create(resource, namespace, body, user=ADMIN)

    async def merge(self, kind: str, name: str, patch: Obj, namespace: str = "") -> None:
        await self.api.patch(
            _RESOURCES[kind],
            namespace,
            name,
            json.dumps(patch).encode(),
            "application/merge-patch+json",
            user=ADMIN,
        )

    async def delete(
        self, kind: str, name: str, namespace: str, *, grace: int | None = None
    ) -> None:
        """Delete as kubectl does: in the background."""
        await self.api.delete(
            _RESOURCES[kind],
            namespace,
            name,
            user=ADMIN,
            grace_seconds=grace,
            propagation="Background",
        )

    def get(self, kind: str, name: str, namespace: str) -> Obj | None:
        return self.api.store.get(_RESOURCES[kind], namespace, name)

    def objects(self, kind: str, namespace: str | None = None) -> list[Obj]:
        return list(self.api.store.list(_RESOURCES[kind], namespace))

    async def scheduler_preempts(self, gpus: int = 2, seconds: float = 0.4) -> None:
        """Let a foreign pod of higher priority in a namespace of no team push others out."""
        await self.create(
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "urgent"},
                "value": 1000,
            }
        )
        foreign = pod("foreign", gpus=gpus, seconds=seconds, priorityClassName="urgent")
        foreign["metadata"]["labels"] = {}
        await self.create(foreign, "default")

    # What is seen.

    def running(self, namespace: str | None = None) -> set[str]:
        """Names of Jobs with a running pod, and of bare pods that run."""
        return {_work_of(item) for item in self.objects("Pod", namespace) if _runs(item)}

    def suspended(self, namespace: str | None = None) -> set[str]:
        return {
            item["metadata"]["name"]
            for item in self.objects("Job", namespace)
            if item["spec"].get("suspend")
        }

    def finished(self, namespace: str | None = None, kind: str = "Complete") -> set[str]:
        return {
            item["metadata"]["name"]
            for item in self.objects("Job", namespace)
            if any(
                c["type"] == kind and c["status"] == "True"
                for c in item.get("status", {}).get("conditions") or ()
            )
        }

    def note(self, kind: str, name: str, namespace: str, key: str = stamps.STATUS) -> str:
        obj = self.get(kind, name, namespace) or {"metadata": {}}
        return str((obj["metadata"].get("annotations") or {}).get(key, ""))

    @property
    def books(self) -> Books:
        """The leader's books."""
        assert self.leader is not None
        return self.leader.mirror.books

    def booking_of(self, name: str) -> Booking | None:
        return next((item for item in self.books if item.ref.name == name), None)

    def state_of(self, name: str) -> State | None:
        booking = self.booking_of(name)
        return booking.state if booking is not None else None

    async def until(self, holds: Callable[[], Any], seconds: float = 8.0) -> Any:
        """Wait until it holds."""
        ends = time.monotonic() + seconds
        while not (found := holds()):
            self.check_alive()
            if time.monotonic() > ends:
                raise AssertionError(self.describe())
            await asyncio.sleep(0.01)
        return found

    async def stays(self, holds: Callable[[], Any], seconds: float = 0.5) -> None:
        """See that it holds all the time."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.check_alive()
            assert holds(), self.describe()
            await asyncio.sleep(0.01)

    def describe(self) -> str:
        """Say where everything stands."""
        lines = []
        for kind in ("Job", "Pod"):
            for item in self.objects(kind):
                meta, spec, status = item["metadata"], item["spec"], item.get("status", {})
                conditions = [c["type"] for c in status.get("conditions") or ()]
                lines.append(
                    f"{kind} {meta['namespace']}/{meta['name']} suspend={spec.get('suspend')} "
                    f"{status.get('phase', '')} {spec.get('nodeName', '')} {conditions} "
                    f"deleting={'deletionTimestamp' in meta} "
                    f"gates={spec.get('schedulingGates')} "
                    f"{(meta.get('annotations') or {}).get(stamps.STATUS, '')}"
                )
        if self.leader is not None:
            lines += [
                f"booking {booking.id} {booking.ref} {booking.state} pods={booking.pods} "
                f"chosen={booking.chosen} {booking.place} bound={booking.bound} {booking.reason}"
                for booking in self.leader.mirror.books
            ]
        return "it never came to hold:\n" + "\n".join(lines)

    async def audit(self) -> list[str]:
        """Recount the ledger, and compare it with the cluster; as often as it takes."""
        for _ in range(5):
            with suppress(LedgerUnavailable):
                return await self._drift()
            # Once calls have run late, none is made for a moment.
            await asyncio.sleep(0.5)
        return await self._drift()

    async def _drift(self) -> list[str]:
        leader = self.leader
        if leader is None or leader.task is None or leader.task.done():
            return await self.ledger.audit()
        for _ in range(20):
            totals, differing = await leader.reign.drift.measure(patience=0.2)
            found = totals + [f"{key}: {text}" for key, text in differing.items()]
            if not found:
                break
        return found


_RESOURCES = {
    "Job": "jobs.batch",
    "CronJob": "cronjobs.batch",
    "Pod": "pods",
    "Node": "nodes",
    "Team": "teams.fairslice.io",
    "SharingPolicy": "sharingpolicies.fairslice.io",
    "PodTemplate": "podtemplates",
    "Event": "events",
    "StatefulSet": "statefulsets.apps",
    "Deployment": "deployments.apps",
    "PodDisruptionBudget": "poddisruptionbudgets.policy",
    "Namespace": "namespaces",
    "PriorityClass": "priorityclasses.scheduling.k8s.io",
}


def _runs(item: Obj) -> bool:
    return bool(item["status"].get("phase") == "Running")


def _work_of(item: Obj) -> str:
    owners = item["metadata"].get("ownerReferences") or ()
    return str(owners[0]["name"] if owners else item["metadata"]["name"])


def make_leader(
    watch: Watch,
    client: KubeClient,
    ledger: Ledger,
    *,
    clock: Callable[[], float] = time.time,
) -> Leader:
    """Put a queue process together, as its service does."""
    standing, meter = Standing(), Meter(float(watch.policy.half_life))
    metrics = QueueMetrics(CollectorRegistry())

    def on_booking(old: Booking | None, new: Booking | None) -> None:
        meter.follow(mirror.books.tally, (old, new), clock())
        changed = new or old
        if changed is not None:
            watch.dirty.add(changed.id)

    mirror = Mirror(ledger, on_booking)
    leads = Leads(client, watch, standing, lambda: mirror.books, clock)
    reign = Reign(
        client,
        ledger,
        watch,
        mirror,
        meter,
        standing,
        metrics,
        new_id=lambda: "b" + secrets.token_hex(10),
        clock=clock,
        leads=leads,
    )
    return Leader(ledger, watch, mirror, meter, standing, reign, metrics, leads)


async def run_watch(watch: Watch) -> None:
    """Follow the cluster until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        await watch.run(tasks)


@asynccontextmanager
async def world(
    redis_url: str,
    directory: Path,
    *,
    door: Callable[[Ledger], Doorman] = Doorman,
    hooks: Sequence[Obj] = (registration("Mutating"), registration("Validating")),
) -> AsyncIterator[World]:
    """Run a cluster with the custom resources, and teams' namespaces cv and nlp.

    `door` is what is called for the registrations in `hooks`.
    """
    store, clock = Store(), RealClock()
    async with RedisConnection.parse(redis_url) as redis:
        ledger = Ledger(redis)
        doorman = door(ledger)
        api = Api(store, clock, doorman)
        server = ApiServer(store, api)
        cluster = Cluster(api, clock, PACE)
        await server.start()
        kubeconfig = directory / "queue.kubeconfig"
        user = UserInfo(QUEUE_USER, ("system:masters", "system:authenticated"))
        server.write_kubeconfig(kubeconfig, user)
        try:
            async with (
                cluster.running(),
                await KubeClient.connect(str(kubeconfig)) as client,
            ):
                made = World(
                    api, cluster, redis, ledger, doorman, client, str(kubeconfig), redis_url
                )
                for definition in definitions():
                    await api.create(
                        "customresourcedefinitions.apiextensions.k8s.io", "", definition, user=ADMIN
                    )
                for hook in hooks:
                    resource = f"{hook['kind'].lower()}s.admissionregistration.k8s.io"
                    await api.create(resource, "", hook, user=ADMIN)
                for name in ("cv", "nlp"):
                    await made.create({"kind": "Namespace", "apiVersion": "v1",
                                       "metadata": {"name": name}})  # fmt: skip
                try:
                    yield made
                finally:
                    await made.close()
        finally:
            await server.stop()


def node(name: str = "gpu-1", gpus: int = 2, **fields: Any) -> NodeSpec:
    """A node of whole H100s."""
    return NodeSpec(name=name, model="h100-80gb", gpus=gpus, **fields)
