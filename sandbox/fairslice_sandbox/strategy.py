"""How each kind is read, prepared and validated: one face for built-in and custom kinds.

Source: k8s.io/apiserver/pkg/registry/rest (create.go, update.go) and the kinds' strategies.
"""

from collections.abc import Iterator

from .crds import CRDS, CustomKind, CustomKinds, validate_crd
from .defaults import set_defaults
from .errors import ApiError, Cause, bad_request, invalid
from .names import bad, validate_metadata
from .pods import qos_class, validate_pod, validate_pod_update
from .schema import apply_defaults, prune, validate
from .store import Obj, Resource
from .typed import decode
from .workloads import validate_kind

__all__ = ["Strategy"]

# Kinds whose main resource takes a status, and those that have no generation.
_STATUS_AT_CREATE = {"nodes"}
_NO_GENERATION = {
    *("namespaces", "nodes", "configmaps", "secrets", "serviceaccounts", "events", "services"),
    *("podtemplates", "resourcequotas", "limitranges", "endpoints", "persistentvolumes"),
    *("persistentvolumeclaims", "leases.coordination.k8s.io", "endpointslices.discovery.k8s.io"),
    *("roles.rbac.authorization.k8s.io", "rolebindings.rbac.authorization.k8s.io"),
    *("clusterroles.rbac.authorization.k8s.io", "clusterrolebindings.rbac.authorization.k8s.io"),
    *("controllerrevisions.apps", "storageclasses.storage.k8s.io", "runtimeclasses.node.k8s.io"),
    *("resourceclaims.resource.k8s.io", "horizontalpodautoscalers.autoscaling"),
}
_JOB_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")
_JOB_NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")


