"""JSON Patch (RFC 6902): the operations of `fairslice.json_patch`, and a trial run on an object."""

from collections.abc import Sequence
from typing import Any

import msgspec
from jsonpatch import JsonPatch, JsonPatchException
from jsonpointer import JsonPointerException
from msgspec import UNSET

from fairslice.json_patch import Op, add, escape, map_ops, remove, remove_items

__all__ = [
    "InapplicablePatch",
    "Op",
    "add",
    "apply",
    "escape",
    "map_ops",
    "remove",
    "remove_items",
]


class InapplicablePatch(ValueError):
    """A patch that the API server would fail on: the operation, and why."""


def apply(ops: Sequence[Op], document: bytes | msgspec.Raw) -> Any:
    """Apply a patch to a JSON document and return the result.

    Raises InapplicablePatch where the API server would answer its user with a 500.
    """
    target = msgspec.json.decode(bytes(document))
    try:
        return JsonPatch([_plain(op) for op in ops]).apply(target, in_place=True)
    # jsonpatch lets some mismatches between path and document through as plain errors.
    except (JsonPatchException, JsonPointerException, KeyError, IndexError, TypeError) as error:
        raise InapplicablePatch(f"patch does not apply: {error}") from error


def _plain(op: Op) -> dict[str, Any]:
    if op.value is UNSET:
        return {"op": op.op, "path": op.path}
    return {"op": op.op, "path": op.path, "value": op.value}
