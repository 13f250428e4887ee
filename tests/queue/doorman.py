"""What the admission webhook does for the queue, in small: book, suspend or gate, stamp, bind."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from msgspec import convert, json

from fairslice import stamps
from fairslice.booking import Assignment, Booking, Option, Ref, State
from fairslice.kube.objects import Pod, PodSpec
from fairslice.lead_marks import author_stamp
from fairslice.options import options_for
from fairslice.requests import read_pod
from fairslice.rollouts import rollout_of
from fairslice_queue.ledger import BookRequest, Ledger, LedgerUnavailable, Verdict, limits_of
from fairslice_queue.watching import Watch
from fairslice_sandbox.attributes import Attributes
from fairslice_sandbox.store import Obj
from fairslice_sandbox.webhooks import Hook, WebhookCaller

GPU = "nvidia.com/gpu"
QUEUE_USER = "fairslice-queue"
_RULES = [
    {
        "apiGroups": ["", "batch"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["pods", "jobs"],
    }
]


def registration(kind: str) -> Obj:
    """Register the doorman, so that the API server calls it."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {"name": "doorman"},
        "webhooks": [
            {
                "name": "doorman.fairslice.io",
                "rules": _RULES,
                "clientConfig": {"url": "https://127.0.0.1:1/doorman"},
                "sideEffects": "NoneOnDryRun",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }


@dataclass
class Doorman(WebhookCaller):
    """Books GPU work of teams; asked in-process instead of over HTTPS.

    `fast` lets work start at once where it may. `asleep` lets everything pass unseen. `started`
    are the Jobs of which pods were let in with their Job, `alone` those of which some came by
    themselves, since the books knew nothing of a release.
    """

    ledger: Ledger
    watch: Watch | None = None
    fast: bool = False
    asleep: bool = False
    made: int = 0
    started: list[str] = field(default_factory=list)
    alone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    async def mutate(self, hook: Hook, request: Attributes) -> bool:
        obj = request.object
        if self.asleep or obj is None or self._team(request) is None:
            return False
        if request.operation == "UPDATE":
            request.object = _marked(request, obj)
            return request.object is not obj
        if obj["kind"] == "Job":
            request.object = await self._job(request, obj)
        else:
            request.object = await self._pod(request, obj)
        return True

    async def validate(self, hook: Hook, request: Attributes) -> None:
        if self.asleep or request.object is None or request.operation != "CREATE":
            return
        meta = request.object["metadata"]
        notes = meta.get("annotations") or {}
        booking, pod = notes.get(stamps.BOOKING), notes.get(stamps.POD_STAMP)
        if booking is None:
            return
        with suppress(LedgerUnavailable):
            if pod is not None:
                await self.ledger.bind_pod(booking, pod=pod, uid=meta["uid"], name=meta["name"])
                return
            await self.ledger.bind(
                booking,
                namespace=meta["namespace"],
                kind=request.object["kind"],
                name=meta["name"],
                uid=meta["uid"],
            )

    def _team(self, request: Attributes) -> Any:
        assert self.watch is not None
        return self.watch.teams.of(request.namespace)

    def _id(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made:020x}"

    async def _job(self, request: Attributes, obj: Obj) -> Obj:
        template = obj["spec"]["template"]
        pods = min(obj["spec"].get("parallelism", 1), obj["spec"].get("completions", 1))
        outcome, booking = await self._book(request, obj, template["spec"], pods)
        if booking is None:
            return obj
        released = outcome is not None
        own = {stamps.BOOKING: booking.id, stamps.USER: booking.user, **_groups(request, obj)}
        if not released:
            own[stamps.QUEUED_AT] = _text(booking.queued_at)
        obj = _stamped(obj, own, State.RELEASED if released else State.QUEUED)
        spec = {
            **obj["spec"],
            "suspend": not released,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": obj["spec"].get("podFailurePolicy")
            or {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    }
                ]
            },
        }
        if outcome is not None:
            meta = template.get("metadata") or {}
            notes = {**(meta.get("annotations") or {}), **_assignment(booking.id, outcome)}
            spec["template"] = {**template, "metadata": {**meta, "annotations": notes}}
        return {**obj, "spec": spec}

    async def _pod(self, request: Attributes, obj: Obj) -> Obj:
        notes = obj["metadata"].get("annotations") or {}
        owner = next(
            (ref for ref in obj["metadata"].get("ownerReferences") or () if ref.get("controller")),
            None,
        )
        if owner is not None and owner["kind"] == "Job" and stamps.ASSIGNMENT in notes:
            assignment = json.decode(notes[stamps.ASSIGNMENT], type=Assignment)
            stamp = self._id("p")
            try:
                attached = await self.ledger.attach(
                    assignment.booking,
                    owner_uid=owner["uid"],
                    team=self._team(request).name,
                    pod=stamp,
                    now=time.time(),
                )
                accepted = attached.accepted
            except LedgerUnavailable:
                accepted = True  # what the template says was true when it was written
            if accepted:
                self.started.append(owner["name"])
                own = {stamps.BOOKING: assignment.booking, stamps.POD_STAMP: stamp}
                return _stamped(obj, own, None)
            self.alone.add(owner["name"])
        outcome, booking = await self._book(request, obj, obj["spec"], 1)
        if booking is None:
            return obj
        option = outcome or booking.options[0]
        own = {stamps.USER: booking.user, **_assignment(booking.id, option)}
        own |= _groups(request, obj)
        if request.call.user.username == QUEUE_USER:
            kept = (stamps.QUEUED_AT, stamps.RESTARTS, stamps.HISTORY)
            own |= {key: notes[key] for key in kept if key in notes}
        elif outcome is None:
            own[stamps.QUEUED_AT] = _text(booking.queued_at)
        obj = _stamped(obj, own, State.QUEUED if outcome is None else State.RELEASED)
        gates = [{"name": stamps.GATE}] if outcome is None else []
        return {**obj, "spec": {**obj["spec"], "schedulingGates": gates}}

    async def _book(
        self, request: Attributes, obj: Obj, template: Obj, pods: int
    ) -> tuple[Option | None, Booking | None]:
        """Give what it may start with, and its booking; both None: it asks for no GPUs."""
        assert self.watch is not None
        team = self._team(request)
        meta = obj["metadata"]
        labels = meta.get("labels") or {}
        spec = convert(template, PodSpec)
        ask = read_pod(spec, meta.get("annotations") or {})
        if not ask.is_gpu:
            return None, None
        policy = self.watch.policy
        work_class = policy.classes.get(labels.get(stamps.CLASS, ""))
        options = options_for(ask, work_class, self.watch.inventory.offers, policy)
        own = request.call.user.username == QUEUE_USER
        notes = meta.get("annotations") or {}
        group, revision = "", ""
        if obj["kind"] == "Pod":
            group, revision = rollout_of(convert(obj, Pod).metadata)
        now = time.time()
        booking = Booking(
            id=notes.get(stamps.BOOKING) or self._id("b"),
            ref=Ref(
                kind=obj["kind"],
                namespace=request.namespace,
                name=meta.get("name", ""),
                generate_name=meta.get("generateName", ""),
            ),
            team=team.name,
            work_class=work_class.name if work_class is not None else "",
            rank=work_class.rank if work_class is not None else len(policy.classes),
            user=notes.get(stamps.USER) or request.call.user.username,
            state=State.QUEUED,
            pods=pods,
            options=options,
            queued_at=now,
            since=now,
            group=group,
            group_revision=revision,
            preemptible=work_class.preemptible if work_class is not None else True,
            restarts=int(notes.get(stamps.RESTARTS, 0)) if own else 0,
        )
        wish = BookRequest(
            booking=booking,
            limits=limits_of(team, booking.work_class, options),
            now=now,
            start=self.fast and not own,
        )
        try:
            outcome = await self.ledger.book(wish)
        except LedgerUnavailable:
            return None, booking  # it waits, and the queue takes it up on sight
        given = outcome.option if outcome.verdict is Verdict.BOOKED else None
        return given, booking


