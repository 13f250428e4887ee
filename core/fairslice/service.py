"""Running services in one process: event loop, signals, and one clear line when it fails."""

import asyncio
import importlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, cast

from fairslice.kube.configuration import KubeconfigError
from fairslice.kube.errors import ApiError
from fairslice.settings import Settings, SettingsError

__all__ = ["EXPECTED_ERRORS", "Service", "load_entry", "run", "run_all"]

_log = logging.getLogger(__name__)

Service = Callable[[Settings], Awaitable[None]]
"""A component's entry: runs until cancelled, and winds up when it is."""


class ServiceError(RuntimeError):
    """A failure of the surroundings, told to the user in one line."""


EXPECTED_ERRORS: tuple[type[Exception], ...] = (
    ApiError,
    KubeconfigError,
    SettingsError,
    ServiceError,
    OSError,
)
"""Errors that speak for themselves: shown as one line, without a traceback."""


def load_entry(name: str) -> Callable[..., Any]:
    """Find `module:function`. The command reaches components only this way.

    Raises ServiceError where the component isn't installed.
    """
    module, _, attribute = name.partition(":")
    try:
        return cast(Callable[..., Any], getattr(importlib.import_module(module), attribute))
    except ModuleNotFoundError as error:
        raise ServiceError(f"{module} is not installed here ({error})") from None


async def run_all(services: Sequence[Service], settings: Settings) -> None:
    """Run services until one fails (its error comes out) or this is cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for service in services:
            tasks.create_task(_forever(service, settings), name=service.__module__)


async def _forever(service: Service, settings: Settings) -> None:
    await service(settings)
    raise ServiceError(f"{service.__module__} ended by itself")


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, on uvloop where there is one.

    SIGTERM and SIGINT cancel it once; a second signal ends the process at once.
    """
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        uvloop = importlib.import_module("uvloop")
        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_until_signalled(main))


async def _until_signalled(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(main)
    loop = asyncio.get_running_loop()
    stopping = False

    def stop(number: int) -> None:
        nonlocal stopping
        if stopping:
            raise SystemExit(128 + number)
        stopping = True
        _log.info("stopping")
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not stopping:
            raise
