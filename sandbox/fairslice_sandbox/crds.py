"""CustomResourceDefinitions: checked, established, served.

Source: k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation, pkg/apiserver.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .cel import CelError, compiles
from .errors import Cause
from .names import bad
from .registry import Registry
from .store import Obj, Resource

__all__ = ["CRDS", "CustomKind", "CustomKinds", "established", "validate_crd"]

CRDS = "customresourcedefinitions.apiextensions.k8s.io"


@dataclass(frozen=True)
class CustomKind:
    """One version of a custom resource: its schema and what the CRD says beside it."""

    resource: Resource
    schema: dict[str, Any]
    columns: tuple[dict[str, Any], ...]
    scale: dict[str, str] | None


class CustomKinds:
    """The custom kinds that are served, in step with the stored CRDs."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._kinds: dict[Resource, CustomKind] = {}

    def find(self, resource: Resource) -> CustomKind | None:
        """Give the custom kind behind a resource, None for a built-in one."""
        return self._kinds.get(resource)

    def serve(self, crd: Obj) -> None:
        """Serve the versions of a CRD as it is now."""
        self.drop(crd)
        # The stored version last: a bare key names it.
        for version in sorted(crd["spec"]["versions"], key=lambda item: bool(item["storage"])):
            if version["served"]:
                kind = _kind(crd, version)
                self._kinds[kind.resource] = kind
                self._registry.add(kind.resource)

    def drop(self, crd: Obj) -> None:
        """Stop serving a CRD."""
        key = crd["metadata"]["name"]
        self._registry.remove(key)
        for resource in [found for found in self._kinds if found.key == key]:
            del self._kinds[resource]


def _kind(crd: Obj, version: Obj) -> CustomKind:
    spec = crd["spec"]
    names = spec["names"]
    subresources = version.get("subresources") or {}
    resource = Resource(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        singular=names["singular"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=frozenset(subresources),
    )
    return CustomKind(
        resource=resource,
        schema=(version.get("schema") or {}).get("openAPIV3Schema") or {},
        columns=tuple(version.get("additionalPrinterColumns") or ()),
        scale=subresources.get("scale"),
    )


def established(crd: Obj, now: str) -> Obj:
    """Give the status of a CRD that is served at once."""
    names = crd["spec"]["names"]
    condition = {"status": "True", "lastTransitionTime": now}
    return {
        "conditions": [
            {
                **condition,
                "type": "NamesAccepted",
                "reason": "NoConflicts",
                "message": "no conflicts found",
            },
            {
                **condition,
                "type": "Established",
                "reason": "InitialNamesAccepted",
                "message": "the initial names have been accepted",
            },
        ],
        "acceptedNames": names,
        "storedVersions": [item["name"] for item in crd["spec"]["versions"] if item["storage"]],
    }


def validate_crd(crd: Obj, old: Obj | None) -> Iterator[Cause]:
    """Check a CRD: names, versions, and schemas that are structural."""
    spec = crd["spec"]
    names = spec.get("names", {})
    wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if crd["metadata"]["name"] != wanted:
        why = 'must be spec.names.plural+"."+spec.group'
        yield bad("metadata.name", crd["metadata"]["name"], why)
    for field in ("plural", "kind"):
        if not names.get(field):
            yield Cause("FieldValueRequired", "Required value", f"spec.names.{field}")
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        message = f'Unsupported value: "{spec.get("scope", "")}": supported values: '
        yield Cause("FieldValueNotSupported", message + '"Cluster", "Namespaced"', "spec.scope")
    elif old is not None and old["spec"]["scope"] != spec["scope"]:
        yield bad("spec.scope", spec["scope"], "field is immutable")
    versions = spec.get("versions", ())
    if sum(bool(version.get("storage")) for version in versions) != 1:
        why = "must have exactly one version marked as storage version"
        yield bad("spec.versions", len(versions), why)
    for index, version in enumerate(versions):
        if not version.get("name"):
            yield Cause("FieldValueRequired", "Required value", f"spec.versions[{index}].name")
        path = f"spec.versions[{index}].schema.openAPIV3Schema"
        schema = (version.get("schema") or {}).get("openAPIV3Schema")
        if not schema:
            why = "schemas are required"
            yield Cause("FieldValueRequired", f"Required value: {why}", path)
        else:
            yield from _structural(schema, path, root=True)


def _structural(schema: Any, path: str, *, root: bool = False) -> Iterator[Cause]:
    if not isinstance(schema, dict):
        yield bad(path, schema, "must be a schema")
        return
    kind = schema.get("type")
    loose = schema.get("x-kubernetes-int-or-string") or schema.get(
        "x-kubernetes-preserve-unknown-fields"
    )
    if not kind and not loose:
        yield Cause("FieldValueRequired", "Required value: must not be empty for specified "
                    "object fields", f"{path}.type")  # fmt: skip
    if root and kind != "object":
        yield bad(f"{path}.type", kind, "must be object at the root")
    if "properties" in schema and "additionalProperties" in schema:
        why = "additionalProperties and properties are mutual exclusive"
        yield Cause("FieldValueForbidden", f"Forbidden: {why}", f"{path}.additionalProperties")
    if kind == "array" and "items" not in schema:
        yield Cause("FieldValueRequired", "Required value: must be specified", f"{path}.items")
    for index, rule in enumerate(schema.get("x-kubernetes-validations", ())):
        try:
            compiles(rule.get("rule", ""))
        except CelError as error:
            where = f"{path}.x-kubernetes-validations[{index}].rule"
            yield bad(where, rule.get("rule", ""), f"compilation failed: {error}")
    properties = schema.get("properties")
    for name, below in properties.items() if isinstance(properties, dict) else ():
        if not (root and name in ("apiVersion", "kind", "metadata")):
            yield from _structural(below, f"{path}.properties[{name}]")
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        yield from _structural(extra, f"{path}.additionalProperties")
    if isinstance(schema.get("items"), dict):
        yield from _structural(schema["items"], f"{path}.items")
