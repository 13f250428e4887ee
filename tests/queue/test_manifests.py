"""The manifests that bring things back: as first asked for, and the same however often."""

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairslice import stamps
from fairslice.booking import NodeRequirement, Option
from fairslice_queue.manifests import returning_job, returning_pod

SLICE = "nvidia.com/mig-1g.10gb"
GPU = "nvidia.com/gpu"
PINNED = NodeRequirement(key="nvidia.com/gpu.product", values=("A100",))
GIVEN = Option(
    pool="a100",
    product="A100",
    mode="mig",
    milli=125,
    units={SLICE: 1},
    rename={GPU: SLICE},
    requirements=(PINNED,),
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def _terms(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [
        {"matchExpressions": list(expressions)}]}}}  # fmt: skip


OURS = {"key": PINNED.key, "operator": "In", "values": list(PINNED.values)}
THEIRS = {"key": "zone", "operator": "In", "values": ["a", "b"]}


def stored_pod(**spec: Any) -> dict[str, Any]:
    """A pod as the API server has it after admission and scheduling."""
    return {
        "metadata": {
            "name": "nb",
            "namespace": "nlp",
            "uid": "u",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-30T15:00:00Z",
            "labels": {"app": "nb", stamps.LABEL_MANAGED: "true", stamps.STATE: "running"},
            "annotations": {
                stamps.RESTART: "true",
                stamps.BOOKING: "b0",
                stamps.ASSIGNMENT: "{}",
                stamps.USER: "ada",
                stamps.GROUPS: '["x"]',
                stamps.QUEUED_AT: "2026-11-30T15:00:00Z",
            },
        },
        "spec": {
            "nodeName": "n1",
            "priority": 5,
            "preemptionPolicy": "Never",
            "priorityClassName": "fairslice-experiment",
            "containers": [
                {
                    "name": "main",
                    "resources": {"limits": {SLICE: "1", "cpu": "2"}, "requests": {SLICE: "1"}},
                    "volumeMounts": [{"name": "kube-api-access-x7"}, {"name": "data"}],
                }
            ],
            "ephemeralContainers": [{"name": "debug"}],
            "volumes": [{"name": "kube-api-access-x7"}, {"name": "data"}],
            **spec,
        },
        "status": {"phase": "Running"},
    }


def test_a_pod_comes_back_as_it_was_first_asked_for() -> None:
    made = returning_pod(stored_pod(affinity=_terms(OURS, THEIRS)), GIVEN, 2)
    spec, meta = made["spec"], made["metadata"]
    assert spec["containers"][0]["resources"] == {
        "limits": {GPU: "1", "cpu": "2"},
        "requests": {GPU: "1"},
    }
    assert spec["affinity"] == _terms(THEIRS)
    assert spec["schedulingGates"] == [{"name": stamps.GATE}]
    assert [volume["name"] for volume in spec["volumes"]] == ["data"]
    assert [mount["name"] for mount in spec["containers"][0]["volumeMounts"]] == ["data"]
    assert not {"nodeName", "priority", "preemptionPolicy", "ephemeralContainers"} & spec.keys()
    assert "status" not in made
    assert not {"uid", "resourceVersion", "creationTimestamp"} & meta.keys()
    assert meta["labels"] == {"app": "nb"}
    assert meta["annotations"] == {
        stamps.RESTART: "true",
        stamps.USER: "ada",
        stamps.GROUPS: '["x"]',
        stamps.QUEUED_AT: "2026-11-30T15:00:00Z",
        stamps.RESTARTS: "2",
    }


def test_an_affinity_that_was_only_ours_goes_away() -> None:
    made = returning_pod(stored_pod(affinity=_terms(OURS)), GIVEN, 1)
    assert "nodeAffinity" not in made["spec"].get("affinity", {})


def test_a_job_comes_back_suspended_with_its_counts_anew() -> None:
    job = {
        "metadata": {
            "name": "train",
            "namespace": "nlp",
            "uid": "u",
            "labels": {"job-name": "train", "team": "x", stamps.STATE: "released"},
            "annotations": {stamps.USER: "ada", stamps.BOOKING: "b0"},
            "ownerReferences": [{"kind": "CronJob", "controller": True}],
        },
        "spec": {
            "suspend": False,
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
            "backoffLimit": 0,
            "template": {
                "metadata": {
                    "labels": {"batch.kubernetes.io/controller-uid": "u", "app": "t"},
                    "annotations": {stamps.ASSIGNMENT: "{}", "note": "1"},
                },
                "spec": {"containers": []},
            },
        },
        "status": {"failed": 1},
    }
    made = returning_job(job, 1)
    assert made["spec"]["suspend"] is True
    assert "selector" not in made["spec"]
    assert made["spec"]["template"]["metadata"] == {
        "labels": {"app": "t"},
        "annotations": {"note": "1"},
    }
    assert made["metadata"]["labels"] == {"team": "x"}
    assert made["metadata"]["ownerReferences"] == [{"kind": "CronJob", "controller": True}]
    assert "status" not in made


def test_a_job_that_chose_its_own_selector_keeps_it() -> None:
    labels = {"mine": "1"}
    job = {
        "metadata": {"name": "t", "namespace": "nlp"},
        "spec": {
            "manualSelector": True,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": []}},
        },
    }
    made = returning_job(job, 1)
    assert made["spec"]["selector"] == {"matchLabels": labels}


_AMOUNTS = st.dictionaries(
    st.sampled_from([GPU, "cpu", "memory", "rdma/hca"]), st.sampled_from(["1", "2"]), max_size=3
)
_NOTES = st.dictionaries(
    st.sampled_from(["a", "example.com/b", stamps.RESTART, stamps.HOLD]), st.text(max_size=5)
)


@given(_AMOUNTS, _NOTES, st.lists(st.sampled_from([OURS, THEIRS]), max_size=2, unique_by=str))
def test_what_rewriting_did_is_undone_and_undoing_twice_is_undoing_once(
    asked: dict[str, str], notes: dict[str, str], expressions: list[dict[str, Any]]
) -> None:
    spec: dict[str, Any] = {"containers": [{"name": "m", "resources": {"limits": asked}}]}
    if expressions:
        spec["affinity"] = _terms(*expressions)
    original = {"metadata": {"name": "p", "namespace": "n", "annotations": notes}, "spec": spec}
    rewritten = copy.deepcopy(original)
    limits = rewritten["spec"]["containers"][0]["resources"]["limits"]
    if GPU in limits:
        limits[SLICE] = limits.pop(GPU)
    before = copy.deepcopy(rewritten)
    made = returning_pod(rewritten, GIVEN, 1)
    assert rewritten == before
    assert made["spec"]["containers"][0]["resources"]["limits"] == asked
    kept = {key: made["metadata"]["annotations"][key] for key in notes}
    assert kept == notes
    assert returning_pod(made, GIVEN, 1) == made
