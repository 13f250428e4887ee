"""A cluster's worth of policy, teams and nodes, and people who submit things to it."""

import base64
import itertools
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import jsonpatch
import msgspec
from prometheus_client import CollectorRegistry

from fairslice.inventory import Inventory
from fairslice.kube.objects import Node
from fairslice.policy import Policy, Team
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import TeamSpec
from fairslice_queue.ledger import Ledger
from fairslice_webhook.admission import Admission
from fairslice_webhook.decide import Phase
from fairslice_webhook.decision import AuditRecord
from fairslice_webhook.metrics import WebhookMetrics
from fairslice_webhook.view import Call, Priority, View

GPU = "nvidia.com/gpu"
SLICE_10 = "nvidia.com/mig-1g.10gb"
SLICE_20 = "nvidia.com/mig-2g.20gb"
QUEUE = "system:serviceaccount:fairslice-system:fairslice-queue"
RS_CONTROLLER = "system:serviceaccount:kube-system:replicaset-controller"
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
NOW = 1_800_000_000.0

FEATURES = ("hide", "guards", "rewrite", "quota", "queue")
PRIORITY_CLASSES = {
    "fairslice-production": Priority(1_000_000, "Never"),
    "fairslice-training": Priority(990_000, "Never"),
    "fairslice-experiment": Priority(980_000, "Never"),
}

A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/mig.strategy": "mixed",
}
T4_SHARED = {
    "nvidia.com/gpu.product": "Tesla-T4-SHARED",
    "nvidia.com/gpu.memory": "15360",
    "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/gpu.sharing-strategy": "time-slicing",
}
T4 = {
    "nvidia.com/gpu.product": "Tesla-T4",
    "nvidia.com/gpu.memory": "15360",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.replicas": "1",
}


def modes(mode: str = "Enforce", **others: str) -> dict[str, str]:
    return {feature: others.get(feature, mode) for feature in FEATURES}


def policy(mode: Mapping[str, str] | None = None, **spec: Any) -> Policy:
    body: dict[str, Any] = {
        "mode": dict(mode or modes()),
        "pools": [
            {"name": "a100", "products": ["NVIDIA-A100-*"]},
            {"name": "t4", "products": ["Tesla-T4*"]},
        ],
        **spec,
    }
    return Policy.compile(msgspec.convert(body, SharingPolicySpec))


def team(name: str = "nlp", **spec: Any) -> Team:
    body: dict[str, Any] = {
        "namespaces": [name],
        "pools": [{"pool": "a100", "guaranteed": "2", "limit": "4"}],
        "allowedClasses": ["production", "training", "experiment"],
        **spec,
    }
    return Team.compile(name, f"uid-{name}", msgspec.convert(body, TeamSpec))


def node(name: str, labels: Mapping[str, str], allocatable: Mapping[str, str | int]) -> Node:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    amounts |= {key: str(value) for key, value in allocatable.items()}
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {**labels, "kubernetes.io/hostname": name}},
            "status": {
                "allocatable": amounts,
                "capacity": amounts,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
        Node,
    )


def a100_node(name: str = "a1", whole: int = 4, small: int = 7, large: int = 3) -> Node:
    return node(name, A100, {GPU: whole, SLICE_10: small, SLICE_20: large})


def view(
    rules: Policy | None = None,
    teams: tuple[Team, ...] | None = None,
    nodes: tuple[Node, ...] | None = None,
    **fields: Any,
) -> View:
    rules = rules or policy()
    return View(
        policy=rules,
        teams=TeamIndex.build((team(),) if teams is None else teams, {}),
        inventory=Inventory.build((a100_node(),) if nodes is None else nodes, rules),
        own_users=frozenset({QUEUE}),
        priority_classes=fields.pop("priority_classes", PRIORITY_CLASSES),
        **fields,
    )


def container(
    name: str = "main", gpus: int | str = 0, resource: str = GPU, **fields: Any
) -> dict[str, Any]:
    amounts = {resource: str(gpus)} if gpus else {}
    resources = {"limits": amounts, "requests": dict(amounts)} if amounts else {}
    return {"name": name, "image": "cuda", "resources": resources, **fields}


def pod(name: str = "nb", *containers: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A pod as it reaches a webhook: defaulted, with the default priority worked out."""
    meta = {"name": name, "namespace": fields.pop("namespace", "nlp")}
    for key in ("labels", "annotations", "ownerReferences", "generateName"):
        if key in fields:
            meta[key] = fields.pop(key)
    if "generateName" in meta:
        del meta["name"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": {
            "containers": list(containers) or [container(gpus=1)],
            "restartPolicy": "Always",
            "serviceAccountName": "default",
            "schedulerName": "default-scheduler",
            "priority": 0,
            "preemptionPolicy": "PreemptLowerPriority",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
            ],
            **fields,
        },
        "status": {},
    }


def notebook(name: str = "nb", gpus: int = 1, **fields: Any) -> dict[str, Any]:
    labels = {"fairslice.io/class": "experiment", **fields.pop("labels", {})}
    return pod(name, container(gpus=gpus), labels=labels, **fields)


def job(name: str = "train", gpus: int = 1, pods: int = 1, **fields: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "nlp", "labels": {"fairslice.io/class": "training"}}
    meta |= fields.pop("metadata", {})
    template = fields.pop("template", None) or {
        "metadata": {},
        "spec": {
            "containers": [
                {"name": "main", "image": "x", "resources": {"limits": {GPU: str(gpus)}}}
            ],
            "restartPolicy": "Never",
        },
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 6,
            "suspend": False,
            "podReplacementPolicy": "TerminatingOrFailed",
            "template": template,
            **fields,
        },
        "status": {},
    }


def deployment(replicas: int, gpus: int = 1, work_class: str = "production") -> dict[str, Any]:
    labels = {"app": "serve", "fairslice.io/class": work_class}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve", "namespace": "nlp"},
        "spec": {
            "replicas": replicas,
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container(gpus=gpus)]},
            },
        },
    }


def replica(
    suffix: str, revision: str = "r1", work_class: str = "production", gpus: int = 1
) -> dict[str, Any]:
    """A pod as a Deployment's ReplicaSet makes it."""
    return pod(
        "",
        container(gpus=gpus),
        generateName=f"serve-{revision}-",
        labels={
            "app": "serve",
            "pod-template-hash": revision,
            "fairslice.io/class": work_class,
            "test/suffix": suffix,
        },
        ownerReferences=[owner("ReplicaSet", f"serve-{revision}", "apps/v1")],
    )


def owner(kind: str, name: str, api_version: str = "batch/v1", uid: str = "") -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": name,
        "uid": uid or f"uid-of-{name}",
        "controller": True,
    }


