"""The built-in resources that the sandbox serves, and the objects a fresh cluster holds."""

from typing import Any

from .store import Resource

__all__ = ["BUILTIN", "VERBS", "initial_objects"]

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

# group/version | plural | Kind | N(amespaced) or C(luster) | short names | subresources
_TABLE = """
v1 | namespaces | Namespace | C | ns | status finalize
v1 | nodes | Node | C | no | status
v1 | pods | Pod | N | po | status binding \
eviction ephemeralcontainers log resize
v1 | services | Service | N | svc | status
v1 | configmaps | ConfigMap | N | cm |
v1 | secrets | Secret | N | |
v1 | serviceaccounts | ServiceAccount | N | sa | token
v1 | events | Event | N | ev |
v1 | podtemplates | PodTemplate | N | |
v1 | replicationcontrollers | ReplicationController | N | rc | status scale
v1 | resourcequotas | ResourceQuota | N | quota | status
v1 | limitranges | LimitRange | N | limits |
v1 | persistentvolumeclaims | PersistentVolumeClaim | N | pvc | status
v1 | persistentvolumes | PersistentVolume | C | pv | status
v1 | endpoints | Endpoints | N | ep |
events.k8s.io/v1 | events | Event | N | ev |
apps/v1 | deployments | Deployment | N | deploy | status scale
apps/v1 | replicasets | ReplicaSet | N | rs | status scale
apps/v1 | statefulsets | StatefulSet | N | sts | status scale
apps/v1 | daemonsets | DaemonSet | N | ds | status
apps/v1 | controllerrevisions | ControllerRevision | N | |
batch/v1 | jobs | Job | N |  | status
batch/v1 | cronjobs | CronJob | N | cj | status
autoscaling/v2 | horizontalpodautoscalers | HorizontalPodAutoscaler | N | hpa | status
coordination.k8s.io/v1 | leases | Lease | N | |
discovery.k8s.io/v1 | endpointslices | EndpointSlice | N | |
networking.k8s.io/v1 | networkpolicies | NetworkPolicy | N | netpol |
networking.k8s.io/v1 | ingresses | Ingress | N | ing | status
scheduling.k8s.io/v1 | priorityclasses | PriorityClass | C | pc |
policy/v1 | poddisruptionbudgets | PodDisruptionBudget | N | pdb | status
rbac.authorization.k8s.io/v1 | roles | Role | N | |
rbac.authorization.k8s.io/v1 | rolebindings | RoleBinding | N | |
rbac.authorization.k8s.io/v1 | clusterroles | ClusterRole | C | |
rbac.authorization.k8s.io/v1 | clusterrolebindings | ClusterRoleBinding | C | |
storage.k8s.io/v1 | storageclasses | StorageClass | C | sc |
node.k8s.io/v1 | runtimeclasses | RuntimeClass | C | |
resource.k8s.io/v1 | deviceclasses | DeviceClass | C | |
resource.k8s.io/v1 | resourceslices | ResourceSlice | C | |
resource.k8s.io/v1 | resourceclaims | ResourceClaim | N |  | status
resource.k8s.io/v1 | resourceclaimtemplates | ResourceClaimTemplate | N | |
apiextensions.k8s.io/v1 | customresourcedefinitions | CustomResourceDefinition | C | \
crd crds | status
admissionregistration.k8s.io/v1 | mutatingwebhookconfigurations | \
MutatingWebhookConfiguration | C | |
admissionregistration.k8s.io/v1 | validatingwebhookconfigurations | \
ValidatingWebhookConfiguration | C | |
admissionregistration.k8s.io/v1 | mutatingadmissionpolicies | MutatingAdmissionPolicy | C | |
admissionregistration.k8s.io/v1 | mutatingadmissionpolicybindings | \
MutatingAdmissionPolicyBinding | C | |
authentication.k8s.io/v1 | selfsubjectreviews | SelfSubjectReview | C | |
authentication.k8s.io/v1 | tokenreviews | TokenReview | C | |
authorization.k8s.io/v1 | selfsubjectaccessreviews | SelfSubjectAccessReview | C | |
authorization.k8s.io/v1 | subjectaccessreviews | SubjectAccessReview | C | |
authorization.k8s.io/v1 | selfsubjectrulesreviews | SelfSubjectRulesReview | C | |
authorization.k8s.io/v1 | localsubjectaccessreviews | LocalSubjectAccessReview | N | |
"""

# In `kubectl get all`.
_ALL = {
    *("pods", "services", "deployments", "replicasets", "statefulsets", "daemonsets"),
    *("jobs", "cronjobs", "horizontalpodautoscalers", "replicationcontrollers"),
}


