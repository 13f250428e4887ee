"""Declared amounts of GPU memory."""

from msgspec import Struct

from fairslice.quantity import QuantityError, parse_quantity

__all__ = ["MemoryAsk", "parse_memory"]


class MemoryAsk(Struct, frozen=True, kw_only=True, gc=False):
    """Declared GPU memory: in MiB (rounded up), and the slice that the text may name.

    `names_gb` is 20 for 20G, 20Gi and 20GB, since slices are called so; 0 for 9500Mi or 1.5G.
    """

    text: str
    mib: int
    names_gb: int = 0


def parse_memory(text: str) -> MemoryAsk:
    """Read an amount of GPU memory: a quantity, or one that ends in B, such as 20GB.

    Raises QuantityError for anything else, and for what is not positive.
    """
    clean = text.strip()
    plain = clean[:-1] if clean.endswith("B") else clean
    value = parse_quantity(plain)
    mib = -((-value.numerator) // (value.denominator * 1024 * 1024))
    if value <= 0:
        raise QuantityError(f"{text!r} is not a positive amount of memory")
    number = plain.removesuffix("i").removesuffix("G")
    named = plain.endswith(("G", "Gi")) and number.isascii() and number.isdigit()
    return MemoryAsk(text=clean, mib=mib, names_gb=int(number) if named else 0)