class Strategy:
    """What distinguishes the kinds, as far as the verbs must know."""

    def __init__(self, kinds: CustomKinds) -> None:
        self._kinds = kinds

    def read(self, resource: Resource, obj: Obj, field_validation: str, warnings: list[str]) -> Obj:
        """Decode and default an object. Raises ApiError 400 for wrong types and, if strict,
        unknown fields."""
        if not isinstance(obj.get("metadata") or {}, dict):
            raise bad_request("metadata must be an object")
        for field, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
            found = obj.get(field) or wanted
            if found != wanted:
                raise bad_request(
                    f"the {field} in the data ({found}) does not match the expected {field} "
                    f"({wanted})"
                )
        obj = {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": {},
            **{name: value for name, value in obj.items() if value is not None},
        }
        custom = self._kinds.find(resource)
        if custom is None:
            obj, unknown = decode(resource, obj)
            obj.setdefault("metadata", {})
            set_defaults(resource.key, obj)
        else:
            obj, unknown = self._read_custom(custom, obj)
        if unknown:
            _report_unknown(resource, unknown, field_validation, warnings)
        return obj

    def _read_custom(self, custom: CustomKind, obj: Obj) -> tuple[Obj, list[str]]:
        pruned, unknown = prune(obj, custom.schema)
        result: Obj = apply_defaults(pruned, custom.schema)
        result["metadata"] = {k: v for k, v in result["metadata"].items() if v is not None}
        return result, unknown

    def has_status(self, resource: Resource) -> bool:
        """Say whether the main resource ignores status."""
        return "status" in resource.subresources

    def prepare_create(self, resource: Resource, obj: Obj) -> None:
        """Set what creation sets; the object has its uid and name."""
        meta = obj["metadata"]
        if resource.key not in _NO_GENERATION:
            meta["generation"] = 1
        custom = self._kinds.find(resource)
        if self.has_status(resource) and resource.key not in _STATUS_AT_CREATE:
            if custom is not None:
                obj.pop("status", None)
            elif "status" in obj:
                obj["status"] = {}
        match resource.key:
            case "pods":
                obj["status"] = {"phase": "Pending", "qosClass": qos_class(obj["spec"])}
            case "namespaces":
                obj["spec"].setdefault("finalizers", ["kubernetes"])
                obj["status"] = {"phase": "Active"}
            case "persistentvolumeclaims":
                obj["status"] = {"phase": "Pending"}
            case "replicasets.apps" | "statefulsets.apps":
                obj["status"] = {"replicas": 0}
            case "jobs.batch":
                _label_job(obj)

    def prepare_update(self, resource: Resource, old: Obj, new: Obj, subresource: str) -> Obj:
        """Keep what an update may not touch."""
        if subresource == "status":
            kept = {name: value for name, value in old.items() if name != "status"}
            # Built-in kinds let a status update change labels and annotations, custom ones don't.
            taken = ["managedFields"]
            if self._kinds.find(resource) is None:
                taken += ["labels", "annotations"]
            given = new["metadata"]
            new = {**kept, "metadata": dict(old["metadata"])}
            new["metadata"].update({name: given[name] for name in taken if name in given})
            return new
        if self.has_status(resource):
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        if resource.key == "namespaces" and subresource != "finalize":
            new["spec"] = old["spec"]
        meta = new["metadata"]
        for field in ("uid", "creationTimestamp", "deletionTimestamp", "generation",
                      "deletionGracePeriodSeconds", "generateName"):  # fmt: skip
            if field in old["metadata"]:
                meta[field] = old["metadata"][field]
            else:
                meta.pop(field, None)
        return new

    def count_generation(self, old: Obj, new: Obj) -> None:
        """Count a change of the content; after the mutating phase, which still sees the old one."""
        if "generation" in new["metadata"] and _content(old) != _content(new):
            new["metadata"]["generation"] += 1

    def check_create(self, resource: Resource, obj: Obj) -> None:
        """Raises ApiError 422 unless the object may be created."""
        causes = list(validate_metadata(resource.key, obj["metadata"]))
        if resource.key == "pods":
            causes += validate_pod(obj)
        causes += self._check(resource, obj, None)
        self._refuse(resource, obj, causes)

    def check_update(self, resource: Resource, old: Obj, new: Obj, subresource: str) -> None:
        """Raises ApiError 422 unless `new` may take the place of `old`."""
        causes = list(validate_metadata(resource.key, new["metadata"]))
        added = set(new["metadata"].get("finalizers") or ()) - set(
            old["metadata"].get("finalizers") or ()
        )
        if added and old["metadata"].get("deletionTimestamp"):
            why = "no new finalizers can be added if the object is being deleted, found new "
            message = f"Forbidden: {why}finalizers {sorted(added)}"
            causes.append(Cause("FieldValueForbidden", message, "metadata.finalizers"))
        if resource.key == "pods" and subresource != "status":
            causes += validate_pod_update(old, new, subresource)
        if subresource != "status" or self._kinds.find(resource) is not None:
            causes += self._check(resource, new, old)
        self._refuse(resource, new, causes)

    def _check(self, resource: Resource, new: Obj, old: Obj | None) -> Iterator[Cause]:
        custom = self._kinds.find(resource)
        if custom is not None:
            yield from validate(new, custom.schema, old)
        elif resource.key == CRDS:
            yield from validate_crd(new, old)
        else:
            yield from validate_kind(resource.key, new, old)
        sealed = resource.key == "configmaps" and old is not None and old.get("immutable")
        if sealed and old is not None and _content(old) != _content(new):
            yield bad("data", "", "field is immutable when `immutable` is set")

    def _refuse(self, resource: Resource, obj: Obj, causes: list[Cause]) -> None:
        if causes:
            raise invalid(resource.group, resource.kind, obj["metadata"].get("name", ""), causes)


def _report_unknown(
    resource: Resource, unknown: list[str], field_validation: str, warnings: list[str]
) -> None:
    texts = [f'unknown field "{path}"' for path in unknown]
    if field_validation == "Strict":
        raise ApiError(
            400,
            "BadRequest",
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: strict decoding error: {', '.join(texts)}",
        )
    if field_validation != "Ignore":
        warnings.extend(texts)


def _content(obj: Obj) -> Obj:
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}


def _label_job(job: Obj) -> None:
    """Tie a Job to its pods by uid, as jobStrategy.PrepareForCreate does."""
    spec, meta = job["spec"], job["metadata"]
    if spec.get("manualSelector"):
        return
    template = spec["template"]["metadata"]
    added = dict.fromkeys(_JOB_LABELS, meta["uid"]) | dict.fromkeys(_JOB_NAME_LABELS, meta["name"])
    template["labels"] = {**template.get("labels", {}), **added}
    spec["selector"] = {"matchLabels": {_JOB_LABELS[0]: meta["uid"]}}
    # Labels of a Job default to its template's.
    if not meta.get("labels"):
        meta["labels"] = dict(template["labels"])