def _text(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _groups(request: Attributes, obj: Obj) -> dict[str, str]:
    if request.call.user.username == QUEUE_USER:
        return {}
    groups = {stamps.GROUPS: json.encode(request.call.user.groups).decode()}
    return groups | _authors(request, obj, None)


def _authors(request: Attributes, new: Obj, old: Obj | None) -> dict[str, str]:
    user = request.call.user
    notes = [(each or {"metadata": {}})["metadata"].get("annotations") for each in (new, old)]
    stamp = author_stamp(*notes, user.username, user.groups)
    return {} if stamp is None else {stamps.MARKED: stamp}


def _marked(request: Attributes, obj: Obj) -> Obj:
    """Stamp who wrote the lead's marks, as they are written."""
    if request.call.user.username == QUEUE_USER or request.subresource:
        return obj
    meta, authors = obj["metadata"], _authors(request, obj, request.old)
    notes = dict(meta.get("annotations") or {})
    if notes.get(stamps.MARKED) == authors.get(stamps.MARKED):
        return obj
    notes.pop(stamps.MARKED, None)
    return {**obj, "metadata": {**meta, "annotations": notes | authors}}


def _assignment(booking: str, option: Option) -> dict[str, str]:
    text = json.encode(Assignment(booking=booking, option=option)).decode()
    return {stamps.BOOKING: booking, stamps.ASSIGNMENT: text}


def _stamped(obj: Obj, own: dict[str, str], state: State | None) -> Obj:
    meta = obj["metadata"]
    labels = {**(meta.get("labels") or {}), stamps.LABEL_MANAGED: "true"}
    if state is not None:
        labels[stamps.STATE] = state.value.lower()
    notes = {**(meta.get("annotations") or {}), **own}
    return {**obj, "metadata": {**meta, "labels": labels, "annotations": notes}}
