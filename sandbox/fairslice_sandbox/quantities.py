"""Quantities in the canonical form that the API server stores.

Source: k8s.io/apimachinery/pkg/api/resource/quantity.go, CanonicalizeBytes.
"""

from fractions import Fraction

from fairslice.quantity import QuantityError, parse_quantity

__all__ = ["canonical"]

_DECIMAL = {-9: "n", -6: "u", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E"}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def canonical(value: str | int | float, scale: int = -9) -> str:
    """Write a quantity as the API server would, rounded up to 10^scale.

    Keeps the user's format: binary (1Gi), decimal (1G) or exponent (1e9).
    Raises QuantityError for text outside the grammar.
    """
    text = str(value).strip() if not isinstance(value, bool) else ""
    # What nearly all of them are.
    if len(text) < 4 and text.isdigit() and text[0] != "0":
        return text
    amount = parse_quantity(text)
    if (amount * Fraction(10) ** -scale).denominator != 1:
        amount = Fraction(-((-amount * Fraction(10) ** -scale) // 1)) * Fraction(10) ** scale
    if text.endswith("i") and abs(amount) >= 1024 and amount.denominator == 1:
        whole, step = int(amount), 0
        while whole % 1024 == 0 and step < len(_BINARY) - 1:
            whole, step = whole // 1024, step + 1
        return f"{whole}{_BINARY[step]}"
    return _decimal(amount, exponent=_has_exponent(text))


def _has_exponent(text: str) -> bool:
    return any(letter in text[1:-1] for letter in "eE")


def _decimal(amount: Fraction, *, exponent: bool) -> str:
    if amount == 0:
        return "0"
    power = -9
    whole = amount * 10**9
    if whole.denominator != 1:
        raise QuantityError(f"{amount} is finer than a nano-unit")
    mantissa = int(whole)
    while mantissa % 1000 == 0 and power < 18:
        mantissa, power = mantissa // 1000, power + 3
    if exponent:
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{_DECIMAL[power]}"