def review(
    obj: Mapping[str, Any] | None,
    old: Mapping[str, Any] | None = None,
    *,
    user: str = "alice",
    operation: str | None = None,
    **fields: Any,
) -> bytes:
    shown = obj or old
    assert shown is not None
    version = shown["apiVersion"]
    group, _, number = version.rpartition("/")
    return json.dumps(
        {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "review-1",
                "kind": {"group": group, "version": number, "kind": shown["kind"]},
                "name": shown["metadata"].get("name", ""),
                "namespace": shown["metadata"].get("namespace", ""),
                "operation": operation or ("UPDATE" if old else "CREATE"),
                "userInfo": {"username": user},
                "object": obj,
                "oldObject": old,
                "dryRun": False,
                **fields,
            },
        }
    ).encode()


@dataclass
class Verdict:
    """An answer as the API server takes it, and the object as it then is."""

    allowed: bool
    obj: dict[str, Any]
    patch: list[dict[str, Any]]
    warnings: list[str]
    message: str
    code: int

    @property
    def annotations(self) -> dict[str, str]:
        return self.obj["metadata"].get("annotations") or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.obj["metadata"].get("labels") or {}

    @property
    def spec(self) -> dict[str, Any]:
        return self.obj["spec"]

    @property
    def gated(self) -> bool:
        gates = self.spec.get("schedulingGates") or []
        return any(gate["name"] == "fairslice.io/queued" for gate in gates)

    def limits(self, index: int = 0) -> dict[str, str]:
        return self.spec["containers"][index]["resources"].get("limits", {})

    def env(self, index: int = 0) -> dict[str, str]:
        return {
            item["name"]: item.get("value")
            for item in self.spec["containers"][index].get("env") or []
        }


class Kept:
    """An audit sink in memory."""

    def __init__(self) -> None:
        self.records: list[AuditRecord] = []

    def keep(self, records: Any) -> None:
        self.records.extend(records)


# Ids are new for every cluster: books on one server may outlive a test's.
_numbers = itertools.count()


@dataclass
class Cluster:
    """Submits things through the webhook as an API server would."""

    ledger: Ledger
    view: View
    sink: Kept = field(default_factory=Kept)
    now: float = NOW

    def __post_init__(self) -> None:
        self.metrics = WebhookMetrics(CollectorRegistry())
        self.admission = Admission(self.ledger, self.metrics, self.sink, call=self._call)

    def _call(self) -> Call:
        number = next(_numbers)
        return Call(self.now, f"b{number:020x}", f"p{number:020x}")

    async def call(
        self, body: bytes, obj: Mapping[str, Any], phase: Phase = Phase.MUTATE
    ) -> Verdict:
        raw = await self.admission.answer(body, self.view, phase, 5.0)
        response = json.loads(raw)["response"]
        patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
        assert ("patch" in response) == ("patchType" in response)
        changed = jsonpatch.apply_patch(json.loads(json.dumps(obj)), patch)
        status = response.get("status", {})
        for text in (*response.get("warnings", []), status.get("message", "")):
            assert len(text) <= 256
            assert "\n" not in text
        return Verdict(
            response["allowed"],
            changed,
            patch,
            response.get("warnings", []),
            status.get("message", ""),
            status.get("code", 200),
        )

    async def mutate(self, obj: Mapping[str, Any], user: str = "alice", **fields: Any) -> Verdict:
        """Create an object, up to and without its validation."""
        return await self.call(review(obj, user=user, **fields), obj)

    async def update(
        self, new: Mapping[str, Any], old: Mapping[str, Any], user: str = "alice", **fields: Any
    ) -> Verdict:
        return await self.call(review(new, old, user=user, **fields), new)

    async def validate(self, obj: Mapping[str, Any], user: str = "alice", **fields: Any) -> Verdict:
        return await self.call(review(obj, user=user, **fields), obj, Phase.VALIDATE)

    async def create(self, obj: Mapping[str, Any], user: str = "alice") -> Verdict:
        """Create an object all the way: mutated, reinvoked, named, validated."""
        first = await self.mutate(obj, user)
        if not first.allowed:
            return first
        again = await self.mutate(first.obj, user)
        assert again.allowed, again.message
        assert again.patch == []
        stored = deepcopy(first.obj)
        meta = stored["metadata"]
        meta["uid"] = f"uid-{next(_numbers)}"
        if not meta.get("name"):
            meta["name"] = f"{meta['generateName']}{next(_numbers):05x}"
        checked = await self.validate(stored, user)
        if not checked.allowed:
            return checked
        first.obj = stored
        return first


CallMaker = Callable[[], Call]


async def no_figures() -> bytes:
    """Count nothing."""
    return b""
