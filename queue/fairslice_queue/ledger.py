"""The ledger: bookings in Redis, changed only by single Lua scripts that check, then write."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_hex

import msgspec
from msgspec import Struct

from fairslice.booking import Booking, State
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
from fairslice_queue.ledger_asking import book_arguments
from fairslice_queue.ledger_keys import LedgerKeys
from fairslice_queue.ledger_reader import LedgerReader
from fairslice_queue.ledger_records import decode_record, encode_record, object_of
from fairslice_queue.ledger_scripts import LedgerScripts, decode_reply

__all__ = [
    "LINGERS",
    "Attachment",
    "BookRequest",
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

LINGERS = "kept for its successor"
"""The reason of a booking whose pod ended and whose units wait for the group's next pod."""

_ATTACH_SECONDS = 10.0
_CHUNK = 200
# So that no script holds Redis for more than some 5 ms.
_RELEASES = 50
# Chunks are short, but on a busy machine not as short as a booking.
_LONG_SECONDS = 2.0


class _Accepted(Struct, frozen=True):
    accepted: bool
    cause: str = ""
    size: int = 1
    pod: str = ""


_outcome = msgspec.json.Decoder(Outcome)
_outcomes = msgspec.json.Decoder(list[Outcome])
_accepted = msgspec.json.Decoder(_Accepted)


