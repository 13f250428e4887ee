from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fairslice.money import (
    MICRO,
    Prices,
    apportion,
    format_micro,
    parse_micro,
    rounded,
)

HOUR = 3600 * MICRO

prices = st.lists(st.tuples(st.integers(0, 10 * HOUR), st.integers(0, 50 * MICRO)), max_size=4).map(
    Prices.of
)


@given(prices, st.lists(st.integers(0, 20 * HOUR), min_size=2, max_size=8), st.integers(0, 9000))
def test_a_cost_is_the_same_in_one_piece_and_in_many(
    listed: Prices, cuts: list[int], milli: int
) -> None:
    cuts = sorted(cuts)
    pieces = sum(listed.cost(milli, a, b) for a, b in pairwise(cuts))
    assert pieces == listed.cost(milli, cuts[0], cuts[-1])


@given(st.integers(0, 10**18), st.dictionaries(st.text(max_size=3), st.integers(0, 10**9)))
def test_parts_sum_to_the_whole_and_none_is_a_unit_off(total: int, weights: dict[str, int]) -> None:
    parts = apportion(total, weights)
    whole = sum(weights.values())
    assert sum(parts.values()) == (total if whole else 0)
    for key, part in parts.items():
        assert whole == 0 or abs(part - Fraction(total * weights[key], whole)) < 1


def test_a_price_holds_from_its_day_on() -> None:
    listed = Prices.of([(2 * HOUR, parse_micro("3")), (0, parse_micro("2.75"))])
    assert listed.at(2 * HOUR - 1) == 2_750_000
    assert listed.at(2 * HOUR) == 3_000_000
    # Half a GPU, an hour at either price.
    assert rounded(listed.cost(500, HOUR, 3 * HOUR)) == 2_875_000


def test_nothing_is_charged_before_the_first_price() -> None:
    assert Prices.of([(HOUR, MICRO)]).cost(1000, 0, HOUR) == 0
    assert Prices().cost(1000, 0, HOUR) == 0


def test_amounts_are_written_to_the_hundredth() -> None:
    assert [format_micro(n) for n in (0, 4_999, 5_000, 2_750_000, 123_456_789)] == [
        "0.00", "0.00", "0.01", "2.75", "123.46",
    ]  # fmt: skip
