"""Label and field selectors: those of query strings and those of objects.

Source: k8s.io/apimachinery/pkg/labels (selector.go) and pkg/fields.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from .errors import bad_request
from .store import Obj

__all__ = ["Matcher", "field_matcher", "label_matcher", "matches_selector", "value_at"]

Matcher = Callable[[Obj], bool]

_SET = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")
_PARTS = re.compile(r",(?![^(]*\))")


def _requirement(text: str) -> Callable[[Mapping[str, str]], bool]:
    if found := _SET.match(text):
        key, operator, listed = found.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    for sign in ("!=", "==", "=", ">", "<"):
        key, found_sign, wanted = (part.strip() for part in text.partition(sign))
        if not found_sign:
            continue
        if sign == "!=":
            return lambda labels: labels.get(key) != wanted
        if sign in ("=", "=="):
            return lambda labels: labels.get(key) == wanted
        if not wanted.lstrip("-").isdigit():
            break
        bound, above = int(wanted), sign == ">"
        return lambda labels: _compare(labels.get(key), bound, above=above)
    if text.startswith("!"):
        absent = text[1:].strip()
        return lambda labels: absent not in labels
    if re.fullmatch(r"[\w./-]+", text):
        return lambda labels: text in labels
    raise bad_request(f"unable to parse requirement: {text!r}")


def _compare(value: str | None, bound: int, *, above: bool) -> bool:
    if value is None or not value.lstrip("-").isdigit():
        return False
    return int(value) > bound if above else int(value) < bound


@lru_cache(maxsize=1024)
def label_matcher(selector: str) -> Matcher | None:
    """Compile a label selector from a query; None matches everything. Raises ApiError 400."""
    parts = [part.strip() for part in _PARTS.split(selector) if part.strip()]
    if not parts:
        return None
    requirements = [_requirement(part) for part in parts]

    def matches(obj: Obj) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(requirement(labels) for requirement in requirements)

    return matches


def value_at(obj: Obj, path: str) -> str:
    """Give the text at a dotted path, "" if there is none."""
    found: Any = obj
    for step in path.split("."):
        if not isinstance(found, dict):
            return ""
        found = found.get(step)
    if found is None:
        return ""
    return str(found).lower() if isinstance(found, bool) else str(found)


_SUPPORTED = {
    "pods": {
        *("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.phase"),
        *("spec.serviceAccountName", "spec.hostNetwork", "status.podIP"),
        "status.nominatedNodeName",
    },
    "nodes": {"spec.unschedulable"},
    "events": {
        *(f"involvedObject.{field}" for field in ("kind", "namespace", "name", "uid")),
        *("involvedObject.apiVersion", "involvedObject.resourceVersion"),
        *("involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"),
    },
    "namespaces": {"status.phase"},
    "secrets": {"type"},
    "jobs.batch": {"status.successful"},
    "replicasets.apps": {"status.replicas"},
}
_ALWAYS = {"metadata.name", "metadata.namespace"}
_RENAMED = {"source": "source.component", "status.successful": "status.succeeded"}


@lru_cache(maxsize=1024)
def field_matcher(resource: str, selector: str) -> Matcher | None:
    """Compile a field selector of a resource; None matches everything. Raises ApiError 400."""
    tests: list[tuple[str, str, bool]] = []
    for part in filter(None, selector.split(",")):
        key, sign, wanted = part.partition("=")
        equal = not key.endswith("!")
        key, wanted = key.rstrip("!"), wanted.lstrip("=")
        if not sign or key not in _ALWAYS | _SUPPORTED.get(resource, set()):
            raise bad_request(
                f"Unable to find {resource!r} that match field selector {selector!r}: "
                f"field label not supported: {key}"
            )
        tests.append((_RENAMED.get(key, key), wanted, equal))
    if not tests:
        return None
    return lambda obj: all((value_at(obj, path) == want) == eq for path, want, eq in tests)


def matches_selector(selector: Obj | None, labels: Mapping[str, str]) -> bool:
    """Match a metav1.LabelSelector; an absent one matches everything, as webhooks want it."""
    if not selector:
        return True
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for expression in selector.get("matchExpressions") or ():
        key = expression.get("key", "")
        present = key in labels
        listed = labels.get(key) in (expression.get("values") or ())
        holds = {
            "In": present and listed,
            "NotIn": not listed,
            "Exists": present,
            "DoesNotExist": not present,
        }
        if not holds.get(expression.get("operator", ""), False):
            return False
    return True
