"""The ledger: bookings in Redis, changed only by single Lua scripts that check, then write."""

import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from fairslice.booking import Booking
from fairslice.redis_connection import RedisConnection
from fairslice_queue.bookkeeping import (
    Attachment,
    BookingTaken,
    BookRequest,
    Change,
    Free,
    Held,
    Keep,
    LedgerError,
    LedgerUnavailable,
    Lending,
    Limits,
    Outcome,
    ReleaseOrder,
    Snapshot,
    StaleEpoch,
    Verdict,
)
from fairslice_queue.caps import limits_of
from fairslice_queue.ledger_asking import BookingForm, book_arguments, waiting_options
from fairslice_queue.ledger_keys import LedgerKeys
from fairslice_queue.ledger_leader import LINGERS, LedgerLeader
from fairslice_queue.ledger_records import decode_record, object_of
from fairslice_queue.ledger_scripts import LedgerScripts

__all__ = [
    "LINGERS",
    "Attachment",
    "BookRequest",
    "BookingForm",
    "BookingTaken",
    "Change",
    "Free",
    "Held",
    "Keep",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "Lending",
    "Limits",
    "Outcome",
    "ReleaseOrder",
    "Snapshot",
    "StaleEpoch",
    "Verdict",
    "limits_of",
]

_ATTACH_SECONDS = 10.0


class _Accepted(Struct, frozen=True):
    accepted: bool
    cause: str = ""
    size: int = 1
    pod: str = ""


_outcome = msgspec.json.Decoder(Outcome)
_accepted = msgspec.json.Decoder(_Accepted)


class Ledger(LedgerLeader):
    """What the webhook asks, beside what LedgerReader tells and LedgerLeader does.

    Every method is one round trip and raises LedgerUnavailable when Redis is away.
    Exceptions to the one round trip: snapshot, changes, rebuild, expire and audit work in
    chunks. LedgerUnavailable says nothing of whether a change was made: every method may be
    called again with the same arguments.
    """

    def __init__(
        self,
        redis: RedisConnection,
        *,
        keys: LedgerKeys | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep books on this connection, which stays the caller's. `clock` numbers epochs."""
        super().__init__(LedgerScripts(redis, keys or LedgerKeys()), clock)

    async def book(self, request: BookRequest) -> Outcome:
        """Book, queue or deny, atomically. The same request again is the same booking.

        So is a request for the same named object that asks for the same, while the first is
        tentative: the outcome then has the first one's id. If it asks for something else, it
        takes the first one's place. An id that another object has is left to it: the spare one
        is booked (a second round trip), or BookingTaken raised.
        """
        try:
            return await self._book(request)
        except BookingTaken:
            if not request.spare:
                raise
        booking = msgspec.structs.replace(request.booking, id=request.spare)
        return await self._book(msgspec.structs.replace(request, booking=booking))

    async def trial(self, request: BookRequest) -> Outcome:
        """Say what booking would come to just now, without booking."""
        try:
            return await self._book(request, "trial")
        except BookingTaken:
            booking = msgspec.structs.replace(request.booking, id=request.spare)
            return await self._book(msgspec.structs.replace(request, booking=booking), "trial")

    async def book_alike(
        self, form: BookingForm, booking_id: str, name: str, now: float
    ) -> Outcome:
        """Book for one of many that differ in nothing else; otherwise as `book`.

        Raises BookingTaken for an id that another object has.
        """
        reply = await self._scripts.run_flat("book", form.filled(booking_id, name, now))
        return _read(reply, form.request, booking_id)

    async def _book(self, request: BookRequest, script: str = "book") -> Outcome:
        if not request.booking.options:
            raise LedgerError(f"booking {request.booking.id} has no options")
        reply = await self._scripts.run_flat(script, book_arguments(request))
        return _read(reply, request, request.booking.id)

    async def attach(
        self,
        booking_id: str,
        *,
        owner_uid: str,
        team: str,
        pod: str,
        now: float,
        units: int = 0,
        above: Sequence[str] = (),
    ) -> Attachment:
        """Count a pod (named by a stamp of its own) against a released workload's booking.

        `units` is what it takes in all, where that may differ from pod to pod; `above` are the
        kinds of workloads whose pods others than the workload itself own. The stamp holds for
        10 s, then only if `bind_pod` came. Causes of refusal: `gone` (no such booking), `team`,
        `owner`, `state` (not released), `size`, `count` (all pods are there).
        """
        reply = await self._scripts.run(
            "attach",
            {
                "id": booking_id,
                "owner_uid": owner_uid,
                "team": team,
                "pod": pod,
                "now": repr(now),
                "expires": repr(now + _ATTACH_SECONDS),
                "units": units,
                "above": above,
            },
        )
        result = _accepted.decode(reply[0])
        if not result.accepted:
            return Attachment(accepted=False, cause=result.cause)
        option = decode_record(reply[1]).option
        if option is not None:
            option = option.times(result.size)
        return Attachment(accepted=True, option=option, pod=result.pod)

    async def bind(
        self, booking_id: str, *, namespace: str, kind: str, name: str, uid: str
    ) -> Booking | None:
        """Tie a tentative booking to the object that now exists. None: no such booking."""
        reply = await self._scripts.run(
            "bind",
            {
                "id": booking_id,
                "namespace": namespace,
                "kind": kind,
                "name": name,
                "object": object_of(kind, namespace, name),
                "uid": uid,
            },
        )
        return decode_record(reply[1]) if len(reply) > 1 else None

    async def bind_pod(self, booking_id: str, *, pod: str, uid: str, name: str) -> bool:
        """Tie an attached pod to its final uid and name."""
        return await self._flag(
            "bind_pod", {"id": booking_id, "pod": pod, "uid": uid, "name": name}
        )

    async def record_audit(self, entries: Sequence[bytes]) -> None:
        """Keep entries of the audit report (JSON each), about 10,000 of the newest."""
        await self._scripts.run("record_audit", {}, *entries)


def _read(reply: Sequence[bytes], request: BookRequest, booking_id: str) -> Outcome:
    """Read what a request to book, under this id, came to."""
    booking = request.booking
    if reply[0].startswith(b"+"):
        index, _, node = reply[0][1:].decode().partition(" ")
        return Outcome(
            verdict=Verdict.BOOKED,
            id=booking_id,
            chosen=int(index),
            place={node: booking.pods} if node else {},
            option=booking.options[int(index)],
        )
    outcome = _outcome.decode(reply[0])
    if outcome.cause == "placement":
        outcome = msgspec.structs.replace(outcome, why=request.held_up)
    if outcome.verdict is Verdict.DENIED:
        return outcome
    if len(reply) > 1:
        earlier = decode_record(reply[1])
        options, chosen = earlier.options, earlier.chosen
    else:
        options, chosen = booking.options, outcome.chosen
        waiting = waiting_options(request)
        if outcome.verdict is Verdict.QUEUED and waiting is not None:
            options = waiting
    option = options[chosen] if chosen >= 0 else options[0] if len(options) == 1 else None
    return msgspec.structs.replace(outcome, option=option)
