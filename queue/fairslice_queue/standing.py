"""Where everybody stands: kept for the status API, told on the objects within a budget.

Every waiting workload's position and reason are kept in memory at each round. Of a team, the
first twenty have them written on their objects, at most ten writes a second in all.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from fairslice import messages, stamps
from fairslice.booking import Booking
from fairslice.kube.client import ApiError, KubeClient, Unreachable
from fairslice_queue.acting import Actor
from fairslice_queue.actions import Explain
from fairslice_queue.object_paths import ObjectPaths

__all__ = ["Standing", "StandingLine"]

_log = logging.getLogger(__name__)

_TOLD_POSITIONS = 20
_WRITES_PER_SECOND = 10
_EVENTS_KEPT = 500
_QUEUED = "Queued: "


@dataclass(frozen=True, slots=True)
class StandingLine:
    """One waiting workload's standing. Position counts from 1 within its team."""

    booking: Booking
    position: int
    queued: int
    reason: str

    @property
    def text(self) -> str:
        """The line that is written on the object."""
        return _QUEUED + messages.position(
            self.position, self.queued, self.booking.team, self.reason
        )


@dataclass(frozen=True, slots=True)
class _Event:
    booking: Booking
    reason: str
    text: str


class Standing:
    """Explanations of one round after the other, and what was told of them."""

    def __init__(self) -> None:
        self._lines: dict[str, StandingLine] = {}
        self._next: dict[str, StandingLine] = {}
        self._told: dict[str, str] = {}
        self._events: OrderedDict[tuple[str, str], _Event] = OrderedDict()
        self._work = asyncio.Event()

    @property
    def lines(self) -> Mapping[str, StandingLine]:
        """The present standing, by booking id."""
        return self._lines

    def begin(self) -> None:
        """Start a round."""
        self._next = {}

    def explain(self, booking: Booking | None, action: Explain, shown: str = "") -> None:
        """Keep an explanation. `shown` is what the object says already."""
        if booking is None:
            return
        line = StandingLine(booking, action.position, action.queued, action.reason)
        self._next[booking.id] = line
        if shown.startswith(_QUEUED):  # an earlier leader told it
            self._told.setdefault(booking.id, shown)

    def end(self) -> None:
        """End a round: what was not explained waits no more."""
        for booking_id in self._lines.keys() - self._next.keys():
            self._told.pop(booking_id, None)
        if self._next != self._lines:
            self._lines = self._next
            self._work.set()

    def forget(self, booking_id: str) -> None:
        """Drop what was told of a booking that is over."""
        self._told.pop(booking_id, None)

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
            while (batch := self._due()) or self._events:
                for line in batch[:_WRITES_PER_SECOND]:
                    await self._write(actor, line)
                for _ in range(max(0, _WRITES_PER_SECOND - len(batch))):
                    if self._events:
                        _, event = self._events.popitem(last=False)
                        await self._emit(actor, event)
                await asyncio.sleep(1.0)

    def _due(self) -> list[StandingLine]:
        return [
            line
            for booking_id, line in self._lines.items()
            if line.position <= _TOLD_POSITIONS
            and line.booking.ref.name
            and self._told.get(booking_id) != line.text
        ]

    async def _write(self, actor: Actor, line: StandingLine) -> None:
        ref, booking_id = line.booking.ref, line.booking.id
        first = booking_id not in self._told
        self._told[booking_id] = line.text
        try:
            await actor.annotate(
                ref.kind, ref.namespace, ref.name, ref.uid, {stamps.STATUS: line.text}
            )
        except Unreachable as error:
            _log.debug("not told yet: %s: %s", ref, error)
            self._told.pop(booking_id, None)
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
