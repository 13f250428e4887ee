"""How a Job judges its failed pods: podFailurePolicy, backoff, completion indexes.

Follows the Job controller's pod_failure_policy.go, backoff_utils.go and indexed_job_utils.go.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from fairslice_sandbox.model.objects import Obj, annotations, key_of, parse_time

__all__ = [
    "Verdict",
    "completion_index",
    "failure_delay",
    "format_indexes",
    "index_failures",
    "judge",
    "parse_indexes",
]

INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failed pod means: the rule's action ("Count" without one), and FailJob's reason."""

    action: str
    message: str = ""


def judge(job: Obj, pod: Obj) -> Verdict:
    """Apply the first matching rule of the Job's podFailurePolicy."""
    policy = job["spec"].get("podFailurePolicy") or {}
    for number, rule in enumerate(policy.get("rules") or ()):
        cause = _by_exit_code(rule, pod) or _by_condition(rule, pod)
        if cause:
            return Verdict(
                rule["action"], f"{cause} matching {rule['action']} rule at index {number}"
            )
    return Verdict("Count")


def _by_exit_code(rule: Obj, pod: Obj) -> str:
    wanted = rule.get("onExitCodes")
    if not wanted:
        return ""
    status = pod.get("status") or {}
    for item in [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]:
        ended = (item.get("state") or {}).get("terminated")
        if not ended or ended.get("exitCode", 0) == 0:
            continue
        if wanted.get("containerName") not in (None, item["name"]):
            continue
        if (ended["exitCode"] in wanted["values"]) == (wanted["operator"] == "In"):
            where = f"Container {item['name']} for pod {'/'.join(key_of(pod))}"
            return f"{where} failed with exit code {ended['exitCode']}"
    return ""


def _by_condition(rule: Obj, pod: Obj) -> str:
    present = (pod.get("status") or {}).get("conditions") or ()
    for wanted in rule.get("onPodConditions") or ():
        for item in present:
            if item["type"] == wanted["type"] and item["status"] == wanted.get("status", "True"):
                return f"Pod {'/'.join(key_of(pod))} has condition {item['type']}"
    return ""


def finished_at(pod: Obj) -> datetime | None:
    """Give the time at which the pod's last container ended."""
    ends = [
        parse_time(((item.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        for item in (pod.get("status") or {}).get("containerStatuses") or ()
    ]
    known = [end for end in ends if end is not None]
    return max(known) if known else None


def failure_delay(job: Obj, pods: Iterable[Obj], now: datetime, base: float, limit: float) -> float:
    """Give the seconds to wait before the next pod: doubling with failures since a success."""
    failures: list[datetime] = []
    success: datetime | None = None
    for pod in pods:
        ended = finished_at(pod)
        if ended is None:
            continue
        if pod["status"]["phase"] == "Succeeded":
            success = max(success or ended, ended)
        elif pod["status"]["phase"] == "Failed" and judge(job, pod).action != "Ignore":
            failures.append(ended)
    recent = [ended for ended in failures if success is None or ended > success]
    if not recent:
        return 0.0
    delay = min(limit, base * 2 ** min(len(recent) - 1, 60))
    return max(0.0, (max(recent) + timedelta(seconds=delay) - now).total_seconds())


def completion_index(pod: Obj) -> int:
    """Give the pod's completion index, -1 if it has none."""
    text = annotations(pod).get(INDEX, "")
    return int(text) if text.isdigit() else -1


def index_failures(job: Obj, pods: Iterable[Obj]) -> dict[int, int]:
    """Count failures by index: each replacement pod carries its predecessors' count."""
    counts: dict[int, int] = {}
    for pod in pods:
        index = completion_index(pod)
        before = annotations(pod).get(INDEX_FAILURES, "0")
        count = int(before) if before.isdigit() else 0
        if (pod.get("status") or {}).get("phase") == "Failed":
            count += judge(job, pod).action != "Ignore"
        counts[index] = max(counts.get(index, 0), count)
    return counts


def parse_indexes(text: str | None) -> set[int]:
    """Read "0-2,4"."""
    result: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if first:
            result.update(range(int(first), int(last or first) + 1))
    return result


def format_indexes(indexes: Collection[int]) -> str:
    """Write indexes as the Job status does: runs of three or more as first-last."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = [
        [f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(index) for index in run] for run in runs
    ]
    return ",".join(text for part in parts for text in part)
