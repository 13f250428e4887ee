"""Off, Audit and Enforce, for each feature by itself, for the cluster or for one team."""

from copy import deepcopy
from typing import Any

import pytest

from .conftest import MakeCluster
from .scene import (
    FEATURES,
    GPU,
    SLICE_10,
    Cluster,
    Verdict,
    a100_node,
    container,
    job,
    modes,
    notebook,
    pod,
    policy,
    team,
    view,
)

ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}

# What shows each feature at work, and whether an answer shows it.
PROBES: dict[str, dict[str, Any]] = {
    "hide": pod("p", container(env=[ALL])),
    "guards": pod("p", container(securityContext={"privileged": True})),
    "rewrite": notebook("p"),
    "quota": pod("p", container(gpus=2)),
    "queue": job(gpus=2),
}


def at_work(feature: str, done: Verdict) -> bool:
    match feature:
        case "hide":
            return done.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}
        case "guards" | "quota":
            return not done.allowed
        case "rewrite":
            return done.limits() == {SLICE_10: "1"}
        case _:
            return done.allowed and done.spec.get("suspend") is True


async def scene(cluster: MakeCluster, feature: str, mode: str, *, by_team: bool) -> Cluster:
    """A cluster with just this feature in this mode, and what makes it visible at work."""
    # Caps bind where a quota is; capacity is what the queue itself looks at.
    own: dict[str, Any] = {"pools": [{"pool": "a100", "limit": "1" if feature == "quota" else "4"}]}
    if by_team:
        own["mode"] = {feature: mode}
    rules = policy(modes("Off") if by_team else modes("Off", **{feature: mode}))
    place = await cluster(view(rules, (team(**own),), (a100_node(whole=2),)))
    if feature == "queue" and mode == "Enforce":
        other = job(gpus=2)
        other["metadata"]["name"] = "other"
        assert (await place.create(other)).allowed
    return place


@pytest.mark.parametrize("by_team", [False, True], ids=["cluster", "team"])
@pytest.mark.parametrize("mode", ["Off", "Audit", "Enforce"])
@pytest.mark.parametrize("feature", FEATURES)
async def test_each_feature_is_off_audited_or_enforced_by_itself(
    cluster: MakeCluster, feature: str, mode: str, by_team: bool
) -> None:
    place = await scene(cluster, feature, mode, by_team=by_team)
    done = await place.mutate(PROBES[feature])
    assert at_work(feature, done) is (mode == "Enforce"), done.message
    if mode == "Off":
        assert (done.allowed, done.patch, done.warnings) == (True, [], [])
        assert place.sink.records == []
    if mode == "Audit":
        assert (done.allowed, done.patch) == (True, [])
        told = [text for text in done.warnings if text.startswith("[audit]")]
        # Two GPUs are there, and the queue would have let them start.
        assert bool(told) is (feature != "queue")
        assert {record.feature for record in place.sink.records} <= {feature}


@pytest.mark.parametrize("feature", FEATURES)
async def test_a_team_that_is_left_out_of_what_is_enforced_is_left_alone(
    cluster: MakeCluster, feature: str
) -> None:
    own = {"mode": dict.fromkeys(FEATURES, "Off")}
    limit = [{"pool": "a100", "limit": "1"}]
    seen = view(policy(), (team(pools=limit, **own), team("cv", pools=limit)))
    place = await cluster(seen)
    done = await place.mutate(PROBES[feature])
    assert (done.allowed, done.patch, done.warnings) == (True, [], [])
    theirs = deepcopy(PROBES[feature])
    theirs["metadata"]["namespace"] = "cv"
    if feature != "queue":
        assert at_work(feature, await place.mutate(theirs))


async def test_what_is_enforced_for_one_feature_enforces_no_other(cluster: MakeCluster) -> None:
    place = await cluster(view(policy(modes("Off", hide="Enforce"))))
    asked = notebook("p", gpus=1)
    asked["spec"]["containers"].append(container("beside", env=[ALL]))
    done = await place.mutate(asked)
    assert done.limits() == {GPU: "1"}
    assert done.env(1) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert "priorityClassName" not in done.spec
    assert done.annotations == {}
