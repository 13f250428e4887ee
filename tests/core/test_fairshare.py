import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.fairshare import (
    DecayedUse,
    OrderKey,
    PoolWeight,
    dominant_share,
    entry_penalty,
    explain,
    jain_index,
    order_key,
)

HALF_LIFE = 100.0

_SPANS = st.lists(
    st.tuples(st.integers(1, 8000), st.integers(0, 900), st.integers(1, 100)), max_size=8
)


def _plain_integral(spans: list[tuple[int, int, int]], now: float) -> float:
    """Sum small steps of milli · 0.5^(age / half-life)."""
    total = 0.0
    for milli, start, length in spans:
        steps = 4 * length
        width = length / steps
        for step in range(steps):
            middle = start + (step + 0.5) * width
            total += milli * 0.5 ** ((now - middle) / HALF_LIFE) * width
    return total


@given(_SPANS)
def test_decayed_use_is_the_integral_of_what_was_held(spans: list[tuple[int, int, int]]) -> None:
    use = DecayedUse()
    for milli, start, length in spans:
        use = use.held(milli, start, start + length, HALF_LIFE)
    expected = _plain_integral(spans, 1200)
    assert use.value(1200, HALF_LIFE) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@given(_SPANS, st.randoms(use_true_random=False))
def test_events_may_come_in_any_order(spans: list[tuple[int, int, int]], random: object) -> None:
    shuffled = list(spans)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    values = []
    for order in (spans, shuffled):
        use = DecayedUse()
        for milli, start, length in order:
            use = use.held(milli, start, start + length, HALF_LIFE)
        values.append(use.value(1200, HALF_LIFE))
    assert values[0] == pytest.approx(values[1], rel=1e-9)


@given(st.integers(1, 8000), st.integers(0, 500), st.integers(1, 500), st.integers(1, 499))
def test_a_span_may_be_cut_anywhere(milli: int, start: int, length: int, cut: int) -> None:
    end, middle = start + length, start + min(cut, length)
    whole = DecayedUse().held(milli, start, end, HALF_LIFE)
    parts = DecayedUse().held(milli, start, middle, HALF_LIFE).held(milli, middle, end, HALF_LIFE)
    assert parts.value(2000, HALF_LIFE) == pytest.approx(whole.value(2000, HALF_LIFE), rel=1e-9)


def test_use_halves_over_a_half_life_and_never_without_one() -> None:
    use = DecayedUse().plus(1000, 0, HALF_LIFE)
    assert use.value(HALF_LIFE, HALF_LIFE) == pytest.approx(500)
    assert use.value(1e6, 0) == 1000
    assert DecayedUse().held(10, 0, 60, 0).value(1e6, 0) == 600
    assert use.value(-50, HALF_LIFE) == 1000


def test_centuries_of_idleness_do_not_overflow() -> None:
    use = DecayedUse().held(1000, 0, 10, HALF_LIFE).plus(1, 1e12, HALF_LIFE)
    assert use.value(1e12, HALF_LIFE) == pytest.approx(1)


def test_holding_a_whole_pool_for_ever_is_a_share_of_one() -> None:
    pools = {"a100": PoolWeight(capacity=8000)}
    held = DecayedUse().held(8000, 0, 100 * HALF_LIFE, HALF_LIFE)
    use = {"a100": held.value(100 * HALF_LIFE, HALF_LIFE), "gone": 1e9}
    assert dominant_share(use, pools, 1, HALF_LIFE) == pytest.approx(1.0)
    assert dominant_share(use, pools, 4, HALF_LIFE) == pytest.approx(0.25)


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
    ("first", "second", "why"),
    [
        ({"passes_all": True, "within_guarantee": False}, {"aged": True}, "may pass everyone"),
        ({"aged": True, "rank": 9}, {}, "aging time"),
        ({"rank": 9}, {"within_guarantee": False}, "guarantee"),
        ({"rank": 0, "share": 9.0}, {}, "more important class"),
        ({"share": 0.1, "queued_at": 900.0}, {}, "share 0.1 against 0.5"),
        ({"queued_at": 40.0, "name": "z"}, {}, "60 s longer"),
        ({"name": "a"}, {}, "name decides"),
    ],
)
def test_the_order_is_explained_by_its_first_difference(
    first: dict[str, object], second: dict[str, object], why: str
) -> None:
    ahead, behind = _key(**first), _key(**second)
    assert ahead < behind
    assert why in explain(ahead, behind)


def test_rounding_errors_do_not_decide_the_order() -> None:
    assert _key(share=0.1 + 0.2) == _key(share=0.3)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=20))
def test_jains_index_lies_between_one_nth_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jain_index(values) <= 1 + 1e-9


def test_jains_index_knows_equality_and_monopoly() -> None:
    assert jain_index([3, 3, 3]) == 1
    assert jain_index([5, 0, 0, 0]) == 0.25
    assert jain_index([]) == jain_index([0, 0]) == 1
