"""JSON, merge and strategic-merge patches.

Source: RFC 6902, RFC 7386, k8s.io/apimachinery/pkg/util/strategicpatch.
"""

from typing import Any

import jsonpatch
import jsonpointer
import msgspec
import yaml

from .errors import ApiError, bad_request
from .store import Obj, clone

__all__ = ["apply_json_patch", "apply_patch", "decode_body", "merge_keys"]

# Lists that merge by a key, by field name. `ports` has two, told apart by its elements.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "conditions": "type",
    "ownerReferences": "uid",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "addresses": "type",
    "secrets": "name",
    "containerStatuses": "",
    "webhooks": "name",
    "matchConditions": "name",
    "readinessGates": "",
}
_SETS = {"finalizers"}


def merge_keys(name: str, items: list[Any]) -> str:
    """Give the key by which a list field merges; "" if it is replaced as a whole."""
    if name == "ports":
        first = next((item for item in items if isinstance(item, dict)), {})
        return "port" if "port" in first and "containerPort" not in first else "containerPort"
    return _MERGE_KEYS.get(name, "")


def decode_body(body: bytes) -> Any:
    """Read JSON, else YAML. Raises ApiError 400."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        pass
    try:
        return yaml.safe_load(body)
    except yaml.YAMLError as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from error


def apply_patch(current: Obj, patch: bytes, content_type: str) -> Obj:
    """Apply a patch of a media type to an object, which is not changed.

    Raises ApiError: 400 for a malformed patch, 415 for another media type, 422 for a JSON
    patch that can't be applied.
    """
    change = decode_body(patch)
    match content_type:
        case "application/json-patch+json":
            try:
                return apply_json_patch(current, change)
            except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
                message = f"the server rejected our request due to an error in our request: {error}"
                raise ApiError(422, "Invalid", message, {}) from error
        case "application/merge-patch+json":
            merged = _merge
        case "application/strategic-merge-patch+json":
            merged = _strategic
        case _:
            raise ApiError(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: "
                "application/json-patch+json, application/merge-patch+json, "
                "application/strategic-merge-patch+json, application/apply-patch+yaml",
            )
    if not isinstance(change, dict):
        raise bad_request("error decoding patch: json: cannot unmarshal into a map")
    result: Obj = merged(clone(current), change)
    return result


def apply_json_patch(current: Obj, operations: Any) -> Obj:
    """Apply RFC 6902 operations to a copy. Raises what jsonpatch and jsonpointer raise."""
    if not isinstance(operations, list):
        raise jsonpatch.InvalidJsonPatch("a JSON patch is a list of operations")
    try:
        result: Obj = jsonpatch.JsonPatch(operations).apply(clone(current), in_place=True)
    except (TypeError, KeyError, AttributeError) as error:
        raise jsonpatch.JsonPatchConflict(str(error)) from error
    return result


def _merge(target: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    result = target if isinstance(target, dict) else {}
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value)
    return result


def _strategic(target: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    directive = change.get("$patch")
    if directive == "replace":
        return {name: value for name, value in change.items() if name != "$patch"}
    if directive == "delete":
        return {}
    result = target if isinstance(target, dict) else {}
    if (retained := change.get("$retainKeys")) is not None:
        result = {name: value for name, value in result.items() if name in retained}
    for name, value in change.items():
        if name.startswith("$deleteFromPrimitiveList/"):
            field = name.partition("/")[2]
            result[field] = [item for item in result.get(field) or () if item not in value]
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        elif isinstance(value, list):
            result[name] = _strategic_list(name, result.get(name) or [], value)
        else:
            result[name] = _strategic(result.get(name), value)
    return result


def _strategic_list(name: str, target: list[Any], change: list[Any]) -> list[Any]:
    if name in _SETS:
        return [*target, *(item for item in change if item not in target)]
    key = merge_keys(name, [*change, *target])
    replaces = any(isinstance(item, dict) and item.get("$patch") == "replace" for item in change)
    if not key or replaces or not all(isinstance(item, dict) for item in change):
        return [item for item in change if not (isinstance(item, dict) and "$patch" in item)]
    result = list(target)
    for item in change:
        if key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(_strategic({}, item))
        else:
            result[at] = _strategic(result[at], item)
    return result
