"""What a GPU pod becomes, once the ledger has answered or turned out to be away."""

from contextlib import suppress
from dataclasses import replace

from fairslice import messages
from fairslice.booking import Option
from fairslice.options import describe
from fairslice.v1alpha1.scalars import Mode
from fairslice_queue.ledger import Attachment, BookRequest, Held, Outcome, Verdict
from fairslice_webhook.decision import Answer
from fairslice_webhook.gpu_work import Refusal
from fairslice_webhook.judgement import cap_denial, never_fits, presume, reason
from fairslice_webhook.lints import lints
from fairslice_webhook.pod_edits import covers, read_assignment
from fairslice_webhook.pod_plan import PodPlan
from fairslice_webhook.subject import Notes

__all__ = ["attached", "attached_unasked", "audited", "booked", "booked_unasked", "rewritten"]


def booked(plan: PodPlan, request: BookRequest, outcome: Outcome) -> Answer:
    """Conclude a wish to book a pod."""
    options = request.booking.options
    match outcome.verdict:
        case Verdict.BOOKED:
            option = outcome.option or options[outcome.chosen]
            if plan.subject.review.dry_run:
                option = _stamped(plan, options) or option
            if not covers(option, plan.ask):
                return plan.deny(messages.foreign_booking())
            return plan.answer(plan.booked(outcome.id, option), *_told(plan, option))
        case Verdict.QUEUED:
            # Of several that it may be let go with, a pod keeps what it was rewritten to.
            option = outcome.option or _stamped(plan, options) or _waits_for(request)
            if not covers(option, plan.ask):
                return plan.deny(messages.foreign_booking())
            why = reason(outcome, plan.team.name, options)
            return plan.answer(
                plan.gated(outcome.id, option), messages.queued(why), *_told(plan, option)
            )
        case Verdict.DENIED:
            if request.overflow_queue:
                # A flood of unfinished requests: this one waits outside the books.
                return _unbooked(plan, request, reason(outcome, plan.team.name, options))
            return plan.deny(cap_denial(plan.subject.view.policy, plan.team, outcome, options))


def booked_unasked(plan: PodPlan, request: BookRequest) -> Answer:
    """Conclude a wish to book that could not be put to the ledger: nothing starts unbooked."""
    if request.overflow_queue:
        return _unbooked(plan, request, messages.books_away())
    return plan.deny(messages.try_again(), code=503, reason="ServiceUnavailable")


def attached(plan: PodPlan, booking: str, answer: Attachment) -> Answer:
    """Conclude a pod's claim to belong to a released workload."""
    if answer.accepted and answer.option is not None and covers(answer.option, plan.ask):
        # Should its class or option be gone since, what was released stays released.
        with suppress(Refusal):
            plan = plan.worked_out()
        return plan.answer(plan.booked(booking, answer.option, pod_stamp=answer.pod))
    return attached_unasked(plan)


def attached_unasked(plan: PodPlan) -> Answer:
    """Gate a pod whose claim was refused or could not be checked; the queue looks after it."""
    try:
        plan = plan.worked_out()
    except Refusal as refusal:
        return Answer(denial=refusal.denial)
    controller = plan.subject.controller
    name = f"{controller.kind} {controller.name}" if controller is not None else "its workload"
    return _unbooked(plan, plan.wish(), messages.beyond_booking(name))


def audited(plan: PodPlan, request: BookRequest, held: Held) -> Answer:
    """Say what Enforce would have done, and do only what is enforced."""
    notes = Notes(plan.subject)
    outcome = presume(request, held)
    never = never_fits(request, plan.team, plan.subject.view.inventory)
    if never is not None and plan.subject.person:
        notes.audit("quota", "deny", never)
    elif outcome.verdict is Verdict.QUEUED:
        why = reason(outcome, plan.team.name, request.booking.options)
        notes.audit("queue", "queue", messages.queued(why))
    elif outcome.verdict is Verdict.DENIED:
        notes.audit(
            "quota",
            "deny",
            cap_denial(plan.subject.view.policy, plan.team, outcome, request.booking.options),
        )
    told = replace(
        plan,
        warnings=(*plan.warnings, *notes.warnings),
        records=(*plan.records, *notes.records),
    )
    return rewritten(told)


def rewritten(plan: PodPlan) -> Answer:
    """Answer for a pod that nobody counts: rewritten if that is enforced, else left alone."""
    if plan.subject.modes.rewrite is not Mode.ENFORCE or plan.work is None:
        return plan.answer(plan.base)
    option = _stamped(plan, plan.work.options) or plan.work.options[0]
    return plan.answer(plan.booked(plan.subject.booking_id, option), *_told(plan, option))


def _unbooked(plan: PodPlan, request: BookRequest, why: str) -> Answer:
    """Gate a pod under an id that the ledger doesn't know: the queue takes it up on sight."""
    option = _stamped(plan, request.booking.options) or _waits_for(request)
    edits = plan.gated(plan.subject.booking_id, option)
    return plan.answer(edits, messages.queued(why), *_told(plan, option))


def _waits_for(request: BookRequest) -> Option:
    return (request.queued_options or request.booking.options)[0]


def _stamped(plan: PodPlan, options: tuple[Option, ...]) -> Option | None:
    """Find the option that an earlier call stamped, where no ledger knows of it.

    Only the share counts that is among the options anyway; the pod is rewritten to it already,
    so that it can't be told any more what it was renamed from.
    """
    assignment = read_assignment(plan.pod.metadata)
    if assignment is None or assignment.booking != plan.subject.booking_id:
        return None
    found = assignment.option
    if not covers(found, plan.ask):
        return None
    share = _share(found)
    return found if any(_share(option) == share for option in options) else None


def _share(option: Option) -> tuple[object, ...]:
    return (option.pool, option.product, option.mode, option.milli, option.units, option.devices)


def _told(plan: PodPlan, option: Option) -> tuple[str, ...]:
    """Say what was given, where it is not just what was asked, and what it breaks."""
    if plan.subject.controller is not None:
        habits: tuple[str, ...] = ()  # told to nobody but a controller
    else:
        habits = tuple(lints(plan.pod.spec, plan.ask, option))
    same = all(name in option.units for name in plan.ask.units)
    # Claims stay as they are, but which nodes they are served from may be settled here.
    same = same and not (option.devices and option.requirements)
    if plan.subject.modes.rewrite is not Mode.ENFORCE or (same and option.isolated):
        return habits
    return (messages.option_given(describe(option)), *habits)
