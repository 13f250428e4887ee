"""StatefulSets: numbered pods, one after the other."""

from collections.abc import Sequence

from fairslice_sandbox.model.client import ApiError, Client
from fairslice_sandbox.model.controller import Backoff, WorkQueue
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

__all__ = ["StatefulSetController", "decide"]

REVISION = "controller-revision-hash"


def decide(statefulset: Obj, pods: Sequence[Obj]) -> tuple[list[Obj], list[int], Obj]:
    """Give the pods to delete, the ordinals to create, and the status.

    Unless podManagementPolicy is Parallel, one pod at a time changes, and only while all
    before it are ready. Follows stateful_set_control.go.
    """
    spec, name = statefulset["spec"], statefulset["metadata"]["name"]
    wanted = spec.get("replicas", 1)
    parallel = spec.get("podManagementPolicy") == "Parallel"
    revision = f"{name}-{template_hash(spec['template'])}"
    by_ordinal = {int(pod["metadata"]["name"].rpartition("-")[2]): pod for pod in pods}
    healthy = [p for p in pods if is_pod_ready(p) and not is_deleting(p)]
    updated = [p for p in pods if labels(p).get(REVISION) == revision]
    status: Obj = {
        "replicas": len(pods),
        "readyReplicas": len(healthy),
        "availableReplicas": len(healthy),
        "currentReplicas": len(updated),
        "updatedReplicas": len(updated),
        "currentRevision": revision,
        "updateRevision": revision,
        "collisionCount": 0,
        "observedGeneration": statefulset["metadata"].get("generation", 1),
    }
    if is_deleting(statefulset):
        return [], [], status
    delete: list[Obj] = []
    create: list[int] = []
    for ordinal in range(wanted):
        pod = by_ordinal.get(ordinal)
        if pod is None:
            create.append(ordinal)
        elif is_pod_terminal(pod) and not is_deleting(pod):
            delete.append(pod)
        if not parallel and (pod is None or not is_pod_ready(pod) or is_deleting(pod)):
            return delete, create, status
    surplus = sorted((o for o in by_ordinal if o >= wanted), reverse=True)
    condemned = [by_ordinal[o] for o in surplus if not is_deleting(by_ordinal[o])]
    if condemned:
        return delete + (condemned if parallel else condemned[:1]), create, status
    strategy = spec.get("updateStrategy") or {}
    partition = (strategy.get("rollingUpdate") or {}).get("partition", 0)
    if strategy.get("type") != "OnDelete" and len(healthy) == len(pods) == wanted:
        stale = [o for o in range(partition, wanted) if by_ordinal[o] not in updated]
        delete += [by_ordinal[max(stale)]] if stale else []
    return delete, create, status


def pod_of(statefulset: Obj, ordinal: int) -> Obj:
    """Build the pod with a number."""
    spec, name = statefulset["spec"], statefulset["metadata"]["name"]
    pod = build_pod(statefulset, "apps/v1", "StatefulSet", spec["template"])
    meta = pod["metadata"]
    meta["name"] = f"{name}-{ordinal}"
    meta["labels"] |= {
        "apps.kubernetes.io/pod-index": str(ordinal),
        REVISION: f"{name}-{template_hash(spec['template'])}",
        "statefulset.kubernetes.io/pod-name": meta["name"],
    }
    pod["spec"]["hostname"] = meta["name"]
    if spec.get("serviceName"):
        pod["spec"]["subdomain"] = spec["serviceName"]
    return pod


class StatefulSetController:
    """Keeps the pods of StatefulSets."""

    def __init__(self, client: Client, retry: Backoff) -> None:
        """`retry` paces refused pod creations."""
        self._client = client
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile, client.clock, retry)

    def on_statefulset(self, statefulset: Obj) -> None:
        """Look at a StatefulSet that changed."""
        self.queue.add(key_of(statefulset))

    def on_pod(self, pod: Obj) -> None:
        """Look at the StatefulSet of a pod that changed."""
        ref = controller_ref(pod)
        if ref is not None and ref["kind"] == "StatefulSet":
            self.queue.add(Key(key_of(pod).namespace, ref["name"]))

    async def _reconcile(self, key: Key) -> float | None:
        owner = self._client.get("statefulsets.apps", key)
        if owner is None:
            return None
        pods = [pod for pod in self._client.list("pods", key.namespace) if is_owned(pod, owner)]
        delete, create, status = decide(owner, pods)
        if status != owner.get("status"):
            await self._client.write_status("statefulsets.apps", owner, status)
        for pod in delete:
            await self._client.delete("pods", key_of(pod), uid=uid(pod))
        for ordinal in create:
            body = pod_of(owner, ordinal)
            try:
                await self._client.create("pods", key.namespace, body)
            except ApiError as error:
                text = (
                    f"create Pod {body['metadata']['name']} in StatefulSet {key.name} failed "
                    f"error: {error}"
                )
                await self._client.event(
                    "apps/v1", "StatefulSet", key, uid(owner), "Warning", "FailedCreate", text
                )
                raise
        return None
