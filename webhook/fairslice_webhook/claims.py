"""DRA claims as they are created: access for administrators is refused, GPUs are booked.

A claim that people make by themselves may be shared by many pods: it is in the books once, from
its creation to its end. Claims made for one pod, from a template or for an extended resource,
are counted with that pod. Fields: resource.k8s.io/v1 (`exactly`), v1beta1 (flat).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from fairslice import messages, stamps
from fairslice.booking import Assignment, Option, Ref, State
from fairslice.device_claims import ClaimSpec, ResourceClaim, ResourceClaimTemplate
from fairslice.kube.objects import Namespace, ObjectMeta, PodSpec
from fairslice.policy import Team
from fairslice.requests import PodAsk
from fairslice.v1alpha1.scalars import Mode
from fairslice_queue.ledger import BookRequest, Held, Outcome, Verdict
from fairslice_webhook.decision import Answer, AuditRecord, Bind, Book, Decision, Denial, Peek
from fairslice_webhook.gpu_work import GpuWork, Refusal, assess, book_request
from fairslice_webhook.judgement import cap_denial, never_fits, presume
from fairslice_webhook.patching import map_ops
from fairslice_webhook.pod_edits import assignment_text, foreign_stamps
from fairslice_webhook.pod_updates import restored
from fairslice_webhook.review import Review
from fairslice_webhook.subject import Notes, Subject
from fairslice_webhook.view import Call, View

__all__ = [
    "ADMIN_ACCESS_LABEL",
    "CLAIM",
    "CLAIM_KINDS",
    "ClaimPlan",
    "audited_claim",
    "booked_claim",
    "decide_claim",
    "decide_namespace",
    "validate_claim",
]

CLAIM = "ResourceClaim"
CLAIM_KINDS = (CLAIM, "ResourceClaimTemplate")

ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"
"""Label of a namespace by which the API server allows administrators' access in it."""

_CLAIM = msgspec.json.Decoder(ResourceClaim)
_TEMPLATE = msgspec.json.Decoder(ResourceClaimTemplate)
_NAMESPACE = msgspec.json.Decoder(Namespace)

# Who makes claims on behalf of pods that are counted by themselves.
_MAKERS = frozenset(
    {
        "system:kube-controller-manager",
        "system:kube-scheduler",
        "system:serviceaccount:kube-system:resource-claim-controller",
    }
)


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """What is settled about a claim before the ledger is asked."""

    subject: Subject
    team: Team
    work: GpuWork
    warnings: tuple[str, ...] = ()
    records: tuple[AuditRecord, ...] = ()

    def wish(self, *, as_enforced: bool = False) -> BookRequest:
        """Make the wish to book this claim. A claim can't wait: no gate holds it back."""
        meta, review = self.subject.meta, self.subject.review
        ref = Ref(
            kind=CLAIM,
            namespace=review.namespace,
            name=meta.name,
            generate_name="" if meta.name else meta.generate_name,
        )
        request = book_request(
            self.subject, self.team, ref, self.work, [PodSpec()], pods=1, as_enforced=as_enforced
        )
        # It is nobody's to push out: the pods that use it are.
        booking = msgspec.structs.replace(request.booking, preemptible=False)
        return msgspec.structs.replace(
            request, booking=booking, start=True, overflow_queue=False, capacity=False
        )

    def booked(self, booking: str, option: Option) -> Answer:
        """Stamp the claim with its booking."""
        meta = self.subject.meta
        assignment = Assignment(booking=booking, option=option)
        own: dict[str, str | None] = {
            **foreign_stamps(meta.annotations),
            stamps.BOOKING: booking,
            stamps.ASSIGNMENT: assignment_text(assignment, meta),
            **self.subject.submitter,
        }
        labels: dict[str, str | None] = {
            **foreign_stamps(meta.labels),
            stamps.LABEL_MANAGED: "true",
            stamps.STATE: State.RELEASED.value.lower(),
        }
        ops = (
            *map_ops("/metadata/annotations", meta.annotations, own),
            *map_ops("/metadata/labels", meta.labels, labels),
        )
        return Answer(ops, self.warnings, records=self.records, strict=True)

    def deny(self, message: str, *, code: int = 403, reason: str = "Forbidden") -> Answer:
        """Refuse the claim."""
        return Answer((), self.warnings, Denial(message, code, reason), records=self.records)

    def left(self) -> Answer:
        """Leave the claim as it is."""
        return Answer((), self.warnings, records=self.records)


