"""GPU work, be it a pod or a whole workload: what it asks, what it may get, its wish to book."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fairslice import messages
from fairslice.booking import Booking, Option, Ref, State
from fairslice.classify import ClassError, classify
from fairslice.devices import Offer
from fairslice.kube.objects import PodSpec
from fairslice.options import NoOption, offered_names, options_for
from fairslice.pod_groups import group_of, is_pod_group
from fairslice.policy import Team, WorkClass
from fairslice.requests import AskError, PodAsk, UnseenError, by_claims, read_pod
from fairslice.resource_names import DEVICE_CLASS_PREFIX
from fairslice.v1alpha1.policy import Overflow, Preempts
from fairslice.v1alpha1.scalars import Mode
from fairslice_queue.ledger import BookRequest, Limits, limits_of
from fairslice_webhook.decision import Denial
from fairslice_webhook.entitlement import entitled
from fairslice_webhook.judgement import never_fits
from fairslice_webhook.subject import Subject
from fairslice_webhook.view import View

__all__ = [
    "UNCLASSIFIED",
    "GpuWork",
    "Refusal",
    "assess",
    "book_request",
    "first_possible",
    "is_constrained",
    "read",
    "takes_devices",
]

UNCLASSIFIED = "unclassified"

# Tolerations that the API server itself adds, or that GPU nodes' own taints ask for.
_USUAL_TOLERATIONS = ("node.kubernetes.io/", "nvidia.com/")


class Refusal(ValueError):
    """Work that can't be admitted as it is written: one line, and the HTTP code for it."""

    def __init__(self, message: str, code: int, reason: str, *, unseen: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.denial = Denial(message, code, reason, unseen)


@dataclass(frozen=True, slots=True)
class GpuWork:
    """A pod's GPU work: its class, the options in force, and what full rewriting would give."""

    ask: PodAsk
    work_class: WorkClass | None
    source: str
    options: tuple[Option, ...]
    ideal: tuple[Option, ...]

    @property
    def class_name(self) -> str:
        """The class's name in the books."""
        return self.work_class.name if self.work_class is not None else UNCLASSIFIED


def read(subject: Subject, spec: PodSpec, annotations: Mapping[str, str] | None) -> PodAsk:
    """Read a pod's GPU requests.

    Raises Refusal.
    """
    view = subject.view
    try:
        ask = read_pod(
            spec,
            annotations,
            fractions=view.policy.fractions_as_memory,
            namespace=subject.review.namespace,
            devices=view.devices,
        )
    except AskError as error:
        unseen, text = isinstance(error, UnseenError), str(error)
        if error.resource:
            text = messages.ask_refused(text, offered_names(view.inventory.offers))
        raise Refusal(text, 422, "Invalid", unseen=unseen) from None
    return by_claims(ask, view.given_by_claims) if view.devices.names and ask.units else ask


def takes_devices(spec: PodSpec, view: View) -> bool:
    """Say whether a pod may get devices other than through a device plugin."""
    if spec.resource_claims:
        return True
    if not view.devices.known:
        return False
    names = view.devices.names
    for container in (*spec.containers, *(spec.init_containers or ())):
        limits = container.resources.limits if container.resources is not None else None
        for name in limits or ():
            if name in names or name.startswith(DEVICE_CLASS_PREFIX):
                return True
    return False


def assess(
    subject: Subject,
    team: Team,
    ask: PodAsk,
    spec: PodSpec,
    labels: Mapping[str, str] | None,
    owner_kinds: Sequence[str],
) -> GpuWork:
    """Find the class of GPU work and the ways to serve it.

    Raises Refusal.
    """
    view = subject.view
    try:
        found = classify(
            view.policy,
            team,
            namespace=subject.review.namespace,
            labels=labels,
            priority_class=spec.priority_class_name,
            owner_kinds=owner_kinds,
        )
    except ClassError as error:
        raise Refusal(str(error), 403, "Forbidden") from None
    offers = _offers(subject, ask, spec)
    closed = _closed_pools(subject, team, offers)
    mode = subject.modes.rewrite
    ideal: tuple[Option, ...] = ()
    if mode is Mode.AUDIT:
        try:
            ideal = options_for(ask, found.work_class, offers, view.policy, closed_pools=closed)
        except NoOption:
            ideal = ()
        ideal = _placeable(view, ideal)
    enforced = mode is Mode.ENFORCE
    try:
        options = options_for(
            ask if enforced else msgspec.structs.replace(ask, memory=None),
            found.work_class if enforced else None,
            offers,
            view.policy,
            closed_pools=closed,
        )
    except NoOption as error:
        raise Refusal(str(error), 422, "Invalid") from None
    placeable = _placeable(view, options)
    if not placeable:
        asked, why = " + ".join(ask.units), "no single node offers them together"
        text = messages.option_missing("", asked, why, offered_names(offers))
        raise Refusal(text, 422, "Invalid")
    ordered = _in_service_first(subject, placeable)
    best = _in_service_first(subject, ideal) if ideal else ordered
    return GpuWork(ask, found.work_class, found.source, ordered, best)


def book_request(
    subject: Subject,
    team: Team,
    ref: Ref,
    work: GpuWork,
    specs: Sequence[PodSpec],
    *,
    pods: int,
    sizes: tuple[int, ...] = (),
    as_enforced: bool = False,
) -> BookRequest:
    """Make the wish to book; whether it may wait or start follows from class and modes.

    `sizes` are those of its pods, each as so many of `pods`. `as_enforced` makes the wish that
    would be made if what is audited were enforced.
    """
    acting = (Mode.ENFORCE, Mode.AUDIT) if as_enforced else (Mode.ENFORCE,)
    queues = subject.modes.queue in acting
    options = work.ideal if as_enforced else work.options
    work_class = work.work_class
    # Overflow is about pods: a Job can wait by its nature, a person in front of a notebook can't.
    group, revision = group_of(subject.meta) if ref.kind == "Pod" else ("", "")
    if subject.controller is None and not is_pod_group(group):
        group, revision = "", ""
    together = is_pod_group(group)
    if subject.person and ref.kind == "Pod" and not together:
        waits = work_class is not None and work_class.overflow is Overflow.QUEUE
    else:
        waits = True
    waits = waits and queues
    # What lies on one node together is more than the ledger can tell.
    mixed = any(len(option.units) > 1 for option in options)
    constrained = mixed or any(map(is_constrained, specs))
    unlike = bool(sizes) and sizes != (1,)
    booking = Booking(
        id=subject.booking_id,
        ref=ref,
        team=team.name,
        work_class=work.class_name,
        rank=work_class.rank if work_class is not None else len(subject.view.policy.classes),
        user=subject.user,
        state=State.QUEUED,
        pods=pods,
        options=options,
        queued_at=subject.queued_at,
        since=subject.call.now,
        group=group,
        group_revision=revision,
        preemptible=work_class.preemptible if work_class is not None else True,
        restarts=subject.restarts,
        sizes=sizes if unlike else (),
    )
    request = BookRequest(
        booking=booking,
        limits=(
            limits_of(team, work.class_name, options, subject.call.now)
            if subject.modes.quota in acting
            else Limits(pools={option.pool: None for option in options})
        ),
        now=subject.call.now,
        # What chooses its nodes is placed by the queue, which knows them; and what the queue
        # makes anew it also lets go. So it is with pods that can't be placed one like the other.
        start=not (waits and (constrained or subject.own or unlike or together)),
        overflow_queue=waits,
        passes_all=work_class is not None and work_class.preempts is Preempts.EVERYONE,
        # Where nothing may wait, or nodes may yet come, a lack of capacity is the scheduler's.
        # So is all that DRA allocates.
        capacity=queues
        and any(option.units for option in options)
        and (waits or not (constrained or _may_grow(subject, options))),
        spare=subject.call.booking,
    )
    if subject.modes.quota in acting:
        request = entitled(subject.view, team, request)
    if ref.kind != "Pod" or not waits:
        return request
    first = first_possible(request, team, subject)
    # A gated pod's resources are fixed; but one that its controller makes anew when it is
    # deleted may be let go with any other option by just that.
    remade = group and not together
    others = tuple(option for option in options if option is not first) if remade else ()
    return msgspec.structs.replace(request, queued_options=(first, *others))


def first_possible(request: BookRequest, team: Team, subject: Subject) -> Option:
    """Pick the option that waiting work is to wait for: the first that could be had.

    What could be had today goes before what a window must open for.
    """
    options, possible = request.booking.options, list[Option]()
    for option in options:
        alone = msgspec.structs.replace(request.booking, options=(option,))
        trial = msgspec.structs.replace(request, booking=alone)
        if never_fits(trial, team, subject.view.inventory) is None:
            if request.limits.pools.get(option.pool) != 0:
                return option
            possible.append(option)
    return (*possible, *options)[0]


def is_constrained(spec: PodSpec) -> bool:
    """Say whether a pod limits its choice of nodes, or asks for unusual ones."""
    affinity = spec.affinity
    if spec.node_selector:
        return True
    if affinity is not None and (
        affinity.pod_affinity
        or affinity.pod_anti_affinity
        or (
            affinity.node_affinity is not None
            and affinity.node_affinity.required_during_scheduling_ignored_during_execution
            is not None
        )
    ):
        return True
    # Without a key it bears every taint, and goes wherever there is room.
    return any(
        toleration.key and not toleration.key.startswith(_USUAL_TOLERATIONS)
        for toleration in spec.tolerations or ()
    )


def _offers(subject: Subject, ask: PodAsk, spec: PodSpec) -> Sequence[Offer]:
    inventory = subject.view.inventory
    if not ask.units:
        return inventory.models_for(spec)
    if spec.node_selector or spec.affinity is not None:
        return inventory.offers_for(spec)
    return inventory.offers


def _placeable(view: View, options: tuple[Option, ...]) -> tuple[Option, ...]:
    """Leave out what no single node has all of: the shares of one pod lie on one node."""
    if all(len(option.units) < 2 for option in options):
        return options
    together = view.inventory.on_one_node
    return tuple(item for item in options if len(item.units) < 2 or together(item.offers))


def _closed_pools(subject: Subject, team: Team, offers: Sequence[Offer]) -> frozenset[str]:
    if subject.modes.quota is not Mode.ENFORCE:
        return frozenset()
    pools, now = {offer.pool for offer in offers}, subject.call.now
    return frozenset(pool for pool in pools if team.most(pool, now) == 0)


def _in_service_first(subject: Subject, options: tuple[Option, ...]) -> tuple[Option, ...]:
    """Put what nodes in service offer before what was only seen before, or is yet to come."""
    capacity = subject.view.inventory.capacity()
    here = [all(capacity.get(key) for key in option.offers) for option in options]
    if all(here):
        return options
    ordered = zip(here, options, strict=True)
    return tuple(option for _, option in sorted(ordered, key=lambda pair: not pair[0]))


def _may_grow(subject: Subject, options: Sequence[Option]) -> bool:
    """Say whether an autoscaler may add nodes for one of the options."""
    growing = {pool.name for pool in subject.view.policy.pools if pool.autoscale_max_gpus}
    return any(option.pool in growing for option in options)
