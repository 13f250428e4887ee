"""Checking a custom resource as the API server would, with every fault and the way out."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from msgspec import ValidationError, convert

from fairslice.policy import Policy, PolicyError, Team
from fairslice.v1alpha1 import API_VERSION
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.resources import POLICY_NAME
from fairslice.v1alpha1.scalars import CLOCK_PATTERN
from fairslice.v1alpha1.schema import spec_schema
from fairslice.v1alpha1.team import TeamSpec

__all__ = ["Fault", "faults", "schema_faults"]

KINDS = ("SharingPolicy", "Team")


class Fault(NamedTuple):
    """What is wrong where: `spec.pools[0].limit`, and what would be right."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


def faults(document: object) -> tuple[Fault, ...]:
    """List everything wrong with a Team or SharingPolicy; nothing is a good sign."""
    if not isinstance(document, Mapping):
        return (Fault("", "not an object with apiVersion, kind, metadata and spec"),)
    kind = document.get("kind")
    if document.get("apiVersion") != API_VERSION or kind not in KINDS:
        shown = f"{document.get('apiVersion')} {kind}"
        return (Fault("", f"{shown} is none of ours: {API_VERSION} {' or '.join(KINDS)}"),)
    found = (*_name_faults(document), *schema_faults(spec_schema(kind), document, ""))
    return found or tuple(_contradictions(kind, document["spec"]))


def _name_faults(document: Mapping[str, Any]) -> Iterator[Fault]:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not name:
        yield Fault("metadata.name", "missing")
    elif document["kind"] == "SharingPolicy" and name != POLICY_NAME:
        yield Fault("metadata.name", f"{name!r}: the one policy is named {POLICY_NAME}")


def _contradictions(kind: str, spec: Mapping[str, Any]) -> Iterator[Fault]:
    try:
        if kind == "Team":
            Team.compile("", "", convert(spec, TeamSpec))
        else:
            Policy.compile(convert(spec, SharingPolicySpec))
    except (PolicyError, ValidationError) as error:
        path, _, problem = str(error).partition(": ")
        yield Fault(path, problem) if problem else Fault("", path)


def schema_faults(schema: Mapping[str, Any], value: object, path: str) -> Iterator[Fault]:
    """Compare a value with a structural schema; `path` is where the value is."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    if "enum" in schema and value not in schema["enum"]:
        yield Fault(
            path, f"{_shown(value)} is not one of {', '.join(schema['enum'])}{_hint(value)}"
        )
        return
    expected = schema["type"]
    if not _is(expected, value):
        yield Fault(path, f"{_shown(value)} is not {_NAMES[expected]}{_quote_hint(schema, value)}")
    elif isinstance(value, Mapping):
        yield from _object(schema, value, path)
    elif isinstance(value, list):
        yield from _list(schema, value, path)
    elif isinstance(value, str):
        yield from _string(schema, value, path)
    elif isinstance(value, int):
        low, high = schema.get("minimum"), schema.get("maximum")
        if (low is not None and value < low) or (high is not None and value > high):
            yield Fault(path, f"{value} is not {_between(low, high)}")


def _object(schema: Mapping[str, Any], value: Mapping[str, Any], path: str) -> Iterator[Fault]:
    for name in schema.get("required", ()):
        if value.get(name) is None:
            yield Fault(_join(path, name), "missing")
    known, others = schema.get("properties"), schema.get("additionalProperties")
    for name, item in value.items():
        below = _join(path, name)
        if others is not None:
            yield from schema_faults(others, item, below)
        elif known is None:
            return  # An open object, such as metadata.
        elif name not in known:
            close = get_close_matches(str(name), known, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            yield Fault(below, f"no such field; {meant}there are {', '.join(known)}")
        elif item is not None:
            yield from schema_faults(known[name], item, below)


def _list(schema: Mapping[str, Any], value: list[Any], path: str) -> Iterator[Fault]:
    low, high = schema.get("minItems"), schema.get("maxItems")
    if (low is not None and len(value) < low) or (high is not None and len(value) > high):
        yield Fault(path, f"{len(value)} entries are not {_between(low, high)}")
    seen: set[tuple[object, ...]] = set()
    for index, item in enumerate(value):
        yield from schema_faults(schema["items"], item, f"{path}[{index}]")
        keys = schema.get("x-kubernetes-list-map-keys")
        if keys and isinstance(item, Mapping):
            key = tuple(str(item.get(name)) for name in keys)
            if key in seen:
                yield Fault(f"{path}[{index}].{keys[0]}", f"{key[0]} is named twice")
            seen.add(key)


def _string(schema: Mapping[str, Any], value: str, path: str) -> Iterator[Fault]:
    low, high = schema.get("minLength"), schema.get("maxLength")
    pattern = schema.get("pattern")
    if (
        (low is not None and len(value) < low)
        or (high is not None and len(value) > high)
        or (pattern is not None and re.search(pattern, value) is None)
    ):
        wanted = schema.get("description") or f"a text that matches {pattern}"
        yield Fault(path, f"{_shown(value)} is not {wanted[0].lower()}{wanted[1:].rstrip('.')}")


_NAMES = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
}


def _is(expected: str, value: object) -> bool:
    match expected:
        case "object":
            return isinstance(value, Mapping)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case _:
            return isinstance(value, bool)


def _hint(value: object) -> str:
    if value is False:
        return ' (write "Off" in quotes: YAML reads a bare Off as false)'
    return ""


def _quote_hint(schema: Mapping[str, Any], value: object) -> str:
    if schema["type"] != "string" or not isinstance(value, int | float):
        return ""
    if isinstance(value, int) and schema.get("pattern") == CLOCK_PATTERN:
        # YAML 1.1 reads 20:00 as a number to the base of 60.
        return f' (write "{value // 60:02d}:{value % 60:02d}" in quotes)'
    return f' (write "{value}" in quotes)'


def _between(low: int | None, high: int | None) -> str:
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"between {low} and {high}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _join(path: str, name: object) -> str:
    text = str(name)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        return f"{path}[{text}]"
    return f"{path}.{text}" if path else text
