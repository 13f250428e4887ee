"""What controllers would make of an object: the Job of a CronJob, the pods of a Deployment."""

from dataclasses import dataclass
from typing import Any

from fairslice.workloads import adapter_for

__all__ = ["Made", "made_by"]

_ACCOUNT = "system:serviceaccount:kube-system:{}-controller"
# The name by which each of these controllers is known, and its pods' direct owner.
_REPLICATED = {
    "Deployment": ("replicaset", "ReplicaSet"),
    "ReplicaSet": ("replicaset", "ReplicaSet"),
    "StatefulSet": ("statefulset", "StatefulSet"),
    "DaemonSet": ("daemon-set", "DaemonSet"),
}
_HASH = "0"


@dataclass(frozen=True, slots=True)
class Made:
    """An object that a controller makes, and as whom (empty: as the submitter).

    `replicated` says that it is one of the pods of a kind that admission advises on.
    """

    obj: dict[str, Any]
    user: str
    replicated: bool


def made_by(obj: dict[str, Any], namespace: str) -> Made | None:
    """Make the first object that counts; None if that is the object itself, or nothing is made."""
    api_version, kind = str(obj.get("apiVersion", "")), str(obj.get("kind", ""))
    if kind == "Pod" or adapter_for(api_version, kind) is not None:
        return None
    meta, spec = _dict(obj, "metadata"), _dict(obj, "spec")
    name = str(meta.get("name") or meta.get("generateName") or "")
    if kind == "CronJob":
        return Made(_child(spec, "jobTemplate", "batch/v1", "Job", obj, namespace), "", False)
    if kind in _REPLICATED and api_version.startswith("apps/"):
        account, owner = _REPLICATED[kind]
        owner_name = f"{name}-{_HASH}" if kind == "Deployment" else name
        pod = _child(spec, "template", "v1", "Pod", obj, namespace, (owner, owner_name))
        label = "pod-template-hash" if owner == "ReplicaSet" else "controller-revision-hash"
        pod["metadata"]["labels"] = {label: _HASH, **(pod["metadata"].get("labels") or {})}
        return Made(pod, _ACCOUNT.format(account), True)
    for holder, key in (
        (spec, "template"),
        (_dict(spec, "leaderWorkerTemplate"), "workerTemplate"),
    ):
        if _dict(_dict(holder, key), "spec").get("containers"):
            pod = _child(holder, key, "v1", "Pod", obj, namespace)
            return Made(pod, f"system:serviceaccount:{namespace}:{kind.lower()}-controller", False)
    return None


def _child(
    holder: dict[str, Any],
    key: str,
    api_version: str,
    kind: str,
    parent: dict[str, Any],
    namespace: str,
    owner: tuple[str, str] | None = None,
) -> dict[str, Any]:
    template = _dict(holder, key)
    meta = _dict(template, "metadata")
    name = str(_dict(parent, "metadata").get("name") or "")
    owner_kind, owner_name = owner or (str(parent.get("kind", "")), name)
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "labels": meta.get("labels"),
            "annotations": meta.get("annotations"),
            "namespace": namespace,
            "generateName": f"{owner_name}-",
            "ownerReferences": [
                {
                    "apiVersion": parent.get("apiVersion"),
                    "kind": owner_kind,
                    "name": owner_name,
                    "uid": "explain",
                    "controller": True,
                }
            ],
        },
        "spec": template.get("spec") or {},
    }


def _dict(obj: dict[str, Any], key: str) -> dict[str, Any]:
    value = obj.get(key)
    return value if isinstance(value, dict) else {}
