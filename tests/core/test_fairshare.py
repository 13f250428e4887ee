import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.fairshare import (
    OrderKey,
    PoolWeight,
    dominant_share,
    entry_penalty,
    jain_index,
    order_key,
)

HALF_LIFE = 100.0


def test_the_dominant_pool_counts_by_its_rate() -> None:
    pools = {
        "h100": PoolWeight(capacity=1000, rate_millionths=2_200_000),
        "t4": PoolWeight(capacity=1000, rate_millionths=150_000),
    }
    horizon = HALF_LIFE / math.log(2)
    use = {"h100": 100 * horizon, "t4": 1000 * horizon}
    assert dominant_share(use, pools, 1, HALF_LIFE) == pytest.approx(0.22)
    assert dominant_share({}, pools, 1, HALF_LIFE) == 0


def test_a_start_costs_something_at_once() -> None:
    assert entry_penalty(1000) == 60_000


def _key(**fields: object) -> OrderKey:
    plain = {
        "passes_all": False,
        "aged": False,
        "within_guarantee": True,
        "rank": 1,
        "share": 0.5,
        "queued_at": 100.0,
        "name": "b",
    }
    return order_key(**{**plain, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"passes_all": True, "within_guarantee": False}, {"urgent": True}),
        ({"urgent": True, "rank": 9}, {"aged": True}),
        ({"aged": True, "rank": 9}, {}),
        ({}, {"urgent": True, "scavenges": True}),
        ({"rank": 9}, {"within_guarantee": False}),
        ({"rank": 0, "share": 9.0}, {}),
        ({"share": 0.1, "queued_at": 900.0}, {}),
        ({"queued_at": 40.0, "name": "z"}, {}),
        ({"name": "a"}, {}),
    ],
)
def test_the_first_difference_decides(first: dict[str, object], second: dict[str, object]) -> None:
    assert _key(**first) < _key(**second)


def test_rounding_errors_do_not_decide_the_order() -> None:
    assert _key(share=0.1 + 0.2) == _key(share=0.3)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=20))
def test_jains_index_lies_between_one_nth_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jain_index(values) <= 1 + 1e-9


def test_jains_index_knows_equality_and_monopoly() -> None:
    assert jain_index([3, 3, 3]) == 1
    assert jain_index([5, 0, 0, 0]) == 0.25
    assert jain_index([]) == jain_index([0, 0]) == 1
