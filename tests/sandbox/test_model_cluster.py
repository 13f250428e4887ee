"""The whole model over the real API: pods run, Jobs finish, preemption looks as recorded."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fairslice_sandbox.api import Api
from fairslice_sandbox.clock import RealClock
from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.model.cluster import Cluster, ClusterSettings
from fairslice_sandbox.model.controller import Backoff
from fairslice_sandbox.model.nodes import NodeSpec
from fairslice_sandbox.store import Event, Store
from fairslice_sandbox.users import ADMIN, controller

Obj = dict[str, Any]
GPU = "nvidia.com/gpu"
NODE = NodeSpec(name="gpu-1", model="h100-80gb", gpus=2)
SETTINGS = ClusterSettings(
    pace=0.01, start_seconds=0.01, pod_gc_seconds=0.05, retry=Backoff(0.5, 5.0)
)


class Box:
    """A running cluster, and what a user does with it."""

    def __init__(self, api: Api, cluster: Cluster) -> None:
        self.api, self.cluster = api, cluster
        self.events = api.store.subscribe()

    async def create(self, resource: str, body: Obj, namespace: str = "nlp") -> Obj:
        body = {**body, "metadata": {"namespace": namespace, **body["metadata"]}}
        if not namespace:
            del body["metadata"]["namespace"]
        return await self.api.create(resource, namespace, body, user=ADMIN)

    async def merge(self, resource: str, name: str, patch: Obj, subresource: str = "") -> None:
        await self.api.patch(
            resource,
            "nlp" if resource != "nodes" else "",
            name,
            json.dumps(patch).encode(),
            "application/merge-patch+json",
            user=ADMIN,
            subresource=subresource,
        )

    def get(self, resource: str, name: str) -> Obj | None:
        return self.api.store.get(resource, "nlp", name)

    def pods(self, **wanted: Any) -> list[Obj]:
        return [
            pod
            for pod in self.api.store.list("pods", "nlp")
            if all(pod["status"].get(name) == value for name, value in wanted.items())
        ]

    async def until(self, holds: Callable[[], Any], seconds: float = 5.0) -> Any:
        """Wait for a change after which it holds."""
        with self.api.store.subscribe() as changes:
            async with asyncio.timeout(seconds):
                while not (found := holds()):
                    await changes.get()
        return found

    async def phase(self, name: str, phase: str) -> Obj:
        def there() -> Obj | None:
            pod = self.get("pods", name)
            return pod if pod and pod["status"]["phase"] == phase else None

        found: Obj = await self.until(there)
        return found

    async def condition(self, resource: str, name: str, kind: str) -> Obj:
        def there() -> Obj | None:
            found = (self.get(resource, name) or {}).get("status", {}).get("conditions") or []
            return next((c for c in found if c["type"] == kind and c["status"] == "True"), None)

        result: Obj = await self.until(there)
        return result


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    clock = RealClock()
    api = Api(Store(), clock)
    cluster = Cluster(api, clock, SETTINGS)
    async with cluster.running():
        made = Box(api, cluster)
        await made.create("namespaces", {"metadata": {"name": "nlp"}}, "")
        for name, value in (("notebook", 1000), ("inference", 100000)):
            await made.create("priorityclasses.scheduling.k8s.io", priority(name, value), "")
        await cluster.add_node(NODE)
        yield made
    await api.close()


def priority(name: str, value: int) -> Obj:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


def template(gpus: int = 1, runs: float | None = None, code: int = 0, **spec: Any) -> Obj:
    notes = {"sandbox.fairslice.io/exit-code": str(code)}
    if runs is not None:
        notes["sandbox.fairslice.io/run-seconds"] = str(runs)
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    box = {"name": "m", "image": "x", "resources": resources}
    return {"metadata": {"annotations": notes}, "spec": {"containers": [box], **spec}}


def pod(name: str, gpus: int = 1, runs: float | None = None, **more: Any) -> Obj:
    made = template(gpus, runs, **more)
    meta = {**made["metadata"], "name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made["spec"]}


def job(name: str, count: int = 1, made: Obj | None = None, **spec: Any) -> Obj:
    made = made or template(runs=0.05)
    made["spec"].setdefault("restartPolicy", "Never")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"parallelism": count, "completions": count, "template": made, **spec},
    }


async def test_a_pod_runs_for_its_time_and_ends(box: Box) -> None:
    await box.create("pods", pod("p", runs=0.05, restartPolicy="Never"))
    running = await box.phase("p", "Running")
    assert running["spec"]["nodeName"] == "gpu-1"
    held = json.loads(running["metadata"]["annotations"]["sandbox.fairslice.io/devices"])
    seen = json.loads(running["metadata"]["annotations"]["sandbox.fairslice.io/visible"])
    assert held == seen
    assert held["m"][0].startswith("GPU-")
    ended = await box.phase("p", "Succeeded")
    state = ended["status"]["containerStatuses"][0]["state"]["terminated"]
    assert state["exitCode"] == 0
    reasons = {e["reason"] for e in box.api.store.list("events", "nlp")}
    assert "Scheduled" in reasons


async def test_a_deleted_pod_ends_as_failed_and_goes(box: Box) -> None:
    await box.create("pods", pod("p"))
    await box.phase("p", "Running")
    await box.api.delete("pods", "nlp", "p", user=ADMIN)
    await box.until(lambda: box.get("pods", "p") is None)
    phases = [e.object["status"].get("phase") for e in box.events.drain() if e.resource == "pods"]
    assert phases[-1] == "Failed"


async def test_an_unschedulable_pod_says_why_and_starts_when_there_is_room(box: Box) -> None:
    await box.create("pods", pod("big", gpus=2))
    await box.phase("big", "Running")
    await box.create("pods", pod("late"))

    def waits() -> bool:
        found = (box.get("pods", "late") or {})["status"].get("conditions") or []
        return any(
            c["reason"] == "Unschedulable" and "1 Insufficient nvidia.com/gpu" in c["message"]
            for c in found
        )

    await box.until(waits)
    await box.api.delete("pods", "nlp", "big", user=ADMIN)
    await box.phase("late", "Running")


async def test_a_gated_pod_waits_until_its_gate_is_gone(box: Box) -> None:
    await box.create("pods", pod("g", schedulingGates=[{"name": "fairslice.io/queued"}]))

    def gated() -> bool:
        found = (box.get("pods", "g") or {})["status"].get("conditions") or []
        return any(c.get("reason") == "SchedulingGated" for c in found)

    await box.until(gated)
    await box.merge("pods", "g", {"spec": {"schedulingGates": []}})
    await box.phase("g", "Running")


async def test_jobs_complete_and_their_pods_are_let_go(box: Box) -> None:
    for name in ("a", "b", "c"):
        await box.create("jobs.batch", job(name, 2, completionMode="Indexed"))
    for name in ("a", "b", "c"):
        await box.condition("jobs.batch", name, "Complete")
        status = (box.get("jobs.batch", name) or {})["status"]
        assert status["succeeded"] == 2
        assert status["completedIndexes"] == "0,1"
    assert all(not pod["metadata"].get("finalizers") for pod in box.pods())


async def test_suspending_a_job_frees_its_gpus_and_counts_no_failure(box: Box) -> None:
    await box.create("jobs.batch", job("train", 2, template(), backoffLimit=0))
    await box.until(lambda: len(box.pods(phase="Running")) == 2)
    await box.merge("jobs.batch", "train", {"spec": {"suspend": True}})
    await box.condition("jobs.batch", "train", "Suspended")
    await box.until(lambda: not box.pods())
    await box.merge("jobs.batch", "train", {"spec": {"suspend": False}})
    await box.until(lambda: len(box.pods(phase="Running")) == 2)
    assert "failed" not in (box.get("jobs.batch", "train") or {})["status"]


def steps(events: list[Event], name: str) -> list[str]:
    """Name what happened to a pod, in order and once each."""
    result: list[str] = []
    for event in events:
        if event.resource != "pods" or event.object["metadata"]["name"] != name:
            continue
        now, meta = event.object["status"], event.object["metadata"]
        found = {c["type"]: c["status"] for c in now.get("conditions") or ()}
        if event.type == "DELETED":
            step = "gone"
        elif now.get("phase") == "Failed":
            step = "failed"
        elif meta.get("deletionTimestamp"):
            step = "deleting"
        elif found.get("DisruptionTarget") == "True":
            step = "disrupted"
        else:
            step = now.get("phase", "")
        if result[-1:] != [step]:
            result.append(step)
    return result


def recorded(name: str) -> list[str]:
    root = Path(os.environ.get("FAIRSLICE_SHARED") or Path(__file__).parents[3] / "shared")
    path = root / "fixtures" / "watch" / "preemption-pods.jsonl"
    if not path.exists():
        pytest.skip("no recorded watch streams beside the repository")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [line for line in lines if line["type"] != "BOOKMARK"]
    return steps([Event(line["type"], "pods", line["object"], None, 0) for line in kept], name)


async def test_preemption_goes_the_steps_that_a_real_control_plane_recorded(box: Box) -> None:
    low = template(priorityClassName="notebook")
    await box.create("jobs.batch", job("low", 1, low, backoffLimit=0))
    await box.create("pods", pod("bare", priorityClassName="notebook"))
    await box.until(lambda: len(box.pods(phase="Running")) == 2)
    victim = next(p["metadata"]["name"] for p in box.pods() if p["metadata"]["name"] != "bare")
    high = template(runs=0.1, priorityClassName="inference")
    await box.create("jobs.batch", job("high", 2, high))
    await box.condition("jobs.batch", "high", "Complete")
    failed = await box.condition("jobs.batch", "low", "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    assert box.get("pods", "bare") is None
    events = box.events.drain()
    assert steps(events, "bare") == recorded("bare1")
    assert steps(events, victim) == recorded("low-ljjqg")
    reasons = {
        c["reason"]
        for e in events
        if e.resource == "pods" and e.object["metadata"]["name"] == "bare"
        for c in e.object["status"].get("conditions") or ()
        if c["type"] == "DisruptionTarget"
    }
    assert reasons == {"PreemptionByScheduler"}


def deployment(name: str, replicas: int, image: str = "x", gpus: int = 1, **spec: Any) -> Obj:
    made = template(gpus)
    made["metadata"]["labels"] = {"app": name}
    made["spec"]["containers"][0]["image"] = image
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": made,
            **spec,
        },
    }


async def test_a_deployment_rolls_over_and_is_collected_with_all_it_made(box: Box) -> None:
    limits = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    await box.create("deployments.apps", deployment("serve", 1, strategy=limits))

    def settled(image: str) -> bool:
        found = box.pods(phase="Running")
        status = (box.get("deployments.apps", "serve") or {}).get("status", {})
        images = [p["spec"]["containers"][0]["image"] for p in box.pods()]
        return bool(found) and images == [image] and status.get("availableReplicas") == 1

    await box.until(lambda: settled("x"))
    change = {"spec": {"template": deployment("serve", 1, "y")["spec"]["template"]}}
    await box.merge("deployments.apps", "serve", change)
    await box.until(lambda: settled("y"))
    await box.api.delete("deployments.apps", "nlp", "serve", user=ADMIN, propagation="Foreground")
    await box.until(lambda: box.get("deployments.apps", "serve") is None)
    assert not box.pods()
    assert not list(box.api.store.list("replicasets.apps", "nlp"))


async def test_statefulsets_and_daemonsets_run_too(box: Box) -> None:
    for kind, resource in (("StatefulSet", "statefulsets.apps"), ("DaemonSet", "daemonsets.apps")):
        body = {**deployment(kind.lower(), 2, gpus=0), "kind": kind}
        if kind == "DaemonSet":
            del body["spec"]["replicas"]
        else:
            body["spec"]["serviceName"] = "s"
        await box.create(resource, body)
    await box.until(lambda: len(box.pods(phase="Running")) == 3)
    names = {p["metadata"]["name"] for p in box.pods()}
    assert {"statefulset-0", "statefulset-1"} < names


async def test_a_namespace_goes_with_everything_in_it(box: Box) -> None:
    await box.create("deployments.apps", deployment("serve", 1))
    await box.create("jobs.batch", job("train", 1, template()))
    await box.until(lambda: len(box.pods(phase="Running")) == 2)
    await box.api.delete("namespaces", "", "nlp", user=ADMIN)
    await box.until(lambda: box.api.store.get("namespaces", "", "nlp") is None)
    assert not box.pods()


async def test_a_lost_node_loses_its_pods_and_a_removed_one_gives_them_up(box: Box) -> None:
    await box.create("pods", pod("p", tolerations=[]))
    await box.create("jobs.batch", job("train", 1, template(), backoffLimit=3))
    await box.until(lambda: len(box.pods(phase="Running")) == 2)
    await box.cluster.kill_node("gpu-1")
    reason = await box.condition("pods", "p", "DisruptionTarget")
    assert reason["reason"] == "DeletionByTaintManager"
    assert (box.get("pods", "p") or {})["metadata"]["deletionTimestamp"]
    await box.cluster.remove_node("gpu-1")
    await box.until(lambda: box.get("pods", "p") is None)
    await box.cluster.add_node(NODE)
    await box.until(lambda: len(box.pods(phase="Running")) == 1)


async def test_more_than_the_node_has_is_refused_by_the_kubelet(box: Box) -> None:
    await box.create("pods", pod("p", gpus=2))
    await box.phase("p", "Running")
    await box.create("pods", pod("forced", nodeName="gpu-1"))
    refused = await box.phase("forced", "Failed")
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 1, Available: 0" in refused["status"]["message"]


async def test_init_containers_run_before_and_sidecars_beside_the_main_one(box: Box) -> None:
    body = pod("p", gpus=0, runs=0.05, restartPolicy="Never")
    body["spec"]["initContainers"] = [
        {"name": "init", "image": "x"},
        {"name": "side", "image": "nvidia/cuda:12.4.1-base", "restartPolicy": "Always"},
    ]
    await box.create("pods", body)
    running = await box.phase("p", "Running")
    states = {s["name"]: set(s["state"]) for s in running["status"]["initContainerStatuses"]}
    assert states == {"init": {"terminated"}, "side": {"running"}}
    seen = json.loads(running["metadata"]["annotations"]["sandbox.fairslice.io/visible"])
    assert len(seen["side"]) == 2
    assert seen["m"] == []
    await box.phase("p", "Succeeded")


async def test_a_crashing_container_is_restarted(box: Box) -> None:
    await box.create("pods", pod("p", runs=0.02, code=1))

    def restarted() -> bool:
        found = (box.get("pods", "p") or {})["status"].get("containerStatuses") or []
        return bool(found) and found[0]["restartCount"] >= 1 and "running" in found[0]["state"]

    await box.until(restarted)


async def test_a_cluster_that_starts_again_takes_up_what_ran() -> None:
    clock = RealClock()
    api = Api(Store(), clock)
    first = Cluster(api, clock, SETTINGS)
    async with first.running():
        box = Box(api, first)
        await box.create("namespaces", {"metadata": {"name": "nlp"}}, "")
        await first.add_node(NODE)
        await box.create("pods", pod("p", runs=0.3, restartPolicy="Never"))
        before = await box.phase("p", "Running")
    async with Cluster(api, clock, SETTINGS).running():
        after = await box.phase("p", "Succeeded")
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    await api.close()


class Quota:
    """Refuses the pods of one user until it is lifted."""

    def __init__(self, api: Api, user: str) -> None:
        self.user, self.tries, self.lifted = user, 0, False
        self._create = api.create

    async def create(self, resource: str, namespace: str, obj: Obj, **more: Any) -> Obj:
        if resource == "pods" and more["user"].username.endswith(self.user):
            self.tries += 1
            if not self.lifted:
                raise ApiError(
                    403, "Forbidden", f"pods are forbidden: over the limit ({self.tries})"
                )
        return await self._create(resource, namespace, obj, **more)


async def test_refused_pods_are_tried_again_with_patience(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = Quota(box.api, "replicaset-controller")
    monkeypatch.setattr(box.api, "create", quota.create)
    await box.create("deployments.apps", deployment("serve", 2))
    failure = await box.condition("deployments.apps", "serve", "ReplicaFailure")
    assert failure["reason"] == "FailedCreate"
    assert "over the limit" in failure["message"]
    assert quota.tries <= 6
    quota.lifted = True
    await box.until(lambda: len(box.pods(phase="Running")) == 2)

    def cleared() -> bool:
        found = (box.get("deployments.apps", "serve") or {})["status"]["conditions"]
        return "ReplicaFailure" not in {c["type"] for c in found}

    await box.until(cleared)


async def test_a_forged_owner_reference_makes_no_pod_of_the_job(box: Box) -> None:
    made = await box.create("jobs.batch", job("train", 1, template()))
    await box.until(lambda: len(box.pods(phase="Running")) == 1)
    forged = pod("forged", gpus=0)
    meta = made["metadata"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": meta["uid"]}
    forged["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    await box.create("pods", forged)
    await box.phase("forged", "Running")
    assert (box.get("jobs.batch", "train") or {})["status"]["active"] == 1


async def test_orphaned_pods_of_a_job_live_on(box: Box) -> None:
    await box.create("jobs.batch", job("train", 1, template()))
    (before,) = await box.until(lambda: box.pods(phase="Running"))
    await box.api.delete("jobs.batch", "nlp", "train", user=ADMIN, propagation="Orphan")

    def free() -> bool:
        (found,) = box.pods()
        meta = found["metadata"]
        return not meta.get("ownerReferences") and not meta.get("finalizers")

    await box.until(free)
    assert box.pods()[0]["metadata"]["uid"] == before["metadata"]["uid"]


async def test_debugging_containers_are_shown_with_what_they_see(box: Box) -> None:
    await box.create("pods", pod("p"))
    running = await box.phase("p", "Running")
    spec = {
        **running["spec"],
        "ephemeralContainers": [{"name": "dbg", "image": "nvidia/cuda:12.4"}],
    }
    await box.api.update(
        "pods", "nlp", "p", {**running, "spec": spec}, user=ADMIN, subresource="ephemeralcontainers"
    )

    def seen() -> Obj:
        notes = (box.get("pods", "p") or {})["metadata"]["annotations"]
        found: Obj = json.loads(notes["sandbox.fairslice.io/visible"])
        return found if "dbg" in found else {}

    found = await box.until(seen)
    assert len(found["m"]) == 1
    assert len(found["dbg"]) == 2


async def test_controllers_act_under_their_own_names(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, str]] = set()
    create = box.api.create

    async def noted(resource: str, namespace: str, obj: Obj, **more: Any) -> Obj:
        seen.add((resource, more["user"].username))
        return await create(resource, namespace, obj, **more)

    monkeypatch.setattr(box.api, "create", noted)
    await box.create("jobs.batch", job("train"))
    await box.condition("jobs.batch", "train", "Complete")
    assert ("pods", controller("job-controller").username) in seen
    assert ("events", "system:kube-scheduler") in seen


async def test_cronjobs_start_jobs(box: Box) -> None:
    body = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "often"},
        "spec": {
            "schedule": "* * * * *",
            "jobTemplate": {"spec": job("x")["spec"]},
        },
    }
    made = await box.create("cronjobs.batch", body)
    # Backdated, so that a run is due at once.
    earlier = datetime.now(UTC) - timedelta(minutes=2)
    stamp = earlier.strftime("%Y-%m-%dT%H:%M:%SZ")
    await box.merge("cronjobs.batch", "often", {"status": {"lastScheduleTime": stamp}}, "status")
    await box.until(lambda: list(box.api.store.list("jobs.batch", "nlp")))
    (started,) = box.api.store.list("jobs.batch", "nlp")
    assert started["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
    await box.condition("jobs.batch", started["metadata"]["name"], "Complete")
