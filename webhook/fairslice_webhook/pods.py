"""Pods as they are created: guarded, hidden, read, classified, and then booked or attached."""

from collections.abc import Mapping
from dataclasses import replace

from fairslice import messages, stamps
from fairslice.kube.objects import Pod
from fairslice.options import describe
from fairslice.pod_groups import PodGroupError, pod_group
from fairslice.policy import Team
from fairslice.requests import PodAsk
from fairslice.v1alpha1.policy import DeviceListStrategy, Unassigned
from fairslice.v1alpha1.scalars import Mode
from fairslice.workloads import adapter_for, kinds_above
from fairslice_webhook.decision import Answer, Attach, Book, Decision, Denial, Peek
from fairslice_webhook.gpu_work import GpuWork, Refusal, read, takes_devices
from fairslice_webhook.guards import breaches, sets_devices
from fairslice_webhook.hiding import blinded, containers_of, hide_pod, holds_gpu, names_gpu
from fairslice_webhook.judgement import never_fits
from fairslice_webhook.patching import Op
from fairslice_webhook.pod_edits import (
    PodEdits,
    foreign_stamps,
    is_gated,
    read_assignment,
    render,
)
from fairslice_webhook.pod_outcomes import attached_unasked, rewritten
from fairslice_webhook.pod_plan import PodPlan, wanted_priority
from fairslice_webhook.review import Review
from fairslice_webhook.sizes import excess
from fairslice_webhook.subject import Notes, Subject
from fairslice_webhook.view import Call, View

__all__ = ["decide_pod"]

_MIRROR = "kubernetes.io/config.mirror"


def decide_pod(review: Review, pod: Pod, view: View, call: Call) -> Decision:
    """Decide on a pod's creation."""
    spec, meta = pod.spec, pod.metadata
    if view.policy.is_exempt(review.namespace, spec.service_account_name):
        return Answer()
    # What a kubelet shows of its static pods runs already.
    if _MIRROR in (meta.annotations or {}) and "system:nodes" in (review.user_info.groups or ()):
        return Answer()
    subject = Subject.of(review, meta, view, call)
    if too_much := excess((spec,)):
        enforces = subject.enforces_anything
        return Answer(denial=Denial(too_much, 422, "Invalid")) if enforces else Answer()
    notes = Notes(subject)
    gpu = any(holds_gpu(container) for _, container in containers_of(spec))
    gpu = gpu or takes_devices(spec, view)
    refused = _guard(subject, pod, notes, gpu=gpu)
    if refused is not None:
        return refused
    base = _base_edits(subject, pod, notes)
    if not gpu:
        return _without_gpus(subject, pod, base, notes)
    team = subject.team
    if team is None:
        return _without_team(subject, pod, base, notes)
    if subject.work_off:
        return _settle(pod, None, base, notes)
    try:
        return _decide_gpu(subject, team, pod, base, notes)
    except Refusal as refusal:
        if subject.work_enforced:
            return Answer(
                (),
                notes.warnings,
                refusal.denial,
                records=notes.records,
            )
        notes.audit("quota", "deny", refusal.message)
        return _settle(pod, None, base, notes)


def _decide_gpu(subject: Subject, team: Team, pod: Pod, base: PodEdits, notes: Notes) -> Decision:
    meta, review, modes = pod.metadata, subject.review, subject.modes
    ask = read(subject, pod.spec, meta.annotations)
    if not ask.is_gpu:
        # Claims for other devices, or for GPUs that are in the books by themselves.
        return _settle(pod, ask, base, notes)
    plan = PodPlan(subject, team, pod, ask, replace(base, drop_zero_keys=subject.work_enforced))
    attach = _attachment(plan, notes)
    if attach is not None:
        return attach
    claimed = _of_workload(subject) or subject.stamp(stamps.CLAIMED) != ""
    if subject.books and claimed and is_gated(pod.spec) and _is_stamped(subject):
        return attached_unasked(plan.noting(notes))  # it was refused a moment ago
    try:
        pod_group(meta)
    except PodGroupError as error:
        raise Refusal(str(error), 422, "Invalid") from None
    work = plan.assessed()
    _note_work(subject, work, pod, notes)
    plan = plan.noting(notes, work)
    if not subject.books:
        # Pods of a workload were looked at with it.
        if Mode.AUDIT in (modes.quota, modes.queue) and not _of_workload(subject):
            return Peek(team.name, plan.wish(as_enforced=True), plan, dry=False)
        return rewritten(plan)
    request = plan.wish()
    if subject.person:
        # Of a pod group the others may be of other sizes: only each by itself can be judged.
        never = never_fits(request, team, subject.view.inventory)
        if never is not None:
            return plan.deny(never)
    return Peek(team.name, request, plan, dry=True) if review.dry_run else Book(request, plan)


