"""Workloads that are queued as a whole, as they are created: started at once, or suspended.

What the user's template asks for is never edited; the option given travels beside it, in an
annotation of the template, and is put into effect pod by pod.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from fairslice import messages, stamps
from fairslice.booking import Assignment, Option, Ref, State
from fairslice.classify import owner_kinds
from fairslice.gangs import Member, common_options, read_members
from fairslice.kube.objects import ObjectMeta
from fairslice.options import describe
from fairslice.pod_sets import at_pointer, metadata_ops
from fairslice.policy import Team
from fairslice.v1alpha1.scalars import Mode
from fairslice.workloads import (
    MOST_SETS,
    Adapter,
    PodSet,
    TooManySets,
    WorkloadError,
    adapter_for,
)
from fairslice_queue.ledger import BookRequest, Held, Outcome, Verdict
from fairslice_webhook.decision import Answer, AuditRecord, Book, Decision, Denial, Peek
from fairslice_webhook.gpu_work import GpuWork, Refusal, assess, book_request, read
from fairslice_webhook.job_policies import deadline_ops, job_policy_ops
from fairslice_webhook.judgement import cap_denial, never_fits, presume, reason
from fairslice_webhook.lints import lints
from fairslice_webhook.patching import Op, add, map_ops
from fairslice_webhook.pod_edits import assignment_text, foreign_stamps
from fairslice_webhook.review import Review
from fairslice_webhook.sizes import excess
from fairslice_webhook.subject import Notes, Subject
from fairslice_webhook.view import Call, View

__all__ = ["Workload", "WorkloadPlan", "audited", "booked", "booked_unasked", "decide_workload"]

_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"


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
        return self.adapter.is_foreign(self.obj) or self.is_child

    @property
    def is_child(self) -> bool:
        """Say whether a workload that may itself be queued stands above it."""
        owner = next((ref for ref in self.meta.owner_references or () if ref.controller), None)
        return owner is not None and adapter_for(owner.api_version, owner.kind) is not None

    def suspend_ops(self, *, suspend: bool) -> tuple[Op, ...]:
        """Set the field that holds it back."""
        if self.suspended is suspend:
            return ()
        above = self.adapter.suspend.rpartition("/")[0]
        if at_pointer(self.obj, above) is None:
            return (add(above, {"suspend": suspend}),)
        return (add(self.adapter.suspend, suspend),)


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """What is settled about a workload before the ledger is asked."""

    subject: Subject
    team: Team
    workload: Workload
    members: tuple[Member, ...]
    work: GpuWork
    warnings: tuple[str, ...] = ()
    records: tuple[AuditRecord, ...] = ()

    @property
    def pods(self) -> int:
        """How many pods with GPUs there are at once, the larger ones counted as several."""
        return sum(member.count for member in self.members)

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
            [member.pod_set.template.spec for member in self.members],
            pods=self.pods,
            sizes=tuple(sorted({member.size for member in self.members})),
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
        work_class = self.work.work_class
        own: dict[str, str | None] = {
            **foreign_stamps(meta.annotations),
            stamps.BOOKING: booking,
            **subject.submitter,
        }
        if state is State.QUEUED:
            own[stamps.QUEUED_AT] = subject.queued_at_text
        if subject.own:
            kept = (stamps.RESTARTS, stamps.HISTORY)
            own.update({key: subject.stamp(key) or None for key in kept})
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
            *(deadline := deadline_ops(self.workload.adapter, self.workload.obj, work_class)),
        ]
        if deadline and work_class is not None:
            kind = self.workload.adapter.kind.kind
            text = messages.max_runtime_set(kind, work_class.name, work_class.max_runtime)
            warnings = (*warnings, text)
        made: set[str] = set()
        members = {member.pod_set.path: member for member in self.members}
        for item in self.workload.pod_sets:
            ops += self._template_ops(item, members.get(item.path), booking, option, made)
        return Answer(tuple(ops), (*self.warnings, *warnings), records=self.records, strict=True)

    def _template_ops(
        self,
        item: PodSet,
        member: Member | None,
        booking: str,
        option: Option | None,
        made: set[str],
    ) -> tuple[Op, ...]:
        meta = item.held
        annotations: dict[str, str | None] = dict(foreign_stamps(meta.annotations))
        labels: dict[str, str | None] = dict(foreign_stamps(meta.labels))
        if member is not None:
            if option is not None:
                assignment = Assignment(booking=booking, option=option.times(member.size))
                annotations[stamps.ASSIGNMENT] = assignment_text(assignment, meta)
            if self.work.work_class is not None:
                # The pods are to be of the class that the workload was found to be of.
                labels[stamps.CLASS] = self.work.work_class.name
        return metadata_ops(item, annotations, labels, made)


def decide_workload(review: Review, adapter: Adapter, view: View, call: Call) -> Decision:
    """Decide on the creation of a workload of a suspendable kind."""
    try:
        workload = Workload.read(adapter, review.object)
    except TooManySets:
        return _too_large(review, view, messages.too_many("pod sets", MOST_SETS, "make it several"))
    except (WorkloadError, msgspec.DecodeError) as error:
        # The API server refuses it in better words than ours.
        return Answer((), (messages.line(f"not read: {error}"),))
    if too_much := excess(item.template.spec for item in workload.pod_sets):
        return _too_large(review, view, too_much)
    subject = Subject.of(review, workload.meta, view, call)
    team = subject.team
    queued_kind = adapter.kind.kind in view.queued_kinds and adapter.suspend
    if team is None or subject.work_off or not queued_kind or workload.left_to_others:
        return _cleaned(subject, workload)
    kueue = _KUEUE_QUEUE in (workload.meta.labels or {})
    if kueue and view.policy.leave_to_kueue:
        return _cleaned(subject, workload)
    try:
        members = _members(subject, workload)
        plan = _plan(subject, team, workload, members) if members else None
    except Refusal as refusal:
        if subject.books:
            return Answer(denial=refusal.denial)
        notes = Notes(subject)
        notes.audit("quota", "deny", refusal.message)
        return Answer((), notes.warnings, records=notes.records)
    if plan is None:
        told = (messages.pods_one_by_one(adapter.kind.kind),) if members else ()
        return replace(_cleaned(subject, workload), warnings=told)
    return _decide(plan)


def _too_large(review: Review, view: View, why: str) -> Answer:
    """Refuse what can't be looked through; where nothing is enforced, its pods are left alone."""
    team = view.teams.of(review.namespace)
    modes = view.modes(team)
    if team is not None and Mode.ENFORCE in (modes.quota, modes.queue):
        return Answer(denial=Denial(why, 422, "Invalid"))
    return Answer()


