"""What the ledger tells: holdings, bookings, changes, and whether its totals are right."""

from collections.abc import AsyncIterator, Sequence

from fairslice.booking import Booking
from fairslice_queue.bookkeeping import Change, Free, Held, LedgerUnavailable, Snapshot
from fairslice_queue.ledger_audit import Recount, read_content
from fairslice_queue.ledger_records import decode_record
from fairslice_queue.ledger_scripts import LedgerScripts, decode_reply

__all__ = ["LedgerReader"]

_CHUNK = 200
_CHANGES_AT_MOST = 250
# Not as short as a booking, on a busy machine.
_LONG_SECONDS = 2.0


class LedgerReader:
    """The part of the ledger that changes nothing."""

    def __init__(self, scripts: LedgerScripts) -> None:
        """Read through these scripts."""
        self._scripts = scripts

    async def held(self, team: str) -> Held:
        """Read a team's holdings."""
        flat = (await self._scripts.run("held", {"team": team}))[1:]
        parts: dict[str, dict[str, int]] = {kind: {} for kind in "pscur"}
        for field, amount in zip(flat[::2], flat[1::2], strict=True):
            kind, _, name = field.decode().partition("|")
            parts[kind][name] = int(amount)
        return Held(
            pools=parts["p"],
            surge=parts["s"],
            classes=parts["c"],
            users=parts["u"],
            resources=parts["r"],
        )

    async def free(self, offers: Sequence[str], rank: int) -> Free:
        """Read how many units of each offer are free, and how many wait for it that go first."""
        reply = (await self._scripts.run("free", {"offers": list(offers), "rank": rank}))[1:]
        units, waiting = reply[: len(offers)], reply[len(offers) :]
        return Free(
            units=dict(zip(offers, map(int, units), strict=True)),
            waiting=dict(zip(offers, map(int, waiting), strict=True)),
        )

    async def get(self, booking_id: str) -> Booking | None:
        """Read one booking."""
        reply = await self._scripts.run("get", {"id": booking_id})
        return decode_record(reply[1]) if len(reply) > 1 and reply[1] is not None else None

    async def ready(self) -> bool:
        """Say whether the books are complete (False after a loss of Redis)."""
        return await self._scripts.ready()

    async def snapshot(self) -> Snapshot:
        """Read all bookings.

        Those that change meanwhile come in either state, and again in `changes` after the
        sequence returned.
        """
        sequence = await self._position()
        found: dict[str, Booking] = {}
        async for records in self._scan():
            found.update({key.decode(): decode_record(raw) for key, raw in records.items()})
        return Snapshot(sequence=sequence, bookings=tuple(found.values()))

    async def changes(self, after: str, wait_seconds: float) -> tuple[Change, ...] | None:
        """Read what changed since; wait for it if nothing did. None: gone too far, resync.

        A booking that changed often comes once, as it now is.
        """
        found = await self._changes(after)
        if found is None or found or wait_seconds <= 0:
            return found
        await self._scripts.wait_for_log(after.rpartition("/")[2], wait_seconds)
        return await self._changes(after)

    async def audit_entries(self, limit: int = 10_000) -> tuple[bytes, ...]:
        """Read the newest entries of the audit report, oldest first."""
        return tuple(await self._scripts.audit_entries(limit))

    async def audit(self) -> list[str]:
        """Recount everything from the bookings and name each total that differs.

        Works beside all other calls. Raises LedgerUnavailable also when bookings change faster
        than they can be read.
        """
        position = await self._position()
        recount = Recount()
        async for records in self._scan():
            for key, raw in records.items():
                recount.put(key.decode(), raw)
        told: list[str] = []
        seen: set[str] = set()
        names = await self._scripts.registered()
        # Keys that should exist and don't come last; bookings may make more of them meanwhile.
        while names:
            seen |= names
            ordered = sorted(name for name in names if not name.startswith("capacity:"))
            for start in range(0, len(ordered), _CHUNK):
                chunk = ordered[start : start + _CHUNK]
                position = await self._compare(recount, chunk, position, told)
            names = recount.keys() - seen
        return sorted(told)

    async def _compare(
        self, recount: Recount, names: list[str], position: str, told: list[str]
    ) -> str:
        """Compare some keys with the bookings of the same moment; return its log position."""
        offers = [name.removeprefix("free:") for name in names if name.startswith("free:")]
        names = [*names, *(f"capacity:{offer}" for offer in offers)]
        reply = await self._scripts.run(
            "totals", {"after": position, "names": names}, seconds=_LONG_SECONDS
        )
        head = decode_reply(reply[0])
        if head.gone:
            raise LedgerUnavailable("the books changed too fast for an audit; try again")
        _, contents, changed = reply
        for identity, raw in zip(changed[::2], changed[1::2], strict=True):
            recount.put(identity.decode(), raw)
        found = {name: read_content(flat) for name, flat in zip(names, contents, strict=True)}
        told += recount.differences(found)
        return head.sequence

    async def _position(self) -> str:
        return decode_reply((await self._scripts.run("last", {}))[0]).sequence

    async def _scan(self) -> AsyncIterator[dict[bytes, bytes]]:
        """Read all bookings, some at a time, so that nobody waits for long."""
        cursor = 0
        while True:
            cursor, found = await self._scripts.scan(cursor, _CHUNK)
            yield found
            if cursor == 0:
                return

    async def _changes(self, after: str) -> tuple[Change, ...] | None:
        reply = await self._scripts.run("changes", {"after": after, "most": _CHANGES_AT_MOST})
        head = decode_reply(reply[0])
        if head.gone:
            return None
        entries = zip(reply[1::3], reply[2::3], reply[3::3], strict=True)
        return tuple(
            Change(
                sequence=f"{head.generation}/{entry.decode()}",
                id=identity.decode(),
                booking=decode_record(raw) if raw else None,
            )
            for entry, identity, raw in entries
        )
