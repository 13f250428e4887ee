"""The controllers of custom kinds, played as far as their objects' pods and ends go."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

from fairslice.workloads import adapter_of_kind
from fairslice_sandbox.api import Api
from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.store import Obj
from fairslice_sandbox.users import UserInfo

__all__ = ["Operators", "crd", "manifest", "resource_of"]

_KINDS = Path(__file__).parent.parent / "kinds"
_USER = UserInfo("system:serviceaccount:operators:operator", ("system:masters",))
_PACE = 0.02
GPU_SECONDS = "sandbox.fairslice.io/run-seconds"


def resource_of(kind: str) -> str:
    adapter = adapter_of_kind(kind)
    assert adapter is not None
    return f"{adapter.kind.plural}.{adapter.kind.group}"


def crd(kind: str, version: str = "") -> Obj:
    """A small CRD: any spec and status."""
    adapter = adapter_of_kind(kind)
    assert adapter is not None
    loose = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": loose, "status": loose}}
    group, _, known = adapter.kind.api_version.partition("/")
    plural = adapter.kind.plural
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "plural": plural,
                "singular": kind.lower(),
                "listKind": f"{kind}List",
            },
            "versions": [
                {
                    "name": version or known,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def manifest(kind: str, name: str, seconds: float | None, work_class: str = "training") -> Obj:
    """A real manifest of a kind, whose pods run so long (None: until they are stopped)."""
    made: Obj = yaml.safe_load((_KINDS / f"{kind.lower()}.yaml").read_text())
    made["metadata"] = {"name": name, "labels": {"fairslice.io/class": work_class}}
    if seconds is not None:
        for template in _templates(made["spec"]):
            meta = template.setdefault("metadata", {})
            meta["annotations"] = {**meta.get("annotations", {}), GPU_SECONDS: str(seconds)}
    return made


def _templates(at: Any) -> Iterator[Obj]:
    """Find what holds containers."""
    if isinstance(at, dict):
        if isinstance(at.get("spec"), dict) and "containers" in at["spec"]:
            yield at
        for value in at.values():
            yield from _templates(value)
    elif isinstance(at, list):
        for value in at:
            yield from _templates(value)


class Operators:
    """Plays JobSet, RayJob with RayCluster, and PyTorchJob."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def run(self) -> None:
        while True:
            for kind, step in (
                ("JobSet", self._jobset),
                ("RayJob", self._rayjob),
                ("RayCluster", self._raycluster),
                ("PyTorchJob", self._pytorchjob),
            ):
                for obj in self._list(resource_of(kind)):
                    try:
                        await step(obj)
                    except ApiError as error:
                        if error.code not in (404, 409):
                            raise
            await asyncio.sleep(_PACE)

    async def _jobset(self, obj: Obj) -> None:
        suspended = obj["spec"].get("suspend", False)
        children = {job["metadata"]["name"]: job for job in self._owned("jobs.batch", obj)}
        for item in obj["spec"]["replicatedJobs"]:
            name = f"{obj['metadata']['name']}-{item['name']}-0"
            spec = deepcopy(item["template"]["spec"])
            job = children.get(name)
            if job is None:
                spec["suspend"] = suspended
                labels = {"jobset.sigs.k8s.io/jobset-name": obj["metadata"]["name"]}
                spec["template"].setdefault("metadata", {})["labels"] = {
                    **spec["template"].get("metadata", {}).get("labels", {}),
                    **labels,
                }
                await self._make("jobs.batch", "batch/v1", "Job", name, obj, {"spec": spec})
            elif job["spec"].get("suspend", False) is not suspended:
                notes = spec["template"].get("metadata", {}).get("annotations") or {}
                change: Obj = {"suspend": suspended}
                if not suspended:
                    change["template"] = {"metadata": {"annotations": notes}}
                await self._merge("jobs.batch", job, {"spec": change})
        jobs = list(children.values())
        if jobs and all(_condition(job, "Complete") for job in jobs):
            await self._end(obj, {"conditions": [{"type": "Completed", "status": "True"}]})

    async def _rayjob(self, obj: Obj) -> None:
        clusters = self._owned(resource_of("RayCluster"), obj)
        if obj["spec"].get("suspend", False) or _ended(obj):
            for cluster in clusters:
                await self._delete(resource_of("RayCluster"), cluster)
            return
        if not clusters:
            name = f"{obj['metadata']['name']}-c"
            body = {"spec": deepcopy(obj["spec"]["rayClusterSpec"])}
            await self._make(resource_of("RayCluster"), "ray.io/v1", "RayCluster", name, obj, body)
            return
        pods = [p for p in self._owned("pods", clusters[0]) if "ray.io/group" in _labels(p)]
        if pods and all(_phase(p) == "Succeeded" for p in pods):
            await self._end(obj, {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"})

    async def _raycluster(self, obj: Obj) -> None:
        if "deletionTimestamp" in obj["metadata"]:
            return
        there = {pod["metadata"]["name"] for pod in self._owned("pods", obj)}
        for group in obj["spec"]["workerGroupSpecs"]:
            for n in range(group.get("replicas", 1)):
                name = f"{obj['metadata']['name']}-{group['groupName']}-{n}"
                if name not in there:
                    labels = {"ray.io/group": group["groupName"]}
                    await self._pod(name, obj, group["template"], labels)

    async def _pytorchjob(self, obj: Obj) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in self._owned("pods", obj)}
        if (obj["spec"].get("runPolicy") or {}).get("suspend", False):
            for pod in pods.values():
                await self._delete("pods", pod)
            return
        if _ended(obj):
            return
        wanted = 0
        for role, item in obj["spec"]["pytorchReplicaSpecs"].items():
            for n in range(item.get("replicas", 1)):
                wanted += 1
                name = f"{obj['metadata']['name']}-{role.lower()}-{n}"
                if name not in pods:
                    await self._pod(name, obj, item["template"], {"role": role})
        if len(pods) == wanted and all(_phase(pod) == "Succeeded" for pod in pods.values()):
            await self._end(obj, {"conditions": [{"type": "Succeeded", "status": "True"}]})

    async def _pod(self, name: str, parent: Obj, template: Obj, labels: Mapping[str, str]) -> None:
        meta = template.get("metadata") or {}
        body = {
            "metadata": {
                "labels": {**meta.get("labels", {}), **labels},
                "annotations": meta.get("annotations", {}),
            },
            "spec": {**deepcopy(template["spec"]), "restartPolicy": "Never"},
        }
        await self._make("pods", "v1", "Pod", name, parent, body)

    def _list(self, resource: str) -> list[Obj]:
        return list(self._api.store.list(resource))

    def _owned(self, resource: str, parent: Obj) -> list[Obj]:
        uid = parent["metadata"]["uid"]
        return [
            item
            for item in self._list(resource)
            if any(ref["uid"] == uid for ref in item["metadata"].get("ownerReferences") or ())
        ]

    async def _make(
        self, resource: str, version: str, kind: str, name: str, parent: Obj, body: Obj
    ) -> None:
        owner = {
            "apiVersion": parent["apiVersion"],
            "kind": parent["kind"],
            "name": parent["metadata"]["name"],
            "uid": parent["metadata"]["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        namespace = parent["metadata"]["namespace"]
        meta = {**body.get("metadata", {}), "name": name, "namespace": namespace}
        made = {
            **body,
            "apiVersion": version,
            "kind": kind,
            "metadata": {**meta, "ownerReferences": [owner]},
        }
        await self._api.create(resource, namespace, made, user=_USER)

    async def _merge(self, resource: str, obj: Obj, patch: Obj) -> None:
        await self._api.patch(
            resource,
            obj["metadata"]["namespace"],
            obj["metadata"]["name"],
            json.dumps(patch).encode(),
            "application/merge-patch+json",
            user=_USER,
        )

    async def _end(self, obj: Obj, status: Obj) -> None:
        if not _ended(obj):
            await self._merge(resource_of(obj["kind"]), obj, {"status": status})

    async def _delete(self, resource: str, obj: Obj) -> None:
        if "deletionTimestamp" in obj["metadata"]:
            return
        await self._api.delete(
            resource,
            obj["metadata"]["namespace"],
            obj["metadata"]["name"],
            user=_USER,
            propagation="Background",
        )


def _labels(obj: Obj) -> Mapping[str, str]:
    found: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return found


def _phase(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _condition(obj: Obj, kind: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(item["type"] == kind and item["status"] == "True" for item in conditions)


def _ended(obj: Obj) -> bool:
    adapter = adapter_of_kind(obj["kind"])
    return adapter is not None and adapter.end(obj).finished