def _members(subject: Subject, workload: Workload) -> tuple[Member, ...]:
    """Find the pod sets that ask for GPUs. Raises Refusal."""
    return read_members(workload.pod_sets, partial(read, subject))


def _plan(
    subject: Subject, team: Team, workload: Workload, members: tuple[Member, ...]
) -> WorkloadPlan | None:
    """Work out what a workload may be given; None if its pods have neither share nor class alike.

    Raises Refusal.
    """
    own = workload.meta.labels or {}
    kinds = (workload.adapter.kind.kind, *owner_kinds(workload.meta))
    works = []
    for member in members:
        template = member.pod_set.template
        labels = {**(template.metadata.labels or {}), **own}
        works.append(assess(subject, team, member.ask, template.spec, labels, kinds))
    classes = {work.class_name: work for work in works if work.work_class is not None}
    if len(classes) > 1:
        return None
    sizes = [member.size for member in members]
    # What serves each by its own class, or as it is where it has none, is less than none asked.
    options = common_options([work.options for work in works], sizes)
    if not options:
        return None
    ideal = common_options([work.ideal for work in works], sizes)
    work = next(iter(classes.values()), works[0])
    work = replace(work, ask=works[0].ask, options=options, ideal=ideal or options)
    return WorkloadPlan(subject, team, workload, members, work)


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
    made: set[str] = set()
    for item in workload.pod_sets:
        held = item.held
        annotations = foreign_stamps(held.annotations, keep)
        ops += metadata_ops(item, annotations, foreign_stamps(held.labels), made)
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
            return plan.answer(State.RELEASED, outcome.id, option, *told, *_habits(plan, option))
        case Verdict.QUEUED:
            why = messages.queued(reason(outcome, plan.team.name, options))
            return plan.answer(State.QUEUED, outcome.id, None, why, *_habits(plan, options[0]))
        case Verdict.DENIED:
            if request.overflow_queue:
                why = messages.queued(reason(outcome, plan.team.name, options))
                return plan.answer(State.QUEUED, plan.subject.booking_id, None, why)
            view = plan.subject.view
            return plan.deny(cap_denial(view.policy, plan.team, outcome, options))


def _habits(plan: WorkloadPlan, option: Option) -> tuple[str, ...]:
    """Say which habits the share breaks; its pods' own warnings reach nobody."""
    found = dict.fromkeys(
        text
        for member in plan.members
        for text in lints(member.pod_set.template.spec, member.ask, option)
    )
    return tuple(found)


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
