"""ReplicaSets and Deployments: how many pods of which template there should be.

Follows replica_set.go and deployment/rolling.go.
"""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from fairslice_sandbox.model.objects import (
    Obj,
    annotations,
    condition,
    is_deleting,
    is_pod_active,
    is_pod_ready,
    is_pod_terminal,
    labels,
    owner_reference,
    uid,
    with_condition,
)

__all__ = [
    "DeploymentPlan",
    "ReplicaSetPlan",
    "build_pod",
    "decide_deployment",
    "decide_replicaset",
    "template_hash",
]

HASH = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def template_hash(template: Obj) -> str:
    """Give the short name of a pod template, in the alphabet that Kubernetes uses."""
    digest = hashlib.sha256(msgspec.json.encode(template, order="sorted")).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:10])


def build_pod(owner: Obj, api_version: str, kind: str, template: Obj) -> Obj:
    """Build a pod from a controller's template."""
    made = copy.deepcopy(template)
    meta: dict[str, Any] = made.get("metadata") or {}
    metadata: Obj = {
        "generateName": f"{owner['metadata']['name']}-",
        "namespace": owner["metadata"]["namespace"],
        "labels": dict(meta.get("labels") or {}),
        "ownerReferences": [owner_reference(owner, api_version, kind)],
    }
    for name in ("annotations", "finalizers"):
        if meta.get(name):
            metadata[name] = meta[name]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made["spec"]}


@dataclass(slots=True)
class ReplicaSetPlan:
    """Pods to delete, how many to create, the status as it is now."""

    delete: list[Obj]
    create: int
    status: Obj


def _deletion_rank(pod: Obj) -> tuple[bool, int, bool, str]:
    """Order pods for deletion: unassigned, pending, not ready, then the youngest."""
    phases = {"Pending": 0, "Unknown": 1, "Running": 2}
    created = pod["metadata"].get("creationTimestamp") or ""
    youngest_first = "".join(chr(255 - ord(letter)) for letter in created)
    phase = phases.get((pod.get("status") or {}).get("phase", "Pending"), 0)
    return (bool(pod["spec"].get("nodeName")), phase, is_pod_ready(pod), youngest_first)


def decide_replicaset(replicaset: Obj, pods: Sequence[Obj]) -> ReplicaSetPlan:
    """Decide for one ReplicaSet and the pods it controls."""
    wanted = replicaset["spec"].get("replicas", 1)
    active = [pod for pod in pods if is_pod_active(pod)]
    surplus = sorted(active, key=_deletion_rank)[: max(0, len(active) - wanted)]
    create = max(0, wanted - len(active))
    if is_deleting(replicaset):
        surplus, create = [], 0
    ready = sum(is_pod_ready(pod) for pod in active)
    kept = (replicaset.get("status") or {}).get("conditions")
    status: Obj = {
        "replicas": len(active),
        "fullyLabeledReplicas": len(active),
        "readyReplicas": ready,
        "availableReplicas": ready,
        "terminatingReplicas": sum(is_deleting(p) and not is_pod_terminal(p) for p in pods),
        "observedGeneration": replicaset["metadata"].get("generation", 1),
    }
    if kept:
        status["conditions"] = kept
    for name in ("fullyLabeledReplicas", "readyReplicas", "availableReplicas"):
        if not status[name]:
            del status[name]
    return ReplicaSetPlan(surplus, create, status)


def with_failure(status: Obj, message: str | None, now: datetime) -> Obj:
    """Set or clear the ReplicaFailure condition of a ReplicaSet's status.

    The first message stays: one that differs at every try would wake the controller each time.
    """
    given = status.get("conditions") or ()
    conditions = [item for item in given if message or item["type"] != "ReplicaFailure"]
    if message and all(item["type"] != "ReplicaFailure" for item in conditions):
        conditions = with_condition(
            conditions, "ReplicaFailure", "True", now, "FailedCreate", message
        )
    result = {name: value for name, value in status.items() if name != "conditions"}
    return {**result, "conditions": conditions} if conditions else result


@dataclass(slots=True)
class DeploymentPlan:
    """ReplicaSet to create, new sizes by name, ReplicaSets to delete, the status."""

    create: Obj | None = None
    scale: dict[str, int] = field(default_factory=dict)
    delete: list[Obj] = field(default_factory=list)
    status: Obj = field(default_factory=dict)


