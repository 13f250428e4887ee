"""Pods as people create them: rewritten, booked, gated, refused."""

import json
from copy import deepcopy

import pytest

from .conftest import MakeCluster
from .scene import (
    GPU,
    RS_CONTROLLER,
    SLICE_10,
    SLICE_20,
    T4,
    T4_SHARED,
    container,
    deployment,
    modes,
    node,
    notebook,
    owner,
    pod,
    policy,
    replica,
    team,
    view,
)


async def test_a_notebook_gets_a_small_slice_and_is_told_so(cluster: MakeCluster) -> None:
    place = await cluster()
    done = await place.create(notebook())
    assert done.allowed
    assert done.limits() == {SLICE_10: "1"}
    assert done.spec["containers"][0]["resources"]["requests"] == {SLICE_10: "1"}
    assert done.spec["priorityClassName"] == "fairslice-experiment"
    # Just what the API server makes of the class, which so has nothing to change, and to tell.
    assert done.spec["priority"] == 980_000
    assert done.spec["preemptionPolicy"] == "Never"
    assert not done.gated
    assert any("1g.10gb" in text for text in done.warnings)
    held = await place.ledger.held("nlp")
    assert held.pools == {"a100": 125}
    assert held.users == {"alice": 125}


async def test_the_class_can_come_from_the_namespace_or_a_match_rule(cluster: MakeCluster) -> None:
    rules = policy(
        classes=[
            {
                "name": "experiment",
                "priorityClassName": "fairslice-experiment",
                "memory": "10G",
                "modes": ["mig", "whole"],
                "match": [{"podLabels": {"component": "singleuser-server"}}],
            }
        ]
    )
    by_rule = await cluster(view(rules))
    done = await by_rule.create(pod(labels={"component": "singleuser-server"}))
    assert done.limits() == {SLICE_10: "1"}
    by_default = await cluster(view(teams=(team(namespaceClasses={"nlp": "experiment"}),)))
    assert (await by_default.create(pod())).limits() == {SLICE_10: "1"}


async def test_without_a_class_a_pod_keeps_its_whole_gpu(cluster: MakeCluster) -> None:
    place = await cluster()
    done = await place.create(pod())
    assert done.limits() == {GPU: "1"}
    assert done.spec["priority"] == 0
    assert "priorityClassName" not in done.spec
    assert (await place.ledger.held("nlp")).pools == {"a100": 1000}


async def test_production_gets_a_larger_slice_and_two_gpus_stay_whole(cluster: MakeCluster) -> None:
    place = await cluster()
    served = await place.create(replica("a"), RS_CONTROLLER)
    assert served.limits() == {SLICE_20: "1"}
    pair = pod("pair", container(gpus=2), labels={"fairslice.io/class": "training"})
    assert (await place.create(pair)).limits() == {GPU: "2"}


async def test_time_slices_go_to_experiments_and_cards_to_production(cluster: MakeCluster) -> None:
    nodes = (node("shared", T4_SHARED, {GPU: 4}), node("plain", T4, {GPU: 2}))
    rules = policy(
        classes=[
            {
                "name": "production",
                "priorityClassName": "fairslice-production",
                "modes": ["mig", "whole"],
                "isolation": "Required",
            },
            {
                "name": "experiment",
                "priorityClassName": "fairslice-experiment",
                "memory": "10G",
                "modes": ["mig", "mps", "timeslice", "whole"],
                "overflow": "Reject",
            },
        ]
    )
    place = await cluster(view(rules, (team(pools=[{"pool": "t4", "limit": "3"}]),), nodes))
    shared = await place.create(notebook())
    terms = shared.spec["affinity"]["nodeAffinity"]
    assert "SHARED" in json.dumps(terms) or "replicas" in json.dumps(terms)
    assert any("no memory isolation" in text for text in shared.warnings)
    whole = await place.create(pod("p", labels={"fairslice.io/class": "production"}))
    assert whole.allowed, whole.message
    assert json.dumps(whole.spec["affinity"]) != json.dumps(shared.spec["affinity"])
    assert not any("no memory isolation" in text for text in whole.warnings)


async def test_over_its_limit_a_person_is_refused_with_the_numbers(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "1"}]),)))
    assert (await place.create(pod("first"))).allowed
    refused = await place.create(pod("second"))
    assert not refused.allowed
    assert refused.code == 403
    for part in ("nlp", "a100", "1 of 1", "1 asked", "fairslice.io/class: training"):
        assert part in refused.message


