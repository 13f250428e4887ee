"""The ledger's Lua scripts, as shipped beside this module, and how they are called."""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from fairslice.redis_connection import Client, RedisConnection, RedisUnavailable, Script
from fairslice_queue.bookkeeping import BookingTaken, LedgerError, LedgerUnavailable, StaleEpoch
from fairslice_queue.ledger_keys import BOOKS_FORM, LedgerKeys

__all__ = ["LedgerScripts", "Reply", "decode_reply", "script_text"]

T = TypeVar("T")

# What each script is put together from, besides records.lua and its own part. Those that change
# what is held need all of `_BOOKS`.
_BOOKS = ("lending", "books", "caps")
_ROOM = (*_BOOKS, "room", "succession", "outcomes")
_PARTS = {
    "adopt": _BOOKS,
    "attach": (),
    "bind": (),
    "bind_pod": (),
    "block": _BOOKS,
    "book": _ROOM,
    "detach": (),
    "end": _BOOKS,
    "expire": _BOOKS,
    "keep": _BOOKS,
    "lead": (),
    "publish_capacity": ("capacity",),
    "publish_lending": ("lenders",),
    "rebuild_add": _BOOKS,
    "rebuild_begin": _BOOKS,
    "rebuild_finish": ("capacity", "lenders"),
    "record_audit": (),
    "release": _ROOM,
    "requeue": _BOOKS,
    "settle": _BOOKS,
    # Those that only read:
    "changes": ("position",),
    "free": (),
    "get": (),
    "held": (),
    "last": ("position",),
    "totals": ("position",),
    "trial": (*_ROOM, "dry", "book"),
}
_FIRST = {"book": ("book_at_once", "book_request"), "trial": ("book_request",)}


@cache
def script_text(name: str) -> str:
    """Put a script together from the shared part and its own."""
    folder = files("fairslice_queue") / "scripts"
    own = () if name == "trial" else (name,)
    parts = (*_FIRST.get(name, ()), "records", *_PARTS[name], *own)
    texts = ((folder / f"{part}.lua").read_text("utf-8") for part in parts)
    return "\n".join(("local asked, request, lending", *texts))


class Reply(Struct, frozen=True):
    """What a script may answer instead of a result, or beside it."""

    error: str = ""
    text: str = ""
    team: str = ""
    epoch: int | str = 0
    gone: bool = False
    generation: str = ""
    sequence: str = ""


decode_reply = msgspec.json.Decoder(Reply).decode
_encode = msgspec.json.Encoder().encode


class LedgerScripts:
    """Calls scripts and reads keys; everything raises LedgerUnavailable when Redis is away."""

    def __init__(self, redis: RedisConnection, keys: LedgerKeys) -> None:
        """Register the scripts; each is loaded at its first call, and again after a restart."""
        self._redis = redis
        self._keys = keys
        self._scripts = {name: Script(script_text(name), keys.meta) for name in _PARTS}

    async def run(
        self, name: str, request: object, *texts: bytes, seconds: float | None = None
    ) -> list[Any]:
        """Run a script that takes a request as JSON; its first reply is JSON.

        Raises StaleEpoch and LedgerError as the script says.
        """
        return await self.run_flat(name, (_encode(request), *texts), seconds=seconds)

    async def run_flat(
        self, name: str, arguments: Sequence[bytes], *, seconds: float | None = None
    ) -> list[Any]:
        """Run a script with these arguments; otherwise as `run`."""
        try:
            reply: list[Any] = await self._redis.run_script(
                self._scripts[name], arguments, seconds=seconds
            )
        except RedisUnavailable as error:
            raise LedgerUnavailable(str(error)) from error
        if b'"error"' in reply[0]:
            _raise(decode_reply(reply[0]))
        return reply

    async def ready(self) -> bool:
        """Say whether the books are complete."""

        def command(client: Client) -> Awaitable[bytes | None]:
            return cast(Awaitable[bytes | None], client.hget(self._keys.meta, "ready"))

        return await self._call(command) == BOOKS_FORM.encode()

    async def scan(self, cursor: int, count: int) -> tuple[int, dict[bytes, bytes]]:
        """Read about `count` bookings from a cursor on."""

        def command(client: Client) -> Awaitable[tuple[int, dict[bytes, bytes]]]:
            found = client.hscan(self._keys.bookings, cursor, count=count)
            return cast(Awaitable[tuple[int, dict[bytes, bytes]]], found)

        return await self._call(command)

    async def registered(self) -> set[str]:
        """Name the keys that are derived from bookings, without their prefix."""
        prefix = len(self._keys.prefix)
        names = {"deadlines", "objects"}
        cursor = 0
        while True:

            def command(client: Client, at: int = cursor) -> Awaitable[tuple[int, list[bytes]]]:
                found = client.sscan(self._keys.registry, at, count=1000)
                return cast(Awaitable[tuple[int, list[bytes]]], found)

            cursor, found = await self._call(command)
            names.update(key.decode()[prefix:] for key in found)
            if cursor == 0:
                return names

    async def audit_entries(self, limit: int) -> list[bytes]:
        """Read the newest audit entries, oldest first."""

        def command(client: Client) -> Awaitable[list[tuple[bytes, dict[bytes, bytes]]]]:
            found = client.xrevrange(self._keys.audit, count=limit)
            return cast(Awaitable[list[tuple[bytes, dict[bytes, bytes]]]], found)

        return [fields[b"entry"] for _, fields in reversed(await self._call(command, 2.0))]

    async def wait_for_log(self, entry: str, seconds: float) -> None:
        """Wait until the log has more than this entry, at most so long."""
        block = max(1, int(seconds * 1000))

        def command(client: Client) -> Awaitable[object]:
            return cast(Awaitable[object], client.xread({self._keys.log: entry}, 1, block))

        try:
            await self._redis.wait(command, seconds=seconds)
        except RedisUnavailable as error:
            raise LedgerUnavailable(str(error)) from error

    async def _call(
        self, command: Callable[[Client], Awaitable[T]], seconds: float | None = None
    ) -> T:
        try:
            return await self._redis.call(command, seconds=seconds)
        except RedisUnavailable as error:
            raise LedgerUnavailable(str(error)) from error


def _raise(reply: Reply) -> None:
    if reply.error == "incomplete":
        raise LedgerUnavailable("the books are not rebuilt yet")
    if reply.error == "stale":
        raise StaleEpoch(f"another leader has taken over (epoch {reply.epoch})")
    if reply.error == "taken":
        raise BookingTaken(f"the booking belongs to another object, of team {reply.team}")
    if reply.error:
        raise LedgerError(f"the ledger refused: {reply.text or reply.error}")
