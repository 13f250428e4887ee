"""Pushed out, and back again: by us, by the scheduler, by eviction, by the loss of a node."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fairslice import stamps
from fairslice.booking import State
from fairslice_sandbox.users import ADMIN, UserInfo

from .world import World, job, node, pod, policy, team, world


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A node of two GPUs; cv has one guaranteed, nlp may only borrow."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv", guaranteed=1))
        await made.create(team("nlp"))
        await made.cluster.add_node(node())
        await made.start()
        yield made
        made.check_alive()
        assert await made.audit() == []


async def test_a_job_is_pushed_out_by_a_guarantee_and_runs_again(box: World) -> None:
    await box.create(job("borrower", gpus=2, seconds=0.8), "nlp")
    await box.until(lambda: box.running() == {"borrower"})
    await box.create(job("owner", seconds=0.3), "cv")
    await box.until(lambda: box.running() == {"owner"})
    assert "owner" in box.note("Job", "borrower", "nlp", stamps.PREEMPTION)
    await box.until(lambda: box.finished() == {"owner", "borrower"})
    events = {(e["involvedObject"]["name"], e["reason"]) for e in box.objects("Event", "nlp")}
    await box.until(lambda: ("borrower", "Preempted") in events)


async def test_the_room_made_goes_to_whom_it_was_made_for(box: World) -> None:
    stubborn = job("borrower", gpus=2, seconds=None)
    notes = stubborn["spec"]["template"]["metadata"]["annotations"]
    notes["sandbox.fairslice.io/term-seconds"] = "0.5"
    await box.create(stubborn, "nlp")
    await box.until(lambda: box.running() == {"borrower"})
    await box.create(job("owner", seconds=None), "cv")
    await box.until(lambda: box.state_of("borrower") is State.PREEMPTED)
    await box.create(job("cutter", gpus=1, seconds=None), "nlp")
    await box.create(job("surge", work_class="experiment", seconds=None), "cv")
    await box.until(lambda: "owner" in box.running())
    assert box.suspended() >= {"borrower"}


async def test_an_evicted_pod_that_asks_for_it_is_made_again(box: World) -> None:
    first = await box.create(pod("nb", gpus=2, restart=True), "nlp")
    await box.until(lambda: box.running() == {"nb"})
    await box.create(job("owner", seconds=0.5), "cv")
    await box.until(lambda: box.running() == {"owner"})
    again = await box.until(
        lambda: (
            (p := box.get("Pod", "nb", "nlp"))
            and p["metadata"]["uid"] != first["metadata"]["uid"]
            and p
        )
    )
    assert again["metadata"]["annotations"][stamps.RESTARTS] == "1"
    await box.until(lambda: box.running() == {"nb"})


async def test_a_pod_of_a_hub_is_not_made_again(box: World) -> None:
    hub = pod("jupyter-ada", gpus=2, restart=True)
    hub["metadata"]["labels"]["component"] = "singleuser-server"
    await box.create(hub, "nlp")
    await box.until(lambda: box.running() == {"jupyter-ada"})
    await box.create(job("owner", seconds=0.3), "cv")
    await box.until(lambda: box.finished() == {"owner"})
    await box.stays(lambda: box.get("Pod", "jupyter-ada", "nlp") is None)


async def test_a_pod_deleted_by_its_owner_is_gone_for_good(box: World) -> None:
    await box.create(pod("nb", restart=True), "nlp")
    await box.until(lambda: box.objects("PodTemplate", "nlp"))
    await box.delete("Pod", "nb", "nlp", grace=0)
    await box.until(lambda: not box.objects("PodTemplate", "nlp"))
    await box.stays(lambda: box.get("Pod", "nb", "nlp") is None)


async def test_a_pod_made_again_and_then_deleted_by_its_owner_is_gone_for_good(
    box: World,
) -> None:
    await box.create(pod("nb", gpus=2, restart=True), "nlp")
    await box.until(lambda: box.running() == {"nb"})
    await box.create(job("owner", seconds=0.2), "cv")
    await box.until(lambda: box.finished() == {"owner"} and box.running() == {"nb"})
    await box.until(lambda: box.objects("PodTemplate", "nlp"))
    await box.delete("Pod", "nb", "nlp", grace=0)
    await box.until(lambda: not box.objects("PodTemplate", "nlp"))
    await box.stays(lambda: box.get("Pod", "nb", "nlp") is None)


async def test_a_job_that_the_scheduler_preempts_runs_again(box: World) -> None:
    await box.create(job("victim", gpus=2, seconds=0.8), "nlp")
    await box.until(lambda: box.running() == {"victim"})
    await box.scheduler_preempts()
    await box.until(lambda: box.running() == {"foreign"})
    await box.until(lambda: box.finished() == {"victim"}, 12.0)
    assert box.finished(kind="Failed") == set()


async def test_a_job_that_failed_by_disruption_alone_is_made_again(box: World) -> None:
    # A policy of its own that counts disruptions as failures.
    own = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]}
    made = await box.create(job("frail", gpus=2, seconds=1.0, podFailurePolicy=own), "nlp")
    await box.until(lambda: box.running() == {"frail"})
    await box.scheduler_preempts()
    await box.until(lambda: "frail" in box.finished(), 12.0)
    again = box.get("Job", "frail", "nlp")
    assert again is not None
    assert again["metadata"]["uid"] != made["metadata"]["uid"]
    assert again["metadata"]["annotations"][stamps.RESTARTS] == "1"


async def test_a_job_that_fails_by_its_own_fault_is_not_made_again(box: World) -> None:
    bad = job("bad", seconds=0.2)
    bad["spec"]["template"]["metadata"]["annotations"]["sandbox.fairslice.io/exit-code"] = "1"
    await box.create(bad, "nlp")
    await box.until(lambda: box.finished(kind="Failed") == {"bad"})
    await box.until(lambda: len(box.books) == 0)
    await box.stays(lambda: box.finished(kind="Failed") == {"bad"})


async def test_work_on_a_lost_node_runs_again_elsewhere(box: World) -> None:
    await box.create(job("work", gpus=2, seconds=0.6), "nlp")
    await box.until(lambda: box.running() == {"work"})
    await box.cluster.add_node(node("gpu-2"))
    await box.cluster.remove_node("gpu-1")
    await box.until(lambda: box.finished() == {"work"}, 12.0)


async def test_a_statefulsets_victim_leaves_its_gpus_to_whom_it_was_pushed_out_for(
    box: World,
) -> None:
    template = pod("x", gpus=2)
    await box.create(
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "db"},
            "spec": {
                "serviceName": "db",
                "replicas": 1,
                "selector": {"matchLabels": {"app": "db"}},
                "template": {
                    "metadata": {"labels": {"app": "db", stamps.CLASS: "training"}},
                    "spec": {**template["spec"], "restartPolicy": "Always"},
                },
            },
        },
        "nlp",
    )
    await box.until(lambda: box.running() == {"db"})
    await box.create(job("owner", seconds=0.4), "cv")
    await box.until(lambda: box.running() == {"owner"})
    await box.until(lambda: box.finished() == {"owner"})
    await box.until(lambda: box.running() == {"db"})


async def test_a_disruption_budget_delays_the_push_and_the_pods_own_grace_is_kept(
    redis_url: str, tmp_path: Path
) -> None:
    async with world(redis_url, tmp_path) as box:
        await box.create(policy(evictGrace="1s"))
        await box.create(team("cv", guaranteed=1))
        await box.create(team("nlp"))
        await box.cluster.add_node(node())
        await box.start()
        guarded = pod("guarded", gpus=2)
        guarded["metadata"]["labels"]["app"] = "guarded"
        await box.create(guarded, "nlp")
        await box.create(
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": {"name": "keep"},
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
            },
            "nlp",
        )
        await box.until(lambda: box.running() == {"guarded"})
        await box.create(job("owner", seconds=None), "cv")
        await box.until(lambda: box.state_of("guarded") is State.PREEMPTED)
        why = await box.until(lambda: box.note("Pod", "guarded", "nlp", stamps.PREEMPTION))
        await box.stays(lambda: box.running() == {"guarded"}, 0.6)
        await box.until(lambda: box.running() == {"owner"}, 12.0)
        assert "owner" in why


async def test_what_happened_is_written_on_the_object_and_lost_work_is_counted(box: World) -> None:
    long = job("borrower", gpus=2, seconds=None)
    await box.create(long, "nlp")
    await box.until(lambda: box.state_of("borrower") is State.RUNNING)
    await asyncio.sleep(2.1)
    await box.create(job("owner", seconds=0.1), "cv")
    await box.until(lambda: box.finished() == {"owner"})
    past = json.loads(box.note("Job", "borrower", "nlp", stamps.HISTORY))
    assert past["pushed"] == 1
    assert past["lost"] >= 1
    assert [event["what"] for event in past["last"]] == ["PushedOut"]
    assert "owner" in past["last"][0]["why"]
    assert box.leader is not None
    lost = box.leader.metrics.lost_seconds.labels("nlp")._value.get()
    assert lost >= 1
    # By the kube-scheduler, too.
    await box.until(lambda: box.running() == {"borrower"})
    await box.scheduler_preempts()
    await box.until(
        lambda: json.loads(box.note("Job", "borrower", "nlp", stamps.HISTORY))["pushed"] == 2
    )
    past = json.loads(box.note("Job", "borrower", "nlp", stamps.HISTORY))
    assert past["last"][-1]["what"] == "Disrupted"


async def test_who_was_pushed_out_again_and_again_pauses_before_it_borrows(box: World) -> None:
    await box.create(job("borrower", gpus=2, seconds=None), "nlp")
    for number in range(3):
        await box.until(lambda: box.running() == {"borrower"}, 12.0)
        await box.create(job(f"owner{number}", seconds=0.05), "cv")
        await box.until(lambda number=number: f"owner{number}" in box.finished())
    text = await box.until(
        lambda: (t := box.note("Job", "borrower", "nlp")).startswith("Queued") and t
    )
    await box.until(lambda: "kept back until" in box.note("Job", "borrower", "nlp"), 12.0)
    assert "pushed out 3 times" in box.note("Job", "borrower", "nlp"), text
    await box.stays(lambda: not box.running(), 0.5)
    # Within its own team's guarantee it needs not wait.
    await box.merge("Team", "cv", {"spec": {"pools": [{"pool": "default"}]}})
    await box.merge("Team", "nlp", {"spec": {"pools": [{"pool": "default", "guaranteed": "2"}]}})
    await box.until(lambda: box.running() == {"borrower"})


async def test_deleting_the_stored_manifest_cancels_the_return(box: World) -> None:
    slow = pod("nb", gpus=2, restart=True)
    slow["metadata"]["annotations"]["sandbox.fairslice.io/term-seconds"] = "0.8"
    slow["spec"]["terminationGracePeriodSeconds"] = 5
    await box.create(slow, "nlp")
    await box.until(lambda: box.running() == {"nb"} and box.objects("PodTemplate", "nlp"))
    await box.create(job("owner", seconds=0.1), "cv")
    await box.until(lambda: "deletionTimestamp" in box.get("Pod", "nb", "nlp")["metadata"])
    await box.delete("PodTemplate", "fairslice-pod-nb", "nlp")
    await box.until(lambda: box.finished() == {"owner"})
    await box.stays(lambda: box.get("Pod", "nb", "nlp") is None, 1.5)


@pytest.mark.parametrize("may", [False, True])
async def test_a_pod_is_made_again_only_if_its_submitter_still_may(box: World, may: bool) -> None:
    if may:
        rbac = "rbac.authorization.k8s.io"
        role = {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "pods"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}],
        }
        binding = {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "alice", "namespace": "nlp"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "pods"},
            "subjects": [{"kind": "User", "apiGroup": rbac, "name": "alice"}],
        }
        await box.api.create(f"clusterroles.{rbac}", "", role, user=ADMIN)
        await box.api.create(f"rolebindings.{rbac}", "nlp", binding, user=ADMIN)
    made = pod("nb", gpus=2, restart=True)
    made["metadata"]["namespace"] = "nlp"
    await box.api.create("pods", "nlp", made, user=UserInfo("alice", ("system:authenticated",)))
    await box.until(lambda: box.running() == {"nb"})
    await box.create(job("owner", seconds=0.1), "cv")
    await box.until(lambda: box.finished() == {"owner"})
    await box.until(lambda: not box.objects("PodTemplate", "nlp") or box.running() == {"nb"})
    if may:
        await box.until(lambda: box.running() == {"nb"})
    else:
        await box.stays(lambda: box.get("Pod", "nb", "nlp") is None, 0.5)
