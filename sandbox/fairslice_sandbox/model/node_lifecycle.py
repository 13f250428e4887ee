"""What happens to nodes and their pods: heartbeats, silence, taints, eviction, pod GC."""

from collections.abc import Callable
from datetime import timedelta

from fairslice_sandbox.model.client import ApiError, Client
from fairslice_sandbox.model.controller import Signal
from fairslice_sandbox.model.fit import tolerates
from fairslice_sandbox.model.kubelet import Kubelets
from fairslice_sandbox.model.nodes import lease, ready_condition
from fairslice_sandbox.model.objects import (
    Key,
    Obj,
    condition,
    is_deleting,
    is_pod_terminal,
    key_of,
    parse_time,
    rfc3339,
    uid,
)

__all__ = ["Heartbeats", "NodeLifecycle", "eviction_delay"]

UNREACHABLE = "node.kubernetes.io/unreachable"
LEASES = "leases.coordination.k8s.io"


def eviction_delay(pod: Obj, taints: list[Obj]) -> float | None:
    """Give the seconds that NoExecute taints let a pod stay; None: for ever."""
    delays: list[float] = []
    for taint in taints:
        if taint.get("effect") != "NoExecute":
            continue
        matching = [t for t in pod["spec"].get("tolerations") or () if tolerates([t], taint)]
        if not matching:
            return 0.0
        limits = [
            t["tolerationSeconds"] for t in matching if t.get("tolerationSeconds") is not None
        ]
        if limits:
            delays.append(max(0.0, float(min(limits))))
    return min(delays) if delays else None


class Heartbeats:
    """Renews the Lease of every node whose kubelet we play."""

    def __init__(
        self, client_of: Callable[[str], Client], kubelets: Kubelets, interval_seconds: float
    ) -> None:
        """Beat once an interval."""
        self._client_of = client_of
        self._kubelets = kubelets
        self._interval_seconds = interval_seconds

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            everyone = self._client_of("").list("nodes")
            for node in everyone:
                if self._kubelets.runs_on(node):
                    await self.beat(node["metadata"]["name"])
            await self._client_of("").clock.sleep(self._interval_seconds)

    async def beat(self, node: str) -> None:
        """Renew one node's Lease, creating it if need be."""
        client = self._client_of(node)
        body = lease(node, client.clock.now())
        known = client.get(LEASES, Key("kube-node-lease", node))
        try:
            if known is None:
                await client.create(LEASES, "kube-node-lease", body)
            else:
                await client.update(LEASES, {**known, "spec": body["spec"]})
        except ApiError:
            return  # The next beat is soon enough.


class NodeLifecycle:
    """Marks silent nodes, evicts by taint, and removes pods that no kubelet will end.

    Looks after nodes whose kubelet we play; other nodes keep the conditions they are given.
    """

    def __init__(
        self,
        client: Client,
        collector: Client,
        kubelets: Kubelets,
        toleration_scale: float = 1.0,
        interval_seconds: float = 1.0,
    ) -> None:
        """`collector` is the pod garbage collector; tolerationSeconds are scaled."""
        self._client = client
        self._collector = collector
        self._kubelets = kubelets
        self._toleration_scale = toleration_scale
        self._interval_seconds = interval_seconds
        self._wake = Signal(client.clock)

    def changed(self) -> None:
        """Look now: a node changed or went."""
        self._wake.set()

    async def run(self) -> None:
        """Evict and collect until cancelled."""
        while True:
            await self._wake.wait(self._interval_seconds)
            nodes = {node["metadata"]["name"]: node for node in self._client.list("nodes")}
            for pod in self._client.list("pods"):
                try:
                    await self._look_at(pod, nodes)
                except ApiError:
                    continue  # Looked at again in the next round.

    async def mark(self, name: str, ready: bool) -> None:
        """Write a node's Ready condition and the taints that go with it."""
        now = self._client.clock.now()
        patch = {"status": {"conditions": [ready_condition(ready, now)]}}
        await self._client.patch("nodes", Key("", name), patch, "status")
        node = self._client.get("nodes", Key("", name))
        if node is None:
            return
        spec = node.get("spec") or {}
        taints = [taint for taint in spec.get("taints") or () if taint["key"] != UNREACHABLE]
        if not ready:
            for effect in ("NoSchedule", "NoExecute"):
                taint = {"key": UNREACHABLE, "effect": effect, "timeAdded": rfc3339(now)}
                taints.append(taint)
        await self._client.update("nodes", {**node, "spec": {**spec, "taints": taints}})

    async def _look_at(self, pod: Obj, nodes: dict[str, Obj]) -> None:
        name = pod["spec"].get("nodeName")
        if is_deleting(pod) and not name and not is_pod_terminal(pod):
            await self._remove(pod, "Pod was deleted before it was scheduled")
        elif name and name not in nodes:
            await self._remove(pod, "PodGC: node no longer exists")
        elif name and not is_deleting(pod) and not is_pod_terminal(pod):
            await self._evict(pod, (nodes[name].get("spec") or {}).get("taints") or [])

    async def _evict(self, pod: Obj, taints: list[Obj]) -> None:
        delay = eviction_delay(pod, taints)
        if delay is None:
            return
        added = [parse_time(t.get("timeAdded")) for t in taints if t.get("effect") == "NoExecute"]
        since = max((moment for moment in added if moment), default=None)
        due = timedelta(seconds=delay * self._toleration_scale)
        if since is not None and self._client.clock.now() < since + due:
            return
        await self._disrupt(
            self._client,
            pod,
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
        )
        await self._client.delete("pods", key_of(pod), uid=uid(pod))

    async def _remove(self, pod: Obj, message: str) -> None:
        if not is_pod_terminal(pod):
            await self._disrupt(self._collector, pod, "DeletionByPodGC", message, failed=True)
        await self._collector.delete("pods", key_of(pod), uid=uid(pod), grace_seconds=0)

    async def _disrupt(
        self, client: Client, pod: Obj, reason: str, message: str, failed: bool = False
    ) -> None:
        if (condition(pod, "DisruptionTarget") or {}).get("status") == "True" and not failed:
            return
        disruption = {
            "type": "DisruptionTarget",
            "status": "True",
            "lastTransitionTime": rfc3339(client.clock.now()),
            "reason": reason,
            "message": message,
        }
        status: Obj = {"conditions": [disruption]}
        if failed:
            status["phase"] = "Failed"
        await client.patch("pods", key_of(pod), {"status": status}, "status")
