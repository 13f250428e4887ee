"""DaemonSets: one pod on every node that will have it."""

from collections.abc import Sequence
from typing import Any

from fairslice_sandbox.model.client import ApiError, Client
from fairslice_sandbox.model.controller import Backoff, WorkQueue
from fairslice_sandbox.model.fit import matches_node, untolerated
from fairslice_sandbox.model.objects import (
    Key,
    Obj,
    controller_ref,
    is_deleting,
    is_pod_ready,
    is_pod_terminal,
    key_of,
    labels,
    uid,
)
from fairslice_sandbox.model.replicas import build_pod, is_owned, template_hash

__all__ = ["DaemonSetController", "decide"]

REVISION = "controller-revision-hash"
# Daemon pods stay on nodes in trouble and go to nodes that take nobody else.
_TOLERATIONS: tuple[Obj, ...] = tuple(
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)


def target_of(pod: Obj) -> str:
    """Give the node that a daemon pod is meant for."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    for term in required.get("nodeSelectorTerms") or ():
        for item in term.get("matchFields") or ():
            return str(item["values"][0])
    return str(pod["spec"].get("nodeName") or "")


def pod_for(daemonset: Obj, node: str) -> Obj:
    """Build the daemon pod of a node."""
    template = daemonset["spec"]["template"]
    pod = build_pod(daemonset, "apps/v1", "DaemonSet", template)
    pod["metadata"]["labels"][REVISION] = template_hash(template)
    spec: dict[str, Any] = pod["spec"]
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *_TOLERATIONS]
    affinity = {**(spec.get("affinity") or {})}
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    own = affinity.get("nodeAffinity") or {}
    required = own.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [{**term, "matchFields": [field]} for term in required.get("nodeSelectorTerms") or [{}]]
    affinity["nodeAffinity"] = {
        **own,
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
    }
    spec["affinity"] = affinity
    return pod


def decide(
    daemonset: Obj, nodes: Sequence[Obj], pods: Sequence[Obj]
) -> tuple[list[Obj], list[str], Obj]:
    """Give the pods to delete, the nodes that need one, and the status."""
    template = daemonset["spec"]["template"]
    revision = template_hash(template)
    spec = {
        **template["spec"],
        "tolerations": [*(template["spec"].get("tolerations") or ()), *_TOLERATIONS],
    }
    wanted = {
        node["metadata"]["name"]
        for node in nodes
        if matches_node(spec, node["metadata"]["name"], labels(node))
        and untolerated(spec, (node.get("spec") or {}).get("taints") or ()) is None
    }
    by_node: dict[str, list[Obj]] = {}
    for pod in pods:
        by_node.setdefault(target_of(pod), []).append(pod)
    delete = [
        pod
        for node, found in by_node.items()
        for pod in found
        if not is_deleting(pod) and (node not in wanted or is_pod_terminal(pod))
    ]
    create = sorted(node for node in wanted if not by_node.get(node))
    ready = [pod for pod in pods if is_pod_ready(pod)]
    fresh = [pod for pod in pods if labels(pod).get(REVISION) == revision]
    strategy = daemonset["spec"].get("updateStrategy") or {}
    if strategy.get("type") != "OnDelete" and not delete and len(ready) >= len(wanted):
        delete += [pod for pod in pods if pod not in fresh and not is_deleting(pod)][:1]
    if is_deleting(daemonset):
        delete, create = [], []
    status: Obj = {
        "currentNumberScheduled": len(wanted & set(by_node)),
        "desiredNumberScheduled": len(wanted),
        "numberMisscheduled": len(set(by_node) - wanted),
        "numberReady": len(ready),
        "numberAvailable": len(ready),
        "numberUnavailable": max(0, len(wanted) - len(ready)),
        "updatedNumberScheduled": len(fresh),
        "observedGeneration": daemonset["metadata"].get("generation", 1),
    }
    return delete, create, status


class DaemonSetController:
    """Keeps the pods of DaemonSets."""

    def __init__(self, client: Client, retry: Backoff) -> None:
        """`retry` paces refused pod creations."""
        self._client = client
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile, client.clock, retry)

    def on_daemonset(self, daemonset: Obj) -> None:
        """Look at a DaemonSet that changed."""
        self.queue.add(key_of(daemonset))

    def on_pod(self, pod: Obj) -> None:
        """Look at the DaemonSet of a pod that changed."""
        ref = controller_ref(pod)
        if ref is not None and ref["kind"] == "DaemonSet":
            self.queue.add(Key(key_of(pod).namespace, ref["name"]))

    def on_node(self) -> None:
        """Look at all DaemonSets: the nodes changed."""
        for daemonset in self._client.list("daemonsets.apps"):
            self.queue.add(key_of(daemonset))

    async def _reconcile(self, key: Key) -> float | None:
        owner = self._client.get("daemonsets.apps", key)
        if owner is None:
            return None
        pods = [pod for pod in self._client.list("pods", key.namespace) if is_owned(pod, owner)]
        delete, create, status = decide(owner, self._client.list("nodes"), pods)
        if status != owner.get("status"):
            await self._client.write_status("daemonsets.apps", owner, status)
        for pod in delete:
            await self._client.delete("pods", key_of(pod), uid=uid(pod))
        for node in create:
            try:
                await self._client.create("pods", key.namespace, pod_for(owner, node))
            except ApiError as error:
                text = f"Error creating: {error}"
                await self._client.event(
                    "apps/v1", "DaemonSet", key, uid(owner), "Warning", "FailedCreate", text
                )
                raise
        return None
