"""What was decided about a template, for all that is made from it within the same minute.

A Deployment's pods, a sweep's Jobs, a class's notebooks come in bursts and differ in nothing
that is decided on: only in their names, and in what the API server adds at random. When one of
them comes the second time, they are decided on as a template, nameless; and if name, ids and
time filled in make of it just what was answered to the first, no other is decided on by itself.
Nothing is kept longer than the view it rests on, or the minute: whatever changes with time
(loans, quotas by the hour, budgets) changes on a whole one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw, Struct, json
from msgspec.structs import replace

from fairslice.booking import Option
from fairslice_queue.ledger import BookingForm, BookRequest, Outcome, Verdict
from fairslice_webhook.decide import Phase, conclude, decide
from fairslice_webhook.decision import Answer, Book
from fairslice_webhook.review import GroupVersionKind, Review, UserInfo
from fairslice_webhook.view import Call, View

__all__ = ["Template", "Templates", "Written"]

_MAX_BYTES = 16 * 1024
_MAX_TEMPLATES = 1024

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


class Written(Struct, frozen=True):
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


@dataclass(frozen=True, slots=True)
class _Answered:
    """What was answered to one object: at once, or after its wish to book came to an outcome."""

    call: Call
    written: Written
    request: BookRequest | None = None
    outcome: Outcome | None = None


@dataclass(slots=True)
class Template:
    """Objects alike. `form` and `answers` (by option) if they are booked, else `answer`.

    `last` is one of them that nothing was learnt from yet; `unlike` says that nothing could be.
    """

    review: Review
    last: _Answered | None = None
    unlike: bool = False
    answer: Written | None = None
    form: BookingForm | None = None
    answers: dict[int, Written] = field(default_factory=dict)

    def conclusion(self, booking_id: str, outcome: Outcome) -> Written | None:
        """Conclude an object's wish; None if that is to be done afresh. `form` must be known."""
        assert self.form is not None
        found = self.answers.get(outcome.chosen)
        if found is None or not _is_plain(outcome, booking_id, self.form.request.booking.options):
            return None
        return found.with_id(booking_id)

    def answered(self, call: Call, written: Written) -> None:
        """Note what was answered to one of them without the ledger."""
        if not self.unlike:
            self.last = _Answered(call, written)

    def booked(self, call: Call, request: BookRequest, outcome: Outcome, written: Written) -> None:
        """Note what was answered to one of them that was booked."""
        booking = request.booking
        if not self.unlike and _is_plain(outcome, booking.id, booking.options):
            self.last = _Answered(call, written, request, outcome)

    def learn(self, view: View) -> None:
        """Decide on all of them, and keep that if it is what was answered to the last."""
        last, self.last = self.last, None
        if last is None:
            return
        nameless = Call(now=last.call.now, booking=_BOOKING, pod="p" + _BOOKING[1:])
        decided = decide(self.review, view, nameless, Phase.MUTATE)
        if isinstance(decided, Book):
            self.unlike = not self._learn_booking(decided, last)
        elif isinstance(decided, Answer) and Written.of(decided) == last.written:
            self.answer = last.written
        else:
            self.unlike = True

    def _learn_booking(self, decided: Book, last: _Answered) -> bool:
        request, outcome = last.request, last.outcome
        if request is None or outcome is None:
            return False
        if _filled(decided.request, request.booking.ref.name, last.call) != request:
            return False
        option = decided.request.booking.options[outcome.chosen]
        concluded = Written.of(conclude(decided, replace(outcome, id=_BOOKING, option=option)))
        if concluded is None or concluded.with_id(outcome.id) != last.written:
            return False
        self.form = BookingForm.of(decided.request)
        self.answers[outcome.chosen] = concluded
        return self.form is not None


class Templates:
    """The templates of this minute: those known, and those of which one came so far."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._minute = 0
        self._known: dict[_Key, Template] = {}
        self._new: dict[_Key, Template] = {}

    def __len__(self) -> int:
        """Say how many there are."""
        return len(self._known) + len(self._new)

    def of(self, review: Review, view: View, call: Call, phase: Phase) -> Template | None:
        """Find what an object may be made from; None for what doesn't repeat."""
        minute = int(call.now // 60)
        if view is not self._view or minute != self._minute:
            self._view, self._minute = view, minute
            self._known.clear()
            self._new.clear()
        if phase is not Phase.MUTATE or review.operation != "CREATE" or review.dry_run:
            return None
        shape = _shape(review) if not review.sub_resource else None
        if shape is None:
            return None
        key = (review.kind, review.namespace, review.user_info, shape)
        found = self._known.get(key)
        if found is None:
            found = self._new.get(key)
            if found is None:
                name = _NAME if review.name else ""
                found = Template(replace(review, uid="", name=name, object=Raw(shape)))
                _keep(self._new, key, found)
            elif found.last is not None:
                del self._new[key]
                _keep(self._known, key, found)
        if found.last is not None:
            found.learn(view)
        return found


def _keep(templates: dict[_Key, Template], key: _Key, template: Template) -> None:
    if len(templates) >= _MAX_TEMPLATES:
        templates.clear()
    templates[key] = template


def _shape(review: Review) -> bytes | None:
    """Write an object without its name and what is random; None if it isn't worth it."""
    raw = review.object
    if memoryview(raw).nbytes > _MAX_BYTES:
        return None
    try:
        members = _members(raw)
        meta = _members(members["metadata"])
        if review.name != (_text(meta["name"]) if "name" in meta else ""):
            return None
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return None
    if "name" in meta:
        meta["name"] = _NAME_RAW
    # Who wrote which field, and when.
    meta.pop("managedFields", None)
    shape = _encode({**members, "metadata": meta})
    # The volume of a pod's token is named at random.
    at = shape.find(_ACCESS)
    return shape if at < 0 else shape.replace(shape[at : at + len(_ACCESS) + _SUFFIX], _ACCESS)


def _filled(request: BookRequest, name: str, call: Call) -> BookRequest:
    booking = request.booking
    ref = replace(booking.ref, name=name) if booking.ref.name else booking.ref
    booking = replace(booking, id=call.booking, ref=ref, queued_at=call.now, since=call.now)
    return replace(request, booking=booking, now=call.now, spare=call.booking)


def _is_plain(outcome: Outcome, booking_id: str, options: Sequence[Option]) -> bool:
    """Say whether an object was simply booked, under its own id, with one of its options."""
    return (
        outcome.verdict is Verdict.BOOKED
        and outcome.id == booking_id
        and not outcome.surge
        and 0 <= outcome.chosen < len(options)
        and outcome.option is options[outcome.chosen]
    )
