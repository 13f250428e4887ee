"""How messages are worded: one line, amounts, names, spans of time."""

from collections.abc import Iterable

from fairslice.quantity import format_milli

__all__ = [
    "MAX_LENGTH",
    "asking",
    "cap_text",
    "fitting",
    "line",
    "listed",
    "named",
    "size_of",
    "span",
    "unit",
    "whole_span",
    "whose",
]

MAX_LENGTH = 256
"""The API server cuts a warning there once a response carries many."""


def line(text: str) -> str:
    """Make one line of at most 256 characters, without control characters."""
    flat = " ".join(text.split())
    if not flat.isprintable():
        flat = "".join(char for char in flat if char.isprintable())
    return flat if len(flat) <= MAX_LENGTH else flat[: MAX_LENGTH - 1] + "…"


def listed(items: Iterable[str], most: int = 5) -> str:
    """Join names for a sentence, at most so many of them."""
    names = list(items)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def named(name: str) -> str:
    """Name a container; without a name it is the pod."""
    return f"container {name}" if name else "the pod"


def size_of(cause: str, amount: int) -> str:
    """Write an amount: milli-GPU as GPUs, units of a resource as they are."""
    return str(amount) if cause == "resource" else format_milli(amount)


def unit(cause: str) -> str:
    """Name what a cap counts."""
    return "units" if cause == "resource" else "GPUs"


def asking(cause: str, amount: int) -> str:
    """Say how much is asked for."""
    return f"asking for {size_of(cause, amount)}"


def whose(team: str, cause: str, subject: str) -> str:
    """Say whose cap it is."""
    match cause:
        case "class":
            return f"team {team}'s class {subject}"
        case "user":
            return f"{subject}'s (in team {team})"
        case _:
            return f"team {team}'s {subject}"


def cap_text(team: str, cause: str, subject: str, used: int, limit: int, asked: int) -> str:
    """Say how full a cap is, and how much is asked."""
    return line(
        f"{whose(team, cause, subject)} limit: {size_of(cause, used)} of "
        f"{size_of(cause, limit)} {unit(cause)} in use, {size_of(cause, asked)} asked"
    )


def fitting(pods: int, fits: int) -> str:
    """Say how many such pods would fit, as a way out."""
    if fits <= 0:
        return "ask for a smaller share"
    return (
        f"at most {fits} of {pods} pods would fit: lower the count" if pods > 1 else "ask for less"
    )


def span(seconds: float) -> str:
    """Write seconds as people say them, to the second or minute."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def whole_span(seconds: int) -> str:
    """Write whole seconds, leaving out what is zero."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"
