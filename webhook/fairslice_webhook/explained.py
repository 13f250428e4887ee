"""What controllers would make of an object: the Job of a CronJob, the pods of a Deployment."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fairslice.resource_names import DEVICE_CLASS_PREFIX
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
# Whose account makes pods for a kind of its own; operators are installed elsewhere.
_OPERATOR = "system:serviceaccount:operators:{}-controller"


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
    # Of several templates the first that asks for GPUs; where none does, the first.
    templates = list(_templates(spec))
    asking = [found for found in templates if _asks(found)] or templates
    if not asking:
        return None
    pod = _child({"template": asking[0]}, "template", "v1", "Pod", obj, namespace)
    return Made(pod, _OPERATOR.format(kind.lower()), False)


def _templates(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Find the pod templates of kinds that no row of the table knows.

    A Notebook and its like; a LeaderWorkerSet; Argo's workflows; Tekton's runs and pipelines.
    """
    group = _dict(spec, "leaderWorkerTemplate")
    found = (
        _dict(spec, "template"),
        _dict(group, "leaderTemplate"),
        _dict(group, "workerTemplate"),
    )
    for template in found:
        if _dict(template, "spec").get("containers"):
            yield template
    workflow = _dict(spec, "workflowSpec") or spec
    for item in _list(workflow, "templates"):
        main = _dict(item, "container") or _dict(item, "script")
        several = _list(_dict(item, "containerSet"), "containers")
        if main or several:
            rest = _list(item, "sidecars")
            yield _template(item, [*([{"name": "main", **main}] if main else several), *rest])
    tasks = [_dict(item, "taskSpec") for item in _list(_dict(spec, "pipelineSpec"), "tasks")]
    tasks += [_dict(item, "taskSpec") for item in _list(spec, "tasks")]
    for task in (_dict(spec, "taskSpec"), spec, *tasks):
        steps = [_step(item) for item in _list(task, "steps")]
        if steps:
            yield {"metadata": {}, "spec": {"containers": steps}}


def _template(item: dict[str, Any], containers: list[dict[str, Any]]) -> dict[str, Any]:
    fields = ("nodeSelector", "affinity", "tolerations", "volumes", "initContainers")
    kept = {key: item[key] for key in fields if item.get(key) is not None}
    return {"metadata": _dict(item, "metadata"), "spec": {"containers": containers, **kept}}


def _step(item: dict[str, Any]) -> dict[str, Any]:
    resources = _dict(item, "computeResources") or _dict(item, "resources")
    name = f"step-{item.get('name') or 'unnamed'}"
    return {**item, "name": name, **({"resources": resources} if resources else {})}


def _asks(template: dict[str, Any]) -> bool:
    return any(
        str(name).startswith(("nvidia.com/", DEVICE_CLASS_PREFIX))
        for item in _list(_dict(template, "spec"), "containers")
        for name in _dict(_dict(item, "resources"), "limits")
    )


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


def _list(obj: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = obj.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _dict(obj: dict[str, Any], key: str) -> dict[str, Any]:
    value = obj.get(key)
    return value if isinstance(value, dict) else {}
