"""Waiting for the world to come round, with a failure that shows what it looked like."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import yaml

from .kinds import Obj

__all__ = ["eventually", "shown", "stays"]

T = TypeVar("T")

_STEP = 0.05
_LONGEST = 6000


async def eventually(
    wish: str,
    look: Callable[[], Awaitable[T]],
    accept: Callable[[T], Any] = bool,
    within: float = 30.0,
) -> T:
    """Look again and again until what is seen is accepted, and return it.

    Fails after `within` seconds, saying what was wished for and what was seen last.
    """
    deadline = time.monotonic() + within
    while True:
        last = await look()
        if accept(last):
            return last
        if time.monotonic() >= deadline:
            raise AssertionError(f"within {within:g} s: {wish}; last seen:\n{shown(last)}")
        await asyncio.sleep(_STEP)


async def stays(
    wish: str,
    look: Callable[[], Awaitable[T]],
    accept: Callable[[T], Any],
    seconds: float,
) -> None:
    """Fail if what is seen stops being acceptable during so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        last = await look()
        assert accept(last), f"for {seconds:g} s: {wish}; seen:\n{shown(last)}"
        await asyncio.sleep(4 * _STEP)


def shown(value: object) -> str:
    """Write a value for people: objects as YAML, without the server's book-keeping."""
    text = yaml.safe_dump(_plain(value), sort_keys=False, default_flow_style=False, width=120)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "\n…"


def _plain(value: object) -> object:
    match value:
        case {"metadata": dict(meta), **rest}:
            return {"metadata": _without_bookkeeping(meta), **rest}
        case dict() | str() | int() | float() | None:
            return value
        case [{"metadata": dict()}, _, *_]:
            return [_line(part) for part in value if isinstance(part, dict)]
        case list() | tuple() | set() | frozenset():
            return [_plain(part) for part in value]
        case _:
            return repr(value)


def _without_bookkeeping(meta: Obj) -> Obj:
    return {key: value for key, value in meta.items() if key not in ("managedFields", "selfLink")}


def _line(obj: Obj) -> str:
    """Tell an object's standing in one line, where there are several."""
    meta, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    notes = meta.get("annotations") or {}
    parts = [f"{obj.get('kind')} {meta.get('namespace', '')}/{meta['name']}"]
    if "deletionTimestamp" in meta:
        parts.append("being deleted")
    told = {key: spec.get(key) for key in ("suspend", "nodeName", "schedulingGates")}
    told |= {key: status.get(key) for key in ("phase", "reason", "active", "succeeded", "failed")}
    parts += [f"{key}={value}" for key, value in told.items() if value]
    for condition in status.get("conditions") or ():
        if condition["type"] in ("PodScheduled", "Complete", "Failed", "DisruptionTarget"):
            said = condition.get("message", "")
            parts.append(f"{condition['type']}={condition['status']} {said}".strip())
    if "system.fairslice.io/status" in notes:
        parts.append(f"says {notes['system.fairslice.io/status']!r}")
    return "; ".join(parts)
