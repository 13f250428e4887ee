"""Which of the lead's marks on waiting work count, found out by asking the API server.

A mark counts once its author, whom admission stamped, may update `teams/line` of the work's
team; urgency moreover takes one of the team's tokens. The answer is told on the object.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from msgspec import Struct, json, structs

from fairslice import messages, stamps
from fairslice.booking import Booking
from fairslice.kube.client import ApiError, KubeClient
from fairslice.lead_marks import NO_MARKS, Author, Marks, access_review, authors, order_of
from fairslice.periods import moment_text
from fairslice.policy import Team
from fairslice_queue.acting import Actor
from fairslice_queue.books import Books
from fairslice_queue.standing import Standing
from fairslice_queue.urgent_tokens import spend
from fairslice_queue.watching import Watch

__all__ = ["Leads"]

_log = logging.getLogger(__name__)

# What was refused may be allowed meanwhile, by RBAC, a policy or a new week.
_REPEAT_SECONDS = 60.0
_RECHECK_SECONDS = 600.0
_REMEMBERED_SECONDS = 30.0
_MOST_REMEMBERED = 1000
_RETRY_SECONDS = 1.0
_WRITES_PER_SECOND = 10
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _Review(Struct, frozen=True):
    status: dict[str, Any] = {}


@dataclass(slots=True)
class _Judged:
    """What was found of one workload's marks, and when it is to be asked again."""

    marks: Mapping[str, Author]
    counting: Marks = NO_MARKS
    again_at: float = inf


