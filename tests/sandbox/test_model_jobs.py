"""The Job controller's decisions, sync by sync."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice_sandbox.model import cronjobs
from fairslice_sandbox.model.job_failures import format_indexes, parse_indexes
from fairslice_sandbox.model.jobs import TRACKING, JobPlan, build_pod, decide, is_finished

Obj = dict[str, Any]
NOW = datetime(2026, 11, 30, 15, 0, tzinfo=UTC)
IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


def job(**spec: Any) -> Obj:
    template = {"metadata": {}, "spec": {"containers": [{"name": "m"}], "restartPolicy": "Never"}}
    return {
        "metadata": {"name": "train", "namespace": "nlp", "uid": "job"},
        "spec": {"parallelism": 1, "completions": 1, "template": template, **spec},
        "status": {},
    }


@dataclass
class World:
    """A Job, its pods, and a kubelet that does as it is told."""

    job: Obj
    pods: dict[str, Obj] = field(default_factory=dict)
    now: datetime = NOW
    created: int = 0

    def sync(self) -> JobPlan:
        plan = decide(self.job, list(self.pods.values()), self.now)
        for pod in plan.drop:
            pod["metadata"]["finalizers"] = []
        for pod in (*plan.drop, *plan.stop):
            pod["metadata"]["deletionTimestamp"] = "now"
        for index in plan.create:
            self.created += 1
            pod = build_pod(self.job, index)
            name = f"p{self.created}"
            pod["metadata"] |= {"name": name, "uid": name}
            pod["status"] = {"phase": "Pending"}
            self.pods[name] = pod
        if plan.status is not None:
            self.job = {**self.job, "status": plan.status}
        for pod in plan.untrack:
            pod["metadata"]["finalizers"] = []
        self._reap()
        return plan

    def settle(self) -> None:
        for _ in range(10):
            before = self.job["status"]
            plan = self.sync()
            if self.job["status"] == before and not plan.create and not plan.untrack:
                return
        raise AssertionError("the Job does not come to rest")

    def end(self, name: str, code: int = 0, **status: Any) -> None:
        ended = {"exitCode": code, "finishedAt": self.now.isoformat()}
        self.pods[name]["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "m", "state": {"terminated": ended}}],
            **status,
        }
        self._reap()

    def preempt(self, name: str) -> None:
        self.pods[name]["metadata"]["deletionTimestamp"] = "now"
        disruption = {"type": "DisruptionTarget", "status": "True"}
        self.end(name, 143, conditions=[disruption])

    def _reap(self) -> None:
        for name, pod in list(self.pods.items()):
            meta, phase = pod["metadata"], pod["status"]["phase"]
            ended = phase in ("Succeeded", "Failed")
            if meta.get("deletionTimestamp") and not meta["finalizers"] and ended:
                del self.pods[name]

    def conditions(self) -> dict[str, str]:
        found = self.job["status"].get("conditions", [])
        return {item["type"]: item["reason"] for item in found if item["status"] == "True"}


def started(**spec: Any) -> World:
    world = World(job(**spec))
    world.settle()
    return world


def test_a_job_starts_its_pods_and_says_so_in_one_write() -> None:
    world = World(job(parallelism=2, completions=2))
    world.sync()
    assert len(world.pods) == 2
    assert world.job["status"] == {
        "active": 2,
        "ready": 0,
        "terminating": 0,
        "startTime": "2026-11-30T15:00:00Z",
        "uncountedTerminatedPods": {},
    }


def test_a_job_completes_when_its_pods_have_succeeded() -> None:
    world = started(parallelism=2, completions=3)
    world.end("p1")
    world.settle()
    assert len(world.pods) == 3
    world.end("p2")
    world.end("p3")
    world.settle()
    assert world.job["status"]["succeeded"] == 3
    assert world.conditions() == {
        "SuccessCriteriaMet": "CompletionsReached",
        "Complete": "CompletionsReached",
    }
    assert all(not pod["metadata"]["finalizers"] for pod in world.pods.values())


def test_preemption_fails_a_job_that_has_no_retries_left() -> None:
    world = started(parallelism=2, completions=2, backoffLimit=0)
    world.preempt("p1")
    world.preempt("p2")
    world.sync()
    assert world.conditions() == {"FailureTarget": "BackoffLimitExceeded"}
    world.settle()
    assert world.conditions()["Failed"] == "BackoffLimitExceeded"
    assert world.job["status"]["failed"] == 2
    assert "active" not in world.job["status"]


def test_ignored_disruptions_cost_no_retry() -> None:
    world = started(
        backoffLimit=0, podFailurePolicy={"rules": [IGNORE]}, podReplacementPolicy="Failed"
    )
    world.preempt("p1")
    world.settle()
    assert list(world.pods) == ["p2"]
    assert "failed" not in world.job["status"]


def test_replacements_wait_until_their_predecessors_have_ended() -> None:
    world = started(podReplacementPolicy="Failed")
    world.pods["p1"]["metadata"]["deletionTimestamp"] = "now"
    world.settle()
    assert list(world.pods) == ["p1"]
    assert world.job["status"]["terminating"] == 1
    eager = started(podReplacementPolicy="TerminatingOrFailed")
    eager.pods["p1"]["metadata"]["deletionTimestamp"] = "now"
    eager.settle()
    assert list(eager.pods) == ["p1", "p2"]


def test_suspending_stops_the_pods_and_counts_nothing() -> None:
    world = started(parallelism=2, completions=2, backoffLimit=0)
    world.job["spec"]["suspend"] = True
    world.settle()
    assert world.conditions() == {"Suspended": "JobSuspended"}
    for name in ("p1", "p2"):
        world.end(name, 143)
    world.settle()
    assert "failed" not in world.job["status"]
    world.now += timedelta(minutes=5)
    world.job["spec"]["suspend"] = False
    world.settle()
    assert world.job["status"]["startTime"] == "2026-11-30T15:05:00Z"
    assert world.job["status"]["active"] == 2
    assert world.conditions() == {}


def test_a_job_born_suspended_has_no_start_time() -> None:
    world = started(suspend=True)
    assert "startTime" not in world.job["status"]
    assert not world.pods


def test_failed_pods_are_replaced_after_a_growing_delay() -> None:
    world = started(backoffLimit=5)
    world.end("p1", 1)
    plan = world.sync()
    assert plan.create == []
    assert plan.again == 10
    world.now += timedelta(seconds=10)
    world.settle()
    world.end("p2", 1)
    assert world.sync().again == 20
    assert world.job["status"]["uncountedTerminatedPods"]["failed"] == ["p2"]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
            "PodFailurePolicy",
        ),
        ({"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [42]}}, None),
    ],
)
def test_a_rule_may_fail_the_job_at_once(rule: Obj, reason: str | None) -> None:
    world = started(podFailurePolicy={"rules": [rule]}, parallelism=2, completions=2)
    world.end("p1", 42)
    world.sync()
    assert world.conditions().get("FailureTarget") == reason
    if reason:
        message = world.job["status"]["conditions"][0]["message"]
        assert message == (
            "Container m for pod nlp/p1 failed with exit code 42 matching FailJob rule at index 0"
        )
        assert world.pods["p2"]["metadata"]["deletionTimestamp"]
        assert "Failed" not in world.conditions()
        world.end("p2", 143)
        world.settle()
        assert world.conditions()["Failed"] == reason


def test_an_indexed_job_fills_the_gaps() -> None:
    world = started(parallelism=2, completions=4, completionMode="Indexed")
    world.end("p2")
    world.settle()
    indexes = [
        p["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        for p in world.pods.values()
    ]
    assert indexes == ["0", "1", "2"]
    assert world.job["status"]["completedIndexes"] == "1"


def test_an_index_fails_alone_where_the_job_says_so() -> None:
    world = started(
        parallelism=2,
        completions=2,
        completionMode="Indexed",
        backoffLimitPerIndex=0,
        podReplacementPolicy="Failed",
    )
    world.end("p1", 1)
    world.settle()
    assert world.job["status"]["failedIndexes"] == "0"
    assert world.conditions() == {}
    world.end("p2")
    world.settle()
    assert world.conditions()["Failed"] == "FailedIndexes"
    assert world.job["status"]["completedIndexes"] == "1"


def test_the_deadline_counts_from_the_last_resume() -> None:
    world = started(activeDeadlineSeconds=60)
    assert world.sync().again == 60
    world.now += timedelta(seconds=61)
    world.sync()
    assert world.conditions() == {"FailureTarget": "DeadlineExceeded"}


def test_finished_jobs_go_after_their_ttl() -> None:
    world = started(ttlSecondsAfterFinished=30)
    world.end("p1")
    world.settle()
    assert is_finished(world.job)
    assert world.sync().again == 30
    world.now += timedelta(seconds=30)
    assert world.sync().remove


def test_jobs_of_other_controllers_are_left_alone() -> None:
    assert decide(job(managedBy="kueue.x-k8s.io/multikueue"), [], NOW) == JobPlan()


def test_pods_look_like_those_of_a_real_job_controller() -> None:
    made = build_pod(job(completionMode="Indexed"), 0)
    labels = {
        "batch.kubernetes.io/controller-uid": "job",
        "batch.kubernetes.io/job-completion-index": "0",
        "batch.kubernetes.io/job-name": "train",
        "controller-uid": "job",
        "job-name": "train",
    }
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "train",
        "uid": "job",
        "controller": True,
        "blockOwnerDeletion": True,
    }
    assert made["metadata"] == {
        "generateName": "train-0-",
        "namespace": "nlp",
        "labels": labels,
        "annotations": {"batch.kubernetes.io/job-completion-index": "0"},
        "ownerReferences": [owner],
        "finalizers": [TRACKING],
    }
    assert made["spec"]["hostname"] == "train-0"
    assert [env["name"] for env in made["spec"]["containers"][0]["env"]] == ["JOB_COMPLETION_INDEX"]


@given(st.lists(st.integers(0, 60)))
def test_indexes_are_written_and_read_back(numbers: list[int]) -> None:
    assert parse_indexes(format_indexes(numbers)) == set(numbers)


def test_indexes_are_written_as_ranges() -> None:
    assert format_indexes([4, 0, 1, 2, 6, 7]) == "0-2,4,6,7"


EVENTS = st.lists(st.tuples(st.sampled_from(["end", "fail", "preempt", "sync"]), st.integers(0, 9)))


@given(events=EVENTS, indexed=st.booleans(), completions=st.integers(1, 5))
def test_every_success_is_counted_exactly_once(
    events: list[tuple[str, int]], indexed: bool, completions: int
) -> None:
    mode = "Indexed" if indexed else "NonIndexed"
    world = World(
        job(
            parallelism=2,
            completions=completions,
            completionMode=mode,
            backoffLimit=1000,
            podFailurePolicy={"rules": [IGNORE]},
        )
    )
    ended = 0
    for what, which in [*events, *[("end", 0)] * 12]:
        world.now += timedelta(hours=1)
        world.sync()
        running = [n for n, pod in world.pods.items() if pod["status"]["phase"] == "Pending"]
        assert len(running) <= min(2, completions - ended)
        if not running or what == "sync":
            continue
        name = running[which % len(running)]
        if what == "end":
            world.end(name)
            ended += 1
        elif what == "fail":
            world.end(name, 1)
        else:
            world.preempt(name)
    world.settle()
    assert ended == completions
    assert world.job["status"]["succeeded"] == completions
    assert is_finished(world.job)


def cron(**spec: Any) -> Obj:
    template = {"spec": {"template": {"spec": {"containers": []}}}}
    return {
        "metadata": {
            "name": "nightly",
            "namespace": "nlp",
            "uid": "cron",
            "creationTimestamp": "2026-11-30T14:59:00Z",
        },
        "spec": {"schedule": "*/5 * * * *", "jobTemplate": template, **spec},
    }


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("*/5 * * * *", "2026-11-30T15:05"),
        ("* * * * *", "2026-11-30T15:01"),
        ("30 2 * * *", "2026-12-01T02:30"),
        ("0 0 1 * *", "2026-12-01T00:00"),
        ("0 9 * * 1", "2026-12-07T09:00"),
        ("whenever", None),
    ],
)
def test_schedules_name_their_next_run(schedule: str, expected: str | None) -> None:
    found = cronjobs.next_run(schedule, NOW)
    assert (found and found.isoformat(timespec="minutes")[:16]) == expected


def test_a_cronjob_starts_what_is_due_and_says_when_to_look_again() -> None:
    plan = cronjobs.decide(cron(), [], NOW + timedelta(seconds=1))
    assert plan.create is not None
    assert plan.create["metadata"]["name"] == f"nightly-{int(NOW.timestamp()) // 60}"
    assert plan.again == 299


@pytest.mark.parametrize(
    ("policy", "creates", "deletes"),
    [("Allow", True, 0), ("Forbid", False, 0), ("Replace", True, 1)],
)
def test_concurrency_is_as_the_cronjob_wants(policy: str, creates: bool, deletes: int) -> None:
    plan = cronjobs.decide(cron(concurrencyPolicy=policy), [job()], NOW)
    assert (plan.create is not None) is creates
    assert len(plan.delete) == deletes
