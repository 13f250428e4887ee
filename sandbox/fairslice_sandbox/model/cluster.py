"""The whole control plane and its nodes over one API: start it, add nodes, take nodes away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from fairslice_sandbox.api import Api
from fairslice_sandbox.clock import Clock
from fairslice_sandbox.model.client import ApiError, Client
from fairslice_sandbox.model.controller import Backoff
from fairslice_sandbox.model.cronjobs import CronJobController
from fairslice_sandbox.model.daemonsets import DaemonSetController
from fairslice_sandbox.model.disruption import DisruptionController
from fairslice_sandbox.model.garbage import GarbageCollector
from fairslice_sandbox.model.job_controller import JobController
from fairslice_sandbox.model.kubelet import Kubelets
from fairslice_sandbox.model.namespaces import NamespaceController
from fairslice_sandbox.model.node_lifecycle import Heartbeats, NodeLifecycle
from fairslice_sandbox.model.nodes import NodeSpec, node_object
from fairslice_sandbox.model.objects import Key, is_deleting, is_pod_terminal
from fairslice_sandbox.model.replica_controllers import DeploymentController, ReplicaSetController
from fairslice_sandbox.model.scheduler import Scheduler
from fairslice_sandbox.model.statefulsets import StatefulSetController
from fairslice_sandbox.model.visibility import Runtime
from fairslice_sandbox.store import Event
from fairslice_sandbox.users import UserInfo, controller, kubelet

__all__ = ["Cluster", "ClusterSettings"]

_SCHEDULER = UserInfo("system:kube-scheduler", ("system:authenticated",))
_RETRY = Backoff(0.005, 1000.0)
_JOB_RETRY = Backoff(1.0, 60.0)
_JOB_FAILURES = Backoff(10.0, 600.0)
_SHARED = UserInfo("system:kube-controller-manager", ("system:authenticated",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How fast and in what way the cluster behaves; times in seconds.

    The retry paces are Kubernetes' own: ReplicaSets and their like double from 5 ms to 1,000 s,
    Jobs from 1 s to 60 s; failed pods of a Job are replaced after 10 s, doubling. `pace`
    multiplies these and tolerationSeconds, so that a short day is not spent waiting.
    """

    pace: float = 1.0
    start_seconds: float = 0.2
    restart_seconds: float = 10.0
    retry: Backoff = _RETRY
    job_retry: Backoff = _JOB_RETRY
    job_failures: Backoff = _JOB_FAILURES
    heartbeat_seconds: float = 10.0
    pod_gc_seconds: float = 1.0
    shared_identity: bool = False
    """One user for all controllers, as without --use-service-account-credentials."""
    runtime: Runtime = field(default_factory=Runtime)

    def scaled(self, backoff: Backoff) -> Backoff:
        """Give a backoff at this cluster's pace."""
        return Backoff(backoff.base * self.pace, backoff.limit * self.pace)


