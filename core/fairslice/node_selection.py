"""Whether a pod may go to a node: selectors, required node affinity, taints.

Source of the rules: kubernetes component-helpers/scheduling/corev1 (nodeaffinity, taints).
"""

from collections.abc import Iterable, Mapping

from fairslice.booking import NodeRequirement
from fairslice.kube.objects import (
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Taint,
    Toleration,
)

__all__ = ["meets", "selects", "tolerates", "untolerated"]

_HARD_EFFECTS = ("NoSchedule", "NoExecute")


def selects(selector: NodeSelector, name: str, labels: Mapping[str, str]) -> bool:
    """Say whether required node affinity admits a node: any one term must hold."""
    return any(_term_holds(term, name, labels) for term in selector.node_selector_terms)


def _term_holds(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    # A term without any comparison admits nothing, unlike an empty list elsewhere in the API.
    if not expressions and not fields:
        return False
    return all(_compare(item, labels) for item in expressions) and all(
        item.key == "metadata.name" and _compare(item, {"metadata.name": name}) for item in fields
    )


def _compare(item: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(item.key)
    values = item.values or ()
    match item.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            have = _integer(value)
            bound = _integer(values[0]) if len(values) == 1 else None
            if have is None or bound is None:
                return False
            return have > bound if item.operator == "Gt" else have < bound
        case _:
            return False


def _integer(text: str | None) -> int | None:
    if text is None or not text.isascii():
        return None
    digits = text[1:] if text[:1] in ("-", "+") else text
    return int(text) if digits.isdigit() and len(digits) < 19 else None


def meets(requirements: Iterable[NodeRequirement], labels: Mapping[str, str]) -> bool:
    """Say whether a node has what an option requires of its labels."""
    return all(labels.get(item.key) in item.values for item in requirements)


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Say whether a toleration covers a taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator in ("", "Equal"):
        return bool(toleration.key) and toleration.value == taint.value
    return toleration.operator == "Exists"


def untolerated(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """Find the first taint that keeps a pod away; preferences don't."""
    for taint in taints:
        if taint.effect in _HARD_EFFECTS and not any(
            tolerates(toleration, taint) for toleration in tolerations
        ):
            return taint
    return None
