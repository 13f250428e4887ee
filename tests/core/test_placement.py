from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from fairslice.booking import NodeRequirement, Option
from fairslice.inventory import Inventory
from fairslice.kube.objects import NodeSelector, Taint, Toleration
from fairslice.node_selection import selects, tolerates, untolerated
from fairslice.placement import (
    Misfit,
    NodeState,
    Placement,
    PodNeeds,
    fits_on,
    place,
    pod_needs,
)

from .clusters import H100, h100_node, pod, policy

GPU = "nvidia.com/gpu"
KEY = f"h100|{H100}|{GPU}"


def _option(units: int = 1, **fields: Any) -> Option:
    return Option(
        pool="h100", product=H100, mode="whole", milli=1000 * units, units={GPU: units}, **fields
    )


def _state(name: str, gpus: int, **fields: Any) -> NodeState:
    amounts = {"cpu_milli": 64_000, "memory": 2**38, "pods": 110, "labels": {}, **fields}
    return NodeState(name=name, units={KEY: gpus}, **amounts)


def test_needs_are_summed_as_the_scheduler_does() -> None:
    spec = pod(
        {"cpu": "1", "memory": "1Gi", "rdma/hca": "1", GPU: "1"},
        initContainers=[
            {"name": "i", "resources": {"requests": {"cpu": "4"}}},
            {"name": "s", "resources": {"requests": {"cpu": "500m"}}, "restartPolicy": "Always"},
        ],
        overhead={"cpu": "250m", "memory": "64Mi"},
        nodeSelector={"zone": "a"},
    )
    needs = pod_needs(spec)
    assert (needs.cpu_milli, needs.memory) == (4250, 2**30 + 2**26)
    assert needs.extended == {"rdma/hca": 1}
    assert not needs.unconstrained


def test_a_small_pod_goes_where_it_breaks_up_the_least() -> None:
    states = [_state("empty", 8), _state("started", 3), _state("full", 0)]
    found = place(1, PodNeeds(), [_option()], states)
    assert found == Placement(chosen=0, place={"started": 1})


def test_a_gang_takes_the_fewest_nodes() -> None:
    states = [_state("a", 3), _state("b", 8), _state("c", 8), _state("d", 1)]
    found = place(9, PodNeeds(), [_option()], states)
    assert isinstance(found, Placement)
    assert sum(found.place.values()) == 9
    assert len(found.place) == 2
    assert "d" in found.place


def test_a_gang_fits_whole_or_not_at_all_and_says_how_many_would() -> None:
    found = place(5, PodNeeds(), [_option(2)], [_state("a", 4), _state("b", 5)])
    assert isinstance(found, Misfit)
    assert found.fit == 4
    assert found.reason == f"needs 5 pods with 2 {GPU} at once; 4 fit now"


def test_a_gang_never_mixes_models_but_may_take_the_second_choice() -> None:
    other = Option(pool="a100", product="A", mode="whole", milli=1000, units={GPU: 1})
    mixed = [
        _state("a", 2),
        NodeState(name="b", labels={}, units={f"a100|A|{GPU}": 3}, cpu_milli=1, memory=1, pods=9),
    ]
    assert isinstance(place(4, PodNeeds(), [_option(), other], mixed), Misfit)
    assert place(3, PodNeeds(), [_option(), other], mixed) == Placement(chosen=1, place={"b": 3})


@pytest.mark.parametrize(
    ("needs", "option", "reason"),
    [
        (PodNeeds(), _option(2), f"needs 2 {GPU} on one node; the most free on one node is 1"),
        (PodNeeds(cpu_milli=90_000), _option(), f"needs 90 cpu beside 1 {GPU} on one node"),
        (PodNeeds(memory=2**40), _option(), f"needs 1024Gi memory beside 1 {GPU} on one node"),
        (PodNeeds(extended={"rdma/hca": 1}), _option(), "needs 1 rdma/hca beside"),
        (PodNeeds(node_selector={"zone": "b"}), _option(), "excludes it on all 1 node"),
    ],
)
def test_the_reason_is_the_narrowest(needs: PodNeeds, option: Option, reason: str) -> None:
    found = place(1, needs, [option], [_state("a", 1, labels={"zone": "a"})])
    assert isinstance(found, Misfit)
    assert reason in found.reason


def test_taints_and_missing_offers_are_named() -> None:
    tainted = _state("a", 1, taints=(Taint(key="team", value="x", effect="NoSchedule"),))
    found = place(1, PodNeeds(), [_option()], [tainted])
    assert isinstance(found, Misfit)
    assert "taint team is not tolerated" in found.reason
    toleration = Toleration(key="team", operator="Exists")
    assert fits_on(PodNeeds(tolerations=(toleration,)), _option(), tainted) == 1
    nothing = place(1, PodNeeds(), [_option()], [])
    assert isinstance(nothing, Misfit)
    assert "no node in service offers" in nothing.reason


