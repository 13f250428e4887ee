"""Whether a pod fits a node: the scheduler's filters, with its own words for each refusal."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairslice_sandbox.model.objects import (
    Key,
    Obj,
    condition,
    expression_holds,
    is_deleting,
    is_pod_terminal,
    key_of,
    labels,
    matches,
    uid,
)
from fairslice_sandbox.model.resources import Amounts, add, amounts, pod_requests

__all__ = [
    "PREEMPTED",
    "Misfit",
    "NodeState",
    "PodView",
    "Snapshot",
    "matches_node",
    "misfit",
    "score",
    "tolerates",
    "untolerated",
]

PREEMPTED = "PreemptionByScheduler"
_UNSCHEDULABLE_TAINT: Obj = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class PodView:
    """What the scheduler reads of a pod; amounts in the units of `resources`."""

    key: Key
    uid: str
    priority: int
    requests: Amounts
    spec: Obj
    labels: Mapping[str, str]
    node: str
    nominated: str
    gated: bool
    deleting: bool
    terminal: bool
    preempted: bool
    created: str
    started: str
    condition: Obj | None

    @classmethod
    def of(cls, pod: Obj) -> "PodView":
        """Read a pod object."""
        spec, status = pod["spec"], pod.get("status") or {}
        disruption = condition(pod, "DisruptionTarget") or {}
        return cls(
            key=key_of(pod),
            uid=uid(pod),
            priority=spec.get("priority") or 0,
            requests=pod_requests(spec),
            spec=spec,
            labels=labels(pod),
            node=spec.get("nodeName") or "",
            nominated=status.get("nominatedNodeName") or "",
            gated=bool(spec.get("schedulingGates")),
            deleting=is_deleting(pod),
            terminal=is_pod_terminal(pod),
            preempted=disruption.get("reason") == PREEMPTED,
            created=pod["metadata"].get("creationTimestamp") or "",
            started=status.get("startTime") or "",
            condition=condition(pod, "PodScheduled"),
        )


@dataclass(slots=True)
class NodeState:
    """A node and what occupies it; `used` follows `pods`."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Obj]
    unschedulable: bool
    allocatable: Amounts
    used: Amounts = field(default_factory=dict)
    pods: list[PodView] = field(default_factory=list)

    @classmethod
    def of(cls, node: Obj) -> "NodeState":
        """Read a node object."""
        spec = node.get("spec") or {}
        return cls(
            name=node["metadata"]["name"],
            labels=labels(node),
            taints=spec.get("taints") or (),
            unschedulable=bool(spec.get("unschedulable")),
            allocatable=amounts((node.get("status") or {}).get("allocatable")),
        )

    def place(self, pod: PodView) -> None:
        """Count the pod as an occupant."""
        self.pods.append(pod)
        add(self.used, pod.requests)

    def without(self, pods: Iterable[PodView]) -> "NodeState":
        """Copy the node as it will be once these pods are gone."""
        gone = {pod.uid for pod in pods}
        copy = NodeState(self.name, self.labels, self.taints, self.unschedulable, self.allocatable)
        for pod in self.pods:
            if pod.uid not in gone:
                copy.place(pod)
        return copy


@dataclass(slots=True)
class Snapshot:
    """Nodes with their occupants, and the pods that preemption has promised a node."""

    nodes: dict[str, NodeState]
    nominated: dict[str, list[PodView]]

    @classmethod
    def of(cls, nodes: Iterable[NodeState], pods: Iterable[PodView]) -> "Snapshot":
        """Put pods on their nodes; ended pods occupy nothing."""
        snapshot = cls({node.name: node for node in nodes}, {})
        for pod in pods:
            if pod.terminal:
                continue
            if pod.node:
                if pod.node in snapshot.nodes:
                    snapshot.nodes[pod.node].place(pod)
            elif pod.nominated:
                snapshot.nominated.setdefault(pod.nominated, []).append(pod)
        return snapshot

    def promised(self, node: str, pod: PodView) -> Amounts:
        """Sum what pods of the same or higher priority were promised on the node."""
        total: Amounts = {}
        for other in self.nominated.get(node, ()):
            if other.uid != pod.uid and other.priority >= pod.priority:
                add(total, other.requests)
        return total


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a pod can't go on a node; `resolvable` if evicting pods could help."""

    reasons: tuple[str, ...]
    resolvable: bool


