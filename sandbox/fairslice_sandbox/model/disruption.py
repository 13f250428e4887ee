"""PodDisruptionBudgets: how many of their pods may go right now.

Follows disruption.go; a controller's size is read from its spec.
"""

from collections.abc import Callable, Sequence

from fairslice_sandbox.model.client import Client
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
    matches,
    uid,
)

__all__ = ["DisruptionController", "decide"]

_SCALED = {
    "ReplicaSet": "replicasets.apps",
    "StatefulSet": "statefulsets.apps",
    "Job": "jobs.batch",
}


def _portion(value: int | str, of: int) -> int:
    if isinstance(value, str):
        return -(-int(value.rstrip("%")) * of // 100)
    return value


def decide(budget: Obj, pods: Sequence[Obj], size_of: Callable[[Obj], int | None]) -> Obj:
    """Give the budget's status; `size_of` tells the intended size of a pod's controller."""
    spec = budget["spec"]
    mine = [
        pod
        for pod in pods
        if matches(spec.get("selector"), labels(pod)) and not is_pod_terminal(pod)
    ]
    sizes = {(controller_ref(pod) or {"uid": uid(pod)})["uid"]: size_of(pod) or 1 for pod in mine}
    expected = sum(sizes.values())
    healthy = sum(is_pod_ready(pod) and not is_deleting(pod) for pod in mine)
    if spec.get("maxUnavailable") is not None:
        desired = max(0, expected - _portion(spec["maxUnavailable"], expected))
    elif isinstance(spec.get("minAvailable"), int):
        expected, desired = len(mine), spec["minAvailable"]
    else:
        desired = _portion(spec.get("minAvailable") or 1, expected)
    allowed = max(0, healthy - desired) if expected else 0
    return {
        **(budget.get("status") or {}),
        "expectedPods": expected,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "disruptionsAllowed": allowed,
        "observedGeneration": budget["metadata"].get("generation", 1),
    }


class DisruptionController:
    """Keeps the status of PodDisruptionBudgets."""

    def __init__(self, client: Client, retry: Backoff) -> None:
        """`retry` paces refused API calls."""
        self._client = client
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile, client.clock, retry)

    def on_budget(self, budget: Obj) -> None:
        """Look at a budget that changed."""
        self.queue.add(key_of(budget))

    def on_pod(self, pod: Obj) -> None:
        """Look at the budgets of the pod's namespace."""
        for budget in self._client.list("poddisruptionbudgets.policy", key_of(pod).namespace):
            self.queue.add(key_of(budget))

    def _size_of(self, pod: Obj) -> int | None:
        ref = controller_ref(pod)
        resource = _SCALED.get(ref["kind"]) if ref else None
        if ref is None or resource is None:
            return None
        owner = self._client.get(resource, Key(key_of(pod).namespace, ref["name"]))
        spec = owner["spec"] if owner else {}
        size = spec.get("parallelism", spec.get("replicas"))
        return int(size) if size is not None else None

    async def _reconcile(self, key: Key) -> float | None:
        budget = self._client.get("poddisruptionbudgets.policy", key)
        if budget is None:
            return None
        status = decide(budget, self._client.list("pods", key.namespace), self._size_of)
        if status != budget.get("status"):
            await self._client.write_status("poddisruptionbudgets.policy", budget, status)
        return None
