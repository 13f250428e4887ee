"""Asking first whether an installation would be allowed, so that none stops half-way."""

from typing import NamedTuple

from msgspec import Struct, json

from fairslice.kube.client import KubeClient
from fairslice.kube.errors import NotFound

__all__ = ["AccessDenied", "check_access"]

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class AccessDenied(PermissionError):
    """The kubeconfig's user may not install: the verbs and resources that are missing."""


class _Need(NamedTuple):
    verb: str
    group: str
    resource: str
    at_home: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


_CHANGED = (
    ("", "namespaces"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("fairslice.io", "sharingpolicies"),
    ("scheduling.k8s.io", "priorityclasses"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
)
_CHANGED_AT_HOME = (
    ("", "serviceaccounts"),
    ("", "secrets"),
    ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
)


def _needs() -> list[_Need]:
    verbs = ("create", "get", "update")
    return [
        *(_Need(verb, *what) for what in _CHANGED for verb in verbs),
        *(_Need(verb, *what, at_home=True) for what in _CHANGED_AT_HOME for verb in verbs),
        _Need("create", "", "serviceaccounts/token", at_home=True),
    ]


class _ReviewStatus(Struct, frozen=True):
    allowed: bool = False


class _Review(Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


async def check_access(client: KubeClient, namespace: str) -> None:
    """Ask the API server about everything that an installation does.

    Raises AccessDenied, naming what is missing, and ApiError.
    """
    try:
        missing = [str(need) for need in _needs() if not await _allowed(client, need, namespace)]
    except NotFound:
        return  # An API server without authorization reviews has nothing to ask.
    if missing:
        shown = ", ".join(missing[:4]) + (f" and {len(missing) - 4} more" if missing[4:] else "")
        raise AccessDenied(
            f"this user may not {shown} at {client.server}; installing takes a cluster admin"
        )


async def _allowed(client: KubeClient, need: _Need, namespace: str) -> bool:
    resource, _, subresource = need.resource.partition("/")
    attributes = {
        "verb": need.verb,
        "group": need.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace if need.at_home else "",
    }
    answer = await client.create(
        _REVIEWS,
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        },
    )
    return json.decode(answer, type=_Review).status.allowed
