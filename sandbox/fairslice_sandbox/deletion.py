"""What a DELETE does to an object: nothing yet, a deletionTimestamp, or its end.

Source: k8s.io/apiserver/pkg/registry/rest/delete.go, pkg/registry/core/pod/strategy.go,
pkg/registry/generic/registry/store.go (deletionFinalizersForGarbageCollection).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from .clock import timestamp
from .store import Obj, Resource

__all__ = ["Deletion", "decide", "effective_grace", "is_finished"]

_ORPHAN, _FOREGROUND = "orphan", "foregroundDeletion"
JOB_WARNING = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background "
    "to remove them or set propagationPolicy=Orphan to suppress this warning"
)


@dataclass(frozen=True)
class Deletion:
    """What to do with the object: keep it, write it, or remove it."""

    action: Literal["keep", "write", "remove"]
    object: Obj


def effective_grace(resource: Resource, obj: Obj, asked: int | None) -> int | None:
    """Give the seconds that a pod gets to end; what was asked for other kinds."""
    if resource.key != "pods":
        return asked
    ended = obj.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if ended or not obj["spec"].get("nodeName"):
        return 0
    if asked is None:
        asked = int(obj["spec"].get("terminationGracePeriodSeconds", 30))
    return max(asked, 0) if asked >= 0 else 1


def decide(
    resource: Resource, obj: Obj, grace: int | None, propagation: str | None, now: datetime
) -> Deletion:
    """Decide over an object; grace is its effective one in seconds."""
    meta = obj["metadata"]
    seconds = (grace or 0) if resource.key == "pods" else 0
    finalizers = _finalizers(resource, meta.get("finalizers") or [], propagation)
    held = bool(finalizers) or bool(resource.key == "namespaces" and obj["spec"].get("finalizers"))
    before = meta.get("deletionGracePeriodSeconds")
    if meta.get("deletionTimestamp"):
        if before and seconds >= before:
            return Deletion("keep", obj)
        if not before and (seconds or held) and finalizers == (meta.get("finalizers") or []):
            return Deletion("keep", obj)
    if not seconds and not held:
        return Deletion("remove", obj)
    meta = {
        **meta,
        "deletionTimestamp": meta.get("deletionTimestamp")
        if before is not None and not before
        else timestamp(now + timedelta(seconds=seconds)),
        "deletionGracePeriodSeconds": seconds,
    }
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
    if "generation" in meta and not obj["metadata"].get("deletionTimestamp"):
        meta["generation"] += 1
    marked = {**obj, "metadata": meta}
    if resource.key == "namespaces":
        marked["status"] = {**obj.get("status", {}), "phase": "Terminating"}
    return Deletion("write", marked)


def _finalizers(resource: Resource, present: list[str], propagation: str | None) -> list[str]:
    if propagation is None:
        # For compatibility, Jobs leave their pods unless told otherwise.
        if resource.key != "jobs.batch" or _FOREGROUND in present:
            return present
        propagation = "Orphan"
    kept = [name for name in present if name not in (_ORPHAN, _FOREGROUND)]
    added = {"Orphan": [_ORPHAN], "Foreground": [_FOREGROUND]}.get(propagation, [])
    return kept + added


def is_finished(resource: Resource, obj: Obj) -> bool:
    """Say whether a deleted object has nothing left to wait for."""
    meta = obj["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers"):
        return False
    if resource.key == "namespaces":
        return not obj["spec"].get("finalizers")
    return not meta.get("deletionGracePeriodSeconds")
