from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.quantity import (
    QuantityError,
    format_milli,
    parse_count,
    parse_milli,
    parse_quantity,
)

_SCALES = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1", 1),
        ("+1", 1),
        ("-1", -1),
        ("1.", 1),
        (".5", Fraction(1, 2)),
        ("500m", Fraction(1, 2)),
        ("1k", 1000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("1E", 10**18),
        ("1000m", 1),
        ("20Gi", 20 * 2**30),
        ("1n", Fraction(1, 10**9)),
    ],
)
def test_every_form_that_the_api_server_takes_is_read(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "1Kib",
        "1K",
        "one",
        "0x1",
        "1e",
        "--1",
        "1.5.2",
        "٣",
        "1_0",
        "NaN",
        "inf",
        "e3",
    ],
)
def test_everything_outside_the_grammar_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_quantity(text)


def test_huge_exponents_and_texts_cost_nothing() -> None:
    for text in ("1e999999999", "9" * 10_000, "1e" + "9" * 50):
        with pytest.raises(QuantityError):
            parse_quantity(text)


@given(st.integers(0, 10**12), st.sampled_from(sorted(_SCALES)))
def test_suffixes_scale_exactly(number: int, suffix: str) -> None:
    assert parse_quantity(f"{number}{suffix}") == number * _SCALES[suffix]
    assert parse_quantity(f"-{number}{suffix}") == -number * _SCALES[suffix]


@given(st.decimals(-(10**6), 10**6, places=6), st.integers(-9, 9))
def test_decimal_exponents_agree_with_decimal_arithmetic(number: Decimal, exponent: int) -> None:
    with localcontext() as context:
        context.prec = 60
        expected = Fraction(number) * Fraction(10) ** exponent
    assert parse_quantity(f"{number:f}e{exponent}") == expected


@given(st.integers(-(10**9), 10**9))
def test_milli_round_trips(milli: int) -> None:
    assert parse_milli(format_milli(milli)) == milli
    assert parse_milli(f"{milli}m") == milli


@given(st.fractions(0, 1000, max_denominator=10**9))
def test_milli_rounds_up_and_never_by_a_whole_one(value: Fraction) -> None:
    nanos = int(value * 10**9)
    milli = parse_milli(f"{nanos}n")
    assert Fraction(nanos, 10**6) <= milli < Fraction(nanos, 10**6) + 1


def test_a_count_must_be_whole() -> None:
    assert parse_count("2k") == 2000
    assert parse_count("2000m") == 2
    with pytest.raises(QuantityError):
        parse_count("1500m")
