"""One review, from bytes to bytes: decide, ask the ledger at most once, conclude, try, answer."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fairslice import messages
from fairslice_queue.ledger import Ledger, LedgerUnavailable, Outcome
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
from fairslice_webhook.review import Review, decode_review, encode_response
from fairslice_webhook.view import Call, View

__all__ = ["Admission"]

# How long, and how often, something that isn't there is looked for.
_UNSEEN_SECONDS = 1.0
_LOOK_SECONDS = 0.05

_log = logging.getLogger(__name__)


def _fresh_call() -> Call:
    ids = secrets.token_hex(20)
    return Call(now=time.time(), booking="b" + ids[:20], pod="p" + ids[20:])


class Admission:
    """Answers reviews from the newest view. No Kubernetes call, at most one of the ledger's."""

    def __init__(
        self,
        ledger: Ledger,
        metrics: WebhookMetrics,
        sink: AuditSink,
        *,
        call: Callable[[], Call] = _fresh_call,
        newest: Callable[[], View | None] = lambda: None,
    ) -> None:
        """Answer with this ledger; `newest` gives the view as it is then, for another look."""
        self._ledger = ledger
        self._metrics = metrics
        self._sink = sink
        self._call = call
        self._newest = newest

    def begin(
        self, body: bytes, view: View, phase: Phase, within: float
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """Answer a review now if that needs no ledger, else say what to await for the answer.

        It then takes so many seconds at most. Raises ReviewError for what is no review.
        """
        started = time.perf_counter()
        review = decode_review(body)
        decision = decide(review, view, self._call(), phase)
        if not isinstance(decision, Answer) or (decision.denial and decision.denial.unseen):
            return self._later(review, view, phase, decision, within, started)
        return self._final(review, phase, decision, started)

    async def answer(self, body: bytes, view: View, phase: Phase, within: float) -> bytes:
        """Answer a review within so many seconds of now.

        Raises ReviewError for what is none.
        """
        begun = self.begin(body, view, phase, within)
        return begun if isinstance(begun, bytes) else await begun

    async def _later(
        self,
        review: Review,
        view: View,
        phase: Phase,
        decision: Decision,
        within: float,
        started: float,
    ) -> bytes:
        if isinstance(decision, Answer):
            decision = await self._look_again(review, view, phase, min(within, _UNSEEN_SECONDS))
        if not isinstance(decision, Answer):
            decision = await self._ask(decision, within)
        return self._final(review, phase, decision, started)

    def _final(self, review: Review, phase: Phase, answer: Answer, started: float) -> bytes:
        answer = self._tried(review, answer)
        self._count(review, phase, answer, time.perf_counter() - started)
        denial = answer.denial
        if denial is None:
            return encode_response(
                review.uid, allowed=True, patch=answer.ops, warnings=answer.warnings
            )
        return encode_response(
            review.uid,
            allowed=False,
            warnings=answer.warnings,
            code=denial.code,
            reason=denial.reason,
            message=denial.message,
        )

    async def _look_again(
        self, review: Review, view: View, phase: Phase, seconds: float
    ) -> Decision:
        """Decide anew on newer views: what came just before may not have been seen yet."""
        deadline = time.monotonic() + seconds
        while True:
            decision = decide(review, view, self._call(), phase)
            unseen = isinstance(decision, Answer) and decision.denial and decision.denial.unseen
            if not unseen or time.monotonic() >= deadline:
                return decision
            await asyncio.sleep(_LOOK_SECONDS)
            view = self._newest() or view

    async def _ask(self, wish: Wish, within: float) -> Answer:
        try:
            async with asyncio.timeout(within):
                outcome = await self._grant(wish)
        except (LedgerUnavailable, TimeoutError) as error:
            self._metrics.ledger_away.inc()
            if isinstance(wish, Book):
                self._metrics.bookings.labels(wish.request.booking.ref.kind, "unavailable").inc()
            _log.debug("answered without the ledger: %s", error)
            return without_ledger(wish)
        if isinstance(wish, Book) and isinstance(outcome, Outcome):
            self._count_booking(wish, outcome)
        return conclude(wish, outcome)

    async def _grant(self, wish: Wish) -> LedgerAnswer:
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

    def _tried(self, review: Review, answer: Answer) -> Answer:
        """Apply the patch to the object first: one that doesn't apply is never sent.

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

    def _count(self, review: Review, phase: Phase, answer: Answer, seconds: float) -> None:
        outcome = "denied" if answer.denial else "patched" if answer.ops else "allowed"
        metrics = self._metrics
        metrics.answered(phase.value, review.kind.kind, review.operation, outcome, seconds)
        for record in answer.records:
            metrics.audit.labels(record.feature, record.outcome).inc()
        # A dry run leaves no trace.
        if answer.records and not review.dry_run:
            self._sink.keep(answer.records)

    def _count_booking(self, wish: Book, outcome: Outcome) -> None:
        kind = wish.request.booking.ref.kind
        self._metrics.bookings.labels(kind, outcome.verdict.value).inc()
        option = outcome.option
        if option is not None and option.rename:
            self._metrics.rewrites.labels(option.pool, option.mode).inc()