def _parse(line: str) -> Resource:
    api_version, plural, kind, scope, short, subresources = (
        cell.strip() for cell in line.split("|")
    )
    group, _, version = api_version.rpartition("/")
    return Resource(
        group=group,
        version=version,
        plural=plural,
        kind=kind,
        singular=kind.lower(),
        namespaced=scope == "N",
        short_names=tuple(short.split()),
        categories=("all",) if plural in _ALL else (),
        subresources=frozenset(subresources.split()),
        storage="events" if plural == "events" else "",
    )


BUILTIN: tuple[Resource, ...] = tuple(map(_parse, _TABLE.strip().splitlines()))


def _role(name: str, *rules: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    role = {**kind, "metadata": {"name": name, "labels": labels}, "rules": list(rules)}
    return "clusterroles.rbac.authorization.k8s.io", role


def _rule(groups: str, resources: str, verbs: str) -> dict[str, Any]:
    return {
        "apiGroups": [] if groups == "-" else ["" if g == "core" else g for g in groups.split()],
        "resources": resources.split(),
        "verbs": verbs.split(),
    }


_READ = "get list watch"
_WRITE = "create delete deletecollection get list patch update watch"
# What the roles for people are about: per API group, the resources.
_PEOPLES: dict[str, str] = {
    "core": "pods services configmaps serviceaccounts podtemplates persistentvolumeclaims "
    "endpoints replicationcontrollers replicationcontrollers/scale",
    "apps": "deployments deployments/scale replicasets replicasets/scale statefulsets "
    "statefulsets/scale daemonsets",
    "batch": "jobs cronjobs",
    "autoscaling": "horizontalpodautoscalers",
    "policy": "poddisruptionbudgets",
    "networking.k8s.io": "networkpolicies ingresses",
    "resource.k8s.io": "resourceclaims resourceclaimtemplates",
}
_SEEN_ONLY = (
    "pods/log pods/status events namespaces resourcequotas resourcequotas/status limitranges"
)


def initial_objects() -> list[tuple[str, dict[str, Any]]]:
    """Give what a control plane creates for itself, as resource key and object, in order."""
    everything = _rule("*", "*", "*")
    read = [_rule(group, resources, _READ) for group, resources in _PEOPLES.items()]
    read += [_rule("core", _SEEN_ONLY, _READ), _rule("events.k8s.io", "events", _READ)]
    write = [_rule(group, resources, _WRITE) for group, resources in _PEOPLES.items()]
    write += [
        *read,
        _rule("core", "secrets pods/ephemeralcontainers", _WRITE),
        _rule("core", "pods/eviction serviceaccounts/token", "create"),
        _rule("core", "serviceaccounts", "impersonate"),
    ]
    rbac = _rule("rbac.authorization.k8s.io", "roles rolebindings", _WRITE)
    own = "selfsubjectaccessreviews selfsubjectrulesreviews selfsubjectreviews"
    basic = _rule("authorization.k8s.io authentication.k8s.io", own, "create")
    paths = {
        "nonResourceURLs": [
            *("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi"),
            *("/openapi/*", "/readyz", "/version", "/version/"),
        ],
        "verbs": ["get"],
    }
    objects: list[tuple[str, dict[str, Any]]] = [
        _role("cluster-admin", everything, {"nonResourceURLs": ["*"], "verbs": ["*"]}),
        _role("admin", *write, rbac),
        _role("edit", *write),
        _role("view", *read),
        _role("system:basic-user", basic),
        _role("system:discovery", paths),
        _role("system:auth-delegator", _rule("authentication.k8s.io", "tokenreviews", "create"),
              _rule("authorization.k8s.io", "subjectaccessreviews", "create")),
    ]  # fmt: skip
    bindings = (
        ("cluster-admin", "system:masters"),
        ("system:basic-user", "system:authenticated"),
        ("system:discovery", "system:authenticated"),
    )
    for role, group in bindings:
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": role},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
        }
        objects.append(("clusterrolebindings.rbac.authorization.k8s.io", binding))
    for name, value in (
        ("system-node-critical", 2_000_001_000),
        ("system-cluster-critical", 2_000_000_000),
    ):
        priority = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": "Used for system critical pods that must not be moved.",
        }
        objects.append(("priorityclasses.scheduling.k8s.io", priority))
    for name in ("default", "kube-system", "kube-public", "kube-node-lease"):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        objects.append(("namespaces", namespace))
    return objects
