"""Decoding of built-in kinds: known fields, their types, canonical quantities.

The field tables come from the Kubernetes client's generated models, so that every built-in
kind has one. What Go would drop when it encodes (null, empty strings, lists and maps) is
dropped, which is the form admission sees.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from fairslice.quantity import QuantityError

from .errors import bad_request
from .quantities import canonical
from .store import Obj, Resource

__all__ = ["Unknown", "decode"]

Unknown = list[str]
"""Paths of fields that the kind doesn't have."""


@dataclass(frozen=True)
class Field:
    """One field: a scalar's Go type, or the shape below it."""

    name: str
    scalar: str = ""
    container: str = ""
    item: str = ""
    quantities: bool = False


Shape = dict[str, Field]

_GO = {"str": "string", "int": "int32", "bool": "bool", "float": "float64"}
_PYTHON: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
}
_ZERO: dict[str, Any] = {"str": "", "int": 0, "bool": False, "float": 0.0, "object": None}
_QUANTITY_MAPS = {
    *("limits", "requests", "capacity", "allocatable", "hard", "used", "overhead"),
    *("allocatedResources", "default", "defaultRequest", "max", "min"),
}
_MODEL = {
    ("v1", "Event"): "CoreV1Event",
    ("events.k8s.io/v1", "Event"): "EventsV1Event",
    ("resource.k8s.io/v1", "ResourceClaim"): "ResourceV1ResourceClaim",
}
# Pointers to strings, where "" says something, and what Go writes even if empty.
_KEEP_EMPTY = {"storageClassName", "ingressClassName", "imageID"}


@cache
def _models() -> ModuleType:
    # Half a second to import: only when the first object is decoded.
    from kubernetes_asyncio.client import models

    return models


@cache
def _shape(model: str) -> Shape | None:
    found = getattr(_models(), model, None)
    if found is None:
        return None
    types, names = found.openapi_types, found.attribute_map
    return {name: _field(name, types[attribute]) for attribute, name in names.items()}


def _field(name: str, spelled: str) -> Field:
    if spelled.startswith("list["):
        return Field(name, container="list", item=spelled[5:-1])
    if spelled.startswith("dict(str, "):
        quantities = name in _QUANTITY_MAPS and spelled == "dict(str, str)"
        return Field(name, container="dict", item=spelled[10:-1], quantities=quantities)
    if spelled in _GO or spelled in ("object", "datetime"):
        return Field(name, scalar=spelled)
    return Field(name, item=spelled)


def decode(resource: Resource, obj: Obj) -> tuple[Obj, Unknown]:
    """Read an object of a built-in kind: the object as the API server holds it, strange fields.

    Raises ApiError 400 where a field has the wrong type.
    """
    key = (resource.api_version, resource.kind)
    version = resource.version[0].upper() + resource.version[1:]
    shape = _shape(_MODEL.get(key, version + resource.kind))
    if shape is None:
        return obj, []
    unknown: Unknown = []

    def wrong(path: str, value: object, go_type: str) -> Exception:
        json_type = {str: "string", bool: "bool", int: "number", float: "number", list: "array"}
        return bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: json: cannot unmarshal {json_type.get(type(value), 'object')} "
            f"into Go struct field {resource.kind}.{path} of type {go_type}"
        )

    return _object(obj, shape, "", unknown, wrong), unknown


Wrong = Callable[[str, object, str], Exception]


def _object(obj: Obj, shape: Shape, path: str, unknown: Unknown, wrong: Wrong) -> Obj:
    result: Obj = {}
    for name, value in obj.items():
        field = shape.get(name)
        if field is None:
            unknown.append(f"{path}{name}")
            continue
        if value is None:
            if name == "lastProbeTime":
                result[name] = None
            continue
        decoded = _value(value, field, path + name, unknown, wrong)
        droppable = field.container or field.scalar not in ("", "object")
        if droppable and decoded in ("", [], {}) and name not in _KEEP_EMPTY:
            continue
        result[name] = decoded
    return result


def _value(value: Any, field: Field, path: str, unknown: Unknown, wrong: Wrong) -> Any:
    if field.scalar:
        return _scalar(value, field.scalar, path, wrong)
    if field.container == "list":
        if not isinstance(value, list):
            raise wrong(path, value, "[]" + field.item)
        return [
            _element(item, field.item, f"{path}[{index}]", unknown, wrong)
            for index, item in enumerate(value)
        ]
    if field.container == "dict":
        if not isinstance(value, dict):
            raise wrong(path, value, "map[string]" + _GO.get(field.item, field.item))
        if field.quantities:
            return _quantities(value, path)
        if field.item == "str" and path.rpartition(".")[2] == "data":
            return {key: item for key, item in value.items() if isinstance(item, str)}
        return {
            key: _element(item, field.item, f"{path}.{key}", unknown, wrong)
            for key, item in value.items()
            if item is not None
        }
    return _element(value, field.item, path, unknown, wrong)


def _element(value: Any, item: str, path: str, unknown: Unknown, wrong: Wrong) -> Any:
    if value is None:
        # A null element is Go's zero value.
        return _ZERO.get(item, {})
    if item in _GO or item in ("object", "datetime"):
        return _scalar(value, item, path, wrong)
    if item.startswith(("list[", "dict(")):
        return value
    shape = _shape(item)
    if shape is None:
        return value
    if not isinstance(value, dict):
        if item == "V1JSONSchemaProps":
            return value
        raise wrong(path, value, item)
    return _object(value, shape, path + ".", unknown, wrong)


def _scalar(value: Any, scalar: str, path: str, wrong: Wrong) -> Any:
    expected = _PYTHON.get(scalar)
    if expected is None:
        return value
    if isinstance(value, bool) and scalar != "bool":
        raise wrong(path, value, _GO[scalar])
    if scalar == "str" and isinstance(value, (int, float)):
        # Quantities and int-or-string fields may be numbers.
        name = path.rpartition(".")[2]
        if name in ("sizeLimit", "divisor", "averageValue", "value") and "env" not in path:
            return canonical(value)
    if not isinstance(value, expected):
        if scalar == "int" and isinstance(value, float) and value.is_integer():
            return int(value)
        raise wrong(path, value, _GO[scalar])
    return value


def _quantities(values: dict[str, Any], path: str) -> dict[str, str]:
    result = {}
    for name, value in values.items():
        if value is None:
            continue
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise bad_request(f"unable to parse quantity at {path}.{name}")
        try:
            result[name] = canonical(value, -3)
        except QuantityError as error:
            raise bad_request(
                "quantities must match the regular expression "
                f"'^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$' ({path}.{name}: {error})"
            ) from error
    return result
