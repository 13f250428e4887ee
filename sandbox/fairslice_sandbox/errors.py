"""Failures of API calls, as Kubernetes words them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "ApiError",
    "Cause",
    "already_exists",
    "bad_request",
    "conflict",
    "forbidden",
    "gone",
    "internal",
    "invalid",
    "method_not_allowed",
    "not_found",
    "unknown_path",
]


class Cause(NamedTuple):
    """One invalid field: machine-readable reason, message and path."""

    reason: str
    message: str
    field: str


@dataclass
class ApiError(Exception):
    """An API call failed: HTTP code, reason and message of the Kubernetes Status."""

    code: int
    reason: str
    message: str
    details: dict[str, Any] | None = None

    def __str__(self) -> str:
        return self.message

    def status(self) -> dict[str, Any]:
        """Build the metav1.Status that a client receives."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        if self.details:
            body["details"] = self.details
        return body | {"code": self.code}


def _details(resource: str, name: str, group: str | None = None) -> dict[str, Any]:
    if group is None:
        resource, _, group = resource.partition(".")
    details = {"name": name, "group": group, "kind": resource}
    return {key: value for key, value in details.items() if value}


def not_found(resource: str, name: str) -> ApiError:
    """404 for an object; resource is the plural with its group, as in jobs.batch."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', _details(resource, name))


def unknown_path() -> ApiError:
    """404 for a path or resource that the server does not serve."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(resource: str, name: str) -> ApiError:
    """409 for the creation of what is there."""
    return ApiError(
        409, "AlreadyExists", f'{resource} "{name}" already exists', _details(resource, name)
    )


def conflict(resource: str, name: str, why: str = "") -> ApiError:
    """409 for a stale resourceVersion or a failed precondition."""
    why = why or (
        "the object has been modified; "
        "please apply your changes to the latest version and try again"
    )
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource} "{name}": {why}',
        _details(resource, name),
    )


def forbidden(resource: str, name: str, why: str) -> ApiError:
    """403 from authorization or an admission plugin."""
    named = f'{resource} "{name}"' if name else resource
    return ApiError(403, "Forbidden", f"{named} is forbidden: {why}", _details(resource, name))


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """422 with one cause a field, worded like field.ErrorList."""
    errors = [f"{cause.field}: {cause.message}" for cause in causes]
    joined = errors[0] if len(errors) == 1 else "[" + ", ".join(dict.fromkeys(errors)) + "]"
    qualified = f"{kind}.{group}" if group else kind
    details = _details(kind, name, group) | {"causes": [cause._asdict() for cause in causes]}
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {joined}', details)


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", message)


def gone(message: str) -> ApiError:
    """410 for an expired watch or continue token."""
    return ApiError(410, "Expired", message)


def method_not_allowed(resource: str = "") -> ApiError:
    """405."""
    return ApiError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        {"kind": resource} if resource else None,
    )


def internal(message: str) -> ApiError:
    """500."""
    return ApiError(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        {"causes": [{"message": message}]},
    )
