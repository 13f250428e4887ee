"""The pipeline: `decide` a review, ask the ledger what the decision wants, `conclude`.

All pure: no clock, no I/O, no globals. `without_ledger` is the conservative answer where the
ledger can't be asked: GPU work that could exceed a quota waits or is refused, all else passes.
"""

from enum import StrEnum
from typing import assert_never

import msgspec

from fairslice.booking import Booking
from fairslice.kube.objects import Pod
from fairslice.v1alpha1 import GROUP
from fairslice.workloads import adapter_for
from fairslice_queue.ledger import Attachment, BookRequest, Held, Outcome
from fairslice_webhook import pod_outcomes, validation, workloads
from fairslice_webhook.claims import (
    CLAIM_KINDS,
    ClaimPlan,
    audited_claim,
    booked_claim,
    decide_claim,
    decide_namespace,
    validate_claim,
)
from fairslice_webhook.decision import (
    Answer,
    Attach,
    Bind,
    BindPod,
    Book,
    Decision,
    Peek,
    PeekReplicas,
    Wish,
)
from fairslice_webhook.judgement import presume
from fairslice_webhook.pod_plan import PodPlan
from fairslice_webhook.pod_updates import decide_ephemeral, decide_pod_update
from fairslice_webhook.pods import decide_pod
from fairslice_webhook.policy_objects import validate_policy_object
from fairslice_webhook.replicas import advised, decide_replicas
from fairslice_webhook.review import Review, ReviewError
from fairslice_webhook.stored_manifests import decide_stored_manifest
from fairslice_webhook.view import Call, View
from fairslice_webhook.workload_updates import decide_workload_update
from fairslice_webhook.workloads import WorkloadPlan, decide_workload

__all__ = ["LedgerAnswer", "Phase", "conclude", "decide", "without_ledger"]

LedgerAnswer = Outcome | Attachment | Booking | Held | bool | None
"""What the ledger says to a wish: see `conclude`."""

_POD = msgspec.json.Decoder(Pod)
_REPLICATED = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet")


class Phase(StrEnum):
    """Whether an object may still be changed, or is about to be stored."""

    MUTATE = "mutate"
    VALIDATE = "validate"


def decide(review: Review, view: View, call: Call, phase: Phase) -> Decision:
    """Decide on a review.

    Raises ReviewError for an object that isn't shaped as its kind.
    """
    # Deletion never waits for us, and what we don't know passes.
    if review.operation not in ("CREATE", "UPDATE") or not review.has_object:
        return Answer()
    group, kind = review.kind.group, review.kind.kind
    if group == "" and kind == "Pod":
        return _decide_pod(review, view, call, phase)
    if review.sub_resource:
        return Answer()
    if group == "apps" and kind in _REPLICATED:
        return decide_replicas(review, view, call)
    if group == "resource.k8s.io" and kind in CLAIM_KINDS:
        decides = validate_claim if phase is Phase.VALIDATE else decide_claim
        return decides(review, view, call)
    if group == "" and kind == "PodTemplate":
        return decide_stored_manifest(review, view) if phase is Phase.MUTATE else Answer()
    if group == "" and kind == "Namespace":
        return decide_namespace(review, view, call)
    if group == GROUP:
        return validate_policy_object(review, view) if phase is Phase.VALIDATE else Answer()
    adapter = adapter_for(review.kind.api_version, kind)
    if adapter is None:
        return Answer()
    if review.operation == "UPDATE":
        if phase is Phase.VALIDATE:
            return Answer()
        return decide_workload_update(review, adapter, view, call)
    if phase is Phase.VALIDATE:
        return validation.validate_workload(review, adapter, view, call)
    return decide_workload(review, adapter, view, call)


def _decide_pod(review: Review, view: View, call: Call, phase: Phase) -> Decision:
    if review.sub_resource not in ("", "ephemeralcontainers"):
        return Answer()
    try:
        pod = _POD.decode(review.object)
        old = _POD.decode(review.old_object) if review.operation == "UPDATE" else None
    except msgspec.DecodeError as error:
        raise ReviewError(f"not a pod: {error}") from None
    validates = phase is Phase.VALIDATE
    if review.sub_resource:
        if old is None:
            return Answer()
        check = validation.validate_ephemeral if validates else decide_ephemeral
        return check(review, pod, old, view, call)
    if old is not None:
        return Answer() if validates else decide_pod_update(review, pod, old, view, call)
    if validates:
        return validation.validate_pod(review, pod, view, call)
    return decide_pod(review, pod, view, call)


def conclude(wish: Wish, outcome: LedgerAnswer) -> Answer:
    """Turn the ledger's answer to a wish into the final word.

    An Outcome answers Book, an Attachment Attach, a Booking (or None) Bind, a bool BindPod,
    a Held the two Peeks; to a dry one the Outcome of a trial may do so.
    """
    match wish:
        case Book(request, plan):
            assert isinstance(outcome, Outcome)
            return _booked(plan, request, outcome)
        case Attach():
            assert isinstance(outcome, Attachment)
            return pod_outcomes.attached(wish.plan, wish.booking, outcome)
        case Bind():
            assert outcome is None or isinstance(outcome, Booking)
            return validation.bound(wish, outcome)
        case BindPod():
            return validation.pod_bound(wish, outcome is True)
        case Peek():
            if isinstance(outcome, Outcome):
                return _booked(wish.plan, wish.request, outcome)
            assert isinstance(outcome, Held)
            if wish.dry:
                return _booked(wish.plan, wish.request, presume(wish.request, outcome))
            return _audited(wish, outcome)
        case PeekReplicas():
            assert isinstance(outcome, Held)
            return advised(wish.plan, outcome)
        case _:
            assert_never(wish)


def without_ledger(wish: Wish) -> Answer:
    """Answer without the ledger: nothing starts that could be more than its team may hold."""
    match wish:
        case Book(request, plan):
            return _booked_unasked(plan, request)
        case Attach():
            return pod_outcomes.attached_unasked(wish.plan)
        case Bind() | BindPod() | PeekReplicas():
            # What the mutating call let start was booked then.
            return Answer()
        case Peek():
            return _unpeeked(wish)
        case _:
            assert_never(wish)


def _audited(wish: Peek, held: Held) -> Answer:
    plan, request = wish.plan, wish.request
    if isinstance(plan, PodPlan):
        return pod_outcomes.audited(plan, request, held)
    if isinstance(plan, ClaimPlan):
        return audited_claim(plan, request, held)
    return workloads.audited(plan, request, held)


def _booked(
    plan: PodPlan | WorkloadPlan | ClaimPlan, request: BookRequest, outcome: Outcome
) -> Answer:
    if isinstance(plan, PodPlan):
        return pod_outcomes.booked(plan, request, outcome)
    if isinstance(plan, ClaimPlan):
        return booked_claim(plan, request, outcome)
    return workloads.booked(plan, request, outcome)


def _booked_unasked(plan: PodPlan | WorkloadPlan | ClaimPlan, request: BookRequest) -> Answer:
    if isinstance(plan, PodPlan):
        return pod_outcomes.booked_unasked(plan, request)
    if isinstance(plan, ClaimPlan):
        return booked_claim(plan, request, None)
    return workloads.booked_unasked(plan, request)


def _unpeeked(wish: Peek) -> Answer:
    plan = wish.plan
    if wish.dry:
        return _booked_unasked(plan, wish.request)
    return pod_outcomes.rewritten(plan) if isinstance(plan, PodPlan) else plan.left()
