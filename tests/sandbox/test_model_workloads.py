"""Deployments, StatefulSets, DaemonSets, budgets, garbage: the pure decisions."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice_sandbox.model import daemonsets, disruption, statefulsets
from fairslice_sandbox.model.controller import Backoff
from fairslice_sandbox.model.garbage import Delete, Disown, Unblock, collect
from fairslice_sandbox.model.node_lifecycle import eviction_delay
from fairslice_sandbox.model.replicas import (
    decide_deployment,
    decide_replicaset,
    is_owned,
    template_hash,
    with_failure,
)

Obj = dict[str, Any]
NOW = datetime(2026, 11, 30, tzinfo=UTC)
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def template(image: str = "v1") -> Obj:
    return {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"image": image}]}}


def deployment(replicas: int, image: str = "v1", **strategy: Any) -> Obj:
    return {
        "metadata": {"name": "serve", "namespace": "nlp", "uid": "dep"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "x"}},
            "template": template(image),
            "strategy": strategy,
        },
    }


def owned(kind: str, owner: str) -> list[Obj]:
    return [{"kind": kind, "name": owner, "uid": owner, "controller": True}]


class Rollout:
    """A Deployment and ReplicaSets whose pods become ready one at a time."""

    def __init__(self, body: Obj) -> None:
        self.deployment = body
        self.sets: dict[str, Obj] = {}

    def sync(self) -> bool:
        plan = decide_deployment(self.deployment, list(self.sets.values()), self.pods(), NOW)
        if plan.create is not None:
            self.sets[plan.create["metadata"]["name"]] = plan.create
        for name, size in plan.scale.items():
            self.sets[name]["spec"]["replicas"] = size
        for item in self.sets.values():
            size = item["spec"]["replicas"]
            available = min(size, item.get("status", {}).get("availableReplicas", 0))
            item["status"] = {"replicas": size, "availableReplicas": available}
        self.deployment["status"] = plan.status
        return bool(plan.create or plan.scale)

    def ready_one(self) -> bool:
        for item in self.sets.values():
            if item["status"]["availableReplicas"] < item["spec"]["replicas"]:
                item["status"]["availableReplicas"] += 1
                return True
        return False

    def pods(self) -> list[Obj]:
        return [
            {"metadata": {"labels": item["metadata"]["labels"]}, "status": {"phase": "Running"}}
            for item in self.sets.values()
            for _ in range(item.get("status", {}).get("replicas", 0))
        ]

    def sizes(self) -> dict[str, int]:
        return {
            item["spec"]["template"]["spec"]["containers"][0]["image"]: item["spec"]["replicas"]
            for item in self.sets.values()
        }

    def finish(self, watch: Any = None) -> None:
        for _ in range(200):
            changed = self.sync()
            if watch:
                watch()
            if not self.ready_one() and not changed:
                return
        raise AssertionError("the rollout does not come to an end")


def test_a_rollout_surges_one_and_never_goes_below() -> None:
    rollout = Rollout(deployment(4, maxSurge=1))
    rollout.finish()
    assert rollout.sizes() == {"v1": 4}
    rollout.deployment["spec"]["template"] = template("v2")
    rollout.deployment["spec"]["strategy"] = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}

    def watch() -> None:
        assert sum(rollout.sizes().values()) <= 5
        assert sum(s["status"]["availableReplicas"] for s in rollout.sets.values()) >= 4

    rollout.finish(watch)
    assert rollout.sizes() == {"v1": 0, "v2": 4}
    conditions = {c["type"]: c["reason"] for c in rollout.deployment["status"]["conditions"]}
    assert conditions["Progressing"] == "NewReplicaSetAvailable"


@given(
    replicas=st.integers(1, 8),
    surge=st.one_of(st.integers(0, 3), st.sampled_from(["0%", "25%", "100%"])),
    unavailable=st.one_of(st.integers(0, 3), st.sampled_from(["0%", "25%", "100%"])),
)
def test_every_rollout_comes_to_an_end(
    replicas: int, surge: int | str, unavailable: int | str
) -> None:
    rollout = Rollout(deployment(replicas))
    limits = {"maxSurge": surge, "maxUnavailable": unavailable}
    rollout.deployment["spec"]["strategy"] = {"rollingUpdate": limits}
    rollout.finish()
    rollout.deployment["spec"]["template"] = template("v2")
    rollout.finish()
    assert rollout.sizes() == {"v1": 0, "v2": replicas}


def test_recreate_waits_for_the_last_old_pod() -> None:
    rollout = Rollout(deployment(2, type="Recreate"))
    rollout.finish()
    rollout.deployment["spec"]["template"] = template("v2")
    plan = decide_deployment(rollout.deployment, list(rollout.sets.values()), rollout.pods(), NOW)
    assert plan.create is None
    assert list(plan.scale.values()) == [0]
    rollout.finish()
    assert rollout.sizes() == {"v1": 0, "v2": 2}


def test_a_replicaset_drops_idle_pods_first_and_replaces_ended_ones() -> None:
    owner = {"metadata": {"name": "rs", "uid": "rs"}, "spec": {"replicas": 1}}
    busy: Obj = {"metadata": {"name": "busy"}, "spec": {"nodeName": "n"}, "status": READY}
    idle: Obj = {"metadata": {"name": "idle"}, "spec": {}, "status": {"phase": "Pending"}}
    ended: Obj = {"metadata": {"name": "ended"}, "spec": {}, "status": {"phase": "Failed"}}
    assert decide_replicaset(owner, [busy, idle]).delete == [idle]
    assert decide_replicaset(owner, [ended]).create == 1


def test_a_refused_pod_shows_on_the_replicaset_and_the_deployment() -> None:
    rollout = Rollout(deployment(1))
    rollout.sync()
    item = next(iter(rollout.sets.values()))
    item["status"] = with_failure({"replicas": 0}, "exceeded quota", NOW)
    rollout_plan = decide_deployment(rollout.deployment, [item], [], NOW)
    found = {c["type"]: c["message"] for c in rollout_plan.status["conditions"]}
    assert found["ReplicaFailure"] == "exceeded quota"
    assert "conditions" not in with_failure(item["status"], None, NOW)


def statefulset(**spec: Any) -> Obj:
    return {
        "metadata": {"name": "ss", "namespace": "nlp", "uid": "ss"},
        "spec": {"replicas": 3, "serviceName": "s", "template": template(), **spec},
    }


def member(owner: Obj, ordinal: int, status: Obj | None = None) -> Obj:
    return {**statefulsets.pod_of(owner, ordinal), "status": status or READY}


def test_a_statefulset_makes_one_pod_after_the_other() -> None:
    owner = statefulset()
    pending = member(owner, 0, {"phase": "Pending"})
    assert statefulsets.decide(owner, [])[1] == [0]
    assert statefulsets.decide(owner, [pending])[1] == []
    assert statefulsets.decide(owner, [member(owner, 0)])[1] == [1]
    assert statefulsets.decide(statefulset(podManagementPolicy="Parallel"), [])[1] == [0, 1, 2]


def test_a_statefulset_replaces_from_the_top() -> None:
    old = statefulset()
    pods = [member(old, ordinal) for ordinal in range(3)]
    delete, create, _ = statefulsets.decide(statefulset(template=template("v2")), pods)
    assert [pod["metadata"]["name"] for pod in delete] == ["ss-2"]
    assert create == []
    delete, _, _ = statefulsets.decide(statefulset(replicas=1), pods)
    assert [pod["metadata"]["name"] for pod in delete] == ["ss-2"]


def test_statefulset_pods_carry_their_number() -> None:
    pod = member(statefulset(), 1)
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("ss-1", "s")


def test_a_daemonset_covers_the_nodes_that_will_have_it() -> None:
    owner = {
        "metadata": {"name": "ds", "namespace": "x", "uid": "ds"},
        "spec": {"template": template()},
    }
    owner["spec"]["template"]["spec"]["nodeSelector"] = {"gpu": "yes"}
    nodes = [
        {"metadata": {"name": "a", "labels": {"gpu": "yes"}}, "spec": {"unschedulable": True}},
        {"metadata": {"name": "b", "labels": {}}},
        {
            "metadata": {"name": "c", "labels": {"gpu": "yes"}},
            "spec": {"taints": [{"key": "own", "effect": "NoSchedule"}]},
        },
    ]
    _, create, status = daemonsets.decide(owner, nodes, [])
    assert create == ["a"]
    assert status["desiredNumberScheduled"] == 1
    assert daemonsets.target_of(daemonsets.pod_for(owner, "a")) == "a"


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"minAvailable": 2}, 1),
        ({"minAvailable": "50%"}, 1),
        ({"maxUnavailable": 1}, 0),
        ({"maxUnavailable": "50%"}, 1),
    ],
)
def test_budgets_count_what_their_owners_want(spec: Obj, allowed: int) -> None:
    selector = {"matchLabels": {"app": "x"}}
    meta = {"labels": {"app": "x"}, "ownerReferences": owned("ReplicaSet", "rs")}
    pods: list[Obj] = [
        {"metadata": {**meta, "uid": str(i)}, "spec": {}, "status": READY} for i in range(3)
    ]
    budget = {"metadata": {}, "spec": {"selector": selector, **spec}}
    assert disruption.decide(budget, pods, lambda _: 4)["disruptionsAllowed"] == allowed


def thing(name: str, *owners: str, deleting: str = "", blocks: bool = True) -> tuple[str, Obj]:
    meta: Obj = {"name": name, "namespace": "nlp", "uid": name}
    if owners:
        meta["ownerReferences"] = [{"uid": o, "blockOwnerDeletion": blocks} for o in owners]
    if deleting:
        meta |= {"deletionTimestamp": "now", "finalizers": [deleting]}
    return ("things", {"metadata": meta})


def test_orphans_of_the_dead_are_collected_and_shared_ones_disowned() -> None:
    actions = collect([thing("alive"), thing("child", "gone"), thing("shared", "alive", "gone")])
    assert [(type(a), a.obj["metadata"]["name"]) for a in actions] == [
        (Delete, "child"),
        (Disown, "shared"),
    ]


def test_foreground_owners_wait_for_their_dependents() -> None:
    owner, child = thing("owner", deleting="foregroundDeletion"), thing("child", "owner")
    (action,) = collect([owner, child])
    assert isinstance(action, Delete)
    assert action.propagation == "Foreground"
    going = thing("child", "owner", deleting="batch.kubernetes.io/job-tracking")
    assert collect([owner, going]) == []
    (last,) = collect([owner])
    assert isinstance(last, Unblock)


def test_orphaning_leaves_the_dependents_without_owner() -> None:
    owner, child = thing("owner", deleting="orphan"), thing("child", "owner")
    (action,) = collect([owner, child])
    assert isinstance(action, Disown)
    assert isinstance(collect([owner])[0], Unblock)


@pytest.mark.parametrize(
    ("tolerations", "delay"),
    [
        ([], 0.0),
        ([{"operator": "Exists"}], None),
        ([{"key": "down", "operator": "Exists", "tolerationSeconds": 300}], 300.0),
    ],
)
def test_taints_let_pods_stay_as_long_as_they_tolerate(tolerations: Obj, delay: Any) -> None:
    pod = {"spec": {"tolerations": tolerations}}
    taints = [{"key": "down", "effect": "NoExecute"}, {"key": "x", "effect": "NoSchedule"}]
    assert eviction_delay(pod, taints) == delay


def test_backoff_doubles_up_to_its_limit() -> None:
    backoff = Backoff(10.0, 60.0)
    assert [backoff.after(n) for n in (1, 2, 3, 4, 5000)] == [10, 20, 40, 60, 60]


def test_equal_templates_have_equal_names() -> None:
    assert template_hash({"a": 1, "b": 2}) == template_hash({"b": 2, "a": 1})
    assert template_hash(template("v1")) != template_hash(template("v2"))
    assert is_owned({"metadata": {"ownerReferences": owned("X", "u")}}, {"metadata": {"uid": "u"}})
