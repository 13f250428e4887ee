"""What an HTTP request asks for: its path, its query, the form of the answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from .errors import bad_request, unknown_path
from .registry import Registry
from .store import Obj, Resource

__all__ = ["Form", "Target", "form_of", "options_of", "parse_path"]

Form = Literal["object", "table", "partial", "discovery"]


@dataclass(frozen=True)
class Target:
    """The resource that a path names; no name for a collection."""

    resource: Resource
    namespace: str | None
    name: str
    subresource: str


def parse_path(registry: Registry, path: str) -> Target | None:
    """Read the path of a resource; None if the path is none. Raises ApiError 404 for no such."""
    parts = [part for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api":
        group, (version, *rest) = "", parts[1:]
    elif len(parts) >= 4 and parts[0] == "apis":
        group, version, *rest = parts[1:]
    else:
        return None
    namespace = None
    # /namespaces/x/pods, but not /namespaces/x, nor its own subresources.
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    resource = registry.at(group, version, rest[0])
    if resource is None or len(rest) > 3 or (namespace and not resource.namespaced):
        raise unknown_path()
    name, subresource = [*rest[1:], "", ""][:2]
    if name and resource.namespaced and namespace is None:
        raise unknown_path()
    if not resource.namespaced:
        namespace = ""
    return Target(resource, namespace, name, subresource)


def form_of(accept: str) -> Form:
    """Give the form of answer that an Accept header prefers, among those we have."""
    for choice in accept.split(","):
        if "json" not in choice and "*" not in choice:
            continue
        if "as=Table" in choice and "v=v1beta1" not in choice:
            return "table"
        if "as=PartialObjectMetadata" in choice:
            return "partial"
        if "as=APIGroupDiscoveryList" in choice and "v=v2beta1" not in choice:
            return "discovery"
        return "object"
    return "object"


def options_of(kind: str, query: Mapping[str, str]) -> Obj:
    """Give the options that admission sees. Raises ApiError 400 for an unknown dryRun."""
    options: Obj = {"kind": f"{kind}Options", "apiVersion": "meta.k8s.io/v1"}
    if dry_run := query.get("dryRun"):
        if dry_run != "All":
            raise bad_request(f'dryRun: Unsupported value: "{dry_run}": supported values: "All"')
        options["dryRun"] = ["All"]
    for field in ("fieldManager", "fieldValidation"):
        if query.get(field):
            options[field] = query[field]
    return options
