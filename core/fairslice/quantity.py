"""Kubernetes quantities, exactly.

Source of the grammar: k8s.io/apimachinery/pkg/api/resource (quantity.go).
"""

import re
from fractions import Fraction
from functools import lru_cache

__all__ = ["QuantityError", "format_milli", "parse_count", "parse_milli", "parse_quantity"]

_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<number>\d+\.?\d*|\.\d+)"
    r"(?P<suffix>[KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?",
    re.ASCII,
)
_SUFFIX = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{letter: Fraction(1000 ** (power + 1)) for power, letter in enumerate("kMGTPE")},
    **{letter + "i": Fraction(1024 ** (power + 1)) for power, letter in enumerate("KMGTPE")},
}
# A cluster's objects repeat the same few amounts, and exact arithmetic is slow.
_REMEMBERED = 4096
# An exponent beyond this can't name an amount of hardware, only burn memory.
_MAX_EXPONENT = 60
_MAX_LENGTH = 64


class QuantityError(ValueError):
    """Not a quantity: the text, and what was expected of it."""


@lru_cache(_REMEMBERED)
def parse_quantity(text: str) -> Fraction:
    """Read a quantity as an exact fraction of its base unit.

    Raises QuantityError for text outside the grammar.
    """
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        shown = text if len(text) <= 20 else text[:20] + "…"
        raise QuantityError(f"{shown!r} is not a quantity such as 1, 500m or 20Gi")
    suffix = match["suffix"] or ""
    if suffix not in _SUFFIX:
        exponent = int(suffix[1:])
        if abs(exponent) > _MAX_EXPONENT:
            raise QuantityError(f"{text!r}: exponent out of range")
        scale = Fraction(10) ** exponent
    else:
        scale = _SUFFIX[suffix]
    value = Fraction(match["number"]) * scale
    return -value if match["sign"] == "-" else value


def parse_count(text: str) -> int:
    """Read a quantity that must be a whole number.

    Raises QuantityError for fractions, and for text outside the grammar.
    """
    value = parse_quantity(text)
    if value.denominator != 1:
        raise QuantityError(f"{text!r} is not a whole number")
    return int(value)


@lru_cache(_REMEMBERED)
def parse_milli(text: str) -> int:
    """Read a quantity in thousandths of its base unit, rounded up as the API server does."""
    value = parse_quantity(text) * 1000
    return -((-value.numerator) // value.denominator)


def format_milli(milli: int) -> str:
    """Write milli-units for people: 1500 is "1.5", 4000 is "4"."""
    whole, rest = divmod(abs(milli), 1000)
    sign = "-" if milli < 0 else ""
    return f"{sign}{whole}" if not rest else f"{sign}{whole}.{rest:03d}".rstrip("0")
