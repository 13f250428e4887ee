"""How a GPU Job is to fail and to replace its pods, so that preemption never counts against it."""

from typing import Any

from fairslice.policy import WorkClass
from fairslice.workloads import Adapter
from fairslice_webhook.patching import Op, add

__all__ = ["deadline_ops", "job_policy_ops", "replacement_ops"]

# A pod that was pushed out did not fail (KEP-3329).
_IGNORE_DISRUPTION = {
    "rules": [
        {
            "action": "Ignore",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        }
    ]
}


def job_policy_ops(adapter: Adapter, obj: dict[str, Any]) -> tuple[Op, ...]:
    """Let disruption go uncounted, and replacements wait until their predecessors are gone.

    The two belong together: the API server refuses a podFailurePolicy beside the replacement
    policy that it fills in by itself.
    """
    if adapter.kind.kind != "Job" or adapter.kind.group != "batch":
        return ()
    spec = obj.get("spec") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    ops = []
    if spec.get("podReplacementPolicy") != "Failed":
        ops.append(add("/spec/podReplacementPolicy", "Failed"))
    if template.get("restartPolicy") == "Never" and not spec.get("podFailurePolicy"):
        ops.append(add("/spec/podFailurePolicy", _IGNORE_DISRUPTION))
    return tuple(ops)


def replacement_ops(adapter: Adapter, new: dict[str, Any], old: dict[str, Any]) -> tuple[Op, ...]:
    """Keep replacements waiting, also where a manifest says otherwise and is applied again.

    Beside our podFailurePolicy the API server would refuse any other value.
    """
    if adapter.kind.kind != "Job" or adapter.kind.group != "batch":
        return ()
    was, now = ((obj.get("spec") or {}).get("podReplacementPolicy") for obj in (old, new))
    return (add("/spec/podReplacementPolicy", "Failed"),) if was == "Failed" != now else ()


def deadline_ops(
    adapter: Adapter, obj: dict[str, Any], work_class: WorkClass | None
) -> tuple[Op, ...]:
    """End a run of a Job when its class says so; a shorter deadline of the user's own stays.

    The deadline starts anew when a suspended Job is resumed.
    """
    longest = work_class.max_runtime if work_class is not None else 0
    if not longest or adapter.kind.kind != "Job" or adapter.kind.group != "batch":
        return ()
    own = (obj.get("spec") or {}).get("activeDeadlineSeconds")
    if isinstance(own, int) and 0 < own <= longest:
        return ()
    return (add("/spec/activeDeadlineSeconds", longest),)
