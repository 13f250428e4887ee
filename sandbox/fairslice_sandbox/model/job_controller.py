"""The Job controller's hands: carries out what `jobs.decide` says."""

from fairslice_sandbox.model.client import ApiError, Client
from fairslice_sandbox.model.controller import Backoff, WorkQueue
from fairslice_sandbox.model.job_failures import index_failures
from fairslice_sandbox.model.jobs import TRACKING, build_pod, decide, is_tracked
from fairslice_sandbox.model.objects import Key, Obj, controller_ref, key_of, labels, matches, uid
from fairslice_sandbox.model.replicas import is_owned

__all__ = ["JobController"]


class JobController:
    """Creates, counts and deletes the pods of Jobs."""

    def __init__(self, client: Client, retry: Backoff, failures: Backoff) -> None:
        """`retry` paces refused API calls, `failures` the replacement of failed pods."""
        self._client = client
        self._failures = (failures.base, failures.limit)
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile, client.clock, retry)

    def on_job(self, job: Obj) -> None:
        """Look at a Job that changed."""
        self.queue.add(key_of(job))

    def on_pod(self, pod: Obj) -> None:
        """Look at the Job of a pod that changed."""
        name = _job_of(pod)
        if name:
            self.queue.add(Key(key_of(pod).namespace, name))

    async def _reconcile(self, key: Key) -> float | None:
        job = self._client.get("jobs.batch", key)
        pods = [pod for pod in self._client.list("pods", key.namespace) if _job_of(pod) == key.name]
        mine = [pod for pod in pods if job and _counts(job, pod)]
        for pod in pods:
            # Their Job is gone or has let them go, so nobody will ever count them.
            if pod not in mine and is_tracked(pod):
                await self._client.drop_finalizer("pods", pod, TRACKING)
        if job is None:
            return None
        plan = decide(job, mine, self._client.clock.now(), self._failures)
        if plan.remove:
            await self._client.delete("jobs.batch", key, uid=uid(job), propagation="Foreground")
            return None
        for pod in plan.drop:
            if is_tracked(pod):
                await self._client.drop_finalizer("pods", pod, TRACKING)
        for pod in (*plan.drop, *plan.stop):
            await self._delete(job, pod)
        refusal = await self._create(job, mine, plan.create) if plan.create else None
        if plan.status is not None:
            if refusal is not None:
                active = plan.status.get("active", 0) - refusal[1]
                plan.status.pop("active", None)
                if active:
                    plan.status["active"] = active
            if plan.status != job.get("status"):
                await self._client.write_status("jobs.batch", job, plan.status)
        for pod in plan.untrack:
            await self._client.drop_finalizer("pods", pod, TRACKING)
        for kind, reason, message in plan.events:
            await self._event(job, kind, reason, message)
        if refusal is not None:
            raise refusal[0]
        return plan.again

    async def _delete(self, job: Obj, pod: Obj) -> None:
        await self._client.delete("pods", key_of(pod), uid=uid(pod))
        text = f"Deleted pod: {key_of(pod).name}"
        await self._event(job, "Normal", "SuccessfulDelete", text)

    async def _create(
        self, job: Obj, pods: list[Obj], indexes: list[int | None]
    ) -> tuple[ApiError, int] | None:
        """Create pods until one is refused; give that error and how many are missing."""
        failures = index_failures(job, pods)
        for done, index in enumerate(indexes):
            body = build_pod(job, index, failures.get(index, 0) if index is not None else 0)
            try:
                pod = await self._client.create("pods", key_of(job).namespace, body)
            except ApiError as error:
                await self._event(job, "Warning", "FailedCreate", f"Error creating: {error}")
                return error, len(indexes) - done
            text = f"Created pod: {key_of(pod).name}"
            await self._event(job, "Normal", "SuccessfulCreate", text)
        return None

    async def _event(self, job: Obj, kind: str, reason: str, message: str) -> None:
        await self._client.event("batch/v1", "Job", key_of(job), uid(job), kind, reason, message)


def _job_of(pod: Obj) -> str:
    """Name the Job that a pod belongs to, or belonged to before it was orphaned."""
    ref = controller_ref(pod)
    if ref is None:
        return labels(pod).get("batch.kubernetes.io/job-name", "") if is_tracked(pod) else ""
    return str(ref["name"]) if ref["kind"] == "Job" else ""


def _counts(job: Obj, pod: Obj) -> bool:
    """Say whether the Job counts the pod: an owner reference alone, perhaps forged, won't do."""
    return is_owned(pod, job) and matches(job["spec"].get("selector"), labels(pod))
