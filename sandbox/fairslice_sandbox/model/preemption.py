"""Whom the scheduler would push out: a dry run per node, cheapest node first.

Follows kube-scheduler's DefaultPreemption plugin.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairslice_sandbox.model.fit import Misfit, NodeState, PodView, Snapshot, misfit
from fairslice_sandbox.model.objects import Obj, matches

__all__ = ["Budget", "Victims", "ineligible", "preempt"]

NO_VICTIMS = "No preemption victims found for incoming pod"
NOT_HELPFUL = "Preemption is not helpful for scheduling"


@dataclass(frozen=True, slots=True)
class Budget:
    """A PodDisruptionBudget: how many of its pods may go right now."""

    namespace: str
    selector: Obj | None
    allowed: int


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods to evict from one node so that the preemptor fits."""

    node: str
    pods: tuple[PodView, ...]
    violations: int


def ineligible(pod: PodView, snapshot: Snapshot) -> str | None:
    """Say why the pod may not preempt now; None if it may."""
    if pod.spec.get("preemptionPolicy") == "Never":
        return "not eligible due to preemptionPolicy=Never."
    node = snapshot.nodes.get(pod.nominated)
    if node is not None and any(
        other.deleting and other.preempted and other.priority < pod.priority for other in node.pods
    ):
        return "not eligible due to a terminating pod on the nominated node."
    return None


def preempt(
    pod: PodView,
    snapshot: Snapshot,
    refusals: Mapping[str, Misfit],
    budgets: Sequence[Budget] = (),
) -> Victims | dict[str, str]:
    """Choose the node and victims, or say per node why there are none."""
    candidates: list[Victims] = []
    reasons: dict[str, str] = {}
    for name, refusal in refusals.items():
        if not refusal.resolvable:
            reasons[name] = NOT_HELPFUL
            continue
        found = _victims_on(pod, snapshot.nodes[name], snapshot, budgets)
        if isinstance(found, Victims):
            candidates.append(found)
        else:
            reasons[name] = found
    return min(candidates, key=_cost) if candidates else reasons


def _importance(pod: PodView) -> tuple[int, str, str]:
    return (-pod.priority, pod.started or "9999", pod.key.name)


def _victims_on(
    pod: PodView, node: NodeState, snapshot: Snapshot, budgets: Sequence[Budget]
) -> Victims | str:
    lower = sorted((item for item in node.pods if item.priority < pod.priority), key=_importance)
    if not lower:
        return NO_VICTIMS
    bare = node.without(lower)
    refusal = misfit(pod, bare, snapshot)
    if refusal is not None:
        return refusal.reasons[0]
    protected, free = _by_budget(lower, budgets)
    victims: list[PodView] = []
    violations = 0
    for group, counts in ((protected, 1), (free, 0)):
        for candidate in group:
            kept = node.without([*victims, *_after(candidate, protected, free)])
            if misfit(pod, kept, snapshot) is not None:
                victims.append(candidate)
                violations += counts
    return Victims(node.name, tuple(sorted(victims, key=_importance)), violations)


def _after(
    candidate: PodView, protected: Sequence[PodView], free: Sequence[PodView]
) -> list[PodView]:
    order = [*protected, *free]
    return order[order.index(candidate) + 1 :]


def _by_budget(
    pods: Iterable[PodView], budgets: Sequence[Budget]
) -> tuple[list[PodView], list[PodView]]:
    left = [budget.allowed for budget in budgets]
    protected: list[PodView] = []
    free: list[PodView] = []
    for pod in pods:
        violates = False
        for index, budget in enumerate(budgets):
            if budget.namespace == pod.key.namespace and matches(budget.selector, pod.labels):
                left[index] -= 1
                violates = violates or left[index] < 0
        (protected if violates else free).append(pod)
    return protected, free


def _cost(victims: Victims) -> tuple[int, int, int, int, str, str]:
    """Fewest budget violations, lowest top priority, least sum, fewest pods, latest start."""
    if not victims.pods:
        return (0, -(2**31), 0, 0, "", victims.node)
    top = max(pod.priority for pod in victims.pods)
    earliest = min(pod.started or "9999" for pod in victims.pods if pod.priority == top)
    # Offsetting keeps a node with more victims from winning through negative priorities.
    total = sum(pod.priority + 2**31 for pod in victims.pods)
    return (
        victims.violations,
        top,
        total,
        len(victims.pods),
        "".join(chr(0x10FFFF - ord(letter)) for letter in earliest),
        victims.node,
    )
