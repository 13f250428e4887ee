"""What the webhook's first process and its workers say to each other, over a socket pair."""

import asyncio
import socket
from pathlib import Path
from typing import Any

from msgspec import Struct, json

from fairslice.settings import Settings
from fairslice_webhook.figures import Family

__all__ = ["Certificate", "Drain", "Link", "Look", "Order", "Report", "Start"]

_LENGTH_BYTES = 4
_LIMIT = 16 * 1024 * 1024


class Start(Struct, frozen=True, tag=True):
    """The first order: where to listen, beside the others, and for which path."""

    settings: Settings
    secret_path: str
    port: int


class Certificate(Struct, frozen=True, tag=True):
    """Serve this certificate (chain and key, PEM) from now on."""

    chain: bytes
    key: bytes


class Look(Struct, frozen=True, tag=True):
    """Report how you are."""


class Drain(Struct, frozen=True, tag=True):
    """Answer for so many seconds more, then end."""

    seconds: float


Order = Start | Certificate | Look | Drain


class Report(Struct, frozen=True, tag=True):
    """How a worker is: what keeps it from being ready, what it serves, what it has counted."""

    problems: tuple[str, ...]
    serial: str
    families: tuple[Family, ...]


class Link:
    """One end of the pair: sends and receives whole messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> "Link":
        """Speak over a socket, which is then the link's."""
        return cls(*await asyncio.open_unix_connection(sock=end, limit=_LIMIT))

    def send(self, message: Order | Report) -> None:
        """Send; messages are few and small, so nobody waits for that."""
        data = json.encode(message, enc_hook=_plain)
        self._writer.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    async def order(self) -> Order | None:
        """Wait for the next order; None when the other end is gone."""
        data = await self._receive()
        return json.decode(data, type=Order, dec_hook=_made) if data is not None else None

    async def report(self) -> Report | None:
        """Wait for the next report; None when the other end is gone."""
        data = await self._receive()
        return json.decode(data, type=Report) if data is not None else None

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    async def _receive(self) -> bytes | None:
        try:
            size = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


def _plain(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _made(kind: type, text: Any) -> Any:
    if kind is Path:
        return Path(text)
    raise NotImplementedError(kind)
