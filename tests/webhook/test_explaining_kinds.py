"""`explain` answers for every kind: what its manifest would come to, and why."""

import json
from typing import Any

import pytest

from fairslice_webhook.explain import Explainer, ExplainRequest, Explanation

from .conftest import MakeCluster
from .scene import GPU, SLICE_10, Cluster, container, deployment, job, pod, policy, team, view
from .test_kinds import TABLE, WIDE, filler, labelled, manifest

EXPERIMENT = {"fairslice.io/class": "experiment"}


async def told(place: Cluster, *objects: dict[str, Any]) -> list[Explanation]:
    explainer = Explainer(place.ledger, clock=lambda: place.now)
    before = await place.ledger.snapshot()
    found = await explainer.explain(
        ExplainRequest(objects=objects, namespace="nlp", user="alice"), place.view
    )
    assert (await place.ledger.snapshot()) == before
    return found


def wide() -> Any:
    return view(teams=(team(pools=[{"pool": "a100", "limit": "100"}]),), nodes=WIDE)


@pytest.mark.parametrize("kind", TABLE)
async def test_what_is_told_of_a_suspendable_kind_is_what_then_happens(
    cluster: MakeCluster, kind: str
) -> None:
    place = await cluster(wide())
    obj = manifest(kind)
    (found,) = await told(place, obj)
    several_sizes = bool(TABLE[kind][1])
    assert (found.verdict, found.pods) == ("waits" if several_sizes else "runs", TABLE[kind][0])
    assert (found.team, found.work_class) == ("nlp", "training")
    assert found.class_source == "label fairslice.io/class"
    assert found.options[0].what
    assert [cap.cap for cap in found.caps] == ["limit a100"]
    assert found.containers
    assert {tuple(row.given) for row in found.containers} == {(GPU,)}
    done = await place.create(obj)
    assert done.labels["system.fairslice.io/state"] == ("queued" if several_sizes else "released")

    full = await cluster(wide())
    await full.create(filler())
    (waits,) = await told(full, obj)
    assert waits.verdict == "waits"
    assert waits.why
    never = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "1"}]),)))
    (refused,) = await told(never, obj)
    assert refused.verdict == "refused"
    assert "team nlp" in refused.why


async def test_pods_with_nothing_in_common_are_told_to_start_one_by_one(
    cluster: MakeCluster,
) -> None:
    (found,) = await told(await cluster(wide()), labelled("JobSet", "experiment", "production"))
    assert found.verdict == "waits"
    assert "one by one" in found.why


def _pod_spec(**fields: Any) -> dict[str, Any]:
    return {"containers": [container(gpus=1), container("beside")], **fields}


def _cron() -> dict[str, Any]:
    template = {"metadata": job()["metadata"], "spec": job(pods=2)["spec"]}
    template["metadata"]["labels"] = dict(EXPERIMENT)
    return _custom("batch/v1", "CronJob", {"jobTemplate": template})


def _custom(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": "mine", "namespace": "nlp"}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}


TEMPLATE = {"metadata": {"labels": EXPERIMENT}, "spec": _pod_spec()}
STEPS = [
    {"name": "load", "image": "x"},
    {"name": "fit", "image": "x", "computeResources": {"limits": {GPU: "1"}}},
]
WORKFLOW = {
    "entrypoint": "all",
    "templates": [
        {"name": "all", "steps": [[{"name": "a", "template": "load"}]]},
        {"name": "load", "container": {"image": "x"}},
        {
            "name": "fit",
            "metadata": {"labels": EXPERIMENT},
            "container": {"image": "x", "resources": {"limits": {GPU: "1"}}},
            "sidecars": [{"name": "metrics", "image": "x"}],
        },
    ],
}
LWS = "leaderworkerset.x-k8s.io/v1"
OTHERS: dict[str, dict[str, Any]] = {
    "a CronJob": _cron(),
    "a Deployment": deployment(2, work_class="experiment"),
    "a StatefulSet": {**deployment(2, work_class="experiment"), "kind": "StatefulSet"},
    "a DaemonSet": {**deployment(1, work_class="experiment"), "kind": "DaemonSet"},
    "a ReplicaSet": {**deployment(1, work_class="experiment"), "kind": "ReplicaSet"},
    "a LeaderWorkerSet": _custom(
        LWS,
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"size": 2, "workerTemplate": TEMPLATE}},
    ),
    "a LeaderWorkerSet whose leader alone computes": _custom(
        LWS,
        "LeaderWorkerSet",
        {
            "leaderWorkerTemplate": {
                "leaderTemplate": TEMPLATE,
                "workerTemplate": {"spec": {"containers": [container()]}},
            }
        },
    ),
    "a Notebook": _custom("kubeflow.org/v1", "Notebook", {"template": TEMPLATE}),
    "a Workflow": _custom("argoproj.io/v1alpha1", "Workflow", WORKFLOW),
    "a CronWorkflow": _custom("argoproj.io/v1alpha1", "CronWorkflow", {"workflowSpec": WORKFLOW}),
    "a TaskRun": _custom("tekton.dev/v1", "TaskRun", {"taskSpec": {"steps": STEPS}}),
    "a Task": _custom("tekton.dev/v1", "Task", {"steps": STEPS}),
    "a PipelineRun": _custom(
        "tekton.dev/v1",
        "PipelineRun",
        {"pipelineSpec": {"tasks": [{"name": "t", "taskSpec": {"steps": STEPS}}]}},
    ),
    "a pod": pod("p", labels=EXPERIMENT),
    "a pod of a group": pod(
        "p",
        labels={
            **EXPERIMENT,
            "fairslice.io/pod-group": "g",
            "fairslice.io/pod-group-size": "1",
        },
    ),
}


@pytest.mark.parametrize("what", OTHERS)
async def test_other_kinds_are_told_by_the_pods_that_they_make(
    cluster: MakeCluster, what: str
) -> None:
    rules = policy()
    teams = (team(pools=[{"pool": "a100", "limit": "4"}], defaultClass="experiment"),)
    place = await cluster(view(rules, teams))
    obj = OTHERS[what]
    (found,) = await told(place, obj)
    assert found.object == f"{obj['kind']} nlp/{obj['metadata']['name']}"
    # Pods of a group are looked at together, by the queue.
    assert found.verdict == ("waits" if "group" in what else "runs"), found.why
    assert found.work_class == "experiment"
    given = [row for row in found.containers if row.asked]
    assert [(row.asked, row.given) for row in given] == [({GPU: "1"}, {SLICE_10: "1"})]


@pytest.mark.parametrize("what", OTHERS)
async def test_a_mistake_is_told_for_every_kind(cluster: MakeCluster, what: str) -> None:
    place = await cluster()
    text = json.dumps(OTHERS[what])
    obj = json.loads(text.replace('"nvidia.com/gpu": "1"', '"nvidia.com/gpu": "0.5"'))
    (found,) = await told(place, obj)
    assert found.verdict == "refused"
    assert "0.5 is not a whole number" in found.why
