"""Scale, binding and eviction.

Source: k8s.io/kubernetes/pkg/registry/core/pod/storage (storage.go, eviction.go),
pkg/registry/apps/*/storage.
"""

from typing import Any

from .crds import CustomKind
from .errors import ApiError, bad_request, conflict, unknown_path
from .selectors import matches_selector
from .store import Obj, Resource, Store, clone

__all__ = ["bind", "blocking_budget", "scale_of", "with_disruption", "with_scale"]

SCALE = ("autoscaling", "v1", "Scale")


def _paths(custom: CustomKind | None) -> dict[str, str]:
    if custom is None or custom.scale is None:
        return {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": "",
        }
    return custom.scale


def _dig(obj: Any, path: str) -> Any:
    for step in filter(None, path.split(".")):
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj


def scale_of(obj: Obj, custom: CustomKind | None) -> Obj:
    """Give the Scale of a scalable object."""
    meta, paths = obj["metadata"], _paths(custom)
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    path = paths.get("labelSelectorPath")
    selector = _dig(obj, path) if path else _spelled(obj)
    status = {"replicas": _dig(obj, paths["statusReplicasPath"]) or 0}
    if isinstance(selector, str) and selector:
        status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {"replicas": _dig(obj, paths["specReplicasPath"]) or 0},
        "status": status,
    }


def _spelled(obj: Obj) -> str:
    selector = obj.get("spec", {}).get("selector") or {}
    labels = selector.get("matchLabels", selector) if isinstance(selector, dict) else {}
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def with_scale(obj: Obj, scale: Obj, custom: CustomKind | None) -> Obj:
    """Give the object scaled. Raises ApiError 400 for a wrong number of replicas."""
    replicas = scale.get("spec", {}).get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        raise bad_request("spec.replicas: Invalid value: must be greater than or equal to 0")
    result = clone(obj)
    *parents, last = _paths(custom)["specReplicasPath"].strip(".").split(".")
    target = result
    for step in parents:
        target = target.setdefault(step, {})
    target[last] = replicas
    return result


def bind(pod: Obj, binding: Obj, now: str) -> Obj:
    """Give the pod bound to the binding's target. Raises ApiError 400, 409."""
    name, meta = pod["metadata"]["name"], pod["metadata"]
    node = binding.get("target", {}).get("name", "")
    if not node:
        raise bad_request("target.name: Required value")
    wanted = binding.get("metadata", {}).get("uid")
    if wanted and wanted != meta["uid"]:
        why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: "
        raise conflict("pods/binding", name, why + str(meta["uid"]))
    if meta.get("deletionTimestamp"):
        why = f"pod {name} is being deleted, cannot be assigned to a host"
        raise conflict("pods/binding", name, why)
    if there := pod["spec"].get("nodeName"):
        why = f'pod {name} is already assigned to node "{there}"'
        raise conflict("pods/binding", name, why)
    if pod["spec"].get("schedulingGates"):
        why = f"pod {name} has non-empty .spec.schedulingGates"
        raise conflict("pods/binding", name, why)
    scheduled = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
    return {
        **pod,
        "spec": {**pod["spec"], "nodeName": node},
        "status": {**pod["status"], "conditions": _with_condition(pod, scheduled)},
    }


def _with_condition(pod: Obj, condition: Obj) -> list[Obj]:
    others = pod["status"].get("conditions") or []
    return [item for item in others if item["type"] != condition["type"]] + [condition]


def with_disruption(pod: Obj, now: str) -> Obj:
    """Give the pod marked as about to be evicted."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastProbeTime": None,
        "lastTransitionTime": now,
    }
    return {**pod, "status": {**pod["status"], "conditions": _with_condition(pod, condition)}}


def blocking_budget(store: Store, pod: Obj, now: str) -> Obj | None:
    """Take one disruption from the pod's budget: the budget to write, None without one.

    Raises ApiError 429 if it allows none now.
    """
    if pod["status"].get("phase") in ("Pending", "Succeeded", "Failed"):
        return None
    meta = pod["metadata"]
    for budget in store.list("poddisruptionbudgets.policy", meta["namespace"]):
        selector = budget.get("spec", {}).get("selector")
        if selector is None or not matches_selector(selector, meta.get("labels") or {}):
            continue
        status = budget.get("status") or {}
        if status.get("disruptionsAllowed", 0) < 1:
            name = budget["metadata"]["name"]
            why = (
                f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy "
                f"pods and has {status.get('currentHealthy', 0)} currently"
            )
            raise ApiError(
                429,
                "TooManyRequests",
                "Cannot evict pod as it would violate the pod's disruption budget.",
                {"causes": [{"reason": "DisruptionBudget", "message": why}]},
            )
        taken = {
            **status,
            "disruptionsAllowed": status["disruptionsAllowed"] - 1,
            "disruptedPods": {**(status.get("disruptedPods") or {}), meta["name"]: now},
        }
        return {**budget, "status": taken}
    return None


def require(resource: Resource, subresource: str) -> None:
    """Raises ApiError 404 unless the resource has the subresource."""
    if subresource and subresource not in resource.subresources:
        raise unknown_path()
