"""JSON Patch (RFC 6902): the operations of `fairslice.json_patch`, and a trial run on an object.

The trial opens only the levels that the operations lead through; all else stays text. What the
operations of ours never do is left out: moving, copying, replacing the whole document.
"""

from collections.abc import Sequence
from typing import Any, cast

from msgspec import UNSET, Raw, json

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
    "try_out",
]

_Level = dict[str, Any] | list[Any]

_MEMBERS = json.Decoder(dict[str, Raw])
_ITEMS = json.Decoder(list[Raw])


class InapplicablePatch(ValueError):
    """A patch that the API server would fail on: the operation, and why."""


def apply(ops: Sequence[Op], document: bytes | Raw) -> Any:
    """Apply a patch to a JSON document and return the result.

    Raises InapplicablePatch where the API server would answer its user with a 500.
    """
    return json.decode(json.encode(_changed(ops, document)))


def try_out(ops: Sequence[Op], document: bytes | Raw) -> None:
    """See whether a patch applies to a JSON document. Raises InapplicablePatch as `apply` does."""
    _changed(ops, document)


def _changed(ops: Sequence[Op], document: bytes | Raw) -> Any:
    raw = document if isinstance(document, Raw) else Raw(document.strip())
    root = _opened(raw)
    if root is None:
        if ops:
            raise _failure(ops[0], "the document has no members")
        return json.decode(raw)
    above, level = "", root
    for op in ops:
        if op.path[:1] != "/":
            raise _failure(op, "a path begins with a slash")
        parent, _, step = op.path.rpartition("/")
        # Neighbours often change the same level, and an operation there leaves the way to it.
        if parent != above:
            above, level = parent, _reached(op, root, parent)
        _run(op, level, step)
    return root


def _opened(value: Any) -> _Level | None:
    """Decode one level of what is still text; None if there is nothing below."""
    if type(value) is not Raw:
        return value if type(value) in (dict, list) else None
    first = bytes(memoryview(value)[:1])
    if first == b"{":
        return _MEMBERS.decode(value)
    return _ITEMS.decode(value) if first == b"[" else None


def _reached(op: Op, root: _Level, path: str) -> _Level:
    """Open all levels on the way to one."""
    level: Any = root
    for step in path.split("/")[1:]:
        key = _key(op, level, step)
        held = level[key]
        below = _opened(held)
        if below is None:
            raise _failure(op, f"there is nothing below {step}")
        if below is not held:
            level[key] = below
        level = below
    return cast(_Level, level)


def _run(op: Op, level: Any, step: str) -> None:
    if op.op == "add":
        _add(op, level, step)
        return
    key = _key(op, level, step)
    if op.op == "remove":
        del level[key]
    elif op.op == "replace":
        level[key] = _placed(op)
    elif op.op == "test":
        if json.decode(json.encode(level[key])) != json.decode(json.encode(op.value)):
            raise _failure(op, "another value is there")
    else:
        raise _failure(op, "no operation of ours")


def _key(op: Op, level: _Level, step: str) -> str | int:
    """Find the member or item that a step of a pointer names."""
    if type(level) is dict:
        name = step.replace("~1", "/").replace("~0", "~") if "~" in step else step
        if name in level:
            return name
    elif _is_index(step) and int(step) < len(level):
        return int(step)
    raise _failure(op, f"there is no {step}")


def _add(op: Op, level: Any, step: str) -> None:
    if type(level) is dict:
        name = step.replace("~1", "/").replace("~0", "~") if "~" in step else step
        level[name] = _placed(op)
    elif step == "-":
        level.append(_placed(op))
    elif _is_index(step) and int(step) <= len(level):
        level.insert(int(step), _placed(op))
    else:
        raise _failure(op, f"there is no place {step}")


def _placed(op: Op) -> Any:
    # As text: a later operation on a part of it must not change the operation itself.
    value = op.value
    if value is UNSET:
        raise _failure(op, "there is no value")
    return value if isinstance(value, str | int | float | None) else Raw(json.encode(value))


def _is_index(step: str) -> bool:
    return step.isascii() and step.isdigit() and (step == "0" or step[0] != "0")


def _failure(op: Op, why: str) -> InapplicablePatch:
    return InapplicablePatch(f"{op.op} {op.path}: {why}")
