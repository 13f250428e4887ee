"""What was decided about a template, for all that is made from it within the same minute.

A Deployment's pods, a sweep's Jobs, a class's notebooks come in bursts and differ in nothing
that is decided on: only in their names, and in what the API server adds at random. What comes
the second time is decided on once as a template, nameless, and from then on only the name, the
ids and the time are filled in. Nothing is kept that doesn't prove to be, so filled in, just
what was decided afresh; and nothing longer than the view it rests on, or the minute: whatever
changes with time (loans, quotas by the hour, budgets) changes on a whole one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw, json
from msgspec.structs import replace

from fairslice_queue.ledger import BookRequest, Outcome, Verdict
from fairslice_webhook.decide import Phase, conclude, decide
from fairslice_webhook.decision import Answer, Book, Decision
from fairslice_webhook.review import GroupVersionKind, Review, UserInfo
from fairslice_webhook.view import Call, View

__all__ = ["Template", "Templates", "Written"]

_MAX_BYTES = 16 * 1024
_MAX_TEMPLATES = 1024
_MAX_SEEN = 4096

_NAME = "fairslice-template"
# An id that nobody has, found again in a patch as text.
_BOOKING = "b7e3f9c5a1d80426b9e1d"
_ACCESS = b"kube-api-access-"
_SUFFIX = 5

_Key = tuple[GroupVersionKind, str, UserInfo, bytes]

_members = json.Decoder(dict[str, Raw]).decode
_text = json.Decoder().decode
_encode = json.Encoder().encode
_NAME_RAW = Raw(_encode(_NAME))


@dataclass(frozen=True, slots=True)
class Written:
    """An answer that lets an object pass: its patch as JSON, empty for none."""

    patch: bytes
    warnings: Sequence[str]

    @classmethod
    def of(cls, answer: Answer) -> "Written | None":
        """Write an answer; None for one that says more than a patch and warnings."""
        if answer.denial is not None or answer.records:
            return None
        return cls(_encode(answer.ops) if answer.ops else b"", tuple(answer.warnings))

    def with_id(self, booking: str) -> "Written":
        """Return the template's answer with an object's own id."""
        return Written(self.patch.replace(_BOOKING.encode(), booking.encode()), self.warnings)


@dataclass(slots=True)
class Template:
    """Objects alike. `request` and `answers` (by option) if they are booked, else `answer`.

    `unlike` says that they turned out to be decided on differently.
    """

    review: Review
    unlike: bool = False
    answer: Written | None = None
    request: BookRequest | None = None
    answers: dict[int, Written] = field(default_factory=dict)

    def wish(self, review: Review, call: Call) -> BookRequest:
        """Make an object's wish to book; `request` must be known."""
        assert self.request is not None
        return _filled(self.request, review.name, call)

    def conclusion(self, request: BookRequest, outcome: Outcome) -> Written | None:
        """Conclude an object's wish; None if that is to be done afresh."""
        found = self.answers.get(outcome.chosen)
        if found is None or not _is_plain(outcome, request):
            return None
        return found.with_id(outcome.id)

    def learn_answer(self, view: View, call: Call, fresh: Answer) -> None:
        """Learn what was answered, without the ledger, to one of them."""
        if self.unlike:
            return
        decided, written = self._decided(view, call), Written.of(fresh)
        self.unlike = True
        if isinstance(decided, Answer) and written and Written.of(decided) == written:
            self.answer = written
            self.unlike = False

    def learn_booking(
        self,
        view: View,
        call: Call,
        wish: Book,
        outcome: Outcome,
        fresh: Answer,
    ) -> None:
        """Learn how one of them wished to book, and what the ledger's answer came to."""
        if self.unlike or not _is_plain(outcome, wish.request):
            return
        decided = self._decided(view, call)
        self.unlike = True
        if not isinstance(decided, Book):
            return
        if _filled(decided.request, wish.request.booking.ref.name, call) != wish.request:
            return
        option = decided.request.booking.options[outcome.chosen]
        alike = replace(outcome, id=_BOOKING, option=option)
        written = Written.of(conclude(decided, alike))
        if written is not None and written.with_id(outcome.id) == Written.of(fresh):
            self.request = decided.request
            self.answers[outcome.chosen] = written
            self.unlike = False

    def _decided(self, view: View, call: Call) -> Decision:
        nameless = Call(now=call.now, booking=_BOOKING, pod="p" + _BOOKING[1:])
        return decide(self.review, view, nameless, Phase.MUTATE)


class Templates:
    """The templates of this minute."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._minute = 0
        self._seen: set[int] = set()
        self._known: dict[_Key, Template] = {}

    def __len__(self) -> int:
        """Say how many are known."""
        return len(self._known)

    def of(self, review: Review, view: View, call: Call, phase: Phase) -> Template | None:
        """Find what an object is made from, if such came before; it may yet have to be learnt."""
        minute = int(call.now // 60)
        if view is not self._view or minute != self._minute:
            self._view, self._minute = view, minute
            self._seen.clear()
            self._known.clear()
        if phase is not Phase.MUTATE or review.operation != "CREATE" or review.dry_run:
            return None
        if review.sub_resource:
            return None
        shape = _shape(review)
        if shape is None:
            return None
        key = (review.kind, review.namespace, review.user_info, shape)
        found = self._known.get(key)
        if found is not None:
            return found
        mark = hash(key)
        if mark not in self._seen:
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            self._seen.add(mark)
            return None
        if len(self._known) >= _MAX_TEMPLATES:
            self._known.clear()
        name = _NAME if review.name else ""
        found = Template(replace(review, uid="", name=name, object=Raw(shape)))
        self._known[key] = found
        return found


def _shape(review: Review) -> bytes | None:
    """Write an object without its name and what is random; None if it isn't worth it."""
    raw = review.object
    if memoryview(raw).nbytes > _MAX_BYTES:
        return None
    try:
        obj = _members(raw)
        meta = _members(obj["metadata"])
        if review.name != (_text(meta["name"]) if "name" in meta else ""):
            return None
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return None
    if "name" in meta:
        meta["name"] = _NAME_RAW
    # Who wrote which field, and when.
    meta.pop("managedFields", None)
    obj["metadata"] = Raw(_encode(meta))
    shape = _encode(obj)
    # The volume of a pod's token is named at random.
    at = shape.find(_ACCESS)
    return shape if at < 0 else shape.replace(shape[at : at + len(_ACCESS) + _SUFFIX], _ACCESS)


def _filled(request: BookRequest, name: str, call: Call) -> BookRequest:
    booking = request.booking
    ref = replace(booking.ref, name=name) if booking.ref.name else booking.ref
    booking = replace(booking, id=call.booking, ref=ref, queued_at=call.now, since=call.now)
    return replace(request, booking=booking, now=call.now, spare=call.booking)


def _is_plain(outcome: Outcome, request: BookRequest) -> bool:
    """Say whether an object was simply booked, under its own id, with one of its options."""
    booking = request.booking
    return (
        outcome.verdict is Verdict.BOOKED
        and outcome.id == booking.id
        and not outcome.surge
        and 0 <= outcome.chosen < len(booking.options)
        and outcome.option is booking.options[outcome.chosen]
    )
