"""Structural schemas of custom resources: pruning, defaults, validation.

Source: k8s.io/apiextensions-apiserver/pkg/apiserver/schema (pruning, defaulting, cel) and
kube-openapi/pkg/validation, whose messages it repeats.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from .cel import CelError, evaluate
from .errors import Cause

__all__ = ["apply_defaults", "prune", "validate"]

Schema = dict[str, Any]

_ROOT = ("apiVersion", "kind", "metadata")


def prune(value: Any, schema: Schema, *, root: bool = True) -> tuple[Any, list[str]]:
    """Drop unknown fields: the pruned value and the paths of what was dropped."""
    dropped: list[str] = []
    return _prune(value, schema, "", dropped, root=root), dropped


def _prune(value: Any, schema: Schema, path: str, dropped: list[str], *, root: bool) -> Any:
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [
            _prune(item, items, f"{path}[{index}]", dropped, root=False)
            for index, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        return value
    root = root or bool(schema.get("x-kubernetes-embedded-resource"))
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    keep = schema.get("x-kubernetes-preserve-unknown-fields")
    result = {}
    for name, item in value.items():
        below = f"{path}.{name}" if path else name
        if name in properties and not (root and name == "metadata"):
            result[name] = _prune(item, properties[name], below, dropped, root=False)
        elif root and name in _ROOT:
            result[name] = item
        elif isinstance(extra, dict):
            result[name] = _prune(item, extra, below, dropped, root=False)
        elif keep or extra is True or not schema:
            result[name] = item
        else:
            dropped.append(below)
    return result


def apply_defaults(value: Any, schema: Schema) -> Any:
    """Fill in defaults below a value; what is null and may not be is dropped first."""
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [apply_defaults(item, items) for item in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    result = {}
    for name, item in value.items():
        below = properties.get(name) or (extra if isinstance(extra, dict) else {})
        if item is None and not below.get("nullable") and "default" in below:
            continue
        result[name] = apply_defaults(item, below)
    for name, below in properties.items():
        if name not in result and "default" in below:
            default = json.loads(json.dumps(below["default"]))
            result[name] = apply_defaults(default, below)
    return result


def validate(value: Any, schema: Schema, old: Any = None, path: str = "") -> list[Cause]:
    """Check a value against a schema and its CEL rules; `old` is what it replaces, if anything."""
    causes = list(_validate(value, schema, path))
    # As in the API server: rules need a value of the right form.
    return causes or list(_rules(value, schema, old, path))


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return json.dumps(value, separators=(",", ":"))
    return json.dumps(value, ensure_ascii=False)


def _bad(path: str, value: Any, message: str) -> Cause:
    text = f"Invalid value: {_shown(value)}: {message}"
    return Cause("FieldValueInvalid", text, path or "<nil>")


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", float: "number"}


def _validate(value: Any, schema: Schema, path: str) -> Iterator[Cause]:
    if value is None:
        if not schema.get("nullable") and schema.get("type"):
            message = f'{path} in body must be of type {schema["type"]}: "null"'
            yield Cause("FieldValueTypeInvalid", f'Invalid value: "null": {message}', path)
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            yield _bad(path, value, f"{path} in body must be of type integer,string")
            return
    elif wanted := schema.get("type"):
        fits = isinstance(value, _TYPES[wanted]) and (
            not isinstance(value, bool) or wanted == "boolean"
        )
        if wanted == "integer" and isinstance(value, float) and value.is_integer():
            fits = True
        if not fits:
            found = _NAMES.get(type(value), "integer")
            message = f'{path} in body must be of type {wanted}: "{found}"'
            text = f"Invalid value: {_shown(found)}: {message}"
            yield Cause("FieldValueTypeInvalid", text, path or "<nil>")
            return
    yield from _checks(value, schema, path)
    yield from _combined(value, schema, path)
    if isinstance(value, dict):
        yield from _properties(value, schema, path)
    elif isinstance(value, list) and schema.get("items"):
        for index, item in enumerate(value):
            yield from _validate(item, schema["items"], f"{path}[{index}]")


def _properties(value: dict[str, Any], schema: Schema, path: str) -> Iterator[Cause]:
    for name in schema.get("required") or ():
        if name not in value:
            yield Cause("FieldValueRequired", "Required value", _below(path, name))
    properties = schema.get("properties") or {}
    extra = schema.get("additionalProperties")
    for name, item in value.items():
        if not path and name == "metadata":
            continue
        if name in properties:
            yield from _validate(item, properties[name], _below(path, name))
        elif isinstance(extra, dict):
            yield from _validate(item, extra, _below(path, name))


def _checks(value: Any, schema: Schema, path: str) -> Iterator[Cause]:
    allowed = schema.get("enum")
    if allowed is not None and value not in allowed:
        listed = ", ".join(_shown(item) for item in allowed)
        message = f"Unsupported value: {_shown(value)}: supported values: {listed}"
        yield Cause("FieldValueNotSupported", message, path)
    if isinstance(value, str):
        yield from _size(len(value), schema, "Length", path, value, "chars long")
        if (pattern := schema.get("pattern")) and not re.search(pattern, value):
            yield _bad(path, value, f"{path} in body should match '{pattern}'")
        yield from _format(value, schema.get("format"), path)
    elif isinstance(value, list):
        yield from _size(len(value), schema, "Items", path, value, "items")
        yield from _unique(value, schema, path)
    elif isinstance(value, dict):
        yield from _size(len(value), schema, "Properties", path, value, "properties")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield from _range(value, schema, path)


def _size(
    size: int, schema: Schema, what: str, path: str, value: Any, unit: str
) -> Iterator[Cause]:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if least is not None and size < least:
        yield _bad(path, value, f"{path} in body should be at least {least} {unit}")
    if most is not None and size > most:
        if what == "Length":
            yield Cause("FieldValueTooLong", f"Too long: may not be more than {most} bytes", path)
        else:
            message = f"Too many: {size}: must have at most {most} {unit}"
            yield Cause("FieldValueTooMany", message, path)


def _range(value: float, schema: Schema, path: str) -> Iterator[Cause]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None:
        strict = bool(schema.get("exclusiveMinimum"))
        if value < least or (strict and value == least):
            than = "greater than" if strict else "greater than or equal to"
            yield _bad(path, value, f"{path} in body should be {than} {least}")
    if most is not None:
        strict = bool(schema.get("exclusiveMaximum"))
        if value > most or (strict and value == most):
            than = "less than" if strict else "less than or equal to"
            yield _bad(path, value, f"{path} in body should be {than} {most}")
    if (multiple := schema.get("multipleOf")) and value % multiple:
        yield _bad(path, value, f"{path} in body should be a multiple of {multiple}")


_FORMATS = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "date-time": re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)"),
    "duration": re.compile(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+|0"),
}


def _format(value: str, spelled: str | None, path: str) -> Iterator[Cause]:
    expected = _FORMATS.get(spelled or "")
    if expected is not None and not expected.fullmatch(value):
        yield _bad(path, value, f"{path} in body must be of type {spelled}: {_shown(value)}")


def _unique(value: list[Any], schema: Schema, path: str) -> Iterator[Cause]:
    kind = schema.get("x-kubernetes-list-type")
    if kind not in ("set", "map"):
        return
    keys = schema.get("x-kubernetes-list-map-keys") or []
    seen: list[Any] = []
    for index, item in enumerate(value):
        identity = item if kind == "set" else {key: item.get(key) for key in keys}
        if identity in seen:
            message = f"Duplicate value: {_shown(identity)}"
            yield Cause("FieldValueDuplicate", message, f"{path}[{index}]")
        seen.append(identity)


def _combined(value: Any, schema: Schema, path: str) -> Iterator[Cause]:
    for part in schema.get("allOf") or ():
        yield from _validate(value, part, path)
    for name, least in (("anyOf", 1), ("oneOf", 1)):
        parts = schema.get(name)
        if not parts or (schema.get("x-kubernetes-int-or-string") and name == "anyOf"):
            continue
        held = sum(not any(_validate(value, part, path)) for part in parts)
        if held < least or (name == "oneOf" and held > 1):
            words = "at least one schema" if name == "anyOf" else "one and only one schema"
            yield _bad(path, value, f"{path} in body must validate {words} ({name})")
    if (denied := schema.get("not")) is not None and not any(_validate(value, denied, path)):
        yield _bad(path, value, f"{path} in body must not validate the schema (not)")


def _rules(value: Any, schema: Schema, old: Any, path: str) -> Iterator[Cause]:
    if value is None:
        return
    for rule in schema.get("x-kubernetes-validations") or ():
        yield from _rule(rule, value, old, path)
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        extra = schema.get("additionalProperties")
        before = old if isinstance(old, dict) else {}
        for name, item in value.items():
            below = properties.get(name) or (extra if isinstance(extra, dict) else None)
            if below and not (not path and name == "metadata"):
                yield from _rules(item, below, before.get(name), _below(path, name))
    elif isinstance(value, list) and schema.get("items"):
        for index, item in enumerate(value):
            before_item = _counterpart(item, old, schema)
            yield from _rules(item, schema["items"], before_item, f"{path}[{index}]")


def _counterpart(item: Any, old: Any, schema: Schema) -> Any:
    """Find what a list element replaces: only lists of type map have an identity."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys or not isinstance(old, list):
        return None
    wanted = [item.get(key) for key in keys]
    return next((other for other in old if [other.get(key) for key in keys] == wanted), None)


