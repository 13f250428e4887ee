"""Discovery, and as much OpenAPI as kubectl asks for before it trusts server-side validation.

Source: k8s.io/api/apidiscovery/v2; k8s.io/cli-runtime/pkg/resource/query_param_verifier_v3.go.
"""

from typing import Any

from .builtin import VERBS
from .errors import unknown_path
from .registry import Registry
from .reviews import REVIEWS
from .store import Resource

__all__ = ["VERSION", "discover", "openapi_v3"]

VERSION = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.0-fairslice-sandbox",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}
_SUBRESOURCE_KINDS = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "binding": ("", "v1", "Binding"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
_POSTED = {"eviction", "binding", "token"}


def _verbs(resource: Resource) -> list[str]:
    return ["create"] if resource.plural in REVIEWS else list(VERBS)


def _subresource_verbs(subresource: str) -> list[str]:
    if subresource in _POSTED:
        return ["create"]
    return ["get"] if subresource == "log" else ["get", "patch", "update"]


def _groups(registry: Registry) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for resource in registry.all():
        versions = groups.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
    return groups


def discover(registry: Registry, parts: list[str], *, aggregated: bool) -> dict[str, Any]:
    """Answer /api, /apis and what is below. Raises ApiError 404."""
    groups = _groups(registry)
    match parts:
        case ["api"] if aggregated:
            return _aggregated(registry, {"": groups[""]})
        case ["apis"] if aggregated:
            return _aggregated(registry, {g: v for g, v in groups.items() if g})
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            listed = [_group(name, versions) for name, versions in groups.items() if name]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case ["apis", group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, groups[group])}
        case ["api", "v1"]:
            return _resources(registry, "", "v1")
        case ["apis", group, version] if version in groups.get(group, ()):
            return _resources(registry, group, version)
    raise unknown_path()


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(registry: Registry, group: str, version: str) -> dict[str, Any]:
    listed: list[dict[str, Any]] = []
    for resource in registry.all():
        if (resource.group, resource.version) != (group, version):
            continue
        entry: dict[str, Any] = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": _verbs(resource),
        }
        if resource.short_names:
            entry["shortNames"] = list(resource.short_names)
        if resource.categories:
            entry["categories"] = list(resource.categories)
        listed.append(entry)
        for subresource in sorted(resource.subresources):
            below = {
                "name": f"{resource.plural}/{subresource}",
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": _subresource_verbs(subresource),
            }
            if subresource in _SUBRESOURCE_KINDS:
                below["group"], below["version"], below["kind"] = _SUBRESOURCE_KINDS[subresource]
            listed.append(below)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": listed,
    }


def _aggregated(registry: Registry, groups: dict[str, list[str]]) -> dict[str, Any]:
    items = []
    for group, versions in groups.items():
        meta = {"name": group} if group else {}
        listed = [
            {
                "version": version,
                "freshness": "Current",
                "resources": [
                    _described(resource)
                    for resource in registry.all()
                    if (resource.group, resource.version) == (group, version)
                ],
            }
            for version in versions
        ]
        items.append({"metadata": meta, "versions": listed})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def _described(resource: Resource) -> dict[str, Any]:
    own = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    entry: dict[str, Any] = {
        "resource": resource.plural,
        "responseKind": own,
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": _verbs(resource),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = []
        for name in sorted(resource.subresources):
            kind = _SUBRESOURCE_KINDS.get(name)
            named = dict(zip(("group", "version", "kind"), kind, strict=True)) if kind else own
            below = {"subresource": name, "responseKind": named, "verbs": _subresource_verbs(name)}
            entry["subresources"].append(below)
    return entry


def openapi_v3(registry: Registry, parts: list[str]) -> dict[str, Any]:
    """Answer /openapi/v3 and what is below. Raises ApiError 404."""
    places = {
        f"apis/{group}/{version}" if group else f"api/{version}": (group, version)
        for group, versions in _groups(registry).items()
        for version in versions
    }
    if not parts:
        return {
            "paths": {
                place: {"serverRelativeURL": f"/openapi/v3/{place}?hash={registry.revision}"}
                for place in places
            }
        }
    wanted = "/".join(parts)
    if wanted not in places:
        raise unknown_path()
    validation = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    dry_run = {"name": "dryRun", "in": "query", "schema": {"type": "string"}}
    paths = {}
    for resource in registry.all():
        if (resource.group, resource.version) == places[wanted]:
            kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
            scope = "/namespaces/{namespace}" if resource.namespaced else ""
            paths[f"/{wanted}{scope}/{resource.plural}/{{name}}"] = {
                "patch": {
                    "operationId": f"patch{resource.kind}",
                    "parameters": [validation, dry_run],
                    "responses": {"200": {"description": "OK"}},
                    "x-kubernetes-action": "patch",
                    "x-kubernetes-group-version-kind": kind,
                }
            }
    info = {"title": "fairslice sandbox", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}