class Cluster:
    """Scheduler, controllers and kubelets, each under its own identity."""

    def __init__(self, api: Api, clock: Clock, settings: ClusterSettings | None = None) -> None:
        """Build everything; nothing happens before `run`."""
        self.settings = settings = settings or ClusterSettings()
        self._api, self._clock = api, clock
        self._kubelet_clients: dict[str, Client] = {}
        retry = settings.scaled(settings.retry)
        self.scheduler = Scheduler(Client(api, clock, _SCHEDULER, "default-scheduler"))
        self.jobs = JobController(
            self._client("job-controller"),
            settings.scaled(settings.job_retry),
            settings.scaled(settings.job_failures),
        )
        self.cronjobs = CronJobController(self._client("cronjob-controller"), retry)
        self.replicasets = ReplicaSetController(self._client("replicaset-controller"), retry)
        self.deployments = DeploymentController(self._client("deployment-controller"), retry)
        self.statefulsets = StatefulSetController(self._client("statefulset-controller"), retry)
        self.daemonsets = DaemonSetController(self._client("daemon-set-controller"), retry)
        self.disruption = DisruptionController(self._client("disruption-controller"), retry)
        self.namespaces = NamespaceController(
            self._client("namespace-controller"), api.store.resources, retry
        )
        self.garbage = GarbageCollector(
            self._client("generic-garbage-collector"), api.store.resources
        )
        self.kubelets = Kubelets(
            self._kubelet_client,
            clock,
            settings.runtime,
            settings.start_seconds,
            settings.restart_seconds * settings.pace,
        )
        self.heartbeats = Heartbeats(
            self._kubelet_client, self.kubelets, settings.heartbeat_seconds
        )
        self.lifecycle = NodeLifecycle(
            self._client("node-controller"),
            self._client("pod-garbage-collector"),
            self.kubelets,
            settings.pace,
            settings.pod_gc_seconds,
        )
        self._routes: dict[str, Callable[[Event], None]] = {
            "pods": self._on_pod,
            "nodes": self._on_node,
            "jobs.batch": self._on_job,
            "cronjobs.batch": lambda event: self.cronjobs.on_cronjob(event.object),
            "deployments.apps": lambda event: self.deployments.on_deployment(event.object),
            "replicasets.apps": self._on_replicaset,
            "statefulsets.apps": lambda event: self.statefulsets.on_statefulset(event.object),
            "daemonsets.apps": lambda event: self.daemonsets.on_daemonset(event.object),
            "poddisruptionbudgets.policy": self._on_budget,
            "namespaces": lambda event: self.namespaces.on_namespace(event.object),
        }

    def _client(self, name: str) -> Client:
        user = _SHARED if self.settings.shared_identity else controller(name)
        return Client(self._api, self._clock, user, name)

    def _kubelet_client(self, node: str) -> Client:
        if node not in self._kubelet_clients:
            self._kubelet_clients[node] = Client(self._api, self._clock, kubelet(node), "kubelet")
        return self._kubelet_clients[node]

    async def run(self) -> None:
        """Run the control plane until cancelled."""
        async with asyncio.TaskGroup() as group:
            for loop in (
                self.kubelets,
                self.jobs.queue,
                self.cronjobs.queue,
                self.replicasets.queue,
                self.deployments.queue,
                self.statefulsets.queue,
                self.daemonsets.queue,
                self.disruption.queue,
                self.namespaces.queue,
                self.scheduler,
                self.garbage,
                self.heartbeats,
                self.lifecycle,
            ):
                group.create_task(loop.run(), name=type(loop).__name__)
            group.create_task(self._dispatch(), name="dispatch")

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Cluster"]:
        """Run the control plane for the length of a block; its crash is raised at the end."""
        task = asyncio.create_task(self.run(), name="cluster")
        try:
            yield self
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # Nodes.

    async def add_node(self, spec: NodeSpec) -> None:
        """Register a node; a managed one starts to run what is bound to it."""
        client = self._kubelet_client(spec.name)
        body = node_object(spec, self._clock.now())
        stored = await client.create("nodes", "", body)
        if "allocatable" not in (stored.get("status") or {}):
            await client.write_status("nodes", stored, body["status"])
        if spec.managed:
            await self.heartbeats.beat(spec.name)

    async def kill_node(self, name: str) -> None:
        """Let a node's kubelet fall silent, and the control plane notice at once."""
        self.kubelets.kill(name)
        await self.lifecycle.mark(name, ready=False)

    async def revive_node(self, name: str) -> None:
        """Let a killed node come back, with the pods it ran."""
        self.kubelets.revive(name)
        await self.heartbeats.beat(name)
        await self.lifecycle.mark(name, ready=True)
        self._wake_node(name)

    async def remove_node(self, name: str) -> None:
        """Take a node out of the cluster; its pods are collected as failed."""
        self.kubelets.kill(name)
        await self._client("node-controller").delete("nodes", Key("", name))
        self.kubelets.revive(name)

    # Events.

    async def _dispatch(self) -> None:
        while True:
            with self._api.store.subscribe() as events:
                self._resync()
                # Having fallen behind, look at everything again.
                with suppress(ApiError):
                    async for event in events:
                        self._route(event)

    def _resync(self) -> None:
        for resource in self._routes:
            for obj in self._api.store.list(resource):
                self._route(Event("ADDED", resource, obj, None, 0))
        self.garbage.changed.set()

    def _route(self, event: Event) -> None:
        route = self._routes.get(event.resource)
        if route is not None:
            route(event)
        if event.resource in ("events", "leases.coordination.k8s.io"):
            return
        if event.type == "DELETED" or is_deleting(event.object):
            self.garbage.changed.set()
            self.namespaces.on_removal(event.object)
        elif event.type == "ADDED" and event.object["metadata"].get("ownerReferences"):
            self.garbage.changed.set()

    def _on_pod(self, event: Event) -> None:
        pod = event.object
        gone = event.type == "DELETED"
        self.scheduler.changed.set()
        for interested in (
            self.jobs.on_pod,
            self.replicasets.on_pod,
            self.statefulsets.on_pod,
            self.daemonsets.on_pod,
            self.disruption.on_pod,
            self.kubelets.on_pod_gone if gone else self.kubelets.on_pod,
        ):
            interested(pod)
        if gone or is_pod_terminal(pod):
            self.deployments.on_pod_gone(pod)
        if is_deleting(pod) and not pod["spec"].get("nodeName"):
            self.lifecycle.changed()

    def _on_node(self, event: Event) -> None:
        self.scheduler.changed.set()
        self.daemonsets.on_node()
        self.lifecycle.changed()
        if event.type == "ADDED":
            self._wake_node(event.object["metadata"]["name"])

    def _wake_node(self, name: str) -> None:
        for pod in self._api.store.list("pods"):
            if pod["spec"].get("nodeName") == name:
                self.kubelets.on_pod(pod)

    def _on_job(self, event: Event) -> None:
        self.jobs.on_job(event.object)
        self.cronjobs.on_job(event.object)

    def _on_replicaset(self, event: Event) -> None:
        self.replicasets.on_replicaset(event.object)
        self.deployments.on_replicaset(event.object)

    def _on_budget(self, event: Event) -> None:
        self.disruption.on_budget(event.object)
        self.scheduler.changed.set()
