"""How a GPU Job is to fail and to replace its pods, so that preemption never counts against it."""

from typing import Any

from fairslice.workloads import Adapter
from fairslice_webhook.patching import Op, add

__all__ = ["job_policy_ops"]

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
