"""JSON Patch (RFC 6902): small operations made for an object.

An operation on an object member replaces what is there, so an absent and a null parent are
treated alike: the whole parent is added. Lists are shortened from their end, so that no index
shifts under a later operation.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import UNSET, Struct, UnsetType

__all__ = ["Op", "add", "check", "escape", "map_ops", "remove", "remove_items"]


class Op(Struct, frozen=True):
    """One operation."""

    op: str
    path: str
    value: Any | UnsetType = UNSET


def escape(key: str) -> str:
    """Write a map key as a step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def add(path: str, value: object) -> Op:
    """Set a member, or insert into a list (`-` appends)."""
    return Op("add", path, value)


def check(path: str, value: object) -> Op:
    """Let the whole patch fail unless this is there."""
    return Op("test", path, value)


def remove(path: str) -> Op:
    """Take away a member or list item that exists."""
    return Op("remove", path)


def remove_items(path: str, indices: Iterable[int]) -> tuple[Op, ...]:
    """Take away items of one list."""
    return tuple(remove(f"{path}/{index}") for index in sorted(indices, reverse=True))


def map_ops(
    path: str, current: Mapping[str, Any] | None, wanted: Mapping[str, Any | None]
) -> tuple[Op, ...]:
    """Bring some keys of a map to their wanted values; None takes a key away."""
    if current is None:
        present = {key: value for key, value in wanted.items() if value is not None}
        return (add(path, present),) if present else ()
    ops = []
    for key, value in wanted.items():
        if value is None:
            if key in current:
                ops.append(remove(f"{path}/{escape(key)}"))
        elif current.get(key) != value:
            ops.append(add(f"{path}/{escape(key)}", value))
    return tuple(ops)