def _attachment(plan: PodPlan, notes: Notes) -> Attach | None:
    """See whether the pod says that it belongs to a released workload."""
    subject = plan.subject
    assignment = read_assignment(plan.pod.metadata)
    controller = subject.controller
    if assignment is None or controller is None or not subject.books:
        return None
    if subject.stamp(stamps.POD_STAMP) == "" and _is_stamped(subject):
        return None
    return Attach(
        booking=assignment.booking,
        owner_uid=controller.uid,
        above=kinds_above(controller.kind),
        units=sum(plan.ask.units.values()),
        team=plan.team.name,
        pod=subject.pod_stamp(assignment.booking),
        now=subject.call.now,
        plan=plan.noting(notes),
    )


def _of_workload(subject: Subject) -> bool:
    owner = subject.controller
    return owner is not None and adapter_for(owner.api_version, owner.kind) is not None


def _is_stamped(subject: Subject) -> bool:
    """Tell a pod that was given an id of its own a moment ago from one yet to be decided on.

    Forged, it leads to the ledger or into line, as any other pod.
    """
    assignment = read_assignment(subject.meta)
    return assignment is not None and subject.stamp(stamps.BOOKING) == assignment.booking


def _guard(subject: Subject, pod: Pod, notes: Notes, *, gpu: bool) -> Answer | None:
    mode = subject.modes.guards
    if subject.team is None or mode is Mode.OFF:
        return None
    found = list(breaches(pod, subject.view.policy.hiding, gpu=gpu))
    if found and mode is Mode.ENFORCE:
        return Answer(denial=Denial(found[0]))
    for message in found:
        notes.audit("guards", "deny", message)
    return None


def _base_edits(subject: Subject, pod: Pod, notes: Notes) -> PodEdits:
    """What is done to every pod: hide, and drop what only fairslice may write."""
    policy = subject.view.policy
    mode = subject.modes.hide
    hide: tuple[Op, ...] = ()
    if mode is not Mode.OFF:
        hiding = hide_pod(pod.spec, policy.hiding, subject.view.given_by_claims)
        if mode is Mode.ENFORCE:
            hide = hiding.ops
            if hiding.told:
                notes.warn(messages.hidden(hiding.told))
        elif hiding.told:
            notes.audit("hide", "change", messages.hidden(hiding.told))
        if mode is Mode.AUDIT and (watcher := blinded(pod.spec)):
            account = pod.spec.service_account_name or "default"
            text = messages.watcher_blinded(watcher, subject.review.namespace, account)
            notes.audit("hide", "change", text)
        if policy.hiding.device_list_strategy is DeviceListStrategy.ENVVAR:
            for _, container in containers_of(pod.spec):
                if sets_devices(container, policy.hiding) and holds_gpu(container):
                    notes.warn(messages.env_from_open(container.name))
    if not subject.enforces_anything:
        return PodEdits()
    annotations: Mapping[str, str | None] = foreign_stamps(pod.metadata.annotations)
    labels: Mapping[str, str | None] = foreign_stamps(pod.metadata.labels)
    gate = False if is_gated(pod.spec) else None
    return PodEdits(hide=hide, annotations=annotations, labels=labels, gate=gate)


def _without_gpus(subject: Subject, pod: Pod, base: PodEdits, notes: Notes) -> Answer:
    """Drop requests for zero GPUs, which some kubelets refuse to start."""
    named = any(names_gpu(container) for _, container in containers_of(pod.spec))
    if not named or subject.team is None or not subject.work_enforced:
        return _settle(pod, None, base, notes)
    try:
        ask = read(subject, pod.spec, None)
    except Refusal:
        return _settle(pod, None, base, notes)
    return _settle(pod, ask, replace(base, drop_zero_keys=True), notes)


def _without_team(subject: Subject, pod: Pod, base: PodEdits, notes: Notes) -> Answer:
    """GPUs in a namespace of no team: left alone, or refused where the policy says so."""
    if subject.view.policy.unassigned is Unassigned.DENY:
        message = messages.namespace_without_team(subject.review.namespace)
        if subject.modes.quota is Mode.ENFORCE:
            return Answer(denial=Denial(message))
        if subject.modes.quota is Mode.AUDIT:
            notes.audit("quota", "deny", message)
    return _settle(pod, None, base, notes)


def _settle(pod: Pod, ask: PodAsk | None, base: PodEdits, notes: Notes) -> Answer:
    return Answer(render(pod, ask, base), notes.warnings, records=notes.records)


def _note_work(subject: Subject, work: GpuWork, pod: Pod, notes: Notes) -> None:
    """Say what becomes of the pod's PriorityClass, and what full rewriting would give it."""
    if work.ideal != work.options:
        notes.audit("rewrite", "change", messages.option_given(describe(work.ideal[0])))
    present = pod.spec.priority_class_name
    wanted = wanted_priority(work, present, subject.view)
    if not wanted or present == wanted:
        return
    enforced = subject.modes.rewrite is Mode.ENFORCE
    if enforced and wanted not in subject.view.priority_classes:
        notes.warn(messages.priority_class_missing(wanted))
        return
    if present:
        text = messages.priority_class_replaced(present, wanted, work.class_name)
    else:
        text = messages.class_given(work.class_name, work.source, wanted)
    if enforced:
        notes.warn(text)
    elif subject.modes.rewrite is Mode.AUDIT:
        notes.audit("rewrite", "change", text)
