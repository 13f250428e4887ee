"""What would happen to an object and why, without creating anything.

The same `decide` as for a dry run, and a trial of the ledger's own booking script: what is told
here is what would have been done at this moment. Nothing of other teams is told but how much is
free, and how many wait that go first.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from fairslice import messages, stamps
from fairslice.booking import Option
from fairslice.options import describe
from fairslice.quantity import format_milli
from fairslice_queue.ledger import BookRequest, Free, Held, Ledger, Outcome, Verdict
from fairslice_webhook.decide import Phase, conclude, decide, without_ledger
from fairslice_webhook.decision import Answer, Attach, Book, Decision, Peek, PeekReplicas
from fairslice_webhook.explained import made_by
from fairslice_webhook.judgement import Cap, caps_of, reason
from fairslice_webhook.patching import InapplicablePatch, apply
from fairslice_webhook.pod_plan import PodPlan
from fairslice_webhook.review import GroupVersionKind, Review, ReviewError, UserInfo
from fairslice_webhook.view import Call, View
from fairslice_webhook.workloads import WorkloadPlan

__all__ = ["CapRow", "ContainerRow", "ExplainRequest", "Explainer", "Explanation", "OptionRow"]

MAX_OBJECTS = 100

RUNS, WAITS, REFUSED = "runs", "waits", "refused"


class ExplainRequest(Struct, frozen=True, kw_only=True):
    """Objects as manifests have them; who would create them, and where if they don't say."""

    objects: tuple[dict[str, Any], ...]
    namespace: str = "default"
    user: str = ""
    groups: tuple[str, ...] = ()


class OptionRow(Struct, frozen=True, kw_only=True):
    """A way to serve a pod. `free` is how many such pods find room now; None: not known here."""

    what: str
    pool: str
    gpus: str
    free: int | None = None
    chosen: bool = False
    stopped_by: str = ""


class CapRow(Struct, frozen=True, kw_only=True):
    """A cap of the team, and what is used of it; in GPUs, or in units of a resource."""

    cap: str
    used: str
    limit: str
    asked: str


class ContainerRow(Struct, frozen=True, kw_only=True):
    """What a container asks for and what it would be given."""

    name: str
    asked: dict[str, str]
    given: dict[str, str]


class Explanation(Struct, frozen=True, kw_only=True):
    """What would become of one object. `verdict` is `runs`, `waits` or `refused`.

    `ahead` is how many wait for the same pool that go first. `stamps` are the annotations and
    labels that it would carry.
    """

    object: str
    verdict: str
    why: str
    team: str = ""
    work_class: str = ""
    class_source: str = ""
    pods: int = 0
    options: tuple[OptionRow, ...] = ()
    caps: tuple[CapRow, ...] = ()
    ahead: int = 0
    containers: tuple[ContainerRow, ...] = ()
    warnings: tuple[str, ...] = ()
    stamps: dict[str, str] = {}


class _Advice(NamedTuple):
    """What is said of replicas: which of them would wait, and all of it."""

    short: str
    told: Sequence[str]


