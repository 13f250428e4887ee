"""Bringing an object to its wanted state, whether or not it is there already."""

import hashlib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import json

from fairslice.kube.client import MERGE_PATCH, KubeClient
from fairslice.kube.errors import AlreadyExists, Conflict, NotFound
from fairslice.stamps import SYSTEM

__all__ = ["MANAGED_BY", "Done", "collection_path", "ensure", "is_ours", "object_path"]

MANAGED_BY = {"app.kubernetes.io/managed-by": "fairslice", "app.kubernetes.io/part-of": "fairslice"}
_HASH = SYSTEM + "manifest"
_PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "ConfigMap": "configmaps",
    "CustomResourceDefinition": "customresourcedefinitions",
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "MutatingWebhookConfiguration": "mutatingwebhookconfigurations",
    "Namespace": "namespaces",
    "PriorityClass": "priorityclasses",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Secret": "secrets",
    "ServiceAccount": "serviceaccounts",
    "SharingPolicy": "sharingpolicies",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}
# Others write into these; only what we label is ours.
_LABELLED_ONLY = ("Namespace", "ServiceAccount")
_ATTEMPTS = 5


class Done(StrEnum):
    """What ensuring an object came to."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


def collection_path(obj: Mapping[str, Any]) -> str:
    """Return the API path of an object's collection."""
    version, namespace = str(obj["apiVersion"]), obj["metadata"].get("namespace")
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{_PLURALS[obj['kind']]}"


def object_path(obj: Mapping[str, Any]) -> str:
    """Return an object's API path."""
    return f"{collection_path(obj)}/{obj['metadata']['name']}"


def is_ours(obj: Mapping[str, Any]) -> bool:
    """Say whether fairslice made an object."""
    labels: Mapping[str, str] = obj["metadata"].get("labels") or {}
    return MANAGED_BY.items() <= labels.items()


async def ensure(client: KubeClient, wanted: Mapping[str, Any]) -> Done:
    """Create an object, or replace what is there if it differs.

    Others' labels and annotations are kept; all else becomes as wanted. Raises ApiError.
    """
    wanted = _marked(wanted)
    path = object_path(wanted)
    for attempt in range(_ATTEMPTS):
        # Not by creating: API servers compile all expressions of an object before they notice
        # that it is there, half a second for all entries of a webhook.
        try:
            live: dict[str, Any] = json.decode(await client.get(path))
        except NotFound:
            try:
                await client.create(collection_path(wanted), wanted)
            except AlreadyExists:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            return Done.CREATED
        if _within(wanted, live):
            return Done.UNCHANGED
        try:
            await _update(client, wanted, live)
        except Conflict:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return Done.UPDATED
    raise AssertionError("unreachable")


async def _update(client: KubeClient, wanted: Mapping[str, Any], live: dict[str, Any]) -> None:
    metadata = live["metadata"]
    ours = wanted["metadata"]
    merged = {key: {**(metadata.get(key) or {}), **ours[key]} for key in ("labels", "annotations")}
    if wanted["kind"] in _LABELLED_ONLY:
        await client.patch(object_path(wanted), {"metadata": merged}, MERGE_PATCH)
        return
    await client.replace(object_path(wanted), {**wanted, "metadata": {**metadata, **merged}})


def _marked(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Label an object as ours, with a hash that tells when a field was dropped."""
    digest = hashlib.sha256(json.encode(obj, order="deterministic")).hexdigest()[:16]
    metadata = obj["metadata"]
    return {
        **obj,
        "metadata": {
            **metadata,
            "labels": {**(metadata.get("labels") or {}), **MANAGED_BY},
            "annotations": {**(metadata.get("annotations") or {}), _HASH: digest},
        },
    }


def _within(wanted: object, live: object) -> bool:
    """Say whether all that is wanted is there; the server adds defaults to it."""
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            _within(value, live.get(key)) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return (
            isinstance(live, list) and len(live) == len(wanted) and all(map(_within, wanted, live))
        )
    return wanted == live or (not wanted and live is None)
