"""What happened, in the order and at the time at which watches told it."""

from collections.abc import Callable, Iterator
from typing import Any

from .client import Seen
from .kinds import Obj

__all__ = ["History", "is_complete", "is_suspended", "phase"]


def phase(pod: Obj) -> str:
    """Phase of a pod."""
    return str((pod.get("status") or {}).get("phase", ""))


def is_suspended(job: Obj) -> bool:
    """Say whether a Job is suspended."""
    return bool(job["spec"].get("suspend"))


def is_complete(job: Obj) -> bool:
    """Say whether a Job has completed."""
    return has_condition(job, "Complete")


def has_condition(obj: Obj, kind: str) -> bool:
    """Say whether a condition is there and True."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(item["type"] == kind and item["status"] == "True" for item in conditions)


class History:
    """Every watch event on pods and Jobs. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.events: list[Seen] = []

    def hear(self, seen: Seen) -> None:
        """Remember an event."""
        self.events.append(seen)

    def of(self, namespace: str, kind: str, name: str = "") -> Iterator[Seen]:
        """Go through the events of a namespace's objects of a kind, or of one of them."""
        for seen in self.events:
            meta = seen.obj["metadata"]
            if (
                meta.get("namespace") == namespace
                and seen.obj["kind"] == kind
                and name in ("", meta["name"])
            ):
                yield seen

    def first(
        self,
        namespace: str,
        kind: str,
        name: str,
        holds: Callable[[Obj], Any],
        after: float = 0.0,
    ) -> float | None:
        """Time at which an object was first seen so; None if never."""
        for seen in self.of(namespace, kind, name):
            if seen.at >= after and holds(seen.obj):
                return seen.at
        return None
