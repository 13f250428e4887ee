"""One review, from bytes to bytes: decide, ask the ledger at most once, conclude, try, answer."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from enum import Enum
from typing import Any, TypeVar

from msgspec import Struct

from fairslice import messages
from fairslice_queue.ledger import BookingForm, Ledger, LedgerUnavailable, Outcome
from fairslice_webhook.audit import AuditSink
from fairslice_webhook.decide import LedgerAnswer, Phase, conclude, decide, without_ledger
from fairslice_webhook.decision import (
    Answer,
    Attach,
    Bind,
    BindPod,
    Book,
    Decision,
    Denial,
    Peek,
    PeekReplicas,
    Wish,
)
from fairslice_webhook.metrics import WebhookMetrics
from fairslice_webhook.patching import InapplicablePatch, try_out
from fairslice_webhook.review import (
    Review,
    ReviewError,
    decode_review,
    encode_passed,
    encode_response,
)
from fairslice_webhook.templates import Template, Templates, Written
from fairslice_webhook.view import Call, View

__all__ = ["Admission"]

# How long, and how often, something that isn't there is looked for.
_UNSEEN_SECONDS = 1.0
_LOOK_SECONDS = 0.05
# So many calls of the ledger are sent without waiting for each other, and none that is sent takes
# longer than this: two round trips of 250 ms, or what a cluster needs to find its node.
_FEW = 32
_LEDGER_SECONDS = 2.0
# Hexadecimal digits of an id, and for how many calls they are got at once.
_DIGITS = 20
_CALLS = 128

_log = logging.getLogger(__name__)

T = TypeVar("T")


class _Away(Enum):
    """The ledger gave no answer."""

    AWAY = "away"


class _Case(Struct):
    """A review on its way to its answer. `within` seconds of `started` it must be there."""

    review: Review
    view: View
    phase: Phase
    call: Call
    within: float
    started: float
    template: Template | None

    def decide(self) -> Decision:
        """Decide; as often as needed, always alike."""
        return decide(self.review, self.view, self.call, self.phase)


def _calls() -> Iterator[Call]:
    """Yield calls of now, with ids that nobody has; asking for randomness takes a system call."""
    while True:
        digits = os.urandom(_CALLS * _DIGITS).hex()
        for at in range(0, len(digits), 2 * _DIGITS):
            booking, pod = digits[at : at + _DIGITS], digits[at + _DIGITS : at + 2 * _DIGITS]
            yield Call(now=time.time(), booking="b" + booking, pod="p" + pod)


class Admission:
    """Answers reviews from the newest view. No Kubernetes call, at most one of the ledger's."""

    def __init__(
        self,
        ledger: Ledger,
        metrics: WebhookMetrics,
        sink: AuditSink,
        *,
        call: Callable[[], Call] | None = None,
        newest: Callable[[], View | None] = lambda: None,
        templates: Templates | None = None,
    ) -> None:
        """Answer with this ledger; `newest` gives the view as it is then, for another look."""
        self._ledger = ledger
        self._metrics = metrics
        self._sink = sink
        self._call = call or _calls().__next__
        self._newest = newest
        self._asking = 0
        self._templates = Templates() if templates is None else templates

    def begin(
        self, body: bytes, view: View, phase: Phase, within: float
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """Answer a review now if that needs no ledger, else say what to await for the answer.

        That takes so many seconds at most. Raises ReviewError for what is no review.
        """
        started = time.perf_counter()
        review, call = decode_review(body), self._call()
        template = self._templates.of(review, view, call, phase)
        case = _Case(review, view, phase, call, within, started, template)
        if template is not None:
            if template.answer is not None:
                return self._give(case, template.answer)
            if template.form is not None:
                return self._book_alike(case, template, template.form)
        decision = case.decide()
        if not isinstance(decision, Answer):
            return self._grant(case, decision)
        if decision.denial is not None and decision.denial.unseen:
            return self._look_again(case)
        answer = self._tried(review, decision)
        written = Written.of(answer)
        if template is not None and written is not None:
            template.answered(call, written)
        return self._final(case, answer, written)

    async def answer(self, body: bytes, view: View, phase: Phase, within: float) -> bytes:
        """Answer a review within so many seconds of now.

        Raises ReviewError for what is none.
        """
        begun = self.begin(body, view, phase, within)
        return begun if isinstance(begun, bytes) else await begun

    # With the ledger.

    async def _grant(self, case: _Case, wish: Wish) -> bytes:
        outcome = await self._asked(self._ask(wish), case.within)
        if isinstance(wish, Book):
            self._count_booking(wish.request.booking.ref.kind, outcome)
        return self._conclude(case, wish, outcome)

    async def _book_alike(self, case: _Case, template: Template, form: BookingForm) -> bytes:
        """Book what is like others that were booked a moment ago."""
        review, call = case.review, case.call
        booked = self._ledger.book_alike(form, call.booking, review.name, call.now)
        outcome = await self._asked(booked, case.within)
        self._count_booking(review.kind.kind, outcome)
        if isinstance(outcome, Outcome):
            written = template.conclusion(call.booking, outcome)
            if written is not None:
                return self._give(case, written)
        # It did not go as with the others: now the whole decision is needed.
        wish = case.decide()
        if not isinstance(wish, Book):
            raise ReviewError("the object can't be read as a whole")  # templates leave parts out
        return self._conclude(case, wish, outcome)

    def _conclude(self, case: _Case, wish: Wish, outcome: LedgerAnswer | _Away) -> bytes:
        if isinstance(outcome, _Away):
            return self._final(case, self._tried(case.review, without_ledger(wish)))
        answer = self._tried(case.review, conclude(wish, outcome))
        written = Written.of(answer)
        if (
            case.template is not None
            and written is not None
            and isinstance(wish, Book)
            and isinstance(outcome, Outcome)
        ):
            case.template.booked(case.call, wish.request, outcome, written)
        return self._final(case, answer, written)

    async def _look_again(self, case: _Case) -> bytes:
        """Decide anew on newer views: what came just before may not have been seen yet."""
        deadline = time.monotonic() + min(case.within, _UNSEEN_SECONDS)
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            case.view, case.call = self._newest() or case.view, self._call()
            decision = case.decide()
            if not isinstance(decision, Answer):
                return await self._grant(case, decision)
            unseen = decision.denial is not None and decision.denial.unseen
            if not unseen or time.monotonic() >= deadline:
                return self._final(case, self._tried(case.review, decision))

    async def _asked(self, answer: Awaitable[T], within: float) -> T | _Away:
        few, self._asking = self._asking < _FEW, self._asking + 1
        try:
            # Few are on their way at once, and limited by the ledger itself: no timer is needed,
            # which costs as much as many a step of a decision.
            if few and within > _LEDGER_SECONDS:
                return await answer
            async with asyncio.timeout(within):
                return await answer
        except (LedgerUnavailable, TimeoutError) as error:
            self._metrics.ledger_away.inc()
            _log.debug("answered without the ledger: %s", error)
            return _Away.AWAY
        finally:
            self._asking -= 1

    async def _ask(self, wish: Wish) -> LedgerAnswer:
        ledger = self._ledger
        match wish:
            case Book():
                return await ledger.book(wish.request)
            case Attach():
                return await ledger.attach(
                    wish.booking,
                    owner_uid=wish.owner_uid,
                    above=wish.above,
                    units=wish.units,
                    team=wish.team,
                    pod=wish.pod,
                    now=wish.now,
                )
            case Bind():
                return await ledger.bind(
                    wish.booking,
                    namespace=wish.namespace,
                    kind=wish.kind,
                    name=wish.name,
                    uid=wish.uid,
                )
            case BindPod():
                return await ledger.bind_pod(
                    wish.booking, pod=wish.pod, uid=wish.uid, name=wish.name
                )
            case Peek() | PeekReplicas():
                return await ledger.held(wish.team)

    # The last steps.

    def _tried(self, review: Review, answer: Answer) -> Answer:
        """Try the patch on the object first: one that doesn't apply is never sent.

        The API server would fail the request whatever the failurePolicy. Work that holds no
        booking passes unchanged instead; work that does must not be stored unpatched.
        """
        if not answer.ops or answer.denial is not None:
            return answer
        try:
            try_out(answer.ops, review.object)
        except InapplicablePatch as error:
            self._metrics.inapplicable.inc()
            _log.error(
                "no patch for %s %s/%s: %s",
                review.kind.kind,
                review.namespace,
                review.name,
                error,
            )
            if not answer.strict:
                return Answer((), answer.warnings, records=answer.records)
            return Answer(denial=Denial(messages.patch_inapplicable(), 500, "InternalError"))
        return answer

    def _final(self, case: _Case, answer: Answer, written: Written | None = None) -> bytes:
        """Count an answer and send it; `written` if it is so already."""
        if written is not None:
            return self._give(case, written)
        for record in answer.records:
            self._metrics.audit.labels(record.feature, record.outcome).inc()
        # A dry run leaves no trace.
        if answer.records and not case.review.dry_run:
            self._sink.keep(answer.records)
        denial = answer.denial
        self._count(case, "denied" if denial else "patched" if answer.ops else "allowed")
        return encode_response(
            case.review.uid,
            allowed=denial is None,
            patch=answer.ops if denial is None else (),
            warnings=answer.warnings,
            code=denial.code if denial is not None else 0,
            reason=denial.reason if denial is not None else "",
            message=denial.message if denial is not None else "",
        )

    def _give(self, case: _Case, written: Written) -> bytes:
        """Count and give an answer that is written, for this object or for others like it."""
        self._count(case, "patched" if written.patch else "allowed")
        return encode_passed(case.review.uid, written.patch, written.warnings)

    def _count(self, case: _Case, outcome: str) -> None:
        review, seconds = case.review, time.perf_counter() - case.started
        kind, operation = review.kind.kind, review.operation
        self._metrics.answered(case.phase, kind, operation, outcome, seconds)

    def _count_booking(self, kind: str, outcome: object) -> None:
        if isinstance(outcome, _Away):
            self._metrics.booked(kind, "unavailable")
        elif isinstance(outcome, Outcome):
            self._metrics.booked(kind, outcome.verdict)
            option = outcome.option
            if option is not None and option.rename:
                self._metrics.rewritten(option.pool, option.mode)
