"""A worker: one more process that answers reviews, on the port of the first one.

It has a view, a connection to Redis and a listening socket of its own; certificate and orders
come from the first process, without which it ends.
"""

import asyncio
import importlib
import logging
import signal
import socket
import sys
from collections.abc import Callable

from fairslice import log, service
from fairslice.kube.connection import WEBHOOK_ACCOUNT, connect_as
from fairslice.redis_connection import RedisConnection
from fairslice.settings import Address
from fairslice_certs.serving import ServingContext
from fairslice_queue.ledger import Ledger
from fairslice_webhook.answering import Answering, spare_collections
from fairslice_webhook.figures import counted
from fairslice_webhook.worker_link import Certificate, Drain, Link, Look, Report, Start

__all__ = ["main"]

_log = logging.getLogger(__name__)


class _Worker:
    """Does as it is told."""

    def __init__(self, link: Link, start: Start, parts: Answering) -> None:
        self._link = link
        self._parts = parts
        self._address = Address(start.settings.listen.host, start.port)
        self._serving = ServingContext()
        self._listening = False
        self._settled = False

    async def run(self) -> None:
        """Answer until told to end, or until the first process is gone."""
        parts = self._parts
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(parts.views.run()),
                    tasks.create_task(parts.sink.run()),
                ]
                await self._obey()
                for task in running:
                    task.cancel()
        finally:
            await parts.server.stop()

    async def _obey(self) -> None:
        parts = self._parts
        while True:
            match await self._link.order():
                case Certificate(chain, key):
                    self._serving.load(chain, key)
                    if not self._listening:
                        await parts.server.start(self._address, self._serving.context, shared=True)
                        self._listening = True
                case Look():
                    self._link.send(self._report())
                case Drain(seconds):
                    await parts.server.drain(seconds)
                    await parts.sink.flush()
                    return
                case None:
                    _log.warning("the first process is gone: this worker ends")
                    return

    def _report(self) -> Report:
        problems = []
        if self._parts.views.view is None:
            problems.append("the cluster is not listed yet")
        if not self._listening:
            problems.append("not listening yet")
        if not problems and not self._settled:
            self._settled = True
            spare_collections()
        served = self._serving.served
        serial = str(served.serial) if served is not None else ""
        return Report(tuple(problems), serial, counted(self._parts.registry))


async def _work(end: socket.socket) -> None:
    link = await Link.over(end)
    try:
        start = await link.order()
        if not isinstance(start, Start):
            return
        settings = start.settings
        log.configure(settings.log_level, settings.log_format)
        assert settings.redis_url is not None
        async with (
            connect_as(settings, WEBHOOK_ACCOUNT) as client,
            RedisConnection.parse(settings.redis_url) as redis,
        ):
            parts = Answering.of(settings, client, Ledger(redis), start.secret_path)
            await _Worker(link, start, parts).run()
    finally:
        link.close()


def main() -> None:
    """Work on the socket whose number is the only argument."""
    # Signals are the first process's to act on; a terminal's reach all of its processes.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    loop: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    try:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(_work(socket.socket(fileno=int(sys.argv[1]))))
    except* service.EXPECTED_ERRORS as group:
        _log.error("a worker ended: %s", service.describe(group.exceptions[0]))
        sys.exit(1)


if __name__ == "__main__":
    main()
