"""Workloads as they are changed: who may let them start, and what must stay as it was.

`suspend` has two owners. Work in line stays suspended whoever says otherwise (put back, not
denied: a denial stalls whatever applies manifests in a loop); work that its user suspends
leaves the line, and joins it again when its user resumes it.
"""

import msgspec

from fairslice import messages, stamps
from fairslice.booking import State
from fairslice.pod_sets import PodSet, metadata_ops
from fairslice.policy import WorkClass
from fairslice.v1alpha1.scalars import Mode
from fairslice.workloads import Adapter, WorkloadError
from fairslice_webhook.decision import Answer, Denial
from fairslice_webhook.gpu_work import Refusal, read
from fairslice_webhook.job_policies import deadline_ops, replacement_ops
from fairslice_webhook.lead_marks import mark_words, marked
from fairslice_webhook.patching import Op, map_ops
from fairslice_webhook.pod_updates import class_kept, restored
from fairslice_webhook.review import Review
from fairslice_webhook.sizes import excess
from fairslice_webhook.subject import Subject
from fairslice_webhook.view import Call, View
from fairslice_webhook.workloads import Workload

__all__ = ["decide_workload_update"]

_WAITS = (State.QUEUED.value.lower(), State.PREEMPTED.value.lower())
_HELD = State.HELD.value.lower()


def decide_workload_update(review: Review, adapter: Adapter, view: View, call: Call) -> Answer:
    """Decide on a change of a workload."""
    try:
        old = Workload.read(adapter, review.old_object)
        new = _read_new(review, adapter, old, view)
    except Refusal as refusal:
        return Answer(denial=refusal.denial)
    except (WorkloadError, msgspec.DecodeError) as error:
        return Answer((), (messages.line(f"not read: {error}"),))
    subject = Subject.of(review, new.meta, view, call)
    if subject.own or not view.enforces_anything(subject.team):
        return Answer()
    annotations, labels = restored(new.meta, old.meta)
    warnings = [messages.stamps_kept()] if annotations or labels else []
    if old.managed:
        annotations |= marked(subject, old.meta)
        warnings += mark_words(subject, old.meta)
    suspend: bool | None = None
    kind = adapter.kind.kind
    if old.managed and subject.books:
        # Un-suspending is put back, so that it must not bring a changed request along.
        if old.state in _WAITS and old.suspended and _asks_changed(subject, new, old):
            return Answer(denial=Denial(messages.template_changed(), 422, "Invalid"))
        if kept := class_kept(new.meta, old.meta):
            labels = {**labels, **kept}
            warnings.append(messages.class_kept(kind))
        if subject.modes.queue is not Mode.ENFORCE and old.suspended and not new.suspended:
            # Nothing is held back here: whoever starts it by hand is only faster than the queue.
            state, told = None, ""
            labels = {**labels, stamps.STATE: State.RELEASED.value.lower()}
        else:
            state, told = _turn(new, old, kind)
        if told:
            warnings.append(told)
        if state is not None:
            suspend = True
            labels = {**labels, stamps.STATE: state.value.lower()}
        if state is State.QUEUED and old.state == _HELD:
            annotations = {**annotations, stamps.QUEUED_AT: subject.now_text}
        if old.state == _HELD and old.suspended and _asks_changed(subject, new, old):
            # It holds nothing: what it asks for now is booked, instead of what it asked for then.
            annotations = {**annotations, stamps.BOOKING: call.booking}
    ops: list[Op] = [
        *map_ops("/metadata/annotations", new.meta.annotations, annotations),
        *map_ops("/metadata/labels", new.meta.labels, labels),
    ]
    if suspend is not None:
        ops += new.suspend_ops(suspend=suspend)
    if old.managed and _deadline(new) != _deadline(old):
        ops += deadline_ops(adapter, new.obj, _class_of(new, view))
    if old.managed:
        ops += replacement_ops(adapter, new.obj, old.obj)
    ops += _template_ops(new, old)
    return Answer(tuple(ops), tuple(warnings))


def _read_new(review: Review, adapter: Adapter, old: Workload, view: View) -> Workload:
    """Read a changed workload.

    Raises Refusal where one that is in the books could be read before and can't be now,
    WorkloadError, msgspec.DecodeError.
    """
    modes = view.modes(view.teams.of(review.namespace))
    counts = old.managed and Mode.ENFORCE in (modes.quota, modes.queue)
    try:
        new = Workload.read(adapter, review.object)
    except WorkloadError as error:
        if counts and review.user not in view.own_users:
            raise Refusal(messages.line(f"not read: {error}"), 422, "Invalid") from None
        raise
    if counts and (too_much := excess(item.template.spec for item in new.pod_sets)):
        raise Refusal(too_much, 422, "Invalid")
    return new


def _turn(new: Workload, old: Workload, kind: str) -> tuple[State | None, str]:
    """See what a change of `suspend` means: the state to stamp, and what to say."""
    if old.suspended and not new.suspended:
        if old.state == _HELD:
            return State.QUEUED, messages.resumed(kind)
        if old.state in _WAITS:
            return State(old.state.capitalize()), messages.still_queued(kind)
    if new.suspended and not old.suspended:
        return State.HELD, messages.held_by_user(kind)
    return None, ""


def _deadline(workload: Workload) -> object:
    return (workload.obj.get("spec") or {}).get("activeDeadlineSeconds")


def _class_of(workload: Workload, view: View) -> WorkClass | None:
    """Find the class that a workload was found to be of when it was created."""
    for item in workload.pod_sets:
        name = (item.template.metadata.labels or {}).get(stamps.CLASS)
        if name:
            return view.policy.classes.get(name)
    return None


def _asks_changed(subject: Subject, new: Workload, old: Workload) -> bool:
    """Say whether the GPU requests of a waiting workload's templates differ."""
    if new.obj.get("spec") == old.obj.get("spec"):
        return False
    try:
        return _asks(subject, new) != _asks(subject, old)
    except Refusal:
        return True


def _asks(subject: Subject, workload: Workload) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for item in workload.pod_sets:
        ask = read(subject, item.template.spec, item.template.metadata.annotations)
        found.append((item.path, ask.units, ask.needs, ask.memory))
    return found


def _template_ops(new: Workload, old: Workload) -> list[Op]:
    """Put back what only fairslice may write on pod templates.

    A child's templates follow its parent's, assignment and all: the ledger checks it.
    """
    before: dict[str, PodSet] = {item.path: item for item in old.pod_sets}
    ops: list[Op] = []
    made: set[str] = set()
    for item in new.pod_sets:
        known = before.get(item.path)
        if known is None or known.held == item.held:
            continue
        annotations, labels = restored(item.held, known.held)
        if old.managed:
            labels |= class_kept(item.held, known.held)
        elif new.is_child:
            annotations.pop(stamps.ASSIGNMENT, None)
        ops += metadata_ops(item, annotations, labels, made)
    return ops
