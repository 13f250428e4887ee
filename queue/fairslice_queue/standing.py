"""Where everybody stands: answered when asked, told on the objects within a budget.

Of a team, the first twenty have their position and reason written on their objects, at most
ten writes a second in all, and on one object every five seconds but for a first correction: at
the head of a line that moves, a position is old before anybody has read it.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from fairslice import messages, stamps
from fairslice.booking import Booking
from fairslice.kube.client import ApiError, KubeClient, Unreachable
from fairslice_queue.acting import Actor
from fairslice_queue.object_paths import ObjectPaths

__all__ = ["Standing", "StandingLine", "Standings"]

_log = logging.getLogger(__name__)

_TOLD_POSITIONS = 20
_WRITES_PER_SECOND = 10
_CORRECT_SECONDS = 1.0
_AGAIN_SECONDS = 5.0
_EVENTS_KEPT = 500
_QUEUED = "Queued: "


@dataclass(frozen=True, slots=True)
class StandingLine:
    """One waiting workload's standing. Position counts from 1 within its team.

    `shown` is what its object says already.
    """

    booking: Booking
    position: int
    queued: int
    reason: str
    shown: str = ""

    @property
    def text(self) -> str:
        """The line that is written on the object."""
        return _QUEUED + messages.position(
            self.position, self.queued, self.booking.team, self.reason
        )


class Standings(Protocol):
    """Whoever knows where work stands now."""

    def teams(self) -> Sequence[str]:
        """List the teams that have work in line."""

    def of_team(self, team: str, most: int | None = None) -> Sequence[StandingLine]:
        """Say where a team's work stands: all of it, or the first so many; in order."""


@dataclass(frozen=True, slots=True)
class _Event:
    booking: Booking
    reason: str
    text: str


class Standing:
    """Where work stands, as the present leader's planning knows, and what was told of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._source: Standings | None = None
        self._changed: OrderedDict[str, None] = OrderedDict()
        self._told: dict[str, str] = {}
        self._quiet_until: dict[str, float] = {}
        self._events: OrderedDict[tuple[str, str], _Event] = OrderedDict()
        self._work = asyncio.Event()

    def follow(self, source: Standings | None) -> None:
        """Ask this one from now on; nobody: this process doesn't lead, and knows of nothing."""
        self._source = source
        self._changed.clear()

    def teams(self) -> Sequence[str]:
        """List the teams that have work in line."""
        return self._source.teams() if self._source is not None else ()

    def of_team(self, team: str) -> Sequence[StandingLine]:
        """Say where a team's work stands, in order."""
        return self._source.of_team(team) if self._source is not None else ()

    def line(self, booking: Booking) -> StandingLine | None:
        """Say where one workload stands; None if it isn't in line."""
        lines = self.of_team(booking.team)
        return next((line for line in lines if line.booking.id == booking.id), None)

    def changed(self, teams: Iterable[str]) -> None:
        """Take note that the work of these teams may stand elsewhere than before."""
        for team in teams:
            self._changed[team] = None
        if self._changed:
            self._work.set()

    def forget(self, booking_id: str) -> None:
        """Drop what was told of a booking that waits no more."""
        self._told.pop(booking_id, None)
        self._quiet_until.pop(booking_id, None)

    def tell(self, booking: Booking, reason: str, text: str) -> None:
        """Have an event written on a booking's object."""
        self._events[booking.id, reason] = _Event(booking, reason, text)
        while len(self._events) > _EVENTS_KEPT:
            self._events.popitem(last=False)
        self._work.set()

    async def run(self, client: KubeClient, paths: ObjectPaths | None = None) -> None:
        """Write what is new, within the budget; while leading."""
        actor = Actor(client, paths or ObjectPaths())
        self._work.set()
        while True:
            await self._work.wait()
            self._work.clear()
            while self._changed or self._events:
                batch = self._due()
                for line in batch:
                    await self._write(actor, line)
                for _ in range(_WRITES_PER_SECOND - len(batch)):
                    if self._events:
                        _, event = self._events.popitem(last=False)
                        await self._emit(actor, event)
                await asyncio.sleep(1.0)

    def _due(self) -> list[StandingLine]:
        """Find what is to be written next, one team after the other."""
        due: list[StandingLine] = []
        now = self._clock()
        for _ in range(len(self._changed)):
            room = _WRITES_PER_SECOND - len(due)
            if not room or self._source is None:
                break
            team, _ = self._changed.popitem(last=False)
            news = [
                line for line in self._source.of_team(team, _TOLD_POSITIONS) if self._is_news(line)
            ]
            ripe = [line for line in news if self._quiet_until.get(line.booking.id, now) <= now]
            if len(news) > min(len(ripe), room):
                self._changed[team] = None
            due += ripe[:room]
        return due

    def _is_news(self, line: StandingLine) -> bool:
        if not line.booking.ref.name:
            return False
        if line.shown.startswith(_QUEUED):  # an earlier leader told it
            self._told.setdefault(line.booking.id, line.shown)
        return self._told.get(line.booking.id) != line.text

    async def _write(self, actor: Actor, line: StandingLine) -> None:
        ref, booking_id = line.booking.ref, line.booking.id
        first = booking_id not in self._told
        self._told[booking_id] = line.text
        pause = _CORRECT_SECONDS if first else _AGAIN_SECONDS
        self._quiet_until[booking_id] = self._clock() + pause
        try:
            await actor.annotate(
                ref.kind, ref.namespace, ref.name, ref.uid, {stamps.STATUS: line.text}
            )
        except Unreachable as error:
            _log.debug("not told yet: %s: %s", ref, error)
            self.forget(booking_id)
            self.changed((line.booking.team,))
        except ApiError as error:
            _log.debug("not told: %s: %s", ref, error)
        else:
            if first:
                self.tell(line.booking, "Queued", line.text)

    async def _emit(self, actor: Actor, event: _Event) -> None:
        ref = event.booking.ref
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{ref.name[:200]}.", "namespace": ref.namespace},
            "involvedObject": {
                "apiVersion": actor.paths.api_version(ref.kind),
                "kind": ref.kind,
                "namespace": ref.namespace,
                "name": ref.name,
                "uid": ref.uid,
            },
            "reason": event.reason,
            "message": event.text,
            "type": "Warning" if event.reason == "Preempted" else "Normal",
            "source": {"component": "fairslice"},
            "reportingComponent": "fairslice",
            "reportingInstance": "fairslice-queue",
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await actor.client.create(f"/api/v1/namespaces/{ref.namespace}/events", body)
        except ApiError as error:
            _log.debug("no event for %s: %s", ref, error)
