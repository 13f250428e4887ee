"""JobSets on a cluster that has none: their CRD, and their controller played as far as it counts.

Source: kubernetes-sigs/jobset, pkg/controllers/jobset_controller.go.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from .client import Api, Refused, User
from .history import has_condition
from .kinds import KINDS, Obj
from .kubelet import RUN_SECONDS
from .nodes import TOLERATION
from .target import Target
from .waiting import eventually

__all__ = ["JobSets", "jobset"]

_MANIFEST = Path(__file__).parents[2] / "kinds" / "jobset.yaml"
_CRD = "jobsets.jobset.x-k8s.io"
_PACE = 0.05
_LOOSE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_CONTROLLER = User("system:serviceaccount:jobset-system:controller-manager", ("system:masters",))


def jobset(name: str, namespace: str, seconds: float | None) -> Obj:
    """A JobSet as people write them: one pod with one GPU, two pods with two each."""
    made: Obj = yaml.safe_load(_MANIFEST.read_text())
    made["metadata"] = {
        "name": name,
        "namespace": namespace,
        "labels": {"fairslice.io/class": "training"},
    }
    for item in made["spec"]["replicatedJobs"]:
        template = item["template"]["spec"]["template"]
        template["spec"] |= {"terminationGracePeriodSeconds": 3, "tolerations": [dict(TOLERATION)]}
        if seconds is not None:
            notes = template.setdefault("metadata", {}).setdefault("annotations", {})
            notes[RUN_SECONDS] = f"{seconds:g}"
    return made


class JobSets:
    """The kind on this cluster, and somebody to look after its objects."""

    def __init__(self, api: Api, *, theirs: bool) -> None:
        self._api = api.acting_as(_CONTROLLER)
        self._theirs = theirs

    @classmethod
    async def installed(cls, target: Target) -> "JobSets":
        """Have the cluster serve JobSets. A controller that is there already stays alone."""
        if await target.api.find("CustomResourceDefinition", _CRD) is not None:
            return cls(target.api, theirs=True)
        await target.own(_definition())

        async def served() -> bool:
            try:
                await target.api.list("JobSet")
            except Refused as refusal:
                if refusal.status in (404, 429):
                    return False
                raise
            return True

        await eventually("JobSets are served", served)
        return cls(target.api, theirs=False)

    @asynccontextmanager
    async def played(self, namespace: str) -> AsyncIterator[None]:
        """Look after the JobSets of a namespace meanwhile."""
        if self._theirs:
            pytest.skip("the cluster has JobSets of its own")
        work = asyncio.create_task(self._work(namespace))
        try:
            yield
            assert not work.done(), work.result()
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work
            await self._api.delete_all("JobSet", namespace)

    async def _work(self, namespace: str) -> None:
        while True:
            for obj in await self._api.list("JobSet", namespace):
                try:
                    await self._step(obj)
                except Refused as refusal:
                    if refusal.status not in (404, 409):
                        raise
            await asyncio.sleep(_PACE)

    async def _step(self, obj: Obj) -> None:
        meta, spec = obj["metadata"], obj["spec"]
        jobs = {
            job["metadata"]["name"]: job
            for job in await self._api.list("Job", meta["namespace"])
            for owner in job["metadata"].get("ownerReferences") or ()
            if owner["uid"] == meta["uid"]
        }
        suspended = spec.get("suspend", False)
        for item in spec["replicatedJobs"]:
            name = f"{meta['name']}-{item['name']}-0"
            wanted = deepcopy(item["template"]["spec"])
            if name not in jobs:
                await self._api.create(_child(name, obj, {**wanted, "suspend": suspended}))
            elif jobs[name]["spec"].get("suspend", False) is not suspended:
                change: Obj = {"suspend": suspended}
                if not suspended:
                    notes = wanted["template"].get("metadata", {}).get("annotations") or {}
                    change["template"] = {"metadata": {"annotations": notes}}
                await self._api.patch("Job", name, {"spec": change}, meta["namespace"])
        complete = jobs and all(has_condition(job, "Complete") for job in jobs.values())
        if complete and not has_condition(obj, "Completed"):
            done = {"conditions": [{"type": "Completed", "status": "True"}]}
            await self._api.patch("JobSet", meta["name"], {"status": done}, meta["namespace"])


def _child(name: str, parent: Obj, spec: Obj) -> Obj:
    meta = parent["metadata"]
    owner = {
        "apiVersion": parent["apiVersion"],
        "kind": parent["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    labels = {"jobset.sigs.k8s.io/jobset-name": meta["name"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def _definition() -> Obj:
    group, _, version = KINDS["JobSet"].api_version.partition("/")
    schema = {"type": "object", "properties": {"spec": _LOOSE, "status": _LOOSE}}
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": _CRD,
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": "JobSet",
                "plural": "jobsets",
                "singular": "jobset",
                "listKind": "JobSetList",
            },
            "versions": [served],
        },
    }
