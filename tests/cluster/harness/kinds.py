"""Where the API server keeps each kind of object that the suite handles."""

from typing import Any, NamedTuple

__all__ = ["KINDS", "Obj", "Place", "collection", "item"]

Obj = dict[str, Any]
"""An object as JSON: the suite reads and writes what a user would."""


class Place(NamedTuple):
    """An API version with the plural under which it serves a kind."""

    api_version: str
    plural: str
    namespaced: bool = True


KINDS = {
    "ClusterRole": Place("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": Place("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "ConfigMap": Place("v1", "configmaps"),
    "CronJob": Place("batch/v1", "cronjobs"),
    "CustomResourceDefinition": Place(
        "apiextensions.k8s.io/v1", "customresourcedefinitions", False
    ),
    "Deployment": Place("apps/v1", "deployments"),
    "Event": Place("v1", "events"),
    "Job": Place("batch/v1", "jobs"),
    "JobSet": Place("jobset.x-k8s.io/v1alpha2", "jobsets"),
    "Lease": Place("coordination.k8s.io/v1", "leases"),
    "MutatingWebhookConfiguration": Place(
        "admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", False
    ),
    "Namespace": Place("v1", "namespaces", False),
    "Node": Place("v1", "nodes", False),
    "Pod": Place("v1", "pods"),
    "PodDisruptionBudget": Place("policy/v1", "poddisruptionbudgets"),
    "PodTemplate": Place("v1", "podtemplates"),
    "PriorityClass": Place("scheduling.k8s.io/v1", "priorityclasses", False),
    "ReplicaSet": Place("apps/v1", "replicasets"),
    "RoleBinding": Place("rbac.authorization.k8s.io/v1", "rolebindings"),
    "ServiceAccount": Place("v1", "serviceaccounts"),
    "SharingPolicy": Place("fairslice.io/v1alpha1", "sharingpolicies", False),
    "StatefulSet": Place("apps/v1", "statefulsets"),
    "Team": Place("fairslice.io/v1alpha1", "teams", False),
    "ValidatingWebhookConfiguration": Place(
        "admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", False
    ),
}


def collection(kind: str, namespace: str = "") -> str:
    """Path of all objects of a kind, or of those in a namespace."""
    place = KINDS[kind]
    root = "/api/v1" if place.api_version == "v1" else f"/apis/{place.api_version}"
    inside = f"/namespaces/{namespace}" if namespace and place.namespaced else ""
    return f"{root}{inside}/{place.plural}"


def item(kind: str, name: str, namespace: str = "", subresource: str = "") -> str:
    """Path of one object, or of a subresource of it."""
    path = f"{collection(kind, namespace)}/{name}"
    return f"{path}/{subresource}" if subresource else path