def _rule(rule: dict[str, Any], value: Any, old: Any, path: str) -> Iterator[Cause]:
    expression = rule["rule"]
    data = {"self": value}
    if re.search(r"\boldSelf\b", expression):
        if old is None and not rule.get("optionalOldSelf"):
            return
        data["oldSelf"] = old
    where = path + rule.get("fieldPath", "") if path else rule.get("fieldPath", "").lstrip(".")
    where = where or "<nil>"
    shown = _NAMES.get(type(value)) if isinstance(value, (dict, list)) else value
    try:
        held = evaluate(expression, data)
    except CelError as error:
        message = f"Invalid value: {_shown(shown)}: {error} evaluating rule: {expression}"
        yield Cause("FieldValueInvalid", message, where)
        return
    if held is not True:
        yield Cause(
            str(rule.get("reason", "FieldValueInvalid")),
            _rule_message(rule, shown, data),
            where,
        )


def _rule_message(rule: dict[str, Any], shown: Any, data: dict[str, Any]) -> str:
    text = rule.get("message") or f"failed rule: {rule['rule']}"
    if expression := rule.get("messageExpression"):
        try:
            text = str(evaluate(expression, data))
        except CelError:
            text = rule.get("message") or f"failed rule: {rule['rule']}"
    prefix = {
        "FieldValueForbidden": "Forbidden: ",
        "FieldValueRequired": "Required value: ",
    }.get(rule.get("reason", ""), f"Invalid value: {_shown(shown)}: ")
    return prefix + text


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
