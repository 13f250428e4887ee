"""Gangs of unlike pods: one size for the books, each set placed as it is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.booking import Option
from fairslice.gangs import common_options, part_of, size_in, sizes_of
from fairslice.kube.objects import ObjectMeta
from fairslice.placement import (
    GangNeeds,
    Misfit,
    NodeState,
    Placement,
    PodNeeds,
    SetNeeds,
    gang_needs,
    place,
)
from fairslice.pod_groups import PodGroupError, group_of, is_pod_group, pod_group
from fairslice.stamps import POD_GROUP, POD_GROUP_SIZE

GPU = "nvidia.com/gpu"


def option(units: int, *, resource: str = GPU, milli: int = 1000, **fields: Any) -> Option:
    return Option(
        pool="a100",
        product="A100",
        mode=fields.pop("mode", "whole"),
        milli=milli * units,
        units={resource: units},
        **fields,
    )


def state(name: str, gpus: int, **fields: Any) -> NodeState:
    return NodeState(
        name=name,
        labels=fields.pop("labels", {}),
        pods=100,
        cpu_milli=fields.pop("cpu", 64_000),
        memory=1 << 40,
        units={f"a100|A100|{GPU}": gpus},
        **fields,
    )


@given(st.lists(st.integers(min_value=1, max_value=16), min_size=1, max_size=6))
def test_sizes_are_the_smallest_whole_numbers_in_the_same_proportion(units: list[int]) -> None:
    sizes = sizes_of(units)
    scale = units[0] // sizes[0]
    assert [size * scale for size in sizes] == units
    assert sizes_of(sizes) == sizes


@given(st.lists(st.integers(min_value=1, max_value=16), min_size=1, max_size=6))
def test_what_all_are_given_adds_up_to_what_each_is_given(units: list[int]) -> None:
    sizes = sizes_of(units)
    (unit,) = common_options([[option(amount)] for amount in units], sizes)
    for amount, size in zip(units, sizes, strict=True):
        assert unit.times(size).units == {GPU: amount}
        assert unit.times(size).milli == 1000 * amount
        assert part_of(unit.times(size), size).units == unit.units
        assert size_in(unit, unit.times(size)) == size


def test_only_what_serves_all_is_had_by_all() -> None:
    small = option(1, resource="nvidia.com/mig-1g.10gb", milli=125, mode="mig")
    assert common_options([[small, option(1)], [option(4)]], (1, 4)) == (option(1),)
    assert common_options([[small], [option(4)]], (1, 4)) == ()
    dear = option(1, milli=500)
    assert common_options([[option(1)], [dear]], (1, 1)) == ()


def test_a_pod_of_another_kind_has_no_size() -> None:
    assert size_in(option(2), option(3)) == 0
    assert size_in(option(1), option(1, resource="nvidia.com/mig-1g.10gb")) == 0


def test_a_large_pod_needs_its_gpus_on_one_node() -> None:
    plain = PodNeeds()
    needs = gang_needs(
        [SetNeeds(count=1, size=1, needs=plain), SetNeeds(count=2, size=4, needs=plain)]
    )
    assert isinstance(needs, GangNeeds)
    fit = place(9, needs, [option(1)], [state("a", 5), state("b", 4)])
    assert isinstance(fit, Placement)
    assert fit.place == {"a": 5, "b": 4}
    assert fit.sets[0] == {"a": 1}
    # Nine in all would do, but not three and six.
    assert isinstance(place(9, needs, [option(1)], [state("a", 6), state("b", 3)]), Misfit)


def test_each_set_has_its_own_cpu_and_selector() -> None:
    picky = PodNeeds(node_selector={"disk": "fast"})
    hungry = PodNeeds(cpu_milli=32_000)
    needs = gang_needs(
        [SetNeeds(count=2, size=1, needs=hungry), SetNeeds(count=1, size=1, needs=picky)]
    )
    fast, slow = state("fast", 4, labels={"disk": "fast"}, cpu=1000), state("slow", 4)
    fit = place(3, needs, [option(1)], [fast, slow])
    assert isinstance(fit, Placement)
    assert fit.sets == ({"slow": 2}, {"fast": 1})
    assert (fast.cpu_milli, slow.units) == (1000, {f"a100|A100|{GPU}": 4})


def test_a_gang_never_mixes_models() -> None:
    plain = PodNeeds()
    needs = gang_needs(
        [SetNeeds(count=2, size=1, needs=plain), SetNeeds(count=2, size=1, needs=plain)]
    )
    other = NodeState(name="h", labels={}, pods=9, units={"h100|H100|" + GPU: 2})
    h100 = Option(pool="h100", product="H100", mode="whole", milli=1000, units={GPU: 1})
    assert isinstance(place(4, needs, [option(1), h100], [state("a", 2), other]), Misfit)


@pytest.mark.parametrize("size", ["", "0", "-1", "3.5", "x", "1001", "٣"])
def test_a_group_of_no_number_is_no_group(size: str) -> None:
    meta = ObjectMeta(namespace="nlp", labels={POD_GROUP: "eval", POD_GROUP_SIZE: size})
    with pytest.raises(PodGroupError, match="eval"):
        pod_group(meta)
    assert group_of(meta) == ("", "")


def test_a_group_is_named_by_label_or_annotation() -> None:
    meta = ObjectMeta(namespace="nlp", annotations={POD_GROUP: "eval", POD_GROUP_SIZE: "4"})
    assert pod_group(meta) == ("PodGroup nlp/eval", 4)
    assert is_pod_group(group_of(meta)[0])
    assert pod_group(ObjectMeta(namespace="nlp")) is None
