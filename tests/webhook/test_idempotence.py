"""For any pod: the patch applies, and the webhook changes nothing in its own output."""

import itertools
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import MakeCluster
from .scene import (
    GPU,
    RS_CONTROLLER,
    SLICE_10,
    SLICE_20,
    T4,
    T4_SHARED,
    a100_node,
    container,
    node,
    owner,
    pod,
    team,
    view,
)

NODES = (a100_node(), node("shared", T4_SHARED, {GPU: 4}), node("plain", T4, {GPU: 2}))
TEAM = team(pools=[{"pool": "a100", "limit": "3"}, {"pool": "t4", "limit": "2"}], userLimit="3")

containers = st.builds(
    lambda name, gpus, resource, env: container(
        name, gpus, resource, **({"env": env} if env else {})
    ),
    st.sampled_from(["a", "b"]),
    st.sampled_from([0, 0, 1, 1, 2]),
    st.sampled_from([GPU, GPU, SLICE_10, SLICE_20]),
    st.none()
    | st.just([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "X", "value": "y"}]),
)
labels = st.none() | st.dictionaries(
    st.sampled_from(["fairslice.io/class", "system.fairslice.io/state", "app"]),
    st.sampled_from(["experiment", "training", "production"]),
    max_size=2,
)
annotations = st.none() | st.dictionaries(
    st.sampled_from(
        ["system.fairslice.io/booking", "system.fairslice.io/assignment", "fairslice.io/gpu-memory"]
    ),
    st.sampled_from(["b" + "a" * 20, "18Gi", "10G", "{}", "nonsense"]),
    max_size=2,
)
affinities = st.sampled_from(
    [
        None,
        {},
        {"nodeAffinity": None},
        {"nodeAffinity": {}},
        {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {},
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "Exists"}
                            ]
                        },
                        {"matchFields": [{"key": "metadata.name", "operator": "Exists"}]},
                    ]
                }
            }
        },
    ]
)
gates = st.sampled_from([None, [], [{"name": "x"}], [{"name": "fairslice.io/queued"}]])
numbers = itertools.count()


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, values in (
        ("labels", labels),
        ("annotations", annotations),
        ("affinity", affinities),
        ("schedulingGates", gates),
    ):
        value = draw(values)
        # Absent and null are different objects and must come to the same.
        if value is not None or draw(st.booleans()):
            fields[name] = value
    if draw(st.booleans()):
        fields["generateName"] = "serve-r1-"
        fields["ownerReferences"] = [owner("ReplicaSet", "serve-r1", "apps/v1")]
    if draw(st.booleans()):
        fields["initContainers"] = [draw(containers)]
    apps = draw(st.lists(containers, min_size=1, max_size=2))
    return pod(f"p{next(numbers)}", *apps, **fields)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(pods(), st.booleans())
async def test_a_second_pass_changes_nothing(
    cluster: MakeCluster, obj: dict[str, Any], dry: bool
) -> None:
    place = await cluster(view(teams=(TEAM,), nodes=NODES))
    user = RS_CONTROLLER if "ownerReferences" in obj["metadata"] else "alice"
    first = await place.mutate(obj, user, dryRun=dry)
    if not first.allowed:
        return
    again = await place.mutate(first.obj, user, dryRun=dry)
    assert again.allowed, again.message
    assert again.patch == []
    asked = sum(
        int(v) for c in obj["spec"]["containers"] for v in c["resources"].get("limits", {}).values()
    )
    given_ = sum(
        int(v) for c in first.spec["containers"] for v in c["resources"].get("limits", {}).values()
    )
    assert given_ == asked


@st.composite
def workloads(draw: st.DrawFn) -> dict[str, Any]:
    """A Job, JobSet or TrainJob of such pods, as a person or a controller makes it."""
    made = draw(st.lists(pods(), min_size=1, max_size=3))
    sets = []
    for number, obj in enumerate(made):
        meta = {key: obj["metadata"].get(key) for key in ("labels", "annotations")}
        meta = {
            key: value for key, value in meta.items() if value is not None or draw(st.booleans())
        }
        template = {"spec": obj["spec"], **({"metadata": meta} if draw(st.booleans()) else {})}
        job_spec: dict[str, Any] = {"template": template}
        for key in ("parallelism", "completions"):
            if draw(st.booleans()):
                job_spec[key] = draw(st.integers(0, 3))
        sets.append({"name": f"s{number}", "template": {"spec": job_spec}})
    meta = {"name": f"w{next(numbers)}", "namespace": "nlp"}
    for key, values in (("labels", labels), ("annotations", annotations)):
        if (value := draw(values)) is not None or draw(st.booleans()):
            meta[key] = value
    suspend = draw(st.sampled_from([{}, {"suspend": False}, {"suspend": True}]))
    if draw(st.booleans()):
        spec = {"replicatedJobs": sets, **suspend}
        return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta,
                "spec": spec}  # fmt: skip
    policies = draw(st.sampled_from([{}, {"podReplacementPolicy": "TerminatingOrFailed"}]))
    sets[0]["template"]["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    spec = {**sets[0]["template"]["spec"], **suspend, **policies}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(workloads(), st.booleans())
async def test_a_second_pass_over_a_workload_changes_nothing(
    cluster: MakeCluster, obj: dict[str, Any], dry: bool
) -> None:
    place = await cluster(view(teams=(TEAM,), nodes=NODES))
    first = await place.mutate(obj, dryRun=dry)
    if not first.allowed:
        return
    again = await place.mutate(first.obj, dryRun=dry)
    assert again.allowed, again.message
    assert again.patch == []
    # Nothing that the user wrote in a template's spec is touched.
    before, after = _templates(obj), _templates(first.obj)
    assert [item["spec"] for item in before] == [item["spec"] for item in after]


def _templates(obj: dict[str, Any]) -> list[dict[str, Any]]:
    if obj["kind"] == "Job":
        return [obj["spec"]["template"]]
    return [item["template"]["spec"]["template"] for item in obj["spec"]["replicatedJobs"]]
