"""What the queue does with the ledger; all of it is fenced by the leader's epoch."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_hex

import msgspec

from fairslice.booking import Booking, State
from fairslice_queue.bookkeeping import (
    Keep,
    LedgerError,
    Lending,
    Limits,
    Outcome,
    ReleaseOrder,
)
from fairslice_queue.ledger_reader import LedgerReader
from fairslice_queue.ledger_records import encode_record
from fairslice_queue.ledger_scripts import LedgerScripts, decode_reply

__all__ = ["LINGERS", "LedgerLeader"]

LINGERS = "kept for its successor"
"""The reason of a booking whose pod ended and whose units wait for the group's next pod."""

# So many a script, or it would hold Redis for more than some 5 ms.
_CHUNK = 100
_RELEASES = 50
# Chunks are short, but on a busy machine not as short as a booking.
_LONG_SECONDS = 2.0

_outcomes = msgspec.json.Decoder(list[Outcome])


class LedgerLeader(LedgerReader):
    """The part of the ledger that only a leader may use. Raises StaleEpoch for a former one."""

    def __init__(self, scripts: LedgerScripts, clock: Callable[[], float] = time.time) -> None:
        """Write through these scripts; `clock` numbers epochs."""
        super().__init__(scripts)
        self._clock = clock

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

    async def keep(self, epoch: int, keeps: Mapping[str, Keep]) -> None:
        """Keep units for these waiting bookings, by id, and no longer for any others.

        Nobody starts on them at once; releases may use them, since who releases knows of them.
        Who has units kept stands in nobody's way any more. Ends with release and requeue.
        """
        await self._scripts.run("keep", {"epoch": epoch, "keeps": keeps})

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
        """Say how waiting bookings stand in others' way, by id; 100 a round trip.

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