def _share(value: Any, of: int, round_up: bool) -> int:
    if isinstance(value, str) and value.endswith("%"):
        percent = int(value[:-1]) * of
        return -(-percent // 100) if round_up else percent // 100
    return int(value)


def _size(replicaset: Obj) -> int:
    return int(replicaset["spec"].get("replicas", 1))


def _available(replicaset: Obj) -> int:
    return int((replicaset.get("status") or {}).get("availableReplicas", 0))


def decide_deployment(
    deployment: Obj, replicasets: Sequence[Obj], pods: Sequence[Obj], now: datetime
) -> DeploymentPlan:
    """Decide for one Deployment, its ReplicaSets and all their pods."""
    spec = deployment["spec"]
    plan = DeploymentPlan()
    if is_deleting(deployment):
        plan.status = deployment.get("status") or {}
        return plan
    tag = template_hash(spec["template"])
    current = next((item for item in replicasets if labels(item).get(HASH) == tag), None)
    old = [item for item in replicasets if item is not current]
    wanted = spec.get("replicas", 1)
    strategy = spec.get("strategy") or {}
    if spec.get("paused"):
        pass
    elif strategy.get("type") == "Recreate":
        _recreate(plan, deployment, tag, current, old, pods, wanted)
    else:
        _roll(plan, deployment, tag, current, old, wanted, strategy.get("rollingUpdate") or {})
    idle = [r for r in old if not _size(r) and not (r.get("status") or {}).get("replicas")]
    idle.sort(key=lambda item: int(annotations(item).get(REVISION, "0")))
    plan.delete = idle[: max(0, len(idle) - spec.get("revisionHistoryLimit", 10))]
    plan.status = _deployment_status(deployment, current, replicasets, wanted, now)
    return plan


def _recreate(
    plan: DeploymentPlan,
    deployment: Obj,
    tag: str,
    current: Obj | None,
    old: Sequence[Obj],
    pods: Sequence[Obj],
    wanted: int,
) -> None:
    plan.scale.update({item["metadata"]["name"]: 0 for item in old if _size(item)})
    # Every old pod must have ended before the first new one is made.
    if plan.scale or any(labels(pod).get(HASH) != tag and not is_pod_terminal(pod) for pod in pods):
        return
    if current is None:
        plan.create = _new_replicaset(deployment, tag, old, wanted)
    elif _size(current) != wanted:
        plan.scale[current["metadata"]["name"]] = wanted


def _roll(
    plan: DeploymentPlan,
    deployment: Obj,
    tag: str,
    current: Obj | None,
    old: Sequence[Obj],
    wanted: int,
    limits: Obj,
) -> None:
    surge = _share(limits.get("maxSurge", "25%"), wanted, round_up=True)
    unavailable = _share(limits.get("maxUnavailable", "25%"), wanted, round_up=False)
    if not surge and not unavailable:
        unavailable = 1
    total = sum(_size(item) for item in (*old, *([current] if current else [])))
    room = max(0, wanted + surge - total)
    if current is None:
        plan.create = _new_replicaset(deployment, tag, old, min(wanted, room))
        return
    name, size = current["metadata"]["name"], _size(current)
    if size > wanted:
        plan.scale[name] = wanted
    elif size < wanted and room:
        plan.scale[name] = min(wanted, size + room)
    allowance = total - (wanted - unavailable) - (size - _available(current))
    for item in sorted(old, key=lambda entry: entry["metadata"].get("creationTimestamp", "")):
        # Pods that never became available go first, then working ones as the allowance permits.
        broken = min(max(0, _size(item) - _available(item)), max(0, allowance))
        if broken:
            plan.scale[item["metadata"]["name"]] = _size(item) - broken
            allowance -= broken
    spare = sum(_available(item) for item in (*old, current)) - (wanted - unavailable)
    spare = min(spare, allowance)
    for item in old:
        left = plan.scale.get(item["metadata"]["name"], _size(item))
        step = min(left, max(0, spare))
        if step:
            plan.scale[item["metadata"]["name"]] = left - step
            spare -= step


def _new_replicaset(deployment: Obj, tag: str, old: Sequence[Obj], size: int) -> Obj:
    template = copy.deepcopy(deployment["spec"]["template"])
    meta = template.setdefault("metadata", {})
    meta["labels"] = {**(meta.get("labels") or {}), HASH: tag}
    selector = copy.deepcopy(deployment["spec"].get("selector") or {})
    selector["matchLabels"] = {**(selector.get("matchLabels") or {}), HASH: tag}
    revision = 1 + max((int(annotations(item).get(REVISION, "0")) for item in old), default=0)
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{deployment['metadata']['name']}-{tag}",
            "namespace": deployment["metadata"]["namespace"],
            "labels": dict(meta["labels"]),
            "annotations": {REVISION: str(revision)},
            "ownerReferences": [owner_reference(deployment, "apps/v1", "Deployment")],
        },
        "spec": {"replicas": size, "selector": selector, "template": template},
    }


def _deployment_status(
    deployment: Obj, current: Obj | None, replicasets: Sequence[Obj], wanted: int, now: datetime
) -> Obj:
    def count(name: str, items: Sequence[Obj]) -> int:
        return sum((item.get("status") or {}).get(name, 0) for item in items)

    mine = [current] if current else []
    total, updated = count("replicas", replicasets), count("replicas", mine)
    available = count("availableReplicas", replicasets)
    limits = (deployment["spec"].get("strategy") or {}).get("rollingUpdate") or {}
    spare = _share(limits.get("maxUnavailable", "25%"), wanted, round_up=False)
    enough = available >= wanted - spare
    conditions = (deployment.get("status") or {}).get("conditions") or []
    conditions = with_condition(
        conditions,
        "Available",
        "True" if enough else "False",
        now,
        "MinimumReplicasAvailable" if enough else "MinimumReplicasUnavailable",
        f"Deployment {'has' if enough else 'does not have'} minimum availability.",
    )
    done = updated == wanted == available == total and current is not None
    name = current["metadata"]["name"] if current else ""
    conditions = with_condition(
        conditions,
        "Progressing",
        "True",
        now,
        "NewReplicaSetAvailable" if done else "ReplicaSetUpdated",
        f'ReplicaSet "{name}" {"has successfully progressed" if done else "is progressing"}.',
    )
    conditions = [item for item in conditions if item["type"] != "ReplicaFailure"]
    failure = next((c for r in replicasets if (c := condition(r, "ReplicaFailure"))), None)
    status: Obj = {
        "observedGeneration": deployment["metadata"].get("generation", 1),
        "replicas": total,
        "updatedReplicas": updated,
        "readyReplicas": count("readyReplicas", replicasets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, wanted - available),
        "conditions": [*conditions, failure] if failure else conditions,
    }
    return {name: value for name, value in status.items() if value}


def is_owned(obj: Obj, owner: Obj) -> bool:
    """Say whether the owner controls the object."""
    return any(
        ref.get("controller") and ref["uid"] == uid(owner)
        for ref in obj["metadata"].get("ownerReferences") or ()
    )