def tolerates(tolerations: Iterable[Obj], taint: Obj) -> bool:
    """Say whether any toleration matches the taint."""
    return any(_tolerates(item, taint) for item in tolerations)


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


def matches_node(spec: Obj, name: str, node_labels: Mapping[str, str]) -> bool:
    """Evaluate nodeSelector and required node affinity, matchFields included."""
    for label, value in (spec.get("nodeSelector") or {}).items():
        if node_labels.get(label) != value:
            return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    fields = {"metadata.name": name}
    return any(
        all(expression_holds(item, node_labels) for item in term.get("matchExpressions") or ())
        and all(expression_holds(item, fields) for item in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
        if term.get("matchExpressions") or term.get("matchFields")
    )


def untolerated(spec: Obj, taints: Iterable[Obj]) -> Obj | None:
    """Find the first NoSchedule or NoExecute taint that the pod does not tolerate."""
    for taint in taints:
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not tolerates(
            spec.get("tolerations") or (), taint
        ):
            return taint
    return None


def _repelled(pod: PodView, node: NodeState, snapshot: Snapshot) -> bool:
    affinity = (pod.spec.get("affinity") or {}).get("podAntiAffinity") or {}
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ():
        domain = node.labels.get(term["topologyKey"])
        namespaces = term.get("namespaces") or [pod.key.namespace]
        if domain is None:
            continue
        for other in snapshot.nodes.values():
            if other.labels.get(term["topologyKey"]) != domain:
                continue
            # The candidate may be a copy with its victims taken away.
            occupants = node.pods if other.name == node.name else other.pods
            if any(
                item.key.namespace in namespaces and matches(term["labelSelector"], item.labels)
                for item in occupants
            ):
                return True
    return False


def misfit(pod: PodView, node: NodeState, snapshot: Snapshot) -> Misfit | None:
    """Say why the pod can't run on the node now; None if it can.

    Order and wording follow kube-scheduler's default plugins.
    """
    if node.unschedulable and not tolerates(
        pod.spec.get("tolerations") or (), _UNSCHEDULABLE_TAINT
    ):
        return Misfit(("node(s) were unschedulable",), resolvable=False)
    taint = untolerated(pod.spec, node.taints)
    if taint is not None:
        text = f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value') or ''}}}"
        return Misfit((text,), resolvable=False)
    if not matches_node(pod.spec, node.name, node.labels):
        return Misfit(("node(s) didn't match Pod's node affinity/selector",), resolvable=False)
    promised = snapshot.promised(node.name, pod)
    short = [
        name
        for name, asked in pod.requests.items()
        if asked > node.allocatable.get(name, 0) - node.used.get(name, 0) - promised.get(name, 0)
    ]
    if short:
        never = any(pod.requests[name] > node.allocatable.get(name, 0) for name in short)
        reasons = tuple(
            "Too many pods" if name == "pods" else f"Insufficient {name}" for name in short
        )
        return Misfit(reasons, resolvable=not never)
    if _repelled(pod, node, snapshot):
        reason = "node(s) didn't match pod anti-affinity rules"
        return Misfit((reason,), resolvable=True)
    return None


def score(pod: PodView, node: NodeState) -> tuple[float, float, str]:
    """Order nodes that fit, best first: least waste of devices, then most idle, then name."""
    left = 0.0
    for name, asked in pod.requests.items():
        if "/" in name:
            total = node.allocatable.get(name, 0)
            left += (total - node.used.get(name, 0) - asked) / max(total, 1)
    load = max(
        (node.used.get(name, 0) + pod.requests.get(name, 0)) / max(node.allocatable.get(name, 0), 1)
        for name in ("cpu", "memory", "pods")
    )
    return (left, load, node.name)
