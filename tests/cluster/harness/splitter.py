"""One address for several replicas, as a Service is: each new connection goes to one of them."""

import asyncio
from contextlib import suppress
from itertools import count
from typing import Self

__all__ = ["Splitter"]

_CHUNK = 65536


class Splitter:
    """Forwards TCP to the ports in `backends`; connections outlive their backend's removal."""

    def __init__(self) -> None:
        self.backends: list[int] = []
        self.port = 0
        self._turns = count()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._forward(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        backend = self.backends[next(self._turns) % len(self.backends)]
        try:
            inner, outer = await asyncio.open_connection("127.0.0.1", backend)
        except OSError:
            writer.transport.abort()
            return
        pumps = [
            asyncio.ensure_future(_pump(reader, outer)),
            asyncio.ensure_future(_pump(inner, writer)),
        ]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (outer, writer):
                end.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
        else:
            sink.close()