class Explainer:
    """Explains objects from the newest view. Raises LedgerUnavailable, ReviewError."""

    def __init__(self, ledger: Ledger, *, clock: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._clock = clock

    async def explain(self, request: ExplainRequest, view: View) -> list[Explanation]:
        """Explain each object.

        Raises ReviewError for what is no object, LedgerUnavailable.
        """
        objects = [item for obj in request.objects for item in _items(obj)]
        if len(objects) > MAX_OBJECTS:
            raise ReviewError(f"{len(objects)} objects are more than {MAX_OBJECTS}")
        return [await self._one(obj, request, view) for obj in objects]

    async def _one(self, obj: dict[str, Any], request: ExplainRequest, view: View) -> Explanation:
        review = _review(obj, request.namespace, request.user, request.groups)
        name = f"{review.kind.kind} {review.namespace}/{review.name or '*'}"
        made = made_by(obj, review.namespace)
        advised: _Advice | None = None
        if made is not None:
            # Its own object is never changed, only advised on; its pods are what counts.
            if made.replicated:
                advised = await self._advised(review, view)
            review = _review(made.obj, review.namespace, made.user or request.user, ())
        found = await self._explained(name, review, view)
        if advised is None or found.verdict == REFUSED:
            return found
        # What only the whole of its replicas tells.
        waits = advised.short
        return msgspec.structs.replace(
            found,
            verdict=WAITS if waits else found.verdict,
            why=waits or found.why,
            pods=_replicas(obj) if found.pods else 0,
            warnings=tuple(dict.fromkeys((*found.warnings, *advised.told))),
        )

    async def _advised(self, review: Review, view: View) -> "_Advice":
        decision = decide(review, view, self._call(), Phase.VALIDATE)
        if isinstance(decision, PeekReplicas):
            answer = conclude(decision, await self._ledger.held(decision.team))
            short = [text for text in answer.warnings if text not in decision.plan.told]
            return _Advice(short[0] if short and decision.plan.enforced else "", answer.warnings)
        return _Advice("", decision.warnings if isinstance(decision, Answer) else ())

    async def _explained(self, name: str, review: Review, view: View) -> Explanation:
        decision = decide(review, view, self._call(), Phase.MUTATE)
        team = view.teams.of(review.namespace)
        owner = team.name if team is not None else ""
        if not isinstance(decision, Peek | Book):
            return _settled(name, owner, review, decision, view)
        request, plan = decision.request, decision.plan
        held = await self._ledger.held(owner)
        free = await self._free(request)
        outcome: Outcome | None = None
        if isinstance(decision, Book) or decision.dry:
            outcome = await self._ledger.trial(request)
            answer = conclude(decision, outcome)
        else:
            answer = conclude(decision, held)
        given = _given(request, outcome)
        verdict, why = _verdict(answer, outcome, request, owner)
        changed = _changed(review, answer)
        return Explanation(
            object=name,
            verdict=verdict,
            why=why,
            team=owner,
            work_class=plan.work.class_name if plan.work is not None else "",
            class_source=plan.work.source if plan.work is not None else "",
            pods=request.booking.pods,
            options=tuple(
                _option_row(option, request, held, free, owner, chosen=option == given)
                for option in request.booking.options
            ),
            caps=tuple(
                _cap_row(cap, request.booking.pods) for cap in caps_of(request, given, held)
            ),
            ahead=max((free.waiting[offer] for offer in given.offers), default=0),
            containers=_containers(plan, review, changed, given),
            warnings=tuple(answer.warnings),
            stamps=_stamps(changed),
        )

    async def _free(self, request: BookRequest) -> Free:
        options = request.booking.options
        offers = list(dict.fromkeys(offer for option in options for offer in option.offers))
        return await self._ledger.free(offers, request.booking.rank)

    def _call(self) -> Call:
        return Call(
            now=self._clock(),
            booking="b" + secrets.token_hex(10),
            pod="p" + secrets.token_hex(10),
        )


def _items(obj: dict[str, Any]) -> Iterator[dict[str, Any]]:
    items = obj.get("items")
    if str(obj.get("kind", "")).endswith("List") and isinstance(items, list):
        yield from (item for item in items if isinstance(item, dict))
    else:
        yield obj


def _review(obj: dict[str, Any], namespace: str, user: str, groups: Sequence[str]) -> Review:
    meta = obj.get("metadata")
    if not isinstance(meta, dict) or not obj.get("kind") or not obj.get("apiVersion"):
        raise ReviewError("an object without apiVersion, kind and metadata")
    group, _, version = str(obj["apiVersion"]).rpartition("/")
    where = str(meta.get("namespace") or namespace)
    whole = {**obj, "metadata": {**meta, "namespace": where}}
    return Review(
        uid="explain",
        kind=GroupVersionKind(group=group, version=version, kind=str(obj["kind"])),
        operation="CREATE",
        name=str(meta.get("name") or ""),
        namespace=where,
        user_info=UserInfo(username=user, groups=tuple(groups)),
        object=Raw(msgspec.json.encode(whole)),
        dry_run=True,
    )


def _settled(name: str, team: str, review: Review, decision: Decision, view: View) -> Explanation:
    """Explain what needs no room in the books."""
    if isinstance(decision, Attach):
        decision = without_ledger(decision)
    answer = decision if isinstance(decision, Answer) else Answer()
    changed = _changed(review, answer)
    labels = changed.get("metadata", {}).get("labels") or {}
    if answer.denial is not None:
        verdict, why = REFUSED, answer.denial.message
    elif labels.get(stamps.STATE) in ("held", "queued"):
        verdict, why = WAITS, next(iter(answer.warnings), "")
    elif (apart := messages.pods_one_by_one(review.kind.kind)) in answer.warnings:
        verdict, why = WAITS, apart
    elif not team:
        verdict, why = RUNS, messages.explain_no_team(review.namespace)
    else:
        verdict, why = RUNS, messages.explain_nothing()
    return Explanation(
        object=name,
        verdict=verdict,
        why=why,
        team=team,
        warnings=tuple(answer.warnings),
        stamps=_stamps(changed),
    )


def _verdict(
    answer: Answer, outcome: Outcome | None, request: BookRequest, team: str
) -> tuple[str, str]:
    if answer.denial is not None:
        return REFUSED, answer.denial.message
    if outcome is None:
        return RUNS, messages.explain_audited()
    if outcome.verdict is Verdict.BOOKED:
        return RUNS, messages.explain_room()
    return WAITS, reason(outcome, team, request.booking.options)


def _given(request: BookRequest, outcome: Outcome | None) -> Option:
    options = request.booking.options
    if outcome is None:
        return options[0]
    if outcome.option is not None:
        return outcome.option
    if outcome.chosen >= 0:
        return options[outcome.chosen]
    return (request.queued_options or options)[0]


def _option_row(
    option: Option, request: BookRequest, held: Held, free: Free, team: str, *, chosen: bool
) -> OptionRow:
    pods = request.booking.pods
    tight = next((cap for cap in caps_of(request, option, held) if cap.fits < pods), None)
    room = [free.units.get(offer, 0) // units for offer, units in option.offers.items()]
    return OptionRow(
        what=describe(option),
        pool=option.pool,
        gpus=format_milli(option.milli),
        free=min(room) if room else None,
        chosen=chosen,
        stopped_by=(
            messages.cap_reached(
                team, tight.cause, tight.subject, tight.used, tight.limit, tight.per_pod * pods
            )
            if tight is not None
            else ""
        ),
    )


def _cap_row(cap: Cap, pods: int) -> CapRow:
    shown = str if cap.cause == "resource" else format_milli
    return CapRow(
        cap=f"{cap.cause} {cap.subject}".strip(),
        used=shown(cap.used),
        limit=shown(cap.limit),
        asked=shown(cap.per_pod * pods),
    )


def _changed(review: Review, answer: Answer) -> dict[str, Any]:
    """Return the object as it would be stored."""
    if answer.denial is not None or not answer.ops:
        return dict(msgspec.json.decode(bytes(review.object)))
    try:
        return dict(apply(answer.ops, review.object))
    except InapplicablePatch as error:
        raise ReviewError(str(error)) from None


def _containers(
    plan: object, review: Review, changed: dict[str, Any], given: Option
) -> tuple[ContainerRow, ...]:
    rows: dict[str, ContainerRow] = {}
    if isinstance(plan, PodPlan):
        asked = _resources(msgspec.json.decode(bytes(review.object)))
        after = _resources(changed)
        for name in {**asked, **after}:
            rows[name] = ContainerRow(
                name=name, asked=asked.get(name, {}), given=after.get(name, {})
            )
    elif isinstance(plan, WorkloadPlan):
        for member in plan.members:
            for item in member.ask.gpu_containers:
                if item.resource is None:
                    continue
                resource = item.resource.name
                rows.setdefault(
                    item.name,
                    ContainerRow(
                        name=item.name,
                        asked={resource: _amount(item.count, item.fraction_milli)},
                        given={given.rename.get(resource, resource): str(item.count)},
                    ),
                )
    return tuple(rows.values())


def _amount(count: int, fraction_milli: int) -> str:
    return format_milli(fraction_milli) if fraction_milli else str(count)


def _resources(obj: dict[str, Any]) -> dict[str, dict[str, str]]:
    spec = obj.get("spec") or {}
    found: dict[str, dict[str, str]] = {}
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            limits = (container.get("resources") or {}).get("limits") or {}
            gpus = {
                name: str(amount)
                for name, amount in limits.items()
                if "/" in name and ("nvidia.com/" in name or name.startswith("deviceclass."))
            }
            if gpus:
                found[str(container.get("name", ""))] = gpus
    return found


def _stamps(obj: dict[str, Any]) -> dict[str, str]:
    meta = obj.get("metadata") or {}
    both = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    return {key: str(value) for key, value in both.items() if key.startswith(stamps.SYSTEM)}


def _replicas(obj: dict[str, Any]) -> int:
    replicas = (obj.get("spec") or {}).get("replicas")
    return replicas if isinstance(replicas, int) else 1
