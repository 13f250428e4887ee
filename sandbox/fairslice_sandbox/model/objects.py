"""Reading plain JSON objects: metadata, owners, conditions, selectors, times."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

__all__ = [
    "Key",
    "Obj",
    "annotations",
    "condition",
    "condition_true",
    "controller_ref",
    "expression_holds",
    "is_deleting",
    "is_pod_active",
    "is_pod_ready",
    "is_pod_terminal",
    "key_of",
    "labels",
    "matches",
    "owner_reference",
    "parse_time",
    "rfc3339",
    "uid",
    "with_condition",
]

Obj = dict[str, Any]


class Key(NamedTuple):
    """Namespace and name of an object; the namespace is empty for cluster-scoped ones."""

    namespace: str
    name: str


def key_of(obj: Obj) -> Key:
    """Give the object's key."""
    meta = obj["metadata"]
    return Key(meta.get("namespace", ""), meta.get("name", ""))


def uid(obj: Obj) -> str:
    """Give the object's uid."""
    return str(obj["metadata"].get("uid", ""))


def labels(obj: Obj) -> Mapping[str, str]:
    """Give the object's labels."""
    return obj["metadata"].get("labels") or {}


def annotations(obj: Obj) -> Mapping[str, str]:
    """Give the object's annotations."""
    return obj["metadata"].get("annotations") or {}


def is_deleting(obj: Obj) -> bool:
    """Say whether deletion of the object has begun."""
    return obj["metadata"].get("deletionTimestamp") is not None


def rfc3339(moment: datetime) -> str:
    """Write a time as Kubernetes does: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str | None) -> datetime | None:
    """Read a time written by the API server; None where there is none."""
    return datetime.fromisoformat(text) if text else None


def controller_ref(obj: Obj) -> Obj | None:
    """Give the owner reference that is marked as the controller."""
    for ref in obj["metadata"].get("ownerReferences") or ():
        if ref.get("controller"):
            return dict(ref)
    return None


def owner_reference(owner: Obj, api_version: str, kind: str) -> Obj:
    """Build the controller reference that a controller puts on what it creates."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": uid(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def condition(obj: Obj, kind: str) -> Obj | None:
    """Find a status condition by its type."""
    for item in (obj.get("status") or {}).get("conditions") or ():
        if item.get("type") == kind:
            return dict(item)
    return None


def condition_true(obj: Obj, kind: str) -> bool:
    """Say whether the condition is there and True."""
    found = condition(obj, kind)
    return found is not None and found.get("status") == "True"


def with_condition(
    conditions: Iterable[Obj],
    kind: str,
    status: str,
    now: datetime,
    reason: str = "",
    message: str = "",
    **extra: Any,
) -> list[Obj]:
    """Set a condition in a list; its transition time moves only when its status does."""
    result = [dict(item) for item in conditions]
    old = next((item for item in result if item.get("type") == kind), None)
    new: Obj = {"type": kind, "status": status, "lastTransitionTime": rfc3339(now), **extra}
    if reason:
        new["reason"] = reason
    if message:
        new["message"] = message
    if old is None:
        return [*result, new]
    if old.get("status") == status:
        new["lastTransitionTime"] = old.get("lastTransitionTime")
    return [new if item is old else item for item in result]


def is_pod_terminal(pod: Obj) -> bool:
    """Say whether the pod has ended for good."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_pod_active(pod: Obj) -> bool:
    """Say whether the pod counts towards its controller: not ended and not being deleted."""
    return not is_pod_terminal(pod) and not is_deleting(pod)


def is_pod_ready(pod: Obj) -> bool:
    """Say whether the pod is Ready."""
    return condition_true(pod, "Ready")


def matches(selector: Obj | None, given: Mapping[str, str]) -> bool:
    """Match a LabelSelector; an absent one matches nothing, an empty one everything."""
    if selector is None:
        return False
    for name, value in (selector.get("matchLabels") or {}).items():
        if given.get(name) != value:
            return False
    return all(expression_holds(item, given) for item in selector.get("matchExpressions") or ())


def expression_holds(expression: Obj, given: Mapping[str, str]) -> bool:
    """Evaluate one selector requirement (In, NotIn, Exists, DoesNotExist, Gt, Lt)."""
    value = given.get(expression["key"])
    values = expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            if value is None or not value.lstrip("-").isdigit() or not values:
                return False
            bound = int(values[0])
            return int(value) > bound if operator == "Gt" else int(value) < bound
    return False
