"""What fairslice registers with the API server: which requests it wants to see, and how.

Entries that fail closed see only requests that ask for GPUs or touch what is in the books;
everything else is either never sent or sent under Ignore.
"""

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from fairslice import match_conditions as cel
from fairslice import stamps
from fairslice.kube.connection import QUEUE_ACCOUNT
from fairslice.v1alpha1 import GROUP, VERSION

__all__ = [
    "NAME",
    "Path",
    "PlainPods",
    "Target",
    "WatchedKind",
    "mutating_configuration",
    "validating_configuration",
]

NAME = "fairslice"
"""Name of both configurations."""

SYSTEM_NAMESPACES = ("kube-system", "kube-node-lease")


class Path(StrEnum):
    """Last part of the URL path: what is asked of the webhook."""

    MUTATE = "mutate"
    HIDE = "hide"
    VALIDATE = "validate"
    ADVISE = "advise"
    RESOURCES = "resources"


class PlainPods(StrEnum):
    """Where pods without GPUs are hidden from them.

    `SENT`: each is sent to the webhook. `IN_PROCESS`: the API server does it by itself, and
    sends only those that open a way to devices which guards close.
    """

    SENT = "sent"
    IN_PROCESS = "in-process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the API server finds the webhook.

    `url` is the base of the URL form; without it, the Service `service` in `namespace` is
    named. `secret_path` is the random path that keeps pods from posting reviews; `ca_bundle`
    is PEM. `excluded` namespaces never reach the webhook, besides the system's and our own.
    `resources` are the names that stand for GPUs on this cluster beside the well-known ones.
    """

    namespace: str
    secret_path: str = field(repr=False)
    ca_bundle: bytes = field(repr=False, default=b"")
    url: str | None = None
    service: str = "fairslice-webhook"
    excluded: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    def client_config(self, path: Path) -> dict[str, Any]:
        """Make an entry's clientConfig."""
        whole = f"/{self.secret_path}/{path}"
        config: dict[str, Any]
        if self.url is not None:
            config = {"url": self.url + whole}
        else:
            config = {
                "service": {
                    "namespace": self.namespace,
                    "name": self.service,
                    "path": whole,
                    "port": 443,
                }
            }
        if self.ca_bundle:
            config["caBundle"] = b64encode(self.ca_bundle).decode()
        return config

    @property
    def queue_account(self) -> str:
        """The user as whom the queue writes."""
        return f"system:serviceaccount:{self.namespace}:{QUEUE_ACCOUNT}"

    def namespace_selector(self) -> dict[str, Any]:
        """Leave out the namespaces that fairslice must never stand in the way of."""
        names = dict.fromkeys((*SYSTEM_NAMESPACES, self.namespace, *self.excluded))
        return {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": list(names),
                }
            ]
        }


class WatchedKind(NamedTuple):
    """A kind and the paths of its pod templates, or else the condition that finds what asks."""

    group: str
    plural: str
    templates: tuple[str, ...] = ()
    condition: Callable[[Collection[str]], str] | None = None

    def asks(self, names: Collection[str]) -> str:
        """Write the condition for objects that ask for GPUs, these names among them."""
        if self.condition is not None:
            return self.condition(names)
        return cel.asks_for_gpus(*self.templates, names=names)


def _ray(root: str) -> tuple[str, ...]:
    return (f"{root}.headGroupSpec.template", f"{root}.workerGroupSpecs[].template")


_TEMPLATED = (
    WatchedKind("batch", "jobs", ("spec.template",)),
    WatchedKind("jobset.x-k8s.io", "jobsets", ("spec.replicatedJobs[].template.spec.template",)),
    WatchedKind("ray.io", "rayjobs", (*_ray("spec.rayClusterSpec"), "spec.submitterPodTemplate")),
    WatchedKind("ray.io", "rayclusters", _ray("spec")),
    WatchedKind("ray.io", "rayservices", _ray("spec.rayClusterConfig")),
    *(
        WatchedKind("kubeflow.org", f"{name}jobs", (f"spec.{specs}ReplicaSpecs{{}}.template",))
        for name, specs in (
            ("mpi", "mpi"),
            ("pytorch", "pytorch"),
            ("tf", "tf"),
            ("xgboost", "xgb"),
            ("paddle", "paddle"),
            ("jax", "jax"),
        )
    ),
)
_TEMPLATES = tuple(dict.fromkeys(path for kind in _TEMPLATED for path in kind.templates))

SUSPENDABLE = (
    *_TEMPLATED,
    WatchedKind("trainer.kubeflow.org", "trainjobs", condition=cel.train_job_asks),
    WatchedKind(
        "workload.codeflare.dev",
        "appwrappers",
        condition=lambda names: cel.app_wrapper_asks(*_TEMPLATES, names=names),
    ),
    WatchedKind("sparkoperator.k8s.io", "sparkapplications", condition=cel.spark_asks),
)
"""Kinds that are queued as a whole. Rules for a kind that isn't installed cost nothing."""

ROLLED_OUT = (
    WatchedKind("apps", "deployments", ("spec.template",)),
    WatchedKind("apps", "statefulsets", ("spec.template",)),
    WatchedKind("apps", "daemonsets", ("spec.template",)),
)
"""Kinds that are decided at their pods; applying them only warns."""


