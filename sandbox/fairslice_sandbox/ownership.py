"""managedFields and server-side apply, to the depth that its users notice.

A manager owns the paths it last wrote; apply removes what its manager owned alone and left
out this time, and conflicts where it changes what another owns. Lists are owned by element
where they merge by key, else as a whole.
Source: KEP-555; sigs.k8s.io/structured-merge-diff.
"""

import json
from collections.abc import Iterator
from typing import Any

from .errors import ApiError
from .patching import merge_keys
from .store import Obj, Resource, clone

__all__ = ["apply_configuration", "record_update"]

Fields = dict[str, Any]

_IGNORED = {
    *("managedFields", "resourceVersion", "uid", "creationTimestamp", "generation", "namespace"),
    *("name", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"),
}
_ATOMIC = {"selector", "nodeSelectorTerms", "nodeSelector"}


def fields_of(value: Any, name: str = "", *, root: bool = False) -> Fields:
    """Give the FieldsV1 set of a value: every path that it sets."""
    if isinstance(value, dict):
        if name in _ATOMIC:
            return {}
        result: Fields = {}
        for key, item in value.items():
            if root and key in ("apiVersion", "kind"):
                continue
            if root and key == "metadata":
                item = {k: v for k, v in item.items() if k not in _IGNORED}
                if not item:
                    continue
            if key == "metadata" and not item:
                continue
            result[f"f:{key}"] = fields_of(item, key)
        if result and name in ("labels", "annotations", "limits", "requests", "resources"):
            result = {".": {}, **result}
        return result
    if isinstance(value, list) and value:
        if name == "finalizers":
            return {".": {}} | {f"v:{json.dumps(item)}": {} for item in value}
        if (key := merge_keys(name, value)) and all(
            isinstance(item, dict) and key in item for item in value
        ):
            return {_element_key(item, key): {".": {}, **fields_of(item)} for item in value}
    return {}


def _element_key(item: Obj, key: str) -> str:
    identity = {key: item[key]}
    if key == "containerPort":
        identity["protocol"] = item.get("protocol", "TCP")
    return "k:" + json.dumps(identity, separators=(",", ":"), sort_keys=True)


def record_update(
    resource: Resource, old: Obj | None, new: Obj, manager: str, now: str, subresource: str
) -> Obj:
    """Give the object with the manager as owner of what it changed."""
    changed = _difference(old or {}, new)
    if subresource == "" and old is None:
        changed.pop("f:status", None)
    if not changed:
        return new
    entries = [dict(entry) for entry in (new["metadata"].get("managedFields") or [])]
    entry = _entry_of(entries, manager, "Update", subresource, resource.api_version)
    entry["time"] = now
    entry["fieldsV1"] = _union(entry.get("fieldsV1") or {}, changed)
    return {**new, "metadata": {**new["metadata"], "managedFields": entries}}


def _entry_of(
    entries: list[Obj], manager: str, operation: str, subresource: str, api_version: str
) -> Obj:
    for entry in entries:
        if _is(entry, manager, operation, subresource):
            return entry
    entry = {
        "manager": manager,
        "operation": operation,
        "apiVersion": api_version,
        "time": "",
        "fieldsType": "FieldsV1",
        "fieldsV1": {},
    }
    if subresource:
        entry["subresource"] = subresource
    entries.append(entry)
    return entry


def _difference(old: Obj, new: Obj) -> Fields:
    """Give the fields of `new` that `old` has not, or has otherwise; one level is enough."""
    result: Fields = {}
    for part, value in new.items():
        if part in ("apiVersion", "kind") or old.get(part) == value:
            continue
        before = old.get(part)
        if isinstance(value, dict) and isinstance(before, dict):
            value = {k: v for k, v in value.items() if before.get(k) != v}
        result |= fields_of({part: value}, root=True)
    return result


def _union(left: Fields, right: Fields) -> Fields:
    result = dict(left)
    for key, item in right.items():
        result[key] = _union(result.get(key, {}), item)
    return result


def apply_configuration(
    resource: Resource,
    current: Obj | None,
    configuration: Obj,
    manager: str,
    now: str,
    *,
    force: bool,
    subresource: str = "",
) -> Obj:
    """Server-side apply: the object after `manager` applied its configuration.

    Raises ApiError 409 where it changes fields that other managers own, unless forced.
    """
    applied = clone(configuration)
    applied.get("metadata", {}).pop("managedFields", None)
    fields = fields_of(applied, root=True)
    base = clone(current) if current else {}
    entries: list[Obj] = (base.get("metadata") or {}).get("managedFields") or []
    if current is not None:
        conflicts = list(_conflicts(base, applied, entries, manager))
        if conflicts and not force:
            raise _conflict(resource, conflicts)
        for other, path in conflicts:
            _disown(other["fieldsV1"], path)
        mine = next((e for e in entries if _is(e, manager, "Apply", subresource)), None)
        others = [entry["fieldsV1"] for entry in entries if entry is not mine]
        if mine is not None:
            _remove_dropped(base, mine["fieldsV1"], fields, others)
    merged: Obj = _merge(base, applied, "")
    entry = _entry_of(entries, manager, "Apply", subresource, resource.api_version)
    entry["fieldsV1"], entry["time"] = fields, now
    merged.setdefault("metadata", {})["managedFields"] = [e for e in entries if e["fieldsV1"]]
    return merged


def _is(entry: Obj, manager: str, operation: str, subresource: str) -> bool:
    found = (entry["manager"], entry["operation"], entry.get("subresource", ""))
    return found == (manager, operation, subresource)


def _leaves(fields: Fields, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    below = [key for key in fields if key != "."]
    if not below and path:
        yield path
    for key in below:
        yield from _leaves(fields[key], (*path, key))


_MISSING = object()


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        kind, _, key = step.partition(":")
        if kind == "f":
            value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
        elif kind == "k" and isinstance(value, list):
            identity = json.loads(key)
            value = next((item for item in value if _has(item, identity)), _MISSING)
        elif kind == "v" and isinstance(value, list):
            value = json.loads(key) if json.loads(key) in value else _MISSING
        if value is _MISSING:
            return _MISSING
    return value


def _has(item: Obj, identity: Obj) -> bool:
    return all(item.get(key, "TCP") == wanted for key, wanted in identity.items())


def _owns(fields: Fields, path: tuple[str, ...]) -> bool:
    for step in path:
        if step not in fields:
            return False
        fields = fields[step]
    return True


def _conflicts(
    current: Obj, applied: Obj, entries: list[Obj], manager: str
) -> Iterator[tuple[Obj, tuple[str, ...]]]:
    for path in _leaves(fields_of(applied, root=True)):
        before, after = _at(current, path), _at(applied, path)
        if before is _MISSING or before == after:
            continue
        for entry in entries:
            if entry["manager"] == manager and entry["operation"] == "Apply":
                continue
            if _owns(entry["fieldsV1"], path):
                yield entry, path


def _disown(fields: Fields, path: tuple[str, ...]) -> None:
    for step in path[:-1]:
        fields = fields.get(step, {})
    fields.pop(path[-1], None)


def _conflict(resource: Resource, found: list[tuple[Obj, tuple[str, ...]]]) -> ApiError:
    causes = []
    for entry, path in found:
        field = "".join(_spelled(step) for step in path)
        message = f'conflict with "{entry["manager"]}" using {entry["apiVersion"]}'
        causes.append({"reason": "FieldManagerConflict", "message": message, "field": field})
    listed = "; ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    plural = "conflict" if len(causes) == 1 else "conflicts"
    return ApiError(
        409,
        "Conflict",
        f"Apply failed with {len(causes)} {plural}: {listed}",
        {"kind": resource.plural, "causes": causes},
    )


def _spelled(step: str) -> str:
    kind, _, key = step.partition(":")
    if kind == "f":
        return f".{key}"
    identity = json.loads(key)
    if isinstance(identity, dict):
        return "[" + ",".join(f"{k}={json.dumps(v)}" for k, v in identity.items()) + "]"
    return f"[={json.dumps(identity)}]"


def _remove_dropped(base: Obj, before: Fields, after: Fields, others: list[Fields]) -> None:
    # Deepest first, so that a list element goes after its fields.
    gone = [path for path in _paths(before) if not _owns(after, path)]
    for path in sorted(gone, key=len, reverse=True):
        if any(_owns(fields, path) for fields in others):
            continue
        parent, step = _at(base, path[:-1]), path[-1]
        kind, _, key = step.partition(":")
        if kind == "f" and isinstance(parent, dict):
            parent.pop(key, None)
        elif kind == "k" and isinstance(parent, list):
            identity = json.loads(key)
            parent[:] = [item for item in parent if not _has(item, identity)]
        elif kind == "v" and isinstance(parent, list):
            parent[:] = [item for item in parent if item != json.loads(key)]


def _paths(fields: Fields, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Go through the paths to remove when dropped: leaves, list elements, owned maps."""
    for key, below in fields.items():
        if key == ".":
            continue
        here = (*path, key)
        if not below or "." in below:
            yield here
        yield from _paths(below, here)


def _merge(base: Any, applied: Any, name: str) -> Any:
    if isinstance(applied, dict) and isinstance(base, dict) and name not in _ATOMIC:
        for key, value in applied.items():
            base[key] = _merge(base[key], value, key) if key in base else value
        return base
    if isinstance(applied, list) and isinstance(base, list):
        if name == "finalizers":
            return [*base, *(item for item in applied if item not in base)]
        key = merge_keys(name, [*applied, *base])
        if key and all(isinstance(item, dict) and key in item for item in [*applied, *base]):
            for item in applied:
                at = next((i for i, old in enumerate(base) if old[key] == item[key]), None)
                if at is None:
                    base.append(item)
                else:
                    base[at] = _merge(base[at], item, "")
            return base
    return applied