class Leads:
    """Answers from memory what counts; what is not known yet is asked by `run`, one by one."""

    def __init__(
        self,
        client: KubeClient,
        watch: Watch,
        standing: Standing,
        books: Callable[[], Books],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._watch = watch
        self._standing = standing
        self._books = books
        self._clock = clock
        self._judged: dict[str, _Judged] = {}
        self._pending: dict[str, None] = {}
        self._work = asyncio.Event()
        self._allowed: dict[tuple[Author, str], tuple[bool, float]] = {}
        self._words: dict[str, tuple[Booking, str]] = {}
        self._news = asyncio.Event()

    def marks(self, booking: Booking, annotations: Mapping[str, str]) -> Marks:
        """Return the marks that count, as far as is known; unknown ones are looked into."""
        if stamps.MARKED not in annotations:
            if stamps.MARKS_TOLD in annotations or booking.id in self._judged:
                self._ask(booking.id)
            return NO_MARKS
        found = self._judged.get(booking.id)
        if found is None or found.marks != authors(annotations):
            self._ask(booking.id)
            return NO_MARKS if found is None else _still(found, authors(annotations))
        return found.counting

    def forget(self, booking_id: str) -> None:
        """Drop what was found of a booking that is over."""
        self._judged.pop(booking_id, None)

    async def run(self) -> None:
        """Look into what is unknown, and tell what was found; while leading."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_at_all())
            tasks.create_task(self._tell_all())

    async def _look_at_all(self) -> None:
        looked_again = self._clock()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_REPEAT_SECONDS):
                    await self._work.wait()
            self._work.clear()
            if self._clock() - looked_again >= _REPEAT_SECONDS:
                looked_again = self._clock()
                self._look_again()
            while self._pending:
                booking_id = next(iter(self._pending))
                del self._pending[booking_id]
                try:
                    await self._look(booking_id)
                except ApiError as error:
                    _log.warning("the lead's marks on %s wait: %s", booking_id, error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    self._ask(booking_id)

    def _ask(self, booking_id: str) -> None:
        self._pending[booking_id] = None
        self._work.set()

    def _look_again(self) -> None:
        now, books = self._clock(), self._books()
        for booking_id, found in list(self._judged.items()):
            if books.get(booking_id) is None:
                self.forget(booking_id)
            elif found.again_at <= now:
                found.again_at = inf
                self._ask(booking_id)

    async def _look(self, booking_id: str) -> None:
        booking = self._books().get(booking_id)
        team = self._watch.teams.named(booking.team) if booking is not None else None
        if booking is None or team is None:
            self.forget(booking_id)
            return
        annotations = self._watch.annotations_of(booking_id)
        marks = authors(annotations)
        before = self._judged.get(booking_id)
        # A right that was taken away is noticed before long, too.
        found = _Judged(marks, again_at=self._clock() + _RECHECK_SECONDS)
        order, pinned, urgent = 0, False, False
        told: list[str] = []
        for key, author in marks.items():
            name = key.removeprefix(stamps.USER_PREFIX)
            if not await self._may_lead(author, team.name):
                told.append(messages.mark_refused(name, author.user, team.name))
                found.again_at = self._clock() + _REPEAT_SECONDS
            elif key == stamps.URGENT and author.value == "true":
                urgent, text = await self._urgent(booking, team, author)
                told.append(text)
                if not urgent:
                    found.again_at = self._clock() + _REPEAT_SECONDS
            else:
                order = order_of(author.value) if key == stamps.ORDER else order
                pinned = author.value == "true" if key == stamps.PIN else pinned
                told.append(messages.mark_counts(name, author.value, author.user))
        found.counting = Marks(order, pinned, urgent)
        self._judged[booking_id] = found
        if before is None or before.counting != found.counting:
            self._watch.dirty.add(booking_id)
            self._watch.changed.set()
        self._words[booking_id] = (booking, "; ".join(told))
        self._news.set()
        if not marks:
            self.forget(booking_id)

    async def _may_lead(self, author: Author, team: str) -> bool:
        # Of many marks that one person writes, one is asked about.
        key, now = (structs.replace(author, value=""), team), self._clock()
        known, until = self._allowed.get(key, (False, 0.0))
        if now < until:
            return known
        answer = await self._client.create(_REVIEWS, access_review(author, team))
        allowed = bool(json.decode(answer, type=_Review).status.get("allowed"))
        if len(self._allowed) >= _MOST_REMEMBERED:
            self._allowed.clear()
        self._allowed[key] = (allowed, now + _REMEMBERED_SECONDS)
        return allowed

    async def _urgent(self, booking: Booking, team: Team, author: Author) -> tuple[bool, str]:
        policy = self._watch.policy
        tokens = await spend(
            self._client, team, booking, author.user, policy, self._clock, self._books()
        )
        until = moment_text(tokens.until, policy.zone)
        most = team.urgent_per_week
        if tokens.granted:
            text = messages.urgent_granted(author.user, team.name, tokens.left, most, until)
        elif most:
            text = messages.urgent_spent(team.name, most, until)
        else:
            text = messages.urgent_not_granted(team.name)
        return tokens.granted, text

    async def _tell_all(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._words:
                booking_id = next(iter(self._words))
                booking, words = self._words.pop(booking_id)
                if await self._tell(booking, words):
                    await asyncio.sleep(1.0 / _WRITES_PER_SECOND)

    async def _tell(self, booking: Booking, words: str) -> bool:
        """Write the words on the object; False: they are there already."""
        ref, text = booking.ref, messages.line(words)
        if self._watch.annotations_of(booking.id).get(stamps.MARKS_TOLD, "") == text:
            return False
        if text:
            _log.info("%s: %s", ref, words)
            self._standing.tell(booking, "Marked", text)
        actor = Actor(self._client, self._watch.paths)
        try:
            await actor.annotate(
                ref.kind, ref.namespace, ref.name, ref.uid, {stamps.MARKS_TOLD: text or None}
            )
        except ApiError as error:
            _log.debug("not told: %s: %s", ref, error)
        return True


def _still(found: _Judged, now: Mapping[str, Author]) -> Marks:
    """Keep of what counted what is still written so."""
    same = {key for key, author in now.items() if found.marks.get(key) == author}
    counting = found.counting
    return Marks(
        order=counting.order if stamps.ORDER in same else 0,
        pinned=counting.pinned and stamps.PIN in same,
        urgent=counting.urgent and stamps.URGENT in same,
    )