async def test_what_can_never_fit_is_refused_with_what_would(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100"}]),)))
    refused = await place.create(pod("huge", container(gpus=9)))
    assert not refused.allowed
    assert "never" in refused.message


async def test_a_class_that_queues_waits_behind_a_gate(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "1"}]),)))
    labels = {"fairslice.io/class": "training"}
    assert (await place.create(pod("first", labels=labels))).allowed
    waiting = await place.create(pod("second", labels=labels))
    assert waiting.allowed
    assert waiting.gated
    assert waiting.labels["system.fairslice.io/state"] == "queued"
    assert waiting.annotations["system.fairslice.io/queued-at"] == "2027-01-15T08:00:00Z"
    assert any("1 of 1" in text for text in waiting.warnings)
    booking = await place.ledger.get(waiting.annotations["system.fairslice.io/booking"])
    assert booking is not None
    assert booking.state == "Queued"
    assert booking.bound
    assert len(booking.options) == 1


async def test_a_gated_pod_is_rewritten_to_what_it_waits_for(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "0.25"}]),)))
    await place.create(replica("a"), RS_CONTROLLER)
    waiting = await place.create(replica("b"), RS_CONTROLLER)
    assert waiting.gated
    assert waiting.limits() == {SLICE_20: "1"}
    booking = await place.ledger.get(waiting.annotations["system.fairslice.io/booking"])
    assert booking is not None
    # Its controller can make it anew for any other option; nobody does that for a bare pod.
    assert [option.units for option in booking.options] == [{SLICE_20: 1}, {GPU: 1}]
    assignment = json.loads(waiting.annotations["system.fairslice.io/assignment"])
    assert assignment["option"]["units"] == {SLICE_20: 1}


async def test_a_rollout_at_the_limit_completes_by_surge(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "0.25"}]),)))
    assert not (await place.create(replica("a", "old"), RS_CONTROLLER)).gated
    surged = await place.create(replica("b", "new"), RS_CONTROLLER)
    assert not surged.gated
    assert (await place.ledger.held("nlp")).surge == {"a100": 250}


async def test_applying_a_deployment_over_the_limit_warns_and_changes_nothing(
    cluster: MakeCluster,
) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "0.5"}]),)))
    told = await place.mutate(deployment(5))
    assert told.allowed
    assert told.patch == []
    assert "2 of 5 replicas" in told.warnings[0]
    (given,) = (await place.mutate(deployment(2))).warnings
    assert "fairslice gives mig-2g.20gb" in given
    more = await place.update(deployment(6), deployment(4))
    assert more.warnings == []
    assert (await place.update(deployment(9), deployment(4))).warnings


async def test_an_explicit_slice_is_respected(cluster: MakeCluster) -> None:
    place = await cluster()
    asked = pod(
        "mine", container(gpus=1, resource=SLICE_20), labels={"fairslice.io/class": "training"}
    )
    assert (await place.create(asked)).limits() == {SLICE_20: "1"}


async def test_an_unknown_slice_is_refused_by_what_exists(cluster: MakeCluster) -> None:
    place = await cluster()
    refused = await place.create(pod("odd", container(gpus=1, resource="nvidia.com/mig-7g.79gb")))
    assert not refused.allowed
    assert "mig-7g.79gb" in refused.message
    assert "mig-2g.20gb" in refused.message


@pytest.mark.parametrize("value", ["500m", "0.5", "-1", "x"])
async def test_what_is_no_number_of_gpus_is_refused(cluster: MakeCluster, value: str) -> None:
    place = await cluster()
    refused = await place.create(pod("odd", container(gpus=value)))
    assert not refused.allowed
    assert refused.code == 422
    assert "main" in refused.message


async def test_a_request_for_zero_gpus_is_dropped_and_sees_none(cluster: MakeCluster) -> None:
    place = await cluster()
    mixed = pod("mixed", container("a", gpus=1), container("b", gpus="0"))
    mixed["spec"]["containers"][1]["resources"] = {"limits": {GPU: "0"}, "requests": {GPU: "0"}}
    done = await place.create(mixed)
    assert done.limits(1) == {}
    assert done.env(1) == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_a_foreign_priority_class_gives_way_with_a_warning(cluster: MakeCluster) -> None:
    place = await cluster()
    done = await place.create(notebook(priorityClassName="boss", priority=10**6))
    assert done.spec["priorityClassName"] == "fairslice-experiment"
    assert any("boss" in text for text in done.warnings)


async def test_a_missing_priority_class_is_not_put_on_a_pod(cluster: MakeCluster) -> None:
    place = await cluster(view(priority_classes={}))
    done = await place.create(notebook())
    assert "priorityClassName" not in done.spec
    assert done.spec["priority"] == 0
    assert any("does not exist" in text for text in done.warnings)


async def test_a_class_that_the_team_was_not_granted_is_refused(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(allowedClasses=["experiment"]),)))
    refused = await place.create(pod(labels={"fairslice.io/class": "production"}))
    assert not refused.allowed
    assert "production" in refused.message
    by_priority = await place.create(pod(priorityClassName="fairslice-production"))
    assert not by_priority.allowed


