"""CronJobs: which Jobs are due, which are in the way, which are old."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from fairslice_sandbox.model.client import ApiError, Client
from fairslice_sandbox.model.controller import Backoff, WorkQueue
from fairslice_sandbox.model.jobs import is_finished
from fairslice_sandbox.model.objects import (
    Key,
    Obj,
    condition_true,
    controller_ref,
    is_deleting,
    key_of,
    owner_reference,
    parse_time,
    rfc3339,
    uid,
)

__all__ = ["CronJobController", "CronPlan", "decide", "next_run"]

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


@dataclass(slots=True)
class CronPlan:
    """Jobs to delete and to create, the status to write, seconds to the next look."""

    delete: list[Obj] = field(default_factory=list)
    create: Obj | None = None
    status: Obj | None = None
    again: float | None = None


def _matches(text: str, value: int, low: int) -> bool:
    for part in text.split(","):
        if part == "*" or (part.isdigit() and int(part) == value):
            return True
        step = int(part[2:]) if part.startswith("*/") and part[2:].isdigit() else 0
        if step and (value - low) % step == 0:
            return True
    return False


def next_run(schedule: str, after: datetime) -> datetime | None:
    """Give the first minute after a time that the schedule names, within 366 days.

    Only `*`, `*/n`, numbers and lists of them are understood; anything else never runs.
    """
    fields = {"@hourly": "0 * * * *", "@daily": "0 0 * * *"}.get(schedule, schedule).split()
    if len(fields) != 5:
        return None
    moment = after.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    end = moment + timedelta(days=366)
    while moment < end:
        parts = (moment.month, moment.day, moment.isoweekday() % 7)
        if not all(
            _matches(fields[place], value, _RANGES[place][0])
            for place, value in zip((3, 2, 4), parts, strict=True)
        ):
            moment = moment.replace(hour=0, minute=0) + timedelta(days=1)
        elif not _matches(fields[1], moment.hour, 0):
            moment = moment.replace(minute=0) + timedelta(hours=1)
        elif not _matches(fields[0], moment.minute, 0):
            moment += timedelta(minutes=1)
        else:
            return moment
    return None


def decide(cron: Obj, jobs: Sequence[Obj], now: datetime) -> CronPlan:
    """Decide for one CronJob and the Jobs it controls."""
    spec, before = cron["spec"], cron.get("status") or {}
    plan, status = CronPlan(), copy.deepcopy(before)
    if is_deleting(cron):
        return plan
    running = [job for job in jobs if not is_finished(job) and not is_deleting(job)]
    for kind, limit in (
        ("Complete", spec.get("successfulJobsHistoryLimit", 3)),
        ("Failed", spec.get("failedJobsHistoryLimit", 1)),
    ):
        ended = [job for job in jobs if condition_true(job, kind)]
        ended.sort(key=lambda job: job["metadata"].get("creationTimestamp", ""))
        plan.delete.extend(ended[: max(0, len(ended) - limit)])
        times = [job["status"].get("completionTime") or "" for job in ended]
        if kind == "Complete" and any(times):
            status["lastSuccessfulTime"] = max(times)
    last = status.get("lastScheduleTime") or cron["metadata"]["creationTimestamp"]
    due = None
    upcoming = next_run(spec["schedule"], parse_time(last) or now)
    while upcoming is not None and upcoming <= now:
        due, upcoming = upcoming, next_run(spec["schedule"], upcoming)
    deadline = spec.get("startingDeadlineSeconds")
    late = due and deadline is not None and (now - due).total_seconds() > deadline
    if due is not None and not spec.get("suspend") and not late:
        policy = spec.get("concurrencyPolicy", "Allow")
        if policy == "Replace":
            plan.delete.extend(running)
            running = []
        if policy != "Forbid" or not running:
            plan.create = _build(cron, due)
            status["lastScheduleTime"] = rfc3339(due)
    status["active"] = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": job["metadata"]["namespace"],
            "name": job["metadata"]["name"],
            "uid": uid(job),
        }
        for job in running
    ]
    if not status["active"]:
        del status["active"]
    if status != before:
        plan.status = status
    if upcoming is not None and not spec.get("suspend"):
        plan.again = (upcoming - now).total_seconds()
    return plan


def _build(cron: Obj, due: datetime) -> Obj:
    template = copy.deepcopy(cron["spec"]["jobTemplate"])
    meta = template.get("metadata") or {}
    stamp = {"batch.kubernetes.io/cronjob-scheduled-timestamp": rfc3339(due)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": f"{cron['metadata']['name']}-{int(due.timestamp()) // 60}",
            "namespace": cron["metadata"]["namespace"],
            "labels": meta.get("labels") or {},
            "annotations": {**(meta.get("annotations") or {}), **stamp},
            "ownerReferences": [owner_reference(cron, "batch/v1", "CronJob")],
        },
        "spec": template["spec"],
    }


class CronJobController:
    """Starts the Jobs of CronJobs when they are due."""

    def __init__(self, client: Client, retry: Backoff) -> None:
        """`retry` paces refused API calls."""
        self._client = client
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile, client.clock, retry)

    def on_cronjob(self, cron: Obj) -> None:
        """Look at a CronJob that changed."""
        self.queue.add(key_of(cron))

    def on_job(self, job: Obj) -> None:
        """Look at the CronJob of a Job that changed."""
        ref = controller_ref(job)
        if ref is not None and ref["kind"] == "CronJob":
            self.queue.add(Key(key_of(job).namespace, ref["name"]))

    async def _reconcile(self, key: Key) -> float | None:
        cron = self._client.get("cronjobs.batch", key)
        if cron is None:
            return None
        jobs = [
            job
            for job in self._client.list("jobs.batch", key.namespace)
            if (controller_ref(job) or {}).get("uid") == uid(cron)
        ]
        plan = decide(cron, jobs, self._client.clock.now())
        for job in plan.delete:
            await self._client.delete(
                "jobs.batch", key_of(job), uid=uid(job), propagation="Background"
            )
        if plan.create is not None:
            try:
                await self._client.create("jobs.batch", key.namespace, plan.create)
            except ApiError as error:
                # Created before a crash kept us from writing it down.
                if error.reason != "AlreadyExists":
                    raise
        if plan.status is not None:
            await self._client.write_status("cronjobs.batch", cron, plan.status)
        return plan.again