class _Whole(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_META = msgspec.json.Decoder(_Whole)


def decide_claim(review: Review, view: View, call: Call) -> Decision:
    """Decide on a claim or a template."""
    try:
        meta, spec = _read(review)
        old = _META.decode(review.old_object).metadata if review.operation == "UPDATE" else None
    except msgspec.DecodeError:
        return Answer()  # the API server refuses it in better words
    subject = Subject.of(review, meta, view, call)
    if subject.own:
        return Answer()
    if old is not None:
        return _kept(subject, old)
    notes = Notes(subject)
    mode = subject.modes.guards
    if subject.team is not None and mode is not Mode.OFF:
        for name in _administrative(spec):
            message = messages.guard_admin_access(name)
            if mode is Mode.ENFORCE:
                return Answer(denial=Denial(message))
            notes.audit("guards", "deny", message)
    team = subject.team
    needs = view.devices.needs(spec)
    counts = review.kind.kind == CLAIM and needs and not _made_for_a_pod(subject)
    if team is None or subject.work_off or not counts:
        return _cleaned(subject, notes)
    ask = PodAsk(containers=(), gpu_containers=(), units={}, needs=needs)
    try:
        work = assess(subject, team, ask, PodSpec(), meta.labels, ())
    except Refusal as refusal:
        if subject.books:
            return Answer((), notes.warnings, refusal.denial, records=notes.records)
        notes.audit("quota", "deny", refusal.message)
        return _cleaned(subject, notes)
    plan = ClaimPlan(subject, team, work, tuple(notes.warnings), tuple(notes.records))
    if not subject.books:
        if subject.modes.quota is Mode.AUDIT:
            return Peek(team.name, plan.wish(as_enforced=True), plan, dry=False)
        return _cleaned(subject, notes)
    request = plan.wish()
    never = never_fits(request, team, view.inventory)
    if never is not None:
        return plan.deny(never)
    return Peek(team.name, request, plan, dry=True) if review.dry_run else Book(request, plan)


def booked_claim(plan: ClaimPlan, request: BookRequest, outcome: Outcome | None) -> Answer:
    """Conclude a wish to book a claim; None: the ledger could not be asked."""
    if outcome is None:
        return plan.deny(messages.try_again(), code=503, reason="ServiceUnavailable")
    options = request.booking.options
    if outcome.verdict is Verdict.BOOKED:
        option = outcome.option or options[outcome.chosen]
        return plan.booked(outcome.id, option)
    way_out = messages.claim_way_out()
    return plan.deny(cap_denial(plan.subject.view.policy, plan.team, outcome, options, way_out))


def audited_claim(plan: ClaimPlan, request: BookRequest, held: Held) -> Answer:
    """Say what Enforce would have done."""
    outcome = presume(request, held)
    if outcome.verdict is Verdict.BOOKED:
        return plan.left()
    notes = Notes(plan.subject)
    policy, options = plan.subject.view.policy, request.booking.options
    text = cap_denial(policy, plan.team, outcome, options, messages.claim_way_out())
    notes.audit("quota", "deny", text)
    return Answer((), (*plan.warnings, *notes.warnings), records=(*plan.records, *notes.records))


def validate_claim(review: Review, view: View, call: Call) -> Decision:
    """Tie a claim's booking to it."""
    if review.operation != "CREATE" or review.kind.kind != CLAIM or review.dry_run:
        return Answer()
    try:
        meta, _ = _read(review)
    except msgspec.DecodeError:
        return Answer()
    subject = Subject.of(review, meta, view, call)
    booking = subject.stamp(stamps.BOOKING)
    if not booking or not subject.books:
        return Answer()
    return Bind(booking, review.namespace, CLAIM, meta.name, meta.uid, False, None)


def decide_namespace(review: Review, view: View, call: Call) -> Answer:
    """Refuse the label that allows administrators' access to whoever may only use GPUs."""
    try:
        new = _NAMESPACE.decode(review.object).metadata
        old = (
            _NAMESPACE.decode(review.old_object).metadata
            if review.operation == "UPDATE"
            else ObjectMeta()
        )
    except msgspec.DecodeError:
        return Answer()
    wanted = (new.labels or {}).get(ADMIN_ACCESS_LABEL)
    if wanted is None or wanted == (old.labels or {}).get(ADMIN_ACCESS_LABEL):
        return Answer()
    policy = view.policy
    team = view.teams.of(new.name)
    mode = view.modes(team).guards
    if team is None or new.name in policy.exempt or mode is Mode.OFF:
        return Answer()
    message = messages.guard_admin_label(new.name, team.name)
    if mode is Mode.ENFORCE:
        return Answer(denial=Denial(message))
    notes = Notes(Subject(review, view, call, new, team, view.modes(team)))
    notes.audit("guards", "deny", message)
    return Answer((), notes.warnings, records=notes.records)


def _read(review: Review) -> tuple[ObjectMeta, ClaimSpec]:
    if review.kind.kind == CLAIM:
        claim = _CLAIM.decode(review.object)
        return claim.metadata, claim.spec
    template = _TEMPLATE.decode(review.object)
    return template.metadata, template.spec.spec


def _made_for_a_pod(subject: Subject) -> bool:
    """Believe only those who make claims for pods, not what a claim says of itself."""
    owner = subject.controller
    return subject.review.user in _MAKERS and owner is not None and owner.kind == "Pod"


def _administrative(spec: ClaimSpec) -> Iterator[str]:
    """Name the device requests that ask for administrators' access."""
    for request in spec.requests:
        if any(item.admin_access for item in request.alternatives):
            yield request.name


def _kept(subject: Subject, old: ObjectMeta) -> Answer:
    """Put back what only fairslice may write."""
    if not subject.view.enforces_anything(subject.team):
        return Answer()
    meta = subject.meta
    annotations, labels = restored(meta, old)
    ops = (
        *map_ops("/metadata/annotations", meta.annotations, annotations),
        *map_ops("/metadata/labels", meta.labels, labels),
    )
    return Answer(ops, (messages.stamps_kept(),) if ops else ())


def _cleaned(subject: Subject, notes: Notes) -> Answer:
    """Let a claim pass that is none of ours, without stamps that only we may write."""
    meta = subject.meta
    ops = (
        *map_ops("/metadata/annotations", meta.annotations, foreign_stamps(meta.annotations)),
        *map_ops("/metadata/labels", meta.labels, foreign_stamps(meta.labels)),
    )
    enforces = subject.view.enforces_anything(subject.team)
    return Answer(ops if enforces else (), notes.warnings, records=notes.records)
