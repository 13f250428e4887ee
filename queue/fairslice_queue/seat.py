"""What a leader works with, and the calls that it has under way."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from fairslice.kube.client import ApiError, KubeClient, NotFound, Unreachable
from fairslice_queue.acting import Actor
from fairslice_queue.ledger import Ledger
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.mirror import Mirror
from fairslice_queue.standing import Standing
from fairslice_queue.usage import Meter
from fairslice_queue.watching import Watch

__all__ = ["Calls", "Seat"]

_log = logging.getLogger(__name__)

_MAX_CALLS = 32
_REPEAT_SECONDS = 3.0  # a patch is given this long to show in the watch

_SERVER_FAILURE = 500
_BUSY = 429

Refused = Callable[[str, str], Coroutine[Any, Any, None]]


class Calls:
    """API calls in the background, one at a time for each booking.

    A booking with a call under way is left alone until it is done, and then looked at again.
    `refused` hears of what the API server would not do: booking id, reason.
    """

    def __init__(self, watch: Watch, refused: Refused) -> None:
        self.busy: set[str] = set()
        self._watch = watch
        self._refused = refused
        self._done_at: dict[str, float] = {}
        self._slots = asyncio.Semaphore(_MAX_CALLS)
        self._tasks: asyncio.TaskGroup | None = None

    def attach(self, tasks: asyncio.TaskGroup) -> None:
        """Run calls in this group from now on."""
        self._tasks = tasks

    def start(self, booking_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin a call."""
        assert self._tasks is not None
        self.busy.add(booking_id)
        task = self._tasks.create_task(self._run(booking_id, work))
        # Cancelled before it began, it would leave the work neither done nor dropped.
        task.add_done_callback(lambda _: work.close())

    def may_repeat(self, booking_id: str) -> bool:
        """Say whether the last call had time enough to show in the watch, or to be forgiven."""
        done = self._done_at.get(booking_id)
        return done is None or time.monotonic() - done >= _REPEAT_SECONDS

    def forget(self, booking_id: str) -> None:
        """Drop what is remembered of a booking that is over."""
        self._done_at.pop(booking_id, None)

    async def _run(self, booking_id: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with self._slots:
                await work
        except NotFound:
            _log.debug("%s: its object is gone", booking_id)
        except Unreachable as error:
            _log.warning("%s: %s", booking_id, error)
        except ApiError as error:
            if error.status >= _SERVER_FAILURE or error.status == _BUSY:
                # A webhook that is down, an overloaded server: nothing is wrong with the work,
                # and reconciliation repeats the call.
                _log.warning("%s: not now: %s", booking_id, error)
                return
            _log.warning("%s: the API server refused: %s", booking_id, error)
            await self._refused(booking_id, str(error))
        finally:
            self._done_at[booking_id] = time.monotonic()
            self.busy.discard(booking_id)
            self._watch.dirty.add(booking_id)
            self._watch.changed.set()


@dataclass(slots=True)
class Seat:
    """The leader's view and hands. `epoch` fences every write to the ledger.

    `unheld` says since when a team, or the policy, has been missing (Unix seconds).
    """

    client: KubeClient
    ledger: Ledger
    watch: Watch
    mirror: Mirror
    meter: Meter
    standing: Standing
    metrics: QueueMetrics
    calls: Calls
    new_id: Callable[[], str]
    clock: Callable[[], float] = time.time
    epoch: int = 0
    unheld: dict[str, float] = field(default_factory=dict)
    actor: Actor = field(init=False)

    def __post_init__(self) -> None:
        self.actor = Actor(self.client, self.watch.paths)
