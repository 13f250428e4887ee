"""Workloads that are queued as a whole, as they are created: started at once, or suspended.

What the user's template asks for is never edited; the option given travels beside it, in an
annotation of the template, and is put into effect pod by pod.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Struct

from fairslice import messages, stamps
from fairslice.booking import Assignment, Option, Ref, State
from fairslice.classify import owner_kinds
from fairslice.kube.objects import ObjectMeta
from fairslice.options import describe
from fairslice.policy import Team
from fairslice.requests import PodAsk
from fairslice.v1alpha1.scalars import Mode
from fairslice.workloads import Adapter, PodSet, WorkloadError, adapter_for
from fairslice_queue.ledger import BookRequest, Held, Outcome, Verdict
from fairslice_webhook.decision import Answer, AuditRecord, Book, Decision, Denial, Peek
from fairslice_webhook.gpu_work import GpuWork, Refusal, assess, book_request, read
from fairslice_webhook.job_policies import job_policy_ops
from fairslice_webhook.judgement import cap_denial, never_fits, presume, reason
from fairslice_webhook.patching import Op, add, map_ops
from fairslice_webhook.pod_edits import assignment_text, foreign_stamps
from fairslice_webhook.review import Review
from fairslice_webhook.subject import Notes, Subject
from fairslice_webhook.view import Call, View

__all__ = ["Workload", "WorkloadPlan", "audited", "booked", "booked_unasked", "decide_workload"]

_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_JOB_CONTROLLER = "kubernetes.io/job-controller"


class _Whole(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_META = msgspec.json.Decoder(_Whole)
_PLAIN = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Workload:
    """An object of a suspendable kind, read as far as the webhook needs."""

    adapter: Adapter
    meta: ObjectMeta
    obj: dict[str, Any]
    pod_sets: tuple[PodSet, ...]

    @classmethod
    def read(cls, adapter: Adapter, raw: bytes | msgspec.Raw) -> "Workload":
        """Read an object of the adapter's kind.

        Raises WorkloadError, msgspec.DecodeError.
        """
        obj = _PLAIN.decode(raw)
        return cls(adapter, _META.decode(raw).metadata, obj, adapter.pod_sets(obj))

    @property
    def suspended(self) -> bool:
        """Say whether it is suspended."""
        return self.adapter.is_suspended(self.obj)

    @property
    def state(self) -> str:
        """The state stamped on it, empty if it is in nobody's books."""
        return (self.meta.labels or {}).get(stamps.STATE, "")

    @property
    def managed(self) -> bool:
        """Say whether it is in the books."""
        return stamps.BOOKING in (self.meta.annotations or {})

    @property
    def left_to_others(self) -> bool:
        """Say whether something else decides when it starts."""
        if (self.obj.get("spec") or {}).get("managedBy", _JOB_CONTROLLER) != _JOB_CONTROLLER:
            return True
        owner = next((ref for ref in self.meta.owner_references or () if ref.controller), None)
        return owner is not None and adapter_for(owner.api_version, owner.kind) is not None

    def suspend_ops(self, *, suspend: bool) -> tuple[Op, ...]:
        """Set the field that holds it back."""
        return (add(self.adapter.suspend, suspend),) if self.suspended is not suspend else ()


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """What is settled about a workload before the ledger is asked."""

    subject: Subject
    team: Team
    workload: Workload
    sets: tuple[PodSet, ...]
    ask: PodAsk
    work: GpuWork
    warnings: tuple[str, ...] = ()
    records: tuple[AuditRecord, ...] = ()

    @property
    def pods(self) -> int:
        """How many pods with GPUs there are at once."""
        return sum(item.count for item in self.sets)

    def noting(self, notes: Notes) -> "WorkloadPlan":
        """Return the plan with what is to be told."""
        return replace(
            self,
            warnings=(*self.warnings, *notes.warnings),
            records=(*self.records, *notes.records),
        )

    def wish(self, *, as_enforced: bool = False) -> BookRequest:
        """Make the wish to book this workload."""
        meta = self.workload.meta
        ref = Ref(
            kind=self.workload.adapter.kind.kind,
            namespace=self.subject.review.namespace,
            name=meta.name,
            generate_name="" if meta.name else meta.generate_name,
        )
        return book_request(
            self.subject,
            self.team,
            ref,
            self.work,
            self.sets[0].template.spec,
            pods=self.pods,
            as_enforced=as_enforced,
        )

    def deny(self, message: str, *, code: int = 403, reason: str = "Forbidden") -> Answer:
        """Refuse the workload."""
        return Answer((), self.warnings, Denial(message, code, reason), records=self.records)

    def left(self) -> Answer:
        """Leave the workload as it is."""
        return Answer((), self.warnings, records=self.records)

    def answer(self, state: State, booking: str, option: Option | None, *warnings: str) -> Answer:
        """Stamp the workload with where it stands; an option goes into its templates."""
        meta, subject = self.workload.meta, self.subject
        own: dict[str, str | None] = {
            **foreign_stamps(meta.annotations),
            stamps.BOOKING: booking,
            **subject.submitter,
        }
        if state is State.QUEUED:
            own[stamps.QUEUED_AT] = subject.queued_at_text
        if subject.own:
            own.update({key: subject.stamp(key) or None for key in (stamps.RESTARTS,)})
        labels = {
            **foreign_stamps(meta.labels),
            stamps.LABEL_MANAGED: "true",
            stamps.STATE: state.value.lower(),
        }
        ops = [
            *map_ops("/metadata/annotations", meta.annotations, own),
            *map_ops("/metadata/labels", meta.labels, labels),
            *self.workload.suspend_ops(suspend=state is not State.RELEASED),
            *job_policy_ops(self.workload.adapter, self.workload.obj),
        ]
        for item in self.workload.pod_sets:
            given = option if item in self.sets else None
            ops += self._template_ops(item, booking, given)
        return Answer(tuple(ops), (*self.warnings, *warnings), records=self.records, strict=True)

    def _template_ops(self, item: PodSet, booking: str, option: Option | None) -> tuple[Op, ...]:
        meta = item.template.metadata
        annotations: dict[str, str | None] = dict(foreign_stamps(meta.annotations))
        if option is not None:
            assignment = Assignment(booking=booking, option=option)
            annotations[stamps.ASSIGNMENT] = assignment_text(assignment, meta)
        labels: dict[str, str | None] = dict(foreign_stamps(meta.labels))
        work_class = self.work.work_class
        if item in self.sets and work_class is not None:
            # The pods are to be of the class that the workload was found to be of.
            labels[stamps.CLASS] = work_class.name
        return template_meta_ops(item, self.workload.obj, annotations, labels)


