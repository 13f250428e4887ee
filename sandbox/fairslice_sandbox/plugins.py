"""The built-in admission plugins that webhooks live among.

Source: k8s.io/kubernetes/plugin/pkg/admission (namespace/lifecycle, serviceaccount,
defaulttolerationseconds, priority, runtimeclass, resourcequota).
"""

from fractions import Fraction
from typing import Any

from fairslice.quantity import parse_quantity

from .attributes import Attributes
from .errors import forbidden, not_found
from .names import generate_name
from .quantities import canonical
from .store import Obj, Store

__all__ = ["Plugins"]

_PRIORITIES = "priorityclasses.scheduling.k8s.io"
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_UNDELETABLE = ("default", "kube-system", "kube-public")
_IN_TERMINATING = ("events", "leases.coordination.k8s.io")


class Plugins:
    """Mutating and validating plugins, in the API server's order."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def admit(self, request: Attributes) -> None:
        """Run the mutating phase: changes request.object. Raises ApiError 403, 404."""
        self._namespace(request)
        if request.resource.key != "pods" or request.subresource:
            return
        pod = request.object
        if pod is None:
            return
        if request.operation == "CREATE":
            self._service_account(request, pod)
            self._runtime_class(request, pod["spec"])
            _default_tolerations(pod["spec"])
        self._priority(request, pod)

    def check_quota(self, request: Attributes) -> None:
        """Hold a new pod against the ResourceQuotas of its namespace. Raises ApiError 403."""
        if (request.resource.key, request.operation, request.subresource) != ("pods", "CREATE", ""):
            return
        assert request.object is not None
        asked = _usage(request.object)
        for quota in self._store.list("resourcequotas", request.namespace):
            hard = quota.get("spec", {}).get("hard", {})
            limited = {name: hard[name] for name in hard if name in asked}
            used = self._used(request.namespace, limited)
            over = [
                name
                for name, limit in limited.items()
                if used.get(name, Fraction(0)) + asked.get(name, Fraction(0))
                > parse_quantity(limit)
                and asked.get(name)
            ]
            if over:
                raise forbidden("pods", request.name, _exceeded(quota, over, asked, used, hard))

    def quota_status(self, quota: Obj) -> Obj:
        """Give the status of a ResourceQuota: hard and used."""
        hard = quota.get("spec", {}).get("hard", {})
        used = self._used(quota["metadata"]["namespace"], hard)
        shown = {name: canonical(str(float(used.get(name, 0)))) for name in hard}
        return {"hard": hard, "used": shown}

    def _used(self, namespace: str, names: Any) -> dict[str, Fraction]:
        total: dict[str, Fraction] = {}
        for pod in self._store.list("pods", namespace):
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            for name, amount in _usage(pod).items():
                if name in names:
                    total[name] = total.get(name, Fraction(0)) + amount
        return total

    def _namespace(self, request: Attributes) -> None:
        if request.resource.key == "namespaces":
            if request.operation == "DELETE" and request.name in _UNDELETABLE:
                raise forbidden("namespaces", request.name, "this namespace may not be deleted")
            return
        if not request.resource.namespaced or request.operation != "CREATE":
            return
        namespace = self._store.get("namespaces", "", request.namespace)
        if namespace is None:
            raise not_found("namespaces", request.namespace)
        if namespace["metadata"].get("deletionTimestamp") is None or request.subresource:
            return
        if request.resource.key not in _IN_TERMINATING:
            error = forbidden(
                request.resource.key,
                request.name,
                f"unable to create new content in namespace {request.namespace} because it is "
                "being terminated",
            )
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {request.namespace} is being terminated",
                "field": "metadata.namespace",
            }
            error.details = {**(error.details or {}), "causes": [cause]}
            raise error

    def _service_account(self, request: Attributes, pod: Obj) -> None:
        if "kubernetes.io/config.mirror" in (pod["metadata"].get("annotations") or {}):
            return
        spec = pod["spec"]
        name = spec.setdefault("serviceAccountName", "default")
        spec["serviceAccount"] = name
        account = self._store.get("serviceaccounts", request.namespace, name)
        if account is None:
            raise forbidden(
                "pods",
                request.name,
                f"error looking up service account {request.namespace}/{name}: "
                f'serviceaccount "{name}" not found',
            )
        if "imagePullSecrets" in account and "imagePullSecrets" not in spec:
            spec["imagePullSecrets"] = account["imagePullSecrets"]
        mounts = spec.get("automountServiceAccountToken")
        if mounts is None:
            mounts = account.get("automountServiceAccountToken", True)
        if mounts:
            _mount_token(spec)

    def _runtime_class(self, request: Attributes, spec: Obj) -> None:
        name = spec.get("runtimeClassName")
        if not name:
            return
        runtime = self._store.get("runtimeclasses.node.k8s.io", "", name)
        if runtime is None:
            raise forbidden("pods", request.name, f'pod rejected: RuntimeClass "{name}" not found')
        if overhead := runtime.get("overhead", {}).get("podFixed"):
            spec["overhead"] = overhead
        if selector := runtime.get("scheduling", {}).get("nodeSelector"):
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **selector}

    def _priority(self, request: Attributes, pod: Obj) -> None:
        spec = pod["spec"]
        if request.operation == "UPDATE":
            before = (request.old or {}).get("spec", {})
            for field in ("priority", "preemptionPolicy"):
                if field in before:
                    spec.setdefault(field, before[field])
            return
        name = spec.get("priorityClassName", "")
        chosen = self._store.get(_PRIORITIES, "", name) if name else self._default_class()
        if name and chosen is None:
            raise forbidden("pods", request.name, f"no PriorityClass with name {name} was found")
        if chosen is not None and not name:
            spec["priorityClassName"] = chosen["metadata"]["name"]
        value = chosen["value"] if chosen else 0
        policy = chosen["preemptionPolicy"] if chosen else "PreemptLowerPriority"
        if spec.setdefault("priority", value) != value:
            raise forbidden(
                "pods",
                request.name,
                f"the integer value of priority ({spec['priority']}) must not be provided in pod "
                f"spec; priority admission controller computed {value} from the given "
                "PriorityClass name",
            )
        if spec.setdefault("preemptionPolicy", policy) != policy:
            raise forbidden(
                "pods",
                request.name,
                f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be "
                f"provided in pod spec; priority admission controller computed {policy} from the "
                "given PriorityClass name",
            )

    def _default_class(self) -> Obj | None:
        defaults = [item for item in self._store.list(_PRIORITIES) if item.get("globalDefault")]
        return min(defaults, key=lambda item: int(item["value"]), default=None)


def _mount_token(spec: Obj) -> None:
    containers = [*spec.get("initContainers", ()), *spec.get("containers", ())]
    bare = [
        container
        for container in containers
        if all(mount.get("mountPath") != _TOKEN_PATH for mount in container.get("volumeMounts", ()))
    ]
    if not bare:
        return
    existing = (volume.get("name", "") for volume in spec.get("volumes", ()))
    name = next((found for found in existing if found.startswith("kube-api-access-")), "")
    if not name:
        name = generate_name("kube-api-access-")
        spec.setdefault("volumes", []).append(_token_volume(name))
    for container in bare:
        mount = {"name": name, "readOnly": True, "mountPath": _TOKEN_PATH}
        container.setdefault("volumeMounts", []).append(mount)


def _token_volume(name: str) -> Obj:
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    certificate = {"key": "ca.crt", "path": "ca.crt"}
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [certificate]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
    ]
    return {"name": name, "projected": {"sources": sources, "defaultMode": 420}}


def _default_tolerations(spec: Obj) -> None:
    tolerations = spec.get("tolerations", [])
    for condition in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{condition}"
        tolerated = any(
            item.get("key", key) == key and item.get("effect", "NoExecute") == "NoExecute"
            for item in tolerations
        )
        if not tolerated:
            added = {"key": key, "operator": "Exists", "effect": "NoExecute"}
            tolerations = [*tolerations, {**added, "tolerationSeconds": 300}]
    spec["tolerations"] = tolerations


def _usage(pod: Obj) -> dict[str, Fraction]:
    """Give what a pod counts for in a ResourceQuota, by the quota's names."""
    usage: dict[str, Fraction] = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for kind in ("requests", "limits"):
        total: dict[str, Fraction] = {}
        for container in pod["spec"].get("containers", ()):
            for name, value in container.get("resources", {}).get(kind, {}).items():
                total[name] = total.get(name, Fraction(0)) + parse_quantity(value)
        for container in pod["spec"].get("initContainers", ()):
            for name, value in container.get("resources", {}).get(kind, {}).items():
                amount = parse_quantity(value)
                if container.get("restartPolicy") == "Always":
                    total[name] = total.get(name, Fraction(0)) + amount
                else:
                    total[name] = max(total.get(name, Fraction(0)), amount)
        usage |= {f"{kind}.{name}": amount for name, amount in total.items()}
    for name in ("cpu", "memory"):
        if f"requests.{name}" in usage:
            usage[name] = usage[f"requests.{name}"]
    return usage


def _exceeded(
    quota: Obj, over: list[str], asked: dict[str, Fraction], used: dict[str, Fraction], hard: Obj
) -> str:
    def spell(amounts: dict[str, Fraction]) -> str:
        return ",".join(f"{name}={canonical(str(float(amounts.get(name, 0))))}" for name in over)

    limited = ",".join(f"{name}={hard[name]}" for name in over)
    return (
        f"exceeded quota: {quota['metadata']['name']}, requested: {spell(asked)}, "
        f"used: {spell(used)}, limited: {limited}"
    )
