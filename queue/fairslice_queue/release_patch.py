"""The patch that lets a custom workload go: its field, and the assignment of each of its pods."""

from typing import Any

from msgspec import json

from fairslice import stamps
from fairslice.booking import Assignment, Option, State
from fairslice.gangs import read_members
from fairslice.json_patch import Op, add, check, map_ops
from fairslice.pod_sets import at_pointer, metadata_ops
from fairslice.workloads import Adapter

__all__ = ["release_patch"]


def release_patch(
    adapter: Adapter, obj: dict[str, Any], booking: str, option: Option
) -> tuple[Op, ...]:
    """Make the JSON patch for an object as it was just read; it fails on any later version.

    A merge patch could not reach into lists of pod sets. Raises WorkloadError, AskError.
    """
    meta = obj["metadata"]
    ops: list[Op] = [
        check("/metadata/uid", meta["uid"]),
        check("/metadata/resourceVersion", meta["resourceVersion"]),
    ]
    labels = {stamps.STATE: State.RELEASED.value.lower()}
    notes = {stamps.STATUS: "Released", stamps.PREEMPTION: None}
    ops += map_ops("/metadata/labels", meta.get("labels"), labels)
    ops += map_ops("/metadata/annotations", meta.get("annotations"), notes)
    made: set[str] = set()
    for member in read_members(adapter.pod_sets(obj)):
        assignment = Assignment(booking=booking, option=option.times(member.size))
        stamped = {stamps.ASSIGNMENT: json.encode(assignment).decode()}
        ops += metadata_ops(member.pod_set, stamped, {}, made)
    above = adapter.suspend.rpartition("/")[0]
    if at_pointer(obj, above) is None:
        ops.append(add(above, {"suspend": False}))
    elif adapter.is_suspended(obj):
        ops.append(add(adapter.suspend, False))
    return tuple(ops)
