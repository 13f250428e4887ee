"""The ledger: bookings in Redis, changed only by single Lua scripts that check, then write."""

from collections.abc import Mapping, Sequence

from fairslice.booking import Booking, State
from fairslice_queue.bookkeeping import (
    Attachment,
    BookRequest,
    Change,
    Held,
    LedgerError,
    LedgerUnavailable,
    Limits,
    Outcome,
    Snapshot,
    StaleEpoch,
    Verdict,
)
from fairslice_queue.caps import limits_of

__all__ = [
    "Attachment",
    "BookRequest",
    "Change",
    "Held",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "Limits",
    "Outcome",
    "Snapshot",
    "StaleEpoch",
    "Verdict",
    "limits_of",
]


class Ledger:
    """Every method is one round trip and raises LedgerUnavailable when Redis is away."""

    # For the webhook.

    async def book(self, request: BookRequest) -> Outcome:
        """Book, queue or deny, atomically. The same request again is the same booking."""
        raise NotImplementedError

    async def attach(
        self, booking_id: str, *, owner_uid: str, team: str, pod: str, now: float
    ) -> Attachment:
        """Count a pod (named by a stamp of its own) against a released workload's booking."""
        raise NotImplementedError

    async def bind(
        self, booking_id: str, *, namespace: str, kind: str, name: str, uid: str
    ) -> bool:
        """Tie a tentative booking to the object that now exists. False: no such booking."""
        raise NotImplementedError

    async def bind_pod(self, booking_id: str, *, pod: str, uid: str, name: str) -> bool:
        """Tie an attached pod to its final uid and name."""
        raise NotImplementedError

    async def held(self, team: str) -> Held:
        """Read a team's holdings."""
        raise NotImplementedError

    async def get(self, booking_id: str) -> Booking | None:
        """Read one booking."""
        raise NotImplementedError

    # For the queue; all that change anything are fenced by the leader's epoch.

    async def lead(self) -> int:
        """Begin a leader's reign: a new epoch, which makes every earlier one stale."""
        raise NotImplementedError

    async def ready(self) -> bool:
        """Say whether the books are complete (False after a loss of Redis)."""
        raise NotImplementedError

    async def snapshot(self) -> Snapshot:
        """Read all bookings."""
        raise NotImplementedError

    async def changes(self, after: str, wait_seconds: float) -> tuple[Change, ...] | None:
        """Read what changed since; wait for it if nothing did. None: gone too far, resync."""
        raise NotImplementedError

    async def rebuild(
        self, epoch: int, bookings: Sequence[Booking], capacity: Mapping[str, Mapping[str, int]]
    ) -> None:
        """Replace the books by what the API server shows."""
        raise NotImplementedError

    async def publish_capacity(self, epoch: int, capacity: Mapping[str, Mapping[str, int]]) -> None:
        """Tell the scripts what nodes offer: offer key → node → allocatable units."""
        raise NotImplementedError

    async def release(
        self,
        epoch: int,
        booking_id: str,
        *,
        chosen: int,
        place: Mapping[str, int],
        limits: Limits,
        now: float,
    ) -> Outcome:
        """Let a queued booking go, if caps and capacity still allow it."""
        raise NotImplementedError

    async def settle(
        self,
        epoch: int,
        booking_id: str,
        *,
        state: State,
        pods: int,
        place: Mapping[str, int],
        now: float,
    ) -> bool:
        """Write down what a holding booking really holds, and where."""
        raise NotImplementedError

    async def requeue(
        self, epoch: int, booking_id: str, *, state: State, pods: int, reason: str, now: float
    ) -> bool:
        """Free what a booking holds and put it back (Queued, Held or Preempted)."""
        raise NotImplementedError

    async def end(self, epoch: int, booking_id: str) -> bool:
        """Close a booking."""
        raise NotImplementedError

    async def adopt(self, epoch: int, booking: Booking) -> bool:
        """Write down a booking found on the cluster, whatever the caps say."""
        raise NotImplementedError

    async def expire(self, epoch: int, now: float) -> int:
        """End tentative bookings whose object never came to be."""
        raise NotImplementedError

    async def block(self, epoch: int, booking_id: str, *, blocked: bool) -> None:
        """Say that a waiting booking is (not) held up by its own team's caps alone."""
        raise NotImplementedError
