"""What fairslice's two ServiceAccounts may do: each verb is there because some code uses it."""

from collections.abc import Iterable
from typing import Any

from fairslice.hiding_policy import HIDING_POLICY
from fairslice.kube.connection import QUEUE_ACCOUNT, WEBHOOK_ACCOUNT
from fairslice.v1alpha1 import GROUP
from fairslice.webhook_configuration import NAME, SUSPENDABLE

__all__ = ["access_objects"]

_READ = ("get", "list", "watch")
_RBAC = "rbac.authorization.k8s.io"
_CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_POLICIES = ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings")

Rule = dict[str, Any]


def access_objects(namespace: str) -> list[dict[str, Any]]:
    """Make the ServiceAccounts, their roles and bindings."""
    objects: list[dict[str, Any]] = []
    for account, everywhere, at_home in (
        (WEBHOOK_ACCOUNT, _webhook_rules(), _webhook_home_rules()),
        (QUEUE_ACCOUNT, _queue_rules(), _queue_home_rules()),
    ):
        objects += [
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": account, "namespace": namespace},
            },
            *_granted(account, namespace, "ClusterRole", everywhere),
            *_granted(account, namespace, "Role", at_home),
        ]
    return objects


def _webhook_rules() -> list[Rule]:
    return [
        _rule("", ("nodes", "namespaces", "pods"), _READ),
        _rule("apps", ("replicasets",), _READ),  # which pods of a rollout are surge
        _rule("batch", ("jobs",), _READ),  # whether an ownerReference is true
        _rule("scheduling.k8s.io", ("priorityclasses",), _READ),
        _rule("resource.k8s.io", ("resourceclaims", "resourceclaimtemplates"), _READ),
        _rule("resource.k8s.io", ("deviceclasses",), _READ),
        _rule(GROUP, ("teams", "sharingpolicies"), _READ),
        _rule("admissionregistration.k8s.io", (*_CONFIGURATIONS, *_POLICIES), (*_READ, "create")),
        *(
            _rule(
                "admissionregistration.k8s.io",
                kinds,
                ("update", "patch", "delete"),
                names=(name,),
            )
            for kinds, name in ((_CONFIGURATIONS, NAME), (_POLICIES, HIDING_POLICY))
        ),
        _rule("", ("events",), ("create", "patch")),
    ]


def _webhook_home_rules() -> list[Rule]:
    return [
        _rule("", ("secrets",), (*_READ, "create", "update", "patch")),  # its certificate
        _rule("", ("configmaps",), _READ),  # the brake
        _rule("discovery.k8s.io", ("endpointslices",), _READ),  # which replicas there are
        _rule("coordination.k8s.io", ("leases",), (*_READ, "create", "update", "patch", "delete")),
    ]


def _queue_rules() -> list[Rule]:
    groups = sorted({kind.group for kind in SUSPENDABLE} - {"batch"})
    return [
        _rule("", ("nodes", "namespaces"), _READ),
        _rule("", ("pods",), (*_READ, "create", "update", "patch", "delete")),
        _rule("", ("pods/eviction",), ("create",)),
        _rule("", ("podtemplates",), (*_READ, "create", "update", "patch", "delete")),
        _rule("", ("events",), ("create", "patch")),
        _rule("batch", ("jobs",), (*_READ, "create", "update", "patch", "delete")),
        _rule("batch", ("jobs/status",), ("get", "update", "patch")),
        _rule("batch", ("cronjobs",), _READ),
        _rule("apps", ("deployments", "replicasets", "statefulsets", "daemonsets"), _READ),
        *(
            _rule(
                group,
                [kind.plural for kind in SUSPENDABLE if kind.group == group],
                (*_READ, "update", "patch"),
            )
            for group in groups
        ),
        _rule("policy", ("poddisruptionbudgets",), _READ),
        _rule("resource.k8s.io", ("resourceclaims", "resourceclaimtemplates"), _READ),
        _rule("resource.k8s.io", ("deviceclasses",), _READ),
        _rule(
            "scheduling.k8s.io",
            ("priorityclasses",),
            (*_READ, "create", "update", "patch", "delete"),
        ),
        _rule(GROUP, ("teams", "sharingpolicies"), _READ),
        _rule(GROUP, ("teams/status", "sharingpolicies/status"), ("get", "update", "patch")),
        # Whether a submitter may still create what is to be restarted, a lead order the line.
        _rule("authorization.k8s.io", ("subjectaccessreviews",), ("create",)),
    ]


def _queue_home_rules() -> list[Rule]:
    return [
        _rule("coordination.k8s.io", ("leases",), (*_READ, "create", "update", "patch", "delete")),
        _rule("", ("configmaps",), (*_READ, "create", "update", "patch")),
    ]


def _rule(
    group: str, resources: Iterable[str], verbs: Iterable[str], *, names: tuple[str, ...] = ()
) -> Rule:
    rule: Rule = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    if names:
        rule["resourceNames"] = list(names)
    return rule


def _granted(account: str, namespace: str, kind: str, rules: list[Rule]) -> list[dict[str, Any]]:
    metadata = {"name": account}
    if kind == "Role":
        metadata["namespace"] = namespace
    return [
        {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata, "rules": rules},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{kind}Binding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        },
    ]