def test_an_options_requirements_keep_pods_on_its_nodes() -> None:
    option = _option(requirements=(NodeRequirement(key="p", values=("x",)),))
    assert fits_on(PodNeeds(), option, _state("a", 1, labels={"p": "x"})) == 1
    assert fits_on(PodNeeds(), option, _state("a", 1, labels={"p": "y"})) == 0


def test_states_come_from_the_inventory_and_are_taken_from_and_given_back() -> None:
    state = Inventory.build([h100_node()], policy()).node_states()["h100-1"]
    before = state.copy()
    needs = PodNeeds(cpu_milli=1000, memory=2**30)
    state.take(needs, {KEY: 2}, pods=3)
    assert state.units[KEY] == 2
    assert state.cpu_milli == 61_000
    assert before.units[KEY] == 8
    state.take(needs, {KEY: 2}, pods=-3)
    assert state == before


@pytest.mark.parametrize(
    ("operator", "values", "label", "holds"),
    [
        ("In", ["a", "b"], "a", True),
        ("In", ["a"], None, False),
        ("NotIn", ["a"], "b", True),
        ("NotIn", ["a"], None, True),
        ("NotIn", ["a"], "a", False),
        ("Exists", None, "", True),
        ("Exists", None, None, False),
        ("DoesNotExist", None, None, True),
        ("DoesNotExist", None, "x", False),
        ("Gt", ["5"], "6", True),
        ("Gt", ["5"], "5", False),
        ("Lt", ["5"], "-6", True),
        ("Gt", ["5"], "many", False),
        ("Gt", ["x"], "6", False),
        ("Gt", ["5"], None, False),
        ("Near", ["5"], "5", False),
    ],
)
def test_every_operator_of_node_affinity_is_judged(
    operator: str, values: list[str] | None, label: str | None, holds: bool
) -> None:
    term = {"matchExpressions": [{"key": "k", "operator": operator, "values": values}]}
    selector = convert({"nodeSelectorTerms": [term]}, NodeSelector)
    assert selects(selector, "n", {"k": label} if label is not None else {}) is holds


def test_terms_are_alternatives_fields_name_nodes_and_empty_terms_admit_nothing() -> None:
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    selector = convert({"nodeSelectorTerms": [{}, by_name]}, NodeSelector)
    assert selects(selector, "n1", {})
    assert not selects(selector, "n2", {})
    assert not selects(convert({"nodeSelectorTerms": [{}]}, NodeSelector), "n1", {})
    assert not selects(NodeSelector(), "n1", {})


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration(key="gpu", operator="Exists"), True),
        (Toleration(key="gpu", value="yes"), True),
        (Toleration(key="gpu", operator="Equal", value="no"), False),
        (Toleration(key="gpu", operator="Exists", effect="NoExecute"), False),
        (Toleration(key="other", operator="Exists"), False),
        (Toleration(), False),
    ],
)
def test_tolerations_cover_taints_as_the_scheduler_says(
    toleration: Toleration, tolerated: bool
) -> None:
    taint = Taint(key="gpu", value="yes", effect="NoSchedule")
    assert tolerates(toleration, taint) is tolerated
    assert (untolerated([taint], (toleration,)) is None) is tolerated
    assert untolerated([Taint(key="x", effect="PreferNoSchedule")], ()) is None


def _brute_force(count: int, needs: PodNeeds, units: int, states: list[NodeState]) -> bool:
    ranges = [range(count + 1) for _ in states]
    for split in product(*ranges):
        if sum(split) == count and all(
            state.units[KEY] >= units * pods
            and state.cpu_milli >= needs.cpu_milli * pods
            and state.pods >= pods
            for pods, state in zip(split, states, strict=True)
        ):
            return True
    return False


@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8), st.integers(0, 4)), max_size=4),
)
def test_placement_agrees_with_trying_every_split(
    count: int, units: int, cpu: int, nodes: list[tuple[int, int, int]]
) -> None:
    states = [
        _state(f"n{index}", gpus, cpu_milli=cpus * 1000, pods=pods)
        for index, (gpus, cpus, pods) in enumerate(nodes)
    ]
    needs = PodNeeds(cpu_milli=cpu * 1000)
    copies = [state.copy() for state in states]
    found = place(count, needs, [_option(units)], states)
    assert states == copies
    assert isinstance(found, Placement) == _brute_force(count, needs, units, states)
    if isinstance(found, Placement):
        assert sum(found.place.values()) == count
        by_name = {state.name: state for state in states}
        for name, pods in found.place.items():
            assert pods > 0
            by_name[name].take(needs, {KEY: units}, pods)
            state = by_name[name]
            assert min(state.units[KEY], state.cpu_milli, state.pods) >= 0
    else:
        assert found.fit < count