def template_meta_ops(
    item: PodSet,
    obj: Mapping[str, Any],
    annotations: Mapping[str, str | None],
    labels: Mapping[str, str | None],
) -> tuple[Op, ...]:
    """Change a template's annotations and labels; its metadata may be missing altogether."""
    path = f"{item.path}/metadata"
    if _at(obj, path) is None:
        parts = {"annotations": annotations, "labels": labels}
        present = {
            name: {key: value for key, value in part.items() if value is not None}
            for name, part in parts.items()
        }
        present = {name: part for name, part in present.items() if part}
        return (add(path, present),) if present else ()
    meta = item.template.metadata
    return (
        *map_ops(f"{path}/annotations", meta.annotations, annotations),
        *map_ops(f"{path}/labels", meta.labels, labels),
    )


def _at(obj: Any, pointer: str) -> Any:
    """Follow a JSON pointer; None where it leads nowhere."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(obj, list):
            obj = obj[int(key)] if key.isdigit() and int(key) < len(obj) else None
        else:
            obj = obj.get(key) if isinstance(obj, dict) else None
        if obj is None:
            return None
    return obj


def decide_workload(review: Review, adapter: Adapter, view: View, call: Call) -> Decision:
    """Decide on the creation of a workload of a suspendable kind."""
    try:
        workload = Workload.read(adapter, review.object)
    except (WorkloadError, msgspec.DecodeError) as error:
        # The API server refuses it in better words than ours.
        return Answer((), (messages.line(f"not read: {error}"),))
    subject = Subject.of(review, workload.meta, view, call)
    team = subject.team
    queued_kind = adapter.kind.kind in view.queued_kinds and adapter.suspend
    if team is None or subject.work_off or not queued_kind or workload.left_to_others:
        return _cleaned(subject, workload)
    kueue = _KUEUE_QUEUE in (workload.meta.labels or {})
    if kueue and view.policy.leave_to_kueue:
        return _cleaned(subject, workload)
    try:
        plan = _plan(subject, team, workload)
    except Refusal as refusal:
        if subject.books:
            return Answer(denial=Denial(refusal.message, refusal.code, refusal.reason))
        notes = Notes(subject)
        notes.audit("quota", "deny", refusal.message)
        return Answer((), notes.warnings, records=notes.records)
    if plan is None:
        return _cleaned(subject, workload)
    return _decide(plan)


def _plan(subject: Subject, team: Team, workload: Workload) -> WorkloadPlan | None:
    """Read what a workload asks for; None if that is nothing, or pods of different sizes."""
    asking = []
    for item in workload.pod_sets:
        if not item.count:
            continue
        ask = read(subject, item.template.spec, item.template.metadata.annotations)
        if ask.units:
            asking.append((item, ask))
    # Pods of several sizes can't be booked as one; each is then booked as it comes.
    if not asking or any(ask.units != asking[0][1].units for _, ask in asking):
        return None
    first, ask = asking[0]
    meta = first.template.metadata
    labels = {**(meta.labels or {}), **(workload.meta.labels or {})}
    kinds = (workload.adapter.kind.kind, *owner_kinds(workload.meta))
    work = assess(subject, team, ask, first.template.spec, labels, kinds)
    return WorkloadPlan(subject, team, workload, tuple(item for item, _ in asking), ask, work)


def _decide(plan: WorkloadPlan) -> Decision:
    subject, team, workload = plan.subject, plan.team, plan.workload
    notes = Notes(subject)
    if plan.work.ideal != plan.work.options:
        given = messages.option_given(describe(plan.work.ideal[0]))
        notes.audit("rewrite", "change", given)
    plan = plan.noting(notes)
    if not subject.books:
        if Mode.AUDIT in (subject.modes.quota, subject.modes.queue):
            return Peek(team.name, plan.wish(as_enforced=True), plan, dry=False)
        return plan.left()
    kind = workload.adapter.kind.kind
    if workload.suspended and not subject.own and workload.state != State.QUEUED.value.lower():
        return plan.answer(State.HELD, subject.booking_id, None, messages.held_by_user(kind))
    request = plan.wish()
    never = never_fits(request, team, subject.view.inventory)
    if never is not None:
        return plan.deny(never)
    if subject.review.dry_run:
        return Peek(team.name, request, plan, dry=True)
    return Book(request, plan)


def _cleaned(subject: Subject, workload: Workload) -> Answer:
    """Let a workload pass that is none of ours, without stamps that only we may write."""
    if subject.own or not subject.view.enforces_anything(subject.team):
        return Answer()
    meta = workload.meta
    # A child of a queued workload carries its parent's assignment, which the ledger checks.
    keep = (stamps.ASSIGNMENT,) if workload.left_to_others else ()
    ops = [
        *map_ops("/metadata/annotations", meta.annotations, foreign_stamps(meta.annotations)),
        *map_ops("/metadata/labels", meta.labels, foreign_stamps(meta.labels)),
    ]
    for item in workload.pod_sets:
        template = item.template.metadata
        ops += template_meta_ops(
            item,
            workload.obj,
            foreign_stamps(template.annotations, keep),
            foreign_stamps(template.labels),
        )
    return Answer(tuple(ops))


# What the ledger's answers come to.


def booked(plan: WorkloadPlan, request: BookRequest, outcome: Outcome) -> Answer:
    """Conclude a wish to book a workload."""
    options = request.booking.options
    match outcome.verdict:
        case Verdict.BOOKED:
            option = outcome.option or options[outcome.chosen]
            given = messages.option_given(describe(option))
            told = (given,) if option.rename else ()
            return plan.answer(State.RELEASED, outcome.id, option, *told)
        case Verdict.QUEUED:
            why = messages.queued(reason(outcome, plan.team.name, options))
            return plan.answer(State.QUEUED, outcome.id, None, why)
        case Verdict.DENIED:
            if request.overflow_queue:
                why = messages.queued(reason(outcome, plan.team.name, options))
                return plan.answer(State.QUEUED, plan.subject.booking_id, None, why)
            view = plan.subject.view
            return plan.deny(cap_denial(view.policy, plan.team, outcome, options))


def booked_unasked(plan: WorkloadPlan, request: BookRequest) -> Answer:
    """Conclude a wish to book that could not be put to the ledger: nothing starts unbooked."""
    if not request.overflow_queue:
        return plan.deny(messages.try_again(), code=503, reason="ServiceUnavailable")
    why = messages.queued(messages.books_away())
    return plan.answer(State.QUEUED, plan.subject.booking_id, None, why)


def audited(plan: WorkloadPlan, request: BookRequest, held: Held) -> Answer:
    """Say what Enforce would have done."""
    notes = Notes(plan.subject)
    outcome = presume(request, held)
    options = request.booking.options
    never = never_fits(request, plan.team, plan.subject.view.inventory)
    if never is not None:
        notes.audit("quota", "deny", never)
    elif outcome.verdict is Verdict.QUEUED:
        why = messages.queued(reason(outcome, plan.team.name, options))
        notes.audit("queue", "queue", why)
    elif outcome.verdict is Verdict.DENIED:
        view = plan.subject.view
        notes.audit("quota", "deny", cap_denial(view.policy, plan.team, outcome, options))
    return plan.noting(notes).left()