class Ledger(LedgerReader):
    """Every method is one round trip and raises LedgerUnavailable when Redis is away.

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
        super().__init__(LedgerScripts(redis, keys or LedgerKeys()))
        self._clock = clock

    # For the webhook.

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

    async def _book(self, request: BookRequest, script: str = "book") -> Outcome:
        booking, waiting = request.booking, request.queued_options
        if not booking.options:
            raise LedgerError(f"booking {booking.id} has no options")
        if waiting == booking.options:
            waiting = None
        reply = await self._scripts.run_flat(script, book_arguments(request, waiting))
        if reply[0] == b"+":
            chosen, node = int(reply[1]), reply[2].decode()
            return Outcome(
                verdict=Verdict.BOOKED,
                id=booking.id,
                chosen=chosen,
                place={node: booking.pods} if node else {},
                option=booking.options[chosen],
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
            if outcome.verdict is Verdict.QUEUED and waiting is not None:
                options = waiting
        option = options[chosen] if chosen >= 0 else options[0] if len(options) == 1 else None
        return msgspec.structs.replace(outcome, option=option)

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

    # For the queue; all that change anything are fenced by the leader's epoch.

    async def lead(self) -> int:
        """Begin a leader's reign: a new epoch, which makes every earlier one stale."""
        reply = await self._scripts.run("lead", {"at_least": int(self._clock() * 1000)})
        return int(decode_reply(reply[0]).epoch)

    async def rebuild(
        self,
        epoch: int,
        bookings: Sequence[Booking],
        capacity: Mapping[str, Mapping[str, int]],
        lending: Mapping[str, Lending] | None = None,
    ) -> None:
        """Replace the books by what the API server shows.

        Tentative bookings are kept, since their objects may be about to appear. While it lasts,
        every other call raises LedgerUnavailable. List the API server when the books are not
        ready: what is bound between list and rebuild would be lost. `capacity` and `lending` as
        publish_capacity and publish_lending have them; without, nothing is borrowed at once.
        """
        name = {"epoch": epoch, "generation": token_hex(8)}
        await self._scripts.run("rebuild_begin", name, seconds=_LONG_SECONDS)
        for start in range(0, len(bookings), _CHUNK):
            chunk = bookings[start : start + _CHUNK]
            await self._scripts.run(
                "rebuild_add",
                {**name, "ids": [booking.id for booking in chunk]},
                *(encode_record(booking) for booking in chunk),
                seconds=_LONG_SECONDS,
            )
        await self._scripts.run(
            "rebuild_finish",
            {**name, "capacity": capacity, "lending": lending},
            seconds=_LONG_SECONDS,
        )

    async def publish_capacity(self, epoch: int, capacity: Mapping[str, Mapping[str, int]]) -> None:
        """Tell the scripts what nodes offer: offer key → node → allocatable units."""
        await self._scripts.run(
            "publish_capacity", {"epoch": epoch, "capacity": capacity}, seconds=_LONG_SECONDS
        )

    async def publish_lending(self, epoch: int, lending: Mapping[str, Lending]) -> None:
        """Tell the scripts who keeps what of its guarantee, by pool; others borrow the rest.

        Name the pools where anybody keeps anything. From then on `book` and `release` check it
        for who goes beyond `Limits.guaranteed`; before, `book` lets nobody go beyond.
        """
        await self._scripts.run(
            "publish_lending", {"epoch": epoch, "lending": lending}, seconds=_LONG_SECONDS
        )

    async def keep(self, epoch: int, keeps: Mapping[str, Keep | None]) -> None:
        """Keep units for bookings that wait, or (None) no longer, by id.

        Nobody starts on them at once; releases may use them, since who releases knows of them.
        Who has units kept stands in nobody's way any more. Ends with release and requeue.
        """
        ids = list(keeps)
        for start in range(0, len(ids), _RELEASES):
            chunk = {one: keeps[one] for one in ids[start : start + _RELEASES]}
            await self._scripts.run("keep", {"epoch": epoch, "keeps": chunk})

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
        """Let a queued booking go: see `release_many`.

        Raises LedgerError for an option that it doesn't have, or more pods than it has.
        """
        order = ReleaseOrder(id=booking_id, chosen=chosen, place=dict(place), limits=limits)
        (outcome,) = await self.release_many(epoch, [order], now)
        if outcome.cause == "invalid":
            raise LedgerError(
                f"booking {booking_id} has no such option, or more pods are placed than booked"
            )
        return outcome

    async def release_many(
        self, epoch: int, orders: Sequence[ReleaseOrder], now: float
    ) -> list[Outcome]:
        """Let queued bookings go, one after the other, where caps and capacity still allow it.

        Outcomes come in the order of the orders; what holds already is answered as booked, so
        the same orders may be given again. A round trip takes some 50 orders; the neighbours of
        a group are in one, however many they are. LedgerUnavailable leaves open which of them
        were carried out.
        """
        outcomes: list[Outcome] = []
        for chunk in _chunks(orders):
            reply = await self._scripts.run(
                "release",
                {"epoch": epoch, "now": repr(now), "orders": chunk},
                seconds=_LONG_SECONDS if len(chunk) > _RELEASES else None,
            )
            outcomes += _outcomes.decode(reply[0])
        return outcomes

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
        """Write down what a holding booking really holds, and where.

        False: no such booking, or it holds nothing. Raises LedgerError for a state that can't
        hold anything.
        """
        if not state.holds:
            raise LedgerError(f"booking {booking_id} can't hold anything as {state}")
        return await self._flag(
            "settle",
            {
                "epoch": epoch,
                "id": booking_id,
                "state": state,
                "pods": pods,
                "place": place,
                "now": repr(now),
            },
        )

    async def requeue(
        self, epoch: int, booking_id: str, *, state: State, pods: int, reason: str, now: float
    ) -> bool:
        """Free what a booking holds and put it back (Queued, Held or Preempted)."""
        if state not in (State.QUEUED, State.HELD, State.PREEMPTED):
            raise LedgerError(f"booking {booking_id} can't be put back as {state}")
        return await self._flag(
            "requeue",
            {
                "epoch": epoch,
                "id": booking_id,
                "state": state,
                "pods": pods,
                "reason": reason,
                "now": repr(now),
            },
        )

    async def end(
        self, epoch: int, booking_id: str, *, linger_seconds: float = 0.0, now: float = 0.0
    ) -> bool:
        """Close a booking.

        With `linger_seconds` (of a booking with a group), what it holds stays until `now` plus
        that for the next booking of its group. Until then it is still in the books: unbound,
        with `tentative_until` and the reason LINGERS; `end` without lingering frees it at once.
        """
        expires = repr(now + linger_seconds) if linger_seconds > 0 else ""
        return await self._flag(
            "end", {"epoch": epoch, "id": booking_id, "expires": expires, "reason": LINGERS}
        )

    async def adopt(self, epoch: int, booking: Booking) -> bool:
        """Write down a booking found on the cluster, whatever the caps say.

        True: the books didn't have it; False: it replaces what they had.
        """
        return await self._flag("adopt", {"epoch": epoch, "id": booking.id}, encode_record(booking))

    async def expire(self, epoch: int, now: float) -> int:
        """End tentative bookings whose object never came to be, and what lingered long enough."""
        ended = 0
        while True:
            reply = await self._scripts.run(
                "expire", {"epoch": epoch, "now": repr(now), "most": _CHUNK}
            )
            count = int(reply[0])
            ended += count
            if count < _CHUNK:
                return ended

    async def block(self, epoch: int, *booking_ids: str, blocked: bool) -> None:
        """Say that waiting bookings are (not) held up by their own teams' caps alone."""
        await self.block_many(epoch, dict.fromkeys(booking_ids, blocked))

    async def block_many(
        self, epoch: int, blocked: Mapping[str, bool], lifted: Mapping[str, bool] | None = None
    ) -> None:
        """Say how waiting bookings stand in others' way, by id; 200 a round trip.

        `blocked`: in nobody's, since nothing but their own teams' caps holds them up. `lifted`:
        before every rank, since they have waited for so long.
        """
        flags = [("blocked", *item) for item in blocked.items()]
        flags += [("lifted", *item) for item in (lifted or {}).items()]
        for start in range(0, len(flags), _CHUNK):
            told: dict[str, dict[str, bool]] = {"blocked": {}, "lifted": {}}
            for kind, one, value in flags[start : start + _CHUNK]:
                told[kind][one] = value
            await self._scripts.run("block", {"epoch": epoch, **told})

    async def detach(self, epoch: int, booking_id: str, *, pod: str) -> bool:
        """Let an attached pod go, so that another may come in its place. False: not attached."""
        return await self._flag("detach", {"epoch": epoch, "id": booking_id, "pod": pod})

    # How scripts are called.

    async def _flag(self, name: str, request: object, *texts: bytes) -> bool:
        return bool((await self._scripts.run(name, request, *texts))[0] == b"true")


def _chunks(orders: Sequence[ReleaseOrder]) -> Iterator[list[ReleaseOrder]]:
    """Split orders without splitting a group."""
    chunk: list[ReleaseOrder] = []
    for order in orders:
        joins = chunk and order.group and order.group == chunk[-1].group
        if len(chunk) >= _RELEASES and not joins:
            yield chunk
            chunk = []
        chunk.append(order)
    if chunk:
        yield chunk
