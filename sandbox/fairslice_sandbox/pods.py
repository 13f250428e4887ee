"""Validation of pods and pod templates.

Source: k8s.io/kubernetes/pkg/apis/core/validation/validation.go.
"""

import re
from collections.abc import Iterator
from typing import Any

from fairslice.quantity import parse_quantity

from .errors import Cause
from .names import LABEL, bad, is_qualified, validate_labels
from .store import Obj, clone

__all__ = ["is_extended", "qos_class", "validate_pod", "validate_pod_update", "validate_template"]

_NATIVE = {"cpu", "memory", "ephemeral-storage"}
_ENV_NAME = re.compile(r"[^=]+")
_REQUIRED_TERMS = ("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_UPDATE_MESSAGE = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)


def is_extended(resource: str) -> bool:
    """Say whether it is an extended resource: with a domain that isn't Kubernetes' own."""
    domain, slash, _ = resource.partition("/")
    return (bool(slash) and not domain.endswith("kubernetes.io")) or (
        resource.startswith("deviceclass.resource.kubernetes.io/")
    )


def _required(field: str, why: str = "") -> Cause:
    return Cause("FieldValueRequired", f"Required value{': ' + why if why else ''}", field)


def _unsupported(field: str, value: str, *supported: str) -> Cause:
    listed = ", ".join(f'"{item}"' for item in supported)
    message = f'Unsupported value: "{value}": supported values: {listed}'
    return Cause("FieldValueNotSupported", message, field)


def _forbidden(field: str, why: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {why}", field)


def validate_pod(pod: Obj) -> Iterator[Cause]:
    """Check a new pod."""
    spec = pod["spec"]
    yield from validate_spec(spec, "spec")
    if spec.get("ephemeralContainers"):
        yield _forbidden("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        why = "cannot be set until all schedulingGates have been cleared"
        yield _forbidden("spec.nodeName", why)


def validate_template(template: Obj, path: str, *restart: str) -> Iterator[Cause]:
    """Check a pod template whose restart policy must be one of those given."""
    yield from validate_labels(template["metadata"], f"{path}.metadata")
    yield from validate_spec(template["spec"], f"{path}.spec")
    policy = template["spec"]["restartPolicy"]
    if policy not in restart:
        yield _unsupported(f"{path}.spec.restartPolicy", policy, *restart)


def validate_spec(spec: Obj, path: str) -> Iterator[Cause]:
    """Check a PodSpec."""
    if not spec.get("containers"):
        yield _required(f"{path}.containers")
    volumes = {volume.get("name") for volume in spec.get("volumes", ())}
    seen: set[str] = set()
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        for index, container in enumerate(spec.get(kind, ())):
            where = f"{path}.{kind}[{index}]"
            yield from _container(container, where, volumes)
            name = container.get("name", "")
            if name in seen:
                yield Cause("FieldValueDuplicate", f'Duplicate value: "{name}"', f"{where}.name")
            seen.add(name)
    yield from _choices(spec, path)
    names = [gate.get("name", "") for gate in spec.get("schedulingGates", ())]
    for index, name in enumerate(names):
        where = f"{path}.schedulingGates[{index}]"
        if not is_qualified(name):
            yield bad(where, name, "must be a qualified name")
        if name in names[:index]:
            yield Cause("FieldValueDuplicate", f'Duplicate value: "{name}"', where)
    for index, toleration in enumerate(spec.get("tolerations", ())):
        where = f"{path}.tolerations[{index}]"
        operator = toleration.get("operator", "Equal")
        if not toleration.get("key") and operator != "Exists":
            yield bad(f"{where}.operator", operator, "operator must be Exists when `key` is empty")
        if operator == "Exists" and toleration.get("value"):
            why = "value must be empty when `operator` is 'Exists'"
            yield bad(f"{where}.operator", toleration["value"], why)
        if "tolerationSeconds" in toleration and toleration.get("effect") != "NoExecute":
            why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            yield bad(f"{where}.effect", toleration.get("effect", ""), why)


def _choices(spec: Obj, path: str) -> Iterator[Cause]:
    for name, supported in (
        ("restartPolicy", ("Always", "OnFailure", "Never")),
        ("dnsPolicy", ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")),
        ("preemptionPolicy", ("PreemptLowerPriority", "Never")),
    ):
        value = spec.get(name)
        if value is not None and value not in supported:
            yield _unsupported(f"{path}.{name}", value, *supported)
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        value = spec["terminationGracePeriodSeconds"]
        why = "must be greater than or equal to 0"
        yield bad(f"{path}.terminationGracePeriodSeconds", value, why)
    if spec.get("activeDeadlineSeconds", 1) < 1:
        why = "must be between 1 and 2147483647, inclusive"
        yield bad(f"{path}.activeDeadlineSeconds", spec["activeDeadlineSeconds"], why)


def _container(container: Obj, path: str, volumes: set[Any]) -> Iterator[Cause]:
    name = container.get("name", "")
    if not name:
        yield _required(f"{path}.name")
    elif not LABEL.fullmatch(name):
        yield bad(f"{path}.name", name, "a lowercase RFC 1123 label must consist of lower case "
                  "alphanumeric characters or '-'")  # fmt: skip
    if not container.get("image"):
        yield _required(f"{path}.image")
    for index, variable in enumerate(container.get("env", ())):
        where = f"{path}.env[{index}]"
        if not _ENV_NAME.fullmatch(variable.get("name", "")):
            yield (
                _required(f"{where}.name")
                if not variable.get("name")
                else bad(
                    f"{where}.name",
                    variable["name"],
                    "a valid environment variable name has no '='",
                )
            )
        if variable.get("value") and variable.get("valueFrom"):
            why = "may not be specified when `value` is not empty"
            yield bad(f"{where}.valueFrom", "", why)
    mounted: set[str] = set()
    for index, mount in enumerate(container.get("volumeMounts", ())):
        where = f"{path}.volumeMounts[{index}]"
        if mount.get("name") not in volumes:
            message = f'Not found: "{mount.get("name", "")}"'
            yield Cause("FieldValueNotFound", message, f"{where}.name")
        if mount.get("mountPath", "") in mounted:
            yield bad(f"{where}.mountPath", mount["mountPath"], "must be unique")
        mounted.add(mount.get("mountPath", ""))
    yield from _resources(container.get("resources", {}), f"{path}.resources")


def _resources(resources: Obj, path: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    for kind, values in (("limits", limits), ("requests", requests)):
        for name, value in values.items():
            where = f"{path}.{kind}[{name}]"
            amount = parse_quantity(value)
            if not is_qualified(name):
                yield bad(where, name, "must be a qualified name")
            elif "/" not in name and name not in _NATIVE and not name.startswith("hugepages-"):
                yield bad(where, name, "must be a standard resource for containers")
            if amount < 0:
                yield bad(where, value, "must be greater than or equal to 0")
            elif is_extended(name) and amount.denominator != 1:
                yield bad(where, value, "must be an integer")
    for name, value in requests.items():
        where = f"{path}.requests"
        limit = limits.get(name)
        if limit is None:
            if is_extended(name):
                why = "Limit must be set for non overcommitable resources"
                yield _required(f"{path}.limits", why)
        elif is_extended(name) and parse_quantity(value) != parse_quantity(limit):
            yield bad(where, value, f"must be equal to {name} limit of {limit}")
        elif parse_quantity(value) > parse_quantity(limit):
            yield bad(where, value, f"must be less than or equal to {name} limit of {limit}")


def validate_pod_update(old: Obj, new: Obj, subresource: str = "") -> Iterator[Cause]:
    """Check the change of a pod's spec."""
    before, after = clone(old["spec"]), clone(new["spec"])
    if before == after:
        return
    if subresource == "resize":
        _even_out_resources(before, after)
    elif subresource == "ephemeralcontainers":
        yield from _ephemeral_update(before, after)
    else:
        yield from _tolerations_update(before, after)
        yield from _gates_update(before, after)
        _even_out_mutable(before, after)
    if before != after:
        names = sorted(n for n in {**before, **after} if before.get(n) != after.get(n))
        message = _UPDATE_MESSAGE if not subresource else f"Forbidden: {subresource} only"
        yield Cause("FieldValueForbidden", f"{message}\n{', '.join(names)} differ", "spec")


def _even_out_mutable(before: Obj, after: Obj) -> None:
    for kind in ("containers", "initContainers"):
        if len(before.get(kind, ())) == len(after.get(kind, ())):
            for old, new in zip(before.get(kind, ()), after.get(kind, ()), strict=True):
                new["image"] = old["image"]
    deadline = before.get("activeDeadlineSeconds")
    if "activeDeadlineSeconds" in after and (
        deadline is None or after["activeDeadlineSeconds"] <= deadline
    ):
        after.pop("activeDeadlineSeconds")
        before.pop("activeDeadlineSeconds", None)


def _even_out_resources(before: Obj, after: Obj) -> None:
    for old, new in zip(before["containers"], after["containers"], strict=False):
        for kind in ("limits", "requests"):
            for name in ("cpu", "memory"):
                old.get("resources", {}).get(kind, {}).pop(name, None)
                new.get("resources", {}).get(kind, {}).pop(name, None)
            for resources in (old.get("resources", {}), new.get("resources", {})):
                if resources.get(kind) == {}:
                    resources.pop(kind)


def _ephemeral_update(before: Obj, after: Obj) -> Iterator[Cause]:
    old, new = before.pop("ephemeralContainers", []), after.pop("ephemeralContainers", [])
    path = "spec.ephemeralContainers"
    by_name = {container.get("name"): container for container in new}
    for container in old:
        if container["name"] not in by_name:
            why = f"existing ephemeral containers {container['name']!r} may not be removed"
            yield _forbidden(path, why)
        elif by_name[container["name"]] != container:
            why = f"existing ephemeral containers {container['name']!r} may not be changed"
            yield _forbidden(path, why)
    volumes = {volume.get("name") for volume in after.get("volumes", ())}
    for index, container in enumerate(new):
        yield from _container(container, f"{path}[{index}]", volumes)
        if container.get("resources"):
            why = "cannot be set for an Ephemeral Container"
            yield _forbidden(f"{path}[{index}].resources", why)


def _tolerations_update(before: Obj, after: Obj) -> Iterator[Cause]:
    old, new = before.pop("tolerations", []), after.pop("tolerations", [])
    missing = [item for item in old if item not in new]
    if missing:
        why = "existing toleration can not be modified except its tolerationSeconds"
        keys = [_identity(item) for item in new]
        if any(_identity(item) not in keys for item in missing):
            yield _forbidden("spec.tolerations", why)


def _identity(toleration: Obj) -> Obj:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _gates_update(before: Obj, after: Obj) -> Iterator[Cause]:
    old, new = before.pop("schedulingGates", []), after.pop("schedulingGates", [])
    for gate in new:
        if gate not in old:
            why = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield _forbidden("spec.schedulingGates", why)
    if not old:
        return
    selector = after.get("nodeSelector", {})
    if all(selector.get(key) == value for key, value in before.get("nodeSelector", {}).items()):
        before.pop("nodeSelector", None)
        after.pop("nodeSelector", None)
    else:
        why = "only additions are allowed (no mutations or deletions)"
        yield bad("spec.nodeSelector", selector, why)
    if _narrows(_required_terms(before), _required_terms(after)):
        for spec in (before, after):
            affinity = spec.get("affinity")
            if affinity is not None:
                affinity.pop("nodeAffinity", None)
                if not affinity:
                    spec.pop("affinity")
    else:
        yield bad("spec.affinity.nodeAffinity", "", "only additions are allowed: terms may only "
                  "get more expressions")  # fmt: skip


def _required_terms(spec: Obj) -> list[Obj] | None:
    found: Any = spec.get("affinity", {}).get("nodeAffinity", {})
    for step in _REQUIRED_TERMS:
        found = (found or {}).get(step)
    return list(found) if found else None


def _narrows(old: list[Obj] | None, new: list[Obj] | None) -> bool:
    if not old:
        return True
    if not new or len(new) != len(old):
        return False
    return all(
        item in after.get(kind, ())
        for before, after in zip(old, new, strict=True)
        for kind in ("matchExpressions", "matchFields")
        for item in before.get(kind, ())
    )


def qos_class(spec: Obj) -> str:
    """Give the QoS class, by cpu and memory of all containers."""
    guaranteed, any_set = True, False
    for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
        resources = container.get("resources", {})
        limits, requests = resources.get("limits", {}), resources.get("requests", {})
        for name in ("cpu", "memory"):
            any_set = any_set or name in limits or name in requests
            if name not in limits or requests.get(name, limits[name]) != limits[name]:
                guaranteed = False
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"