async def test_outside_teams_gpus_are_left_alone_or_refused(cluster: MakeCluster) -> None:
    place = await cluster()
    stranger = pod(namespace="elsewhere")
    done = await place.create(stranger)
    assert done.patch == []
    strict = await cluster(view(policy(unassignedNamespaces="Deny")))
    refused = await strict.create(stranger)
    assert not refused.allowed
    assert "elsewhere" in refused.message


async def test_an_exempt_service_account_is_never_touched(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(namespaces=["nlp", "gpu-operator"]),)))
    own = pod(
        "plugin",
        container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
        namespace="gpu-operator",
        hostPID=True,
        volumes=[{"name": "dev", "hostPath": {"path": "/dev"}}],
    )
    assert (await place.mutate(own)).patch == []
    labelled = pod("mine", namespace="nlp", labels={"app": "gpu-operator"})
    assert (await place.mutate(labelled)).patch


async def test_a_dry_run_tells_the_same_and_leaves_no_trace(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "1"}]),)))
    first = await place.mutate(pod("first"), dryRun=True)
    assert first.allowed
    assert (await place.ledger.held("nlp")).pools == {}
    await place.create(pod("first"))
    refused = await place.mutate(pod("second"), dryRun=True)
    assert not refused.allowed
    assert "1 of 1" in refused.message


async def test_node_constraints_are_kept_and_narrowed(cluster: MakeCluster) -> None:
    nodes = (node("shared", T4_SHARED, {GPU: 4}), node("plain", T4, {GPU: 2}))
    place = await cluster(view(teams=(team(pools=[{"pool": "t4", "limit": "3"}]),), nodes=nodes))
    required = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]},
        ]
    }
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
    }
    asked = notebook(affinity=affinity)
    done = await place.mutate(asked)
    if done.allowed:
        kept = done.spec["affinity"]["nodeAffinity"]
        terms = kept["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms[0]["matchExpressions"][0]["key"] == "zone"
        assert "matchFields" in terms[1]


async def test_a_users_cap_counts_persons_and_controllers_apart(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(userLimit="1"),)))
    assert (await place.create(pod("a"), "ada")).allowed
    refused = await place.create(pod("b"), "ada")
    assert "ada" in refused.message
    assert (await place.create(pod("c"), "bob")).allowed
    await place.create(replica("a"), RS_CONTROLLER)
    held = await place.ledger.held("nlp")
    assert held.users == {"ada": 1000, "bob": 1000, "Deployment/serve": 250}


async def test_a_static_pods_mirror_is_left_alone(cluster: MakeCluster) -> None:
    place = await cluster()
    mirror = pod("m", annotations={"kubernetes.io/config.mirror": "x"}, nodeName="a1")
    kubelet = {"username": "system:node:a1", "groups": ["system:nodes"]}
    assert (await place.mutate(mirror, userInfo=kubelet)).patch == []
    assert not (await place.mutate(mirror)).allowed


async def test_only_rewriting_enforced_books_nothing(cluster: MakeCluster) -> None:
    rules = policy(modes("Off", rewrite="Enforce"))
    place = await cluster(view(rules))
    done = await place.create(notebook())
    assert done.limits() == {SLICE_10: "1"}
    assert (await place.ledger.held("nlp")).pools == {}


async def test_pods_of_a_queueless_controller_over_the_limit_are_refused(
    cluster: MakeCluster,
) -> None:
    rules = policy(modes("Enforce", queue="Off"))
    place = await cluster(view(rules, (team(pools=[{"pool": "a100", "limit": "0.25"}]),)))
    assert (await place.create(replica("a"), RS_CONTROLLER)).allowed
    assert not (await place.create(replica("b"), RS_CONTROLLER)).allowed


async def test_ownership_alone_makes_no_controllers_pod_of_a_bare_one(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "1"}]),)))
    await place.create(pod("first"))
    forged = pod("forged", ownerReferences=[owner("Job", "train")])
    assert (await place.create(forged)).gated


async def test_a_manifest_applied_again_leaves_its_pod_as_it_is(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = (await place.create(notebook())).obj
    applied = deepcopy(stored)
    for amounts in applied["spec"]["containers"][0]["resources"].values():
        amounts[GPU] = "1"
    done = await place.update(applied, stored)
    assert done.allowed
    assert done.obj == stored


async def test_a_manifest_with_other_gpus_is_not_taken_for_the_same(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = (await place.create(notebook())).obj
    applied = deepcopy(stored)
    applied["spec"]["containers"][0]["resources"]["limits"][GPU] = "2"
    assert (await place.update(applied, stored)).patch == []
