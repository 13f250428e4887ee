"""A GPU pod on its way through admission: what is settled, and what it may still become."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairslice import stamps
from fairslice.booking import Assignment, Option, Ref, State
from fairslice.classify import owner_kinds
from fairslice.kube.objects import Pod
from fairslice.policy import Team
from fairslice.requests import PodAsk
from fairslice.v1alpha1.scalars import Mode
from fairslice_queue.ledger import BookRequest
from fairslice_webhook.decision import Answer, AuditRecord, Denial
from fairslice_webhook.gpu_work import GpuWork, assess, book_request
from fairslice_webhook.pod_edits import PodEdits, assignment_text, read_assignment, render
from fairslice_webhook.subject import Notes, Subject
from fairslice_webhook.view import Priority, View

__all__ = ["PodPlan", "wanted_priority"]

# What the queue carries over to a pod that it makes anew.
_CARRIED = (stamps.QUEUED_AT, stamps.RESTARTS, stamps.HISTORY)


@dataclass(frozen=True, slots=True)
class PodPlan:
    """What is settled about a GPU pod before the ledger is asked.

    `work` is None for a pod of a released workload, which brings its option along.
    """

    subject: Subject
    team: Team
    pod: Pod
    ask: PodAsk
    base: PodEdits
    work: GpuWork | None = None
    warnings: tuple[str, ...] = ()
    records: tuple[AuditRecord, ...] = ()

    def noting(self, notes: Notes, work: GpuWork | None = None) -> "PodPlan":
        """Return the plan with what is to be told, and its options if they are worked out."""
        told, records = tuple(notes.warnings), tuple(notes.records)
        return replace(self, work=work or self.work, warnings=told, records=records)

    def worked_out(self) -> "PodPlan":
        """Return the plan with its options worked out. Raises Refusal."""
        return self if self.work is not None else replace(self, work=self.assessed())

    def assessed(self) -> GpuWork:
        """Work the options out. Raises Refusal."""
        meta = self.pod.metadata
        return assess(
            self.subject, self.team, self.ask, self.pod.spec, meta.labels, owner_kinds(meta)
        )

    def wish(self, *, as_enforced: bool = False) -> BookRequest:
        """Make the wish to book this pod. The work must be worked out."""
        assert self.work is not None
        meta = self.pod.metadata
        ref = Ref(
            kind="Pod",
            namespace=self.subject.review.namespace,
            name=meta.name,
            generate_name="" if meta.name else meta.generate_name,
        )
        return book_request(
            self.subject,
            self.team,
            ref,
            self.work,
            [self.pod.spec],
            pods=1,
            as_enforced=as_enforced,
        )

    def answer(self, edits: PodEdits, *warnings: str) -> Answer:
        """Answer with these edits."""
        return Answer(
            render(self.pod, self.ask, edits),
            (*self.warnings, *warnings),
            records=self.records,
            strict=self.subject.books,
        )

    def deny(self, message: str, *, code: int = 403, reason: str = "Forbidden") -> Answer:
        """Refuse the pod; what was said so far is still said."""
        return Answer((), self.warnings, Denial(message, code, reason), records=self.records)

    def booked(self, booking: str, option: Option, *, pod_stamp: str = "") -> PodEdits:
        """Say what a pod with a booking is like; `pod_stamp` marks one of a workload's pods."""
        own = self._stamps(booking, option)
        if pod_stamp:
            own[stamps.POD_STAMP] = pod_stamp
        else:
            own.update(self.subject.submitter)
        return self._edits(own, option, State.RELEASED if not pod_stamp else None, gate=False)

    def gated(self, booking: str, option: Option) -> PodEdits:
        """Say what a pod in line is like. It is rewritten already: later it can't be."""
        own = self._stamps(booking, option)
        own.update(self.subject.submitter)
        own[stamps.QUEUED_AT] = self.subject.queued_at_text
        own[stamps.CLAIMED] = self._claimed(booking) or None
        return self._edits(own, option, State.QUEUED, gate=True)

    def _claimed(self, booking: str) -> str:
        """Name the booking among whose pods this one asked for a place, should one become free."""
        if self.subject.controller is None:
            return ""
        assignment = read_assignment(self.pod.metadata)
        if assignment is None:
            return ""
        if assignment.booking != booking:
            return assignment.booking
        return self.subject.stamp(stamps.CLAIMED)

    def _stamps(self, booking: str, option: Option) -> dict[str, str | None]:
        assignment = Assignment(booking=booking, option=option)
        own: dict[str, str | None] = {
            stamps.BOOKING: booking,
            stamps.ASSIGNMENT: assignment_text(assignment, self.pod.metadata),
        }
        if self.subject.own:
            own.update({key: self.subject.stamp(key) or None for key in _CARRIED})
        return own

    def _edits(
        self, own: Mapping[str, str | None], option: Option, state: State | None, *, gate: bool
    ) -> PodEdits:
        labels: dict[str, str | None] = {**self.base.labels, stamps.LABEL_MANAGED: "true"}
        if state is not None:
            labels[stamps.STATE] = state.value.lower()
        return replace(
            self.base,
            annotations={**self.base.annotations, **own},
            labels=labels,
            option=option if self.subject.modes.rewrite is Mode.ENFORCE else None,
            gate=gate,
            priority_class=self._priority_class(),
        )

    def _priority_class(self) -> tuple[str, Priority] | None:
        """Find the PriorityClass that the class gives, if it exists."""
        if self.work is None or self.subject.modes.rewrite is not Mode.ENFORCE:
            return None
        wanted = wanted_priority(self.work, self.pod.spec.priority_class_name, self.subject.view)
        found = self.subject.view.priority_classes.get(wanted)
        return (wanted, found) if found is not None else None


def wanted_priority(work: GpuWork, present: str, view: View) -> str:
    """Name the PriorityClass that a pod is to have; empty: as it is.

    One that no class owns would let the kube-scheduler push others out, guarantees or not: work
    without a class gets the least one's in its place.
    """
    if work.work_class is not None:
        return work.work_class.priority_class
    if not present:
        return ""
    known = [item.priority_class for item in view.policy.classes.values() if item.priority_class]
    return next((name for name in reversed(known) if name in view.priority_classes), "")
