"""The Job controller's decision: what one Job needs done, given its pods.

Follows job_controller.go: terminated pods are first listed as uncounted in the status, then
lose their finalizer, then are counted; so no crash between the steps counts one twice.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from fairslice_sandbox.model.job_failures import (
    INDEX,
    INDEX_FAILURES,
    completion_index,
    failure_delay,
    format_indexes,
    index_failures,
    judge,
    parse_indexes,
)
from fairslice_sandbox.model.objects import (
    Obj,
    condition,
    condition_true,
    is_deleting,
    is_pod_active,
    is_pod_ready,
    is_pod_terminal,
    owner_reference,
    parse_time,
    rfc3339,
    uid,
    with_condition,
)

__all__ = ["TRACKING", "JobPlan", "build_pod", "decide", "is_finished", "is_tracked"]

TRACKING = "batch.kubernetes.io/job-tracking"
MANAGED_BY = "kubernetes.io/job-controller"


@dataclass(slots=True)
class JobPlan:
    """What to do, in this order: drop, stop, create, write the status, untrack; or `remove`.

    Pods to `drop` lose their finalizer before they are deleted, so they count as nothing; pods
    to `stop` are deleted and counted when they have ended. `remove` means the Job itself.
    `create` holds completion indexes (None: not indexed). `again` is in seconds.
    """

    drop: list[Obj] = field(default_factory=list)
    stop: list[Obj] = field(default_factory=list)
    create: list[int | None] = field(default_factory=list)
    status: Obj | None = None
    untrack: list[Obj] = field(default_factory=list)
    remove: bool = False
    again: float | None = None
    events: list[tuple[str, str, str]] = field(default_factory=list)


def is_tracked(pod: Obj) -> bool:
    """Say whether the pod still waits to be counted by its Job."""
    return TRACKING in (pod["metadata"].get("finalizers") or ())


def is_finished(job: Obj) -> bool:
    """Say whether the Job is Complete or Failed."""
    return condition_true(job, "Complete") or condition_true(job, "Failed")


def _is_failed(job: Obj, pod: Obj) -> bool:
    if pod["status"].get("phase") == "Failed":
        return True
    return not _replaces_failed_only(job) and is_deleting(pod) and not is_pod_terminal(pod)


def _replaces_failed_only(job: Obj) -> bool:
    spec = job["spec"]
    return spec.get("podReplacementPolicy") == "Failed" or bool(spec.get("podFailurePolicy"))


def decide(
    job: Obj, pods: Sequence[Obj], now: datetime, backoff: tuple[float, float] = (10.0, 600.0)
) -> JobPlan:
    """Decide for one Job and the pods it controls.

    `backoff` is the base and limit, in seconds, of the wait before failed pods are replaced.
    """
    spec = job["spec"]
    if spec.get("managedBy", MANAGED_BY) != MANAGED_BY:
        return JobPlan()
    if is_deleting(job):
        return JobPlan(untrack=[pod for pod in pods if is_tracked(pod)])
    if is_finished(job):
        return _after_finish(job, pods, now)
    return _Sync(job, pods, now).plan(backoff)


def _after_finish(job: Obj, pods: Sequence[Obj], now: datetime) -> JobPlan:
    plan = JobPlan(untrack=[pod for pod in pods if is_tracked(pod)])
    ttl = job["spec"].get("ttlSecondsAfterFinished")
    ended = condition(job, "Complete" if condition_true(job, "Complete") else "Failed")
    since = parse_time(ended.get("lastTransitionTime") if ended else None)
    if ttl is not None and since is not None:
        left = (since + timedelta(seconds=ttl) - now).total_seconds()
        plan.remove, plan.again = left <= 0, max(left, 0.0)
    return plan


class _Sync:
    """One look at an unfinished Job; lives only inside `decide`."""

    def __init__(self, job: Obj, pods: Sequence[Obj], now: datetime) -> None:
        self.job, self.spec, self.pods, self.now = job, job["spec"], pods, now
        self.before: Obj = job.get("status") or {}
        self.status: Obj = copy.deepcopy(self.before)
        self.indexed = self.spec.get("completionMode") == "Indexed"
        self.completions: int | None = self.spec.get("completions")
        self.parallelism: int = self.spec.get("parallelism", 1)
        self.active = [pod for pod in pods if is_pod_active(pod)]
        self.terminating = [p for p in pods if is_deleting(p) and not is_pod_terminal(p)]
        self.done = parse_indexes(self.status.get("completedIndexes"))
        self.failed_indexes = parse_indexes(self.status.get("failedIndexes"))
        self.result = JobPlan()

    def plan(self, backoff: tuple[float, float]) -> JobPlan:
        self._settle()
        self._count()
        if self.spec.get("backoffLimitPerIndex") is not None:
            self._fail_indexes()
        ending = self._ending()
        self._suspension(ending)
        if ending is not None:
            self.result.stop.extend(self.active)
            self._finish(ending)
            active = 0
        elif self.spec.get("suspend"):
            self.result.drop.extend(self.active)
            active = 0
        else:
            active = self._manage(backoff)
        self._write(active)
        return self.result

    # Counting.

    def _settle(self) -> None:
        tracked = {uid(pod) for pod in self.pods if is_tracked(pod)}
        listed = self.status.setdefault("uncountedTerminatedPods", {})
        for kind in ("succeeded", "failed"):
            ended = listed.pop(kind, [])
            kept = [item for item in ended if item in tracked]
            self.status[kind] = self.status.get(kind, 0) + len(ended) - len(kept)
            if kept:
                listed[kind] = kept
        waiting = {*listed.get("succeeded", ()), *listed.get("failed", ())}
        self.result.untrack = [p for p in self.pods if is_tracked(p) and uid(p) in waiting]

    def _count(self) -> None:
        listed = self.status["uncountedTerminatedPods"]
        known = {uid(pod) for pod in self.result.untrack}
        self.fatal = ""
        for pod in self.pods:
            if not is_tracked(pod) or uid(pod) in known:
                continue
            index = completion_index(pod)
            in_range = not self.indexed or 0 <= index < (self.completions or 0)
            if pod["status"].get("phase") == "Succeeded":
                if self.indexed and in_range:
                    self.done.add(index)
                elif in_range:
                    listed.setdefault("succeeded", []).append(uid(pod))
            elif _is_failed(self.job, pod):
                verdict = judge(self.job, pod)
                if verdict.action == "FailJob":
                    self.fatal = self.fatal or verdict.message
                if verdict.action != "Ignore" and in_range:
                    listed.setdefault("failed", []).append(uid(pod))
            else:
                continue
            self.result.untrack.append(pod)
        if self.indexed:
            self.status["succeeded"] = len(self.done)
            self.status["completedIndexes"] = format_indexes(self.done)

    @property
    def succeeded(self) -> int:
        uncounted = self.status["uncountedTerminatedPods"].get("succeeded", ())
        return int(self.status["succeeded"]) + len(uncounted)

    def _fail_indexes(self) -> None:
        limit = self.spec["backoffLimitPerIndex"]
        for index, failures in index_failures(self.job, self.pods).items():
            if index not in self.done and failures > limit:
                self.failed_indexes.add(index)
        for pod in self.pods:
            if _is_failed(self.job, pod) and judge(self.job, pod).action == "FailIndex":
                self.failed_indexes.add(completion_index(pod))
        self.status["failedIndexes"] = format_indexes(self.failed_indexes)

    # Ending.

    def _ending(self) -> tuple[str, str, str] | None:
        """Give the interim condition of a Job that ends: type, reason, message."""
        for kind in ("FailureTarget", "SuccessCriteriaMet"):
            found = condition(self.job, kind)
            if found is not None and found["status"] == "True":
                return kind, found.get("reason", ""), found.get("message", "")
        failure = self._failure()
        if failure is not None:
            return "FailureTarget", *failure
        if self.completions is None:
            complete = self.succeeded > 0 and not self.active
        else:
            complete = self.succeeded >= self.completions and not self.failed_indexes
        if complete:
            message = "Reached expected number of succeeded pods"
            return "SuccessCriteriaMet", "CompletionsReached", message
        return None

    def _failure(self) -> tuple[str, str] | None:
        if self.fatal:
            return "PodFailurePolicy", self.fatal
        limit = self.spec.get("backoffLimit", 6)
        uncounted = self.status["uncountedTerminatedPods"].get("failed", ())
        restarts = 0
        if self.spec["template"]["spec"].get("restartPolicy") == "OnFailure":
            restarts = sum(_restarts(pod) for pod in self.active)
        if self.status["failed"] + len(uncounted) > limit or restarts >= max(limit, 1):
            return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        deadline, start = self.spec.get("activeDeadlineSeconds"), self._start()
        if deadline is not None and start is not None and not self.spec.get("suspend"):
            left = (start + timedelta(seconds=deadline) - self.now).total_seconds()
            if left <= 0:
                return "DeadlineExceeded", "Job was active longer than specified deadline"
            self.result.again = left
        allowed = self.spec.get("maxFailedIndexes")
        if allowed is not None and len(self.failed_indexes) > allowed:
            message = "Job has exceeded the specified maximal number of failed indexes"
            return "MaxFailedIndexesExceeded", message
        if self.failed_indexes and len(self.done | self.failed_indexes) >= (self.completions or 0):
            return "FailedIndexes", "Job has failed indexes"
        return None

    def _start(self) -> datetime | None:
        return parse_time(self.status.get("startTime"))

    def _condition(self, kind: str, status: str, reason: str, message: str) -> None:
        self.status["conditions"] = with_condition(
            self.status.get("conditions") or (),
            kind,
            status,
            self.now,
            reason,
            message,
            lastProbeTime=rfc3339(self.now),
        )

    def _finish(self, ending: tuple[str, str, str]) -> None:
        kind, reason, message = ending
        if not condition_true(self.job, kind):
            self._condition(kind, "True", reason, message)
        # Pods that lose their finalizer in this sync are counted in the next.
        if self.active or self.terminating or self.result.untrack:
            return
        failed = kind == "FailureTarget"
        self._condition("Failed" if failed else "Complete", "True", reason, message)
        if failed:
            self.result.events.append(("Warning", reason, message))
        else:
            self.status["completionTime"] = rfc3339(self.now)
            self.result.events.append(("Normal", "Completed", "Job completed"))

    # Running.

    def _suspension(self, ending: tuple[str, str, str] | None) -> None:
        suspended, was = bool(self.spec.get("suspend")), condition_true(self.job, "Suspended")
        if ending is None and suspended and not was:
            self._condition("Suspended", "True", "JobSuspended", "Job suspended")
            self.result.events.append(("Normal", "Suspended", "Job suspended"))
        elif ending is None and not suspended and was:
            self._condition("Suspended", "False", "JobResumed", "Job resumed")
            self.result.events.append(("Normal", "Resumed", "Job resumed"))
            self.status["startTime"] = rfc3339(self.now)
        if not suspended and not self.status.get("startTime"):
            self.status["startTime"] = rfc3339(self.now)

    def _manage(self, backoff: tuple[float, float]) -> int:
        if self.completions is None:
            wanted = len(self.active) if self.succeeded else self.parallelism
        else:
            wanted = max(0, min(self.completions - self.succeeded, self.parallelism))
        held = list(self.active)
        if _replaces_failed_only(self.job):
            held += self.terminating
        if len(self.active) > wanted:
            ranked = sorted(self.active, key=lambda p: (is_pod_ready(p), p["metadata"]["name"]))
            self.result.drop.extend(ranked[: len(self.active) - wanted])
            return wanted
        missing = wanted - len(held)
        if missing <= 0:
            return len(self.active)
        delay = failure_delay(self.job, self.pods, self.now, *backoff)
        if delay > 0:
            self.result.again = min(delay, self.result.again or delay)
            return len(self.active)
        if self.indexed:
            taken = {completion_index(pod) for pod in held} | self.done | self.failed_indexes
            free = [index for index in range(self.completions or 0) if index not in taken]
            self.result.create.extend(free[:missing])
        else:
            self.result.create.extend([None] * missing)
        return len(self.active) + len(self.result.create)

    def _write(self, active: int) -> None:
        status = self.status
        status["active"] = active
        gone = {uid(pod) for pod in (*self.result.drop, *self.result.stop)}
        status["ready"] = sum(is_pod_ready(pod) for pod in self.active if uid(pod) not in gone)
        status["terminating"] = len(self.terminating)
        for name in ("active", "succeeded", "failed", "completedIndexes", "failedIndexes"):
            if not status.get(name):
                status.pop(name, None)
        if status != self.before:
            self.result.status = status


def _restarts(pod: Obj) -> int:
    return sum(item.get("restartCount", 0) for item in pod["status"].get("containerStatuses") or ())


def build_pod(job: Obj, index: int | None, failures: int = 0) -> Obj:
    """Build the pod that the Job controller creates, as a real one sends it."""
    name, template = job["metadata"]["name"], copy.deepcopy(job["spec"]["template"])
    meta: dict[str, Any] = template.get("metadata") or {}
    pod_labels = {
        **(meta.get("labels") or {}),
        "batch.kubernetes.io/controller-uid": uid(job),
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid(job),
        "job-name": name,
    }
    notes = dict(meta.get("annotations") or {})
    prefix = name
    if index is not None:
        prefix = f"{name}-{index}"
        pod_labels[INDEX] = notes[INDEX] = str(index)
        template["spec"].setdefault("hostname", prefix)
        source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
        for kind in ("containers", "initContainers"):
            for container in template["spec"].get(kind) or ():
                env = container.setdefault("env", [])
                if all(item["name"] != "JOB_COMPLETION_INDEX" for item in env):
                    env.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": source})
        if job["spec"].get("backoffLimitPerIndex") is not None:
            notes[INDEX_FAILURES] = str(failures)
    metadata: Obj = {
        "generateName": f"{prefix}-",
        "namespace": job["metadata"]["namespace"],
        "labels": pod_labels,
        "ownerReferences": [owner_reference(job, "batch/v1", "Job")],
        "finalizers": [*(meta.get("finalizers") or ()), TRACKING],
    }
    if notes:
        metadata["annotations"] = notes
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
