import json
import os
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.catalog import (
    MODELS,
    MigModel,
    is_slice_size,
    is_valid_layout,
    model_of,
    slice_milli,
)

_SHARED = Path(os.environ.get("FAIRSLICE_SHARED", Path(__file__).parents[3] / "shared"))
_FACTS = _SHARED / "data" / "mig_profiles.json"


@pytest.mark.parametrize(
    ("product", "profile", "milli"),
    [
        ("NVIDIA-A100-SXM4-80GB", "1g.10gb", 125),
        ("NVIDIA-A100-SXM4-40GB", "1g.10gb", 250),
        ("NVIDIA-A100-SXM4-40GB", "1g.5gb.me", 125),
        ("NVIDIA-A100-SXM4-80GB", "7g.79gb", 1000),
        ("NVIDIA-H100-80GB-HBM3", "3g.40gb", 500),
        ("NVIDIA-H100-NVL", "1g.24gb", 250),
        ("NVIDIA-A30", "1g.6gb", 250),
        ("NVIDIA-GB200", "1g.24gb", 125),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "1g.24gb", 250),
    ],
)
def test_a_slice_weighs_its_share_of_the_memory(product: str, profile: str, milli: int) -> None:
    assert slice_milli(product, profile) == milli


def test_unknown_products_are_weighed_by_memory_or_else_as_whole() -> None:
    assert slice_milli("NVIDIA-X900-120GB", "1g.15gb", 120 * 1024) == 125
    assert slice_milli("NVIDIA-X900-120GB", "3g.60gb", 120 * 1024) == 500
    assert slice_milli("NVIDIA-X900-120GB", "1g.15gb") == 1000


def test_a_model_is_found_by_memory_where_the_label_leaves_two() -> None:
    small, large = model_of("NVIDIA-GB200", 186 * 1024), model_of("NVIDIA-GB200", 189 * 1024)
    assert small is not None
    assert large is not None
    assert (small.memory_gb, large.memory_gb) == (186, 189)
    assert model_of("Tesla-T4") is None


def test_sizes_that_slices_go_by_are_known() -> None:
    assert is_slice_size(10)
    assert is_slice_size(71)
    assert not is_slice_size(17)


@pytest.mark.parametrize(
    ("profiles", "valid"),
    [
        (["1g.10gb"] * 7, True),
        (["1g.10gb"] * 8, False),
        (["4g.40gb", "3g.40gb"], True),
        (["3g.40gb", "3g.40gb"], True),
        (["3g.40gb", "3g.40gb", "1g.10gb"], False),
        (["2g.20gb", "2g.20gb", "2g.20gb", "1g.10gb"], True),
        (["1g.20gb"] * 4, True),
        (["7g.80gb", "1g.10gb"], False),
        (["1g.10gb.me", "1g.10gb.me"], False),
        (["1g.10gb.me"] + ["1g.10gb"] * 6, True),
        (["4g.40gb", "4g.40gb"], False),
        (["9g.90gb"], False),
        ([], True),
    ],
)
def test_layouts_of_an_a100_are_judged_as_the_driver_does(profiles: list[str], valid: bool) -> None:
    model = model_of("NVIDIA-A100-SXM4-80GB")
    assert model is not None
    assert is_valid_layout(model, profiles) is valid


def _brute_force(model: MigModel, profiles: list[str]) -> bool:
    wanted = [model.profile(name) for name in profiles]
    for order in permutations(wanted):
        taken: set[int] = set()
        for profile in order:
            assert profile is not None
            spots = [
                set(range(start, start + profile.memory_slices))
                for start in profile.starts
                if not taken & set(range(start, start + profile.memory_slices))
            ]
            if not spots:
                break
            taken |= spots[0]
        else:
            compute = sum(profile.compute for profile in wanted if profile is not None)
            media = sum(name.endswith((".me", ".me.all")) for name in profiles)
            caps = all(profiles.count(item.name) <= item.max_instances for item in model.profiles)
            return compute <= model.compute_slices and media <= 1 and caps
    return False


@given(st.sampled_from(MODELS), st.data())
def test_any_layout_found_placeable_greedily_is_valid(model: MigModel, data: st.DataObject) -> None:
    names = [profile.name for profile in model.profiles]
    profiles = data.draw(st.lists(st.sampled_from(names), max_size=5))
    if _brute_force(model, profiles):
        assert is_valid_layout(model, profiles)


@given(st.sampled_from(MODELS), st.data())
def test_valid_layouts_never_weigh_more_than_a_gpu(model: MigModel, data: st.DataObject) -> None:
    names = [profile.name for profile in model.profiles]
    profiles = data.draw(st.lists(st.sampled_from(names), max_size=8))
    if is_valid_layout(model, profiles):
        known = [model.profile(name) for name in profiles]
        weight = sum(p.memory_slices * 1000 // model.memory_slices for p in known if p)
        assert weight <= 1000


@pytest.mark.skipif(not _FACTS.exists(), reason="the facts are not beside this repository")
def test_the_table_agrees_with_the_published_facts() -> None:
    facts: list[dict[str, Any]] = json.loads(_FACTS.read_bytes())["gpus"]
    assert len(facts) == len(MODELS)
    for fact in facts:
        first = fact["profiles"][0]["profile"]
        models = [
            model
            for model in MODELS
            if model.memory_gb == fact["memory_gb"]
            and model.compute_slices == fact["compute_slices"]
            and model.profile(first.replace("+", ".")) is not None
            and model.name.split("-")[0] in fact["gpu"]
        ]
        assert models, fact["gpu"]
        model = models[0]
        for expected in fact["profiles"]:
            name = expected["resource_name"].removeprefix("nvidia.com/mig-")
            profile = model.profile(name)
            assert profile is not None, (fact["gpu"], name)
            assert profile.compute == expected["compute_slices"]
            assert profile.memory_slices == expected["memory_slices"]
            assert profile.max_instances == expected["max_instances"]
            assert profile.size_gb == expected["memory_gb"]
            assert list(profile.starts) == [spot["start"] for spot in expected["placements"]]
        assert len(model.profiles) == len(fact["profiles"])
