"""Deployments and StatefulSets: never changed or denied, but told at once what would wait.

Their pods are decided one by one; without a word here, the first sign of a full quota would be
pods that stay pending.
"""

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from fairslice import messages
from fairslice.booking import Option, Ref
from fairslice.classify import owner_kinds
from fairslice.kube.objects import ObjectMeta, PodSpec, PodTemplateSpec
from fairslice.options import describe
from fairslice.requests import PodAsk
from fairslice.v1alpha1.scalars import Mode
from fairslice_queue.ledger import BookRequest, Held, Verdict
from fairslice_webhook.decision import Answer, Decision, PeekReplicas
from fairslice_webhook.gpu_work import Refusal, assess, book_request, read
from fairslice_webhook.judgement import never_fits, presume, reason
from fairslice_webhook.lints import lints
from fairslice_webhook.review import Review
from fairslice_webhook.sizes import excess
from fairslice_webhook.subject import Notes, Subject
from fairslice_webhook.view import Call, View

__all__ = ["ReplicaPlan", "advised", "decide_replicas"]


class _Spec(Struct, frozen=True):
    replicas: int | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class _Replicated(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()


_DECODER = msgspec.json.Decoder(_Replicated)


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """Replicas that would be new, and what one of them asks for."""

    subject: Subject
    request: BookRequest
    replicas: int
    enforced: bool
    told: tuple[str, ...] = ()


def decide_replicas(review: Review, view: View, call: Call) -> Decision:
    """Look at an object with replicas and a pod template."""
    try:
        new = _DECODER.decode(review.object)
        old = _DECODER.decode(review.old_object) if review.operation == "UPDATE" else None
    except msgspec.DecodeError:
        return Answer()
    subject = Subject.of(review, new.metadata, view, call)
    team = subject.team
    if team is None or subject.work_off or subject.controller is not None:
        return Answer()
    template = new.spec.template
    if excess((template.spec,)):
        return Answer()  # its pods are refused
    try:
        ask = read(subject, template.spec, template.metadata.annotations)
        if not ask.is_gpu:
            return Answer()
        kinds = (review.kind.kind, *owner_kinds(new.metadata))
        work = assess(subject, team, ask, template.spec, template.metadata.labels, kinds)
    except Refusal as refusal:
        if subject.work_enforced:
            return Answer((), (refusal.message,))
        notes = Notes(subject)
        notes.audit("quota", "deny", refusal.message)
        return Answer((), notes.warnings, records=notes.records)
    ref = Ref(kind=review.kind.kind, namespace=review.namespace, name=new.metadata.name)
    request = book_request(
        subject, team, ref, work, [template.spec], pods=1, as_enforced=not subject.books
    )
    told: tuple[str, ...] = ()
    if old is None or old.spec.template != template:
        told = _told(subject, template.spec, ask, work.options[0])
    replicas = _replicas(new) - (_replicas(old) if old is not None else 0)
    watching = subject.books or Mode.AUDIT in (subject.modes.quota, subject.modes.queue)
    if replicas <= 0 or not watching:
        return Answer((), told)
    return PeekReplicas(team.name, ReplicaPlan(subject, request, replicas, subject.books, told))


def _told(subject: Subject, spec: PodSpec, ask: PodAsk, option: Option) -> tuple[str, ...]:
    """Say what each replica will be given and what that breaks: to its pods nobody listens."""
    habits = tuple(lints(spec, ask, option))
    same = all(name in option.units for name in ask.units)
    if subject.modes.rewrite is not Mode.ENFORCE or (same and option.isolated):
        return habits
    return (messages.option_given(describe(option)), *habits)


def advised(plan: ReplicaPlan, held: Held) -> Answer:
    """Say how many of the new replicas could start."""
    subject, one = plan.subject, plan.request
    team = subject.team
    assert team is not None
    never = never_fits(one, team, subject.view.inventory)
    fitting, why = 0, never or ""
    if never is None:
        fitting, why = _fitting(plan, held, team.name)
    if fitting >= plan.replicas:
        return Answer((), plan.told)
    text = messages.replicas_would_wait(fitting, plan.replicas, why)
    if plan.enforced:
        return Answer((), (text, *plan.told))
    notes = Notes(subject)
    notes.audit("queue", "queue", text)
    return Answer((), (*notes.warnings, *plan.told), records=notes.records)


def _fitting(plan: ReplicaPlan, held: Held, team: str) -> tuple[int, str]:
    """Find the largest number of replicas within the caps, and what stops the next one."""
    low, high, why = 0, plan.replicas, ""
    while low < high:
        tried = (low + high + 1) // 2
        booking = msgspec.structs.replace(plan.request.booking, pods=tried)
        outcome = presume(msgspec.structs.replace(plan.request, booking=booking), held)
        if outcome.verdict is Verdict.BOOKED:
            low = tried
        else:
            high = tried - 1
            why = reason(outcome, team, booking.options)
    return low, why


def _replicas(item: _Replicated) -> int:
    return 1 if item.spec.replicas is None else item.spec.replicas