def mutating_configuration(
    target: Target, plain_pods: PlainPods = PlainPods.SENT
) -> dict[str, Any]:
    """Make the MutatingWebhookConfiguration."""
    in_process = plain_pods is PlainPods.IN_PROCESS
    conditions = {"not-asking": cel.not_asking(target.resources, hidden_in_process=in_process)}
    if in_process:
        conditions["opens"] = cel.opens_devices()
    plain = _entry(
        target,
        "guards" if in_process else "hide",
        Path.HIDE,
        rules=[
            _rule("", ("pods",), ("CREATE",), version="v1"),
            _rule("", ("pods/ephemeralcontainers",), ("UPDATE",), version="v1"),
        ],
        conditions=conditions,
        fail=False,
        seconds=1,
    )
    workloads = [_workload(target, kind, Path.MUTATE) for kind in SUSPENDABLE]
    pods = _gpu_pods(target, Path.MUTATE, plain_pods)
    claims = _claims(target, Path.MUTATE)
    # What the queue keeps there it creates again under its own name.
    manifests = _entry(
        target,
        "manifests",
        Path.MUTATE,
        rules=[_rule("", ("podtemplates",), version="v1")],
        conditions={"changes": cel.changes(), "stamped": cel.stamped()},
    )
    found = (pods, plain, *workloads, *claims, manifests)
    entries = [{**each, "reinvocationPolicy": "IfNeeded"} for each in found]
    return _configuration("MutatingWebhookConfiguration", entries)


def validating_configuration(
    target: Target, plain_pods: PlainPods = PlainPods.SENT
) -> dict[str, Any]:
    """Make the ValidatingWebhookConfiguration."""
    advise = _entry(
        target,
        "advise",
        Path.ADVISE,
        rules=[_rule("apps", [kind.plural for kind in ROLLED_OUT])],
        conditions={
            "changes": cel.changes(),
            "asks": cel.asks_for_gpus("spec.template", names=target.resources),
        },
        fail=False,
        seconds=1,
    )
    resources = _entry(
        target,
        "resources",
        Path.RESOURCES,
        rules=[_rule(GROUP, ("teams", "sharingpolicies"), version=VERSION)],
        # Down or not, whoever runs the cluster must be able to change the policy.
        fail=False,
        seconds=2,
    )
    workloads = [_workload(target, kind, Path.VALIDATE) for kind in SUSPENDABLE]
    pods = _gpu_pods(target, Path.VALIDATE, plain_pods)
    claims = _claims(target, Path.VALIDATE)
    namespaces = _entry(
        target,
        "namespaces",
        Path.VALIDATE,
        rules=[_rule("", ("namespaces",), version="v1")],
        conditions={"grants": cel.admin_access_granted()},
    )
    return _configuration(
        "ValidatingWebhookConfiguration",
        [pods, *workloads, *claims, namespaces, advise, resources],
    )


def _gpu_pods(target: Target, path: Path, plain_pods: PlainPods) -> dict[str, Any]:
    in_process = plain_pods is PlainPods.IN_PROCESS
    asks = cel.pod_asks(target.resources, hidden_in_process=in_process)
    rules = [_rule("", ("pods", "pods/ephemeralcontainers"), version="v1")]
    if path is Path.VALIDATE:
        # What is booked is checked where it begins; a later change is decided by the mutating
        # call alone.
        rules = [
            _rule("", ("pods",), ("CREATE",), version="v1"),
            _rule("", ("pods/ephemeralcontainers",), ("UPDATE",), version="v1"),
        ]
    return _entry(
        target,
        "gpu-pods",
        path,
        rules=rules,
        conditions={
            "others": cel.by_others(target.queue_account),
            "changes": cel.changes(devices=True),
            "asks": asks,
        },
    )


def _workload(target: Target, kind: WatchedKind, path: Path) -> dict[str, Any]:
    name = f"gpu-{kind.plural}"
    if path is Path.VALIDATE:
        # What is booked has its label by now, and a selector costs next to nothing beside CEL.
        rule = _rule(kind.group, (kind.plural,), ("CREATE",))
        return _entry(target, name, path, rules=[rule], labels={stamps.LABEL_MANAGED: "true"})
    conditions = {
        "others": cel.by_others(target.queue_account),
        "changes": cel.changes(),
        "asks": kind.asks(target.resources),
    }
    rule = _rule(kind.group, (kind.plural,), ("CREATE", "UPDATE"))
    return _entry(target, name, path, rules=[rule], conditions=conditions)


def _claims(target: Target, path: Path) -> list[dict[str, Any]]:
    """Make the entries for DRA claims: those that may be about GPUs fail closed, others don't."""
    rule = _rule("resource.k8s.io", ("resourceclaims", "resourceclaimtemplates"))
    about_gpus = cel.claims_gpus()
    return [
        _entry(
            target,
            name,
            path,
            rules=[rule],
            conditions={"changes": cel.changes(), "asks": condition},
            fail=fail,
            seconds=5 if fail else 1,
        )
        for name, condition, fail in (
            ("gpu-claims", about_gpus, True),
            ("claims", f"!({about_gpus})", False),
        )
    ]


def _rule(
    group: str,
    resources: Iterable[str],
    operations: Iterable[str] = ("CREATE", "UPDATE"),
    *,
    version: str = "*",
) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": list(operations),
        "resources": list(resources),
        "scope": "*",
    }


def _entry(
    target: Target,
    name: str,
    path: Path,
    *,
    rules: list[dict[str, Any]],
    conditions: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    fail: bool = True,
    seconds: int = 5,
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": f"{name}.{GROUP}",
        "admissionReviewVersions": ["v1"],
        "clientConfig": target.client_config(path),
        "failurePolicy": "Fail" if fail else "Ignore",
        "matchPolicy": "Equivalent",
        "namespaceSelector": target.namespace_selector(),
        "objectSelector": {"matchLabels": labels} if labels else {},
        "rules": rules,
        "sideEffects": "NoneOnDryRun",
        "timeoutSeconds": seconds,
    }
    if conditions:
        entry["matchConditions"] = [
            {"name": key, "expression": text} for key, text in conditions.items()
        ]
    return entry


def _configuration(kind: str, entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": NAME},
        "webhooks": entries,
    }
