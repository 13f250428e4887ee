"""Resources that show objects stored under another: other versions, and the two Event APIs.

Source: k8s.io/kubernetes/pkg/apis/core/v1/conversion.go, pkg/apis/events/v1.
"""

from .store import Obj, Resource

__all__ = ["from_storage", "to_storage"]

_EVENTS = "events.k8s.io"
_RENAMED = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK = {core: new for new, core in _RENAMED.items()}


def from_storage(resource: Resource, stored: Obj) -> Obj:
    """Give a stored object as a resource shows it."""
    if resource.group == _EVENTS:
        stored = {_BACK.get(name, name): value for name, value in stored.items()}
    if stored.get("apiVersion") != resource.api_version:
        return {**stored, "apiVersion": resource.api_version}
    return stored


def to_storage(resource: Resource, obj: Obj) -> Obj:
    """Give an object of a resource as it is stored."""
    if resource.group == _EVENTS:
        renamed = {_RENAMED.get(name, name): value for name, value in obj.items()}
        return {**renamed, "apiVersion": "v1"}
    return obj
