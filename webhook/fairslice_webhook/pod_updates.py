"""Pods as they are changed: the gate, our stamps and the class stay what admission made them."""

from collections.abc import Mapping

from fairslice import messages, stamps
from fairslice.kube.objects import ObjectMeta, Pod
from fairslice.v1alpha1.scalars import Mode
from fairslice_webhook.decision import Answer, Denial
from fairslice_webhook.guards import annotation_breaches, container_breaches
from fairslice_webhook.hiding import containers_of, hide_container
from fairslice_webhook.lead_marks import mark_words, marked
from fairslice_webhook.patching import Op, map_ops
from fairslice_webhook.pod_edits import is_gated
from fairslice_webhook.reapplied import put_back
from fairslice_webhook.review import Review
from fairslice_webhook.subject import Notes, Subject
from fairslice_webhook.view import Call, View

__all__ = ["decide_ephemeral", "decide_pod_update", "restored"]


def decide_pod_update(review: Review, new: Pod, old: Pod, view: View, call: Call) -> Answer:
    """Decide on a change of a pod. Whatever touches neither gate nor stamps passes as it is."""
    if view.policy.is_exempt(review.namespace, new.spec.service_account_name):
        return Answer()
    subject = Subject.of(review, new.metadata, view, call)
    if subject.own or not view.enforces_anything(subject.team):
        return Answer()
    # Runtimes read them when the pod starts, which may be long after it was created.
    if subject.team is not None and subject.modes.guards is Mode.ENFORCE:
        known = old.metadata.annotations or {}
        added = {k: v for k, v in (new.metadata.annotations or {}).items() if known.get(k) != v}
        for message in annotation_breaches(added):
            return Answer(denial=Denial(message))
    if subject.books and is_gated(old.spec) and not is_gated(new.spec):
        return Answer(denial=Denial(messages.gate_removed()))
    annotations, labels = restored(new.metadata, old.metadata)
    warnings = [messages.stamps_kept()] if annotations or labels else []
    managed = stamps.BOOKING in (old.metadata.annotations or {})
    if managed:
        annotations |= marked(subject, old.metadata)
        warnings += mark_words(subject, old.metadata)
    if managed and (kept := class_kept(new.metadata, old.metadata)):
        labels = {**labels, **kept}
        warnings.append(messages.class_kept("pod"))
    kept_ops, told = put_back(review, new, old, view.policy)
    ops = (
        *map_ops("/metadata/annotations", new.metadata.annotations, annotations),
        *map_ops("/metadata/labels", new.metadata.labels, labels),
        *kept_ops,
    )
    return Answer(ops, (*warnings, *told))


def decide_ephemeral(review: Review, new: Pod, old: Pod, view: View, call: Call) -> Answer:
    """Decide on ephemeral containers: those that are new get the rules of all others."""
    if view.policy.is_exempt(review.namespace, new.spec.service_account_name):
        return Answer()
    subject = Subject.of(review, new.metadata, view, call)
    notes = Notes(subject)
    known = {container.name for container in old.spec.ephemeral_containers or ()}
    ops: list[Op] = []
    for path, container in containers_of(new.spec):
        if "/ephemeralContainers/" not in path or container.name in known:
            continue
        if subject.team is not None and subject.modes.guards is not Mode.OFF:
            for message in container_breaches(container, view.policy.hiding):
                if subject.modes.guards is Mode.ENFORCE:
                    return Answer(denial=Denial(message))
                notes.audit("guards", "deny", message)
        if subject.modes.hide is Mode.OFF:
            continue
        # An ephemeral container can't ask for GPUs, even beside one that holds some.
        hiding = hide_container(path, container, holds=False, hiding=view.policy.hiding)
        if subject.modes.hide is Mode.ENFORCE:
            ops += hiding.ops
            if hiding.told:
                notes.warn(messages.hidden(hiding.told))
        elif hiding.told:
            notes.audit("hide", "change", messages.hidden(hiding.told))
    return Answer(tuple(ops), notes.warnings, records=notes.records)


def restored(
    new: ObjectMeta, old: ObjectMeta
) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """List the annotations and labels of ours that must be put back to what they were."""
    return (
        _differences(new.annotations, old.annotations),
        _differences(new.labels, old.labels),
    )


def class_kept(new: ObjectMeta, old: ObjectMeta) -> dict[str, str | None]:
    """Put the class label back to what it was, if it was changed."""
    before, now = (old.labels or {}).get(stamps.CLASS), (new.labels or {}).get(stamps.CLASS)
    return {stamps.CLASS: before} if before != now else {}


def _differences(
    new: Mapping[str, str] | None, old: Mapping[str, str] | None
) -> dict[str, str | None]:
    now, before = new or {}, old or {}
    keys = [key for key in (*before, *now) if key.startswith(stamps.SYSTEM)]
    return {key: before.get(key) for key in keys if before.get(key) != now.get(key)}
