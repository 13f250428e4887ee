"""The validating calls: is what is stored what was booked?

They come after every other mutation and show the object's final name and uid, to which its
booking is tied here.
"""

import msgspec

from fairslice import messages, stamps
from fairslice.booking import Booking, State
from fairslice.device_claims import counted
from fairslice.kube.objects import Pod
from fairslice.v1alpha1.scalars import Mode
from fairslice.workloads import Adapter, WorkloadError
from fairslice_webhook.decision import Answer, Bind, BindPod, Decision, Denial
from fairslice_webhook.gpu_work import Refusal, read, takes_devices
from fairslice_webhook.guards import breaches
from fairslice_webhook.hiding import containers_of, hide_container, hide_pod, holds_gpu
from fairslice_webhook.pod_edits import is_gated, read_assignment
from fairslice_webhook.review import Review
from fairslice_webhook.sizes import excess
from fairslice_webhook.subject import Subject
from fairslice_webhook.view import Call, View
from fairslice_webhook.workloads import Workload

__all__ = ["bound", "pod_bound", "validate_ephemeral", "validate_pod", "validate_workload"]

_STORED = Answer()


def validate_pod(review: Review, pod: Pod, view: View, call: Call) -> Decision:
    """Check a pod about to be stored, and tie its booking to it."""
    meta, spec = pod.metadata, pod.spec
    if view.policy.is_exempt(review.namespace, spec.service_account_name):
        return _STORED
    subject = Subject.of(review, meta, view, call)
    if too_much := excess((spec,)):
        enforces = subject.enforces_anything
        return Answer(denial=Denial(too_much, 422, "Invalid")) if enforces else _STORED
    if (
        subject.modes.hide is Mode.ENFORCE
        and hide_pod(spec, view.policy.hiding, view.given_by_claims).ops
    ):
        return _changed("what a container sees of GPUs")
    gpu = any(holds_gpu(container) for _, container in containers_of(spec))
    gpu = gpu or takes_devices(spec, view)
    if subject.team is None:
        return _STORED
    if subject.modes.guards is Mode.ENFORCE:
        for message in breaches(pod, view.policy.hiding, gpu=gpu):
            return Answer(denial=Denial(message))
    if not subject.books or not gpu:
        return _STORED
    try:
        ask = read(subject, spec, meta.annotations)
    except Refusal as refusal:
        return Answer(denial=refusal.denial)
    if not ask.is_gpu:
        return _STORED
    booking = subject.stamp(stamps.BOOKING)
    if not booking:
        return Answer(denial=Denial(messages.unbooked()))
    assignment = read_assignment(meta)
    if assignment is None or assignment.booking != booking:
        return _changed("the GPU requests")
    option = assignment.option
    if option.units != ask.units or option.devices != counted(ask.needs):
        return _changed("the GPU requests")
    if review.dry_run:
        return _STORED
    gated, stamp = is_gated(spec), subject.stamp(stamps.POD_STAMP)
    if stamp:
        return BindPod(booking, stamp, meta.uid, meta.name, gated)
    return Bind(booking, review.namespace, "Pod", meta.name, meta.uid, gated, ask.units)


def validate_ephemeral(review: Review, new: Pod, old: Pod, view: View, call: Call) -> Decision:
    """Check ephemeral containers about to be added."""
    if view.policy.is_exempt(review.namespace, new.spec.service_account_name):
        return _STORED
    if Subject.of(review, new.metadata, view, call).modes.hide is not Mode.ENFORCE:
        return _STORED
    known = {container.name for container in old.spec.ephemeral_containers or ()}
    for path, container in containers_of(new.spec):
        if "/ephemeralContainers/" in path and container.name not in known:
            hiding = view.policy.hiding
            if hide_container(path, container, holds=False, hiding=hiding).ops:
                return _changed("what a container sees of GPUs")
    return _STORED


def validate_workload(review: Review, adapter: Adapter, view: View, call: Call) -> Decision:
    """Tie the booking of a workload to it."""
    try:
        workload = Workload.read(adapter, review.object)
    except (WorkloadError, msgspec.DecodeError):
        return _STORED
    subject = Subject.of(review, workload.meta, view, call)
    booking = subject.stamp(stamps.BOOKING)
    held = workload.state == State.HELD.value.lower()
    if not booking or held or not subject.books or review.dry_run:
        return _STORED
    return Bind(
        booking,
        review.namespace,
        adapter.kind.kind,
        workload.meta.name,
        workload.meta.uid,
        workload.suspended,
        None,
    )


def bound(wish: Bind, booking: Booking | None) -> Answer:
    """Conclude the binding of an object that has a booking of its own.

    What waits may be unknown to the ledger (it was away, or flooded): the queue takes it up.
    """
    if booking is None:
        if wish.waits:
            return _STORED
        return Answer(denial=Denial(messages.booking_gone(wish.kind), 409, "Conflict"))
    option = booking.option
    if not wish.waits and (booking.state.waits or booking.state is State.HELD):
        return _changed("it is to wait, but was set free")
    if wish.units is not None and option is not None and option.units != wish.units:
        return _changed("the GPU requests")
    return _STORED


def pod_bound(wish: BindPod, done: bool) -> Answer:
    """Conclude the binding of a workload's pod."""
    if done or wish.waits:
        return _STORED
    return Answer(denial=Denial(messages.booking_gone("pod"), 409, "Conflict"))


def _changed(what: str) -> Answer:
    return Answer(denial=Denial(messages.changed_after_admission(what)))
