"""The scheduler's pass: who fits where, in which words it refuses, whom it pushes out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice_sandbox.model.fit import NodeState, PodView
from fairslice_sandbox.model.preemption import Budget
from fairslice_sandbox.model.resources import pod_requests
from fairslice_sandbox.model.scheduler import Bind, Gated, Unschedulable, Verdict, schedule

GPU = "nvidia.com/gpu"


def node(name: str, gpus: int = 0, **spec: Any) -> NodeState:
    labels = spec.pop("labels", {})
    allocatable = {"cpu": "8", "memory": "64Gi", "pods": "50", GPU: str(gpus)}
    return NodeState.of(
        {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
            "spec": spec,
            "status": {"allocatable": allocatable},
        }
    )


def pod(name: str, gpus: int = 0, on: str = "", priority: int = 0, **more: Any) -> PodView:
    meta = {"name": name, "namespace": "nlp", "uid": name, **more.pop("metadata", {})}
    status = more.pop("status", {})
    limits = {GPU: str(gpus)} if gpus else {}
    spec: dict[str, Any] = {"containers": [{"name": "m", "resources": {"limits": limits}}], **more}
    spec["priority"] = priority
    if on:
        spec["nodeName"] = on
    return PodView.of({"metadata": meta, "spec": spec, "status": status})


def only(verdicts: list[Verdict]) -> Verdict:
    assert len(verdicts) == 1
    return verdicts[0]


def message(verdicts: list[Verdict]) -> str:
    verdict = only(verdicts)
    assert isinstance(verdict, Unschedulable)
    return verdict.message


def test_a_pod_goes_to_the_node_where_it_wastes_least() -> None:
    verdict = only(schedule([node("big", 8), node("small", 1)], [pod("p", 1)]))
    assert isinstance(verdict, Bind)
    assert verdict.node == "small"


def test_higher_priority_goes_first_then_age() -> None:
    pods = [
        pod("young", 1, metadata={"creationTimestamp": "2026-01-02T00:00:00Z"}),
        pod("old", 1, metadata={"creationTimestamp": "2026-01-01T00:00:00Z"}),
        pod("vip", 1, priority=5, metadata={"creationTimestamp": "2026-01-03T00:00:00Z"}),
    ]
    bound = [v.pod.key.name for v in schedule([node("n", 2)], pods) if isinstance(v, Bind)]
    assert bound == ["vip", "old"]


def test_refusal_counts_the_nodes_by_reason() -> None:
    nodes = [
        node("full", 0),
        node("tainted", 4, taints=[{"key": "gpu", "value": "x", "effect": "NoSchedule"}]),
        node("cordoned", 4, unschedulable=True),
    ]
    assert message(schedule(nodes, [pod("p", 1)])) == (
        "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, "
        "1 node(s) had untolerated taint {gpu: x}, 1 node(s) were unschedulable. "
        "no new claims to deallocate, preemption: 0/3 nodes are available: "
        "3 Preemption is not helpful for scheduling."
    )


def test_refusal_without_lower_priority_pods_says_so_as_the_real_one_does() -> None:
    busy = [pod("a", 1, on="gpu-1"), pod("b", 1, on="gpu-2")]
    nodes = [node("gpu-1", 1), node("gpu-2", 1)]
    assert message(schedule(nodes, [*busy, pod("p", 1)])) == (
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. "
        "no new claims to deallocate, preemption: "
        "0/2 nodes are available: 2 No preemption victims found for incoming pod."
    )


def test_no_nodes_at_all() -> None:
    assert message(schedule([], [pod("p")])) == "no nodes available to schedule pods"


@pytest.mark.parametrize(
    ("spec", "fits"),
    [
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"tolerations": [{"operator": "Exists"}]}, True),
    ],
)
def test_node_selectors_are_honoured(spec: dict[str, Any], fits: bool) -> None:
    verdict = only(schedule([node("n", labels={"zone": "a"})], [pod("p", **spec)]))
    assert isinstance(verdict, Bind) is fits


@pytest.mark.parametrize(
    ("term", "fits"),
    [
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["x"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "size", "operator": "Gt", "values": ["3"]}]}, True),
        ({"matchExpressions": [{"key": "size", "operator": "Lt", "values": ["3"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, False),
        ({}, False),
    ],
)
def test_required_node_affinity_is_honoured(term: dict[str, Any], fits: bool) -> None:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    asked = pod("p", affinity={"nodeAffinity": required})
    verdict = only(schedule([node("n", labels={"zone": "a", "size": "4"})], [asked]))
    assert isinstance(verdict, Bind) is fits


def test_anti_affinity_keeps_replicas_apart() -> None:
    labels = {"labels": {"app": "serve"}}
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "serve"}},
    }
    rule = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    pods = [pod(f"p{i}", metadata=labels, affinity=rule) for i in range(3)]
    verdicts = schedule([node("a"), node("b")], pods)
    assert sorted(v.node for v in verdicts if isinstance(v, Bind)) == ["a", "b"]
    assert sum(isinstance(v, Unschedulable) for v in verdicts) == 1


def test_gated_pods_and_foreign_schedulers_are_left_alone() -> None:
    pods = [
        pod("gated", schedulingGates=[{"name": "fairslice.io/queued"}]),
        pod("foreign", schedulerName="kai-scheduler"),
    ]
    verdict = only(schedule([node("n")], pods))
    assert isinstance(verdict, Gated)
    assert verdict.pod.key.name == "gated"


def test_preemption_takes_the_cheapest_node_and_no_more_than_needed() -> None:
    pods = [
        pod("mid", 1, on="a", priority=50),
        pod("low1", 1, on="b", priority=10, status={"startTime": "2026-01-01T00:00:00Z"}),
        pod("low2", 1, on="b", priority=10, status={"startTime": "2026-01-02T00:00:00Z"}),
        pod("vip", 1, priority=100),
    ]
    verdict = only(schedule([node("a", 1), node("b", 2)], pods))
    assert isinstance(verdict, Unschedulable)
    assert verdict.nominated == "b"
    # The one that has run longer is worth more.
    assert [victim.key.name for victim in verdict.victims] == ["low2"]
    assert verdict.message == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


def test_two_preemptors_do_not_share_the_room_of_one_victim() -> None:
    pods = [
        pod("low1", 1, on="a", priority=1),
        pod("low2", 1, on="b", priority=1),
        pod("vip1", 1, priority=100),
        pod("vip2", 1, priority=100),
    ]
    verdicts = schedule([node("a", 1), node("b", 1)], pods)
    assert {v.nominated for v in verdicts if isinstance(v, Unschedulable)} == {"a", "b"}


def test_freed_room_is_kept_for_the_nominated_pod() -> None:
    pods = [
        pod("vip", 1, priority=100, status={"nominatedNodeName": "a"}),
        pod("low", 1, priority=1),
    ]
    verdicts = schedule([node("a", 1)], pods)
    assert [v.pod.key.name for v in verdicts if isinstance(v, Bind)] == ["vip"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"preemptionPolicy": "Never"}, "not eligible due to preemptionPolicy=Never."),
        (
            {"status": {"nominatedNodeName": "a"}},
            "not eligible due to a terminating pod on the nominated node.",
        ),
    ],
)
def test_who_may_not_preempt_is_told_why(more: dict[str, Any], why: str) -> None:
    going = pod(
        "low",
        1,
        on="a",
        metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"},
        status={
            "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
            ]
        },
    )
    text = message(schedule([node("a", 1)], [going, pod("vip", 1, priority=9, **more)]))
    start = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    assert text == f"{start} no new claims to deallocate, preemption: {why}"


def test_pods_under_a_budget_are_spared_where_others_do() -> None:
    pods = [
        pod("guarded", 1, on="a", priority=1, metadata={"labels": {"app": "db"}}),
        pod("plain", 1, on="b", priority=5),
        pod("vip", 1, priority=100),
    ]
    budget = Budget("nlp", {"matchLabels": {"app": "db"}}, allowed=0)
    verdict = only(schedule([node("a", 1), node("b", 1)], pods, [budget]))
    assert isinstance(verdict, Unschedulable)
    assert verdict.nominated == "b"


def test_sidecars_count_beside_the_main_containers_and_before_later_inits() -> None:
    def container(gpus: int, **more: Any) -> dict[str, Any]:
        return {"name": "c", "resources": {"requests": {GPU: str(gpus)}}, **more}

    spec = {
        "initContainers": [container(5), container(1, restartPolicy="Always"), container(3)],
        "containers": [container(1), container(1)],
    }
    assert pod_requests(spec)[GPU] == 5
    spec["initContainers"][0] = container(0)
    assert pod_requests(spec)[GPU] == 4


SIZES = st.lists(st.integers(1, 4), max_size=12)


@given(free=st.lists(st.integers(0, 4), min_size=1, max_size=4), asked=SIZES)
def test_nothing_is_ever_overcommitted(free: list[int], asked: list[int]) -> None:
    nodes = [node(f"n{i}", gpus) for i, gpus in enumerate(free)]
    pods = [pod(f"p{i}", gpus, priority=i % 3) for i, gpus in enumerate(asked)]
    verdicts = schedule(nodes, pods)
    assert len(verdicts) == len(pods)
    for index, gpus in enumerate(free):
        here = [v.pod for v in verdicts if isinstance(v, Bind) and v.node == f"n{index}"]
        assert sum(item.requests[GPU] for item in here) <= gpus


@given(low=SIZES, vip=st.integers(1, 4))
def test_victims_always_make_enough_room_and_are_all_lower(low: list[int], vip: int) -> None:
    pods = [pod(f"low{i}", gpus, on="n", priority=i) for i, gpus in enumerate(low)]
    total = max(sum(low), 4)
    verdict = only(schedule([node("n", total)], [*pods, pod("vip", vip, priority=6)]))
    if isinstance(verdict, Unschedulable) and verdict.victims:
        assert all(victim.priority < 6 for victim in verdict.victims)
        left = total - sum(low) + sum(victim.requests[GPU] for victim in verdict.victims)
        assert left >= vip
        smallest = min(victim.requests[GPU] for victim in verdict.victims)
        assert left - smallest < vip
