"""Which class a piece of work belongs to, and who said so."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairslice import messages
from fairslice.kube.objects import ObjectMeta
from fairslice.policy import Policy, Team, WorkClass
from fairslice.stamps import CLASS
from fairslice.v1alpha1.policy import MatchSpec

__all__ = ["ClassError", "Classified", "classify", "owner_kinds"]


class ClassError(ValueError):
    """A class that doesn't exist, or that the team was not granted; one line with the way out."""


@dataclass(frozen=True, slots=True)
class Classified:
    """The class picked (None: unclassified) and its source, worded for a message."""

    work_class: WorkClass | None
    source: str


_UNCLASSIFIED = Classified(None, "unclassified")

# Controllers of controllers leave these labels on pods whose direct owner is another kind.
_LABEL_OF_KIND = (
    ("notebook-name", "Notebook"),
    ("jobset.sigs.k8s.io/jobset-name", "JobSet"),
    ("ray.io/cluster", "RayCluster"),
    ("leaderworkerset.sigs.k8s.io/name", "LeaderWorkerSet"),
    ("workflows.argoproj.io/workflow", "Workflow"),
    ("tekton.dev/pipelineRun", "PipelineRun"),
    ("serving.knative.dev/service", "Service"),
    ("serving.kserve.io/inferenceservice", "InferenceService"),
)


def owner_kinds(metadata: ObjectMeta) -> tuple[str, ...]:
    """List the kinds that stand above an object, as far as the object itself shows them."""
    kinds = [owner.kind for owner in metadata.owner_references or ()]
    labels = metadata.labels
    if labels:
        kinds += [kind for label, kind in _LABEL_OF_KIND if label in labels]
    if "ReplicaSet" in kinds and labels is not None and "pod-template-hash" in labels:
        kinds.append("Deployment")
    return tuple(kinds)


def classify(
    policy: Policy,
    team: Team | None,
    *,
    namespace: str,
    labels: Mapping[str, str] | None,
    priority_class: str = "",
    owner_kinds: Sequence[str] = (),
) -> Classified:
    """Pick the class: label, PriorityClass, match rules, namespace's default, team's default.

    A match rule whose class the team was not granted is passed over: nobody chose it.
    Without a team there are no classes. Raises ClassError for a class chosen by label,
    PriorityClass or default that doesn't exist or was not granted.
    """
    if team is None:
        return _UNCLASSIFIED
    chosen = labels.get(CLASS) if labels else None
    if chosen is not None:
        return _granted(policy, team, chosen, f"label {CLASS}")
    owner = policy.class_of_priority(priority_class)
    if owner is not None:
        return _granted(policy, team, owner.name, f"priorityClassName {priority_class}")
    for work_class in policy.classes.values():
        if work_class.match and work_class.name in team.allowed_classes:
            for rule in work_class.match:
                if _matches(rule, namespace, labels, owner_kinds):
                    return Classified(work_class, f"match rule of class {work_class.name}")
    default = team.namespace_classes.get(namespace)
    if default is not None:
        return _granted(policy, team, default, f"default of namespace {namespace}")
    if team.default_class:
        return _granted(policy, team, team.default_class, f"default of team {team.name}")
    return _UNCLASSIFIED


def _granted(policy: Policy, team: Team, name: str, source: str) -> Classified:
    work_class = policy.classes.get(name)
    allowed = [known for known in policy.classes if known in team.allowed_classes]
    if work_class is None:
        raise ClassError(messages.class_unknown(name, source, allowed))
    if name not in team.allowed_classes:
        raise ClassError(messages.class_not_allowed(name, source, team.name, allowed))
    return Classified(work_class, source)


def _matches(
    rule: MatchSpec, namespace: str, labels: Mapping[str, str] | None, kinds: Sequence[str]
) -> bool:
    """Say whether all that a rule names holds; a rule that names nothing matches nothing."""
    if not (rule.pod_labels or rule.owner_kinds or rule.namespaces):
        return False
    if rule.namespaces and namespace not in rule.namespaces:
        return False
    if rule.owner_kinds and not any(kind in rule.owner_kinds for kind in kinds):
        return False
    have = labels or {}
    return all(have.get(key) == value for key, value in rule.pod_labels.items())
