"""Syntax of names, labels and annotations.

Source: k8s.io/apimachinery/pkg/util/validation, pkg/api/validation.
"""

import re
import secrets
from collections.abc import Iterator
from typing import Any

from .errors import Cause
from .store import Obj

__all__ = ["LABEL", "bad", "generate_name", "is_qualified", "validate_metadata"]

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME_PART = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_ANNOTATIONS_LIMIT = 256 * 1024
# Without vowels and look-alikes: k8s.io/apimachinery/pkg/util/rand.
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_LABEL_MESSAGE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
    "and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', "
    "regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_MESSAGE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_QUALIFIED_MESSAGE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end "
    "with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_MESSAGE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


def bad(field: str, value: Any, message: str) -> Cause:
    """A field.Invalid."""
    shown = f'"{value}"' if isinstance(value, str) else str(value)
    return Cause("FieldValueInvalid", f"Invalid value: {shown}: {message}", field)


def generate_name(base: str) -> str:
    """Add five random characters, cutting the base to 58."""
    return base[:58] + "".join(secrets.choice(_ALPHABET) for _ in range(5))


def is_qualified(name: str) -> bool:
    """Say whether it is a label key: an optional DNS prefix and a name."""
    prefix, slash, rest = name.rpartition("/")
    if slash and (not _SUBDOMAIN.fullmatch(prefix) or len(prefix) > 253):
        return False
    return bool(_NAME_PART.fullmatch(rest))


def _name_rule(key: str) -> tuple[re.Pattern[str], int, str]:
    if key in ("namespaces",):
        return LABEL, 63, _LABEL_MESSAGE
    if key == "services":
        return _SERVICE, 63, "a DNS-1035 label must consist of lower case alphanumeric characters"
    if "rbac.authorization.k8s.io" in key:
        return re.compile(r"(?!\.{1,2}$)[^/%]+"), 253, "may not contain '/' or '%'"
    return _SUBDOMAIN, 253, _SUBDOMAIN_MESSAGE


def validate_metadata(key: str, meta: Obj) -> Iterator[Cause]:
    """Check the metadata of an object that has its final name."""
    pattern, longest, message = _name_rule(key)
    name = meta.get("name", "")
    if not name:
        message = "name or generateName is required"
        yield Cause("FieldValueRequired", f"Required value: {message}", "metadata.name")
    elif not pattern.fullmatch(name):
        yield bad("metadata.name", name, message)
    elif len(name) > longest:
        yield bad("metadata.name", name, f"must be no more than {longest} bytes")
    yield from validate_labels(meta, "metadata")
    for finalizer in meta.get("finalizers") or ():
        if not is_qualified(finalizer):
            yield bad("metadata.finalizers", finalizer, _QUALIFIED_MESSAGE)
    for index, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                path = f"metadata.ownerReferences[{index}].{field}"
                yield bad(path, "", f"{field} must not be empty")


def validate_labels(meta: Obj, path: str) -> Iterator[Cause]:
    """Check labels and annotations."""
    for key, value in (meta.get("labels") or {}).items():
        if not is_qualified(key):
            yield bad(f"{path}.labels", key, _QUALIFIED_MESSAGE)
        if not _VALUE.fullmatch(value):
            yield bad(f"{path}.labels", value, _VALUE_MESSAGE)
    annotations = meta.get("annotations") or {}
    for key in annotations:
        if not is_qualified(key.lower()):
            yield bad(f"{path}.annotations", key, _QUALIFIED_MESSAGE)
    if sum(len(key) + len(value) for key, value in annotations.items()) > _ANNOTATIONS_LIMIT:
        message = f"Too long: may not be more than {_ANNOTATIONS_LIMIT} bytes"
        yield Cause("FieldValueTooLong", message, f"{path}.annotations")
