"""Running services in one process: event loop, signals, and one clear line when it fails."""

import asyncio
import errno
import importlib
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar, cast

from fairslice.kube.configuration import KubeconfigError
from fairslice.kube.errors import ApiError, Unauthorized
from fairslice.settings import Address, Settings, SettingsError

__all__ = [
    "EXPECTED_ERRORS",
    "Service",
    "ServiceError",
    "check_addresses",
    "describe",
    "load_entry",
    "run",
    "run_all",
]

_log = logging.getLogger(__name__)

_ERROR_NUMBER = re.compile(r"\[errno \d+\] ", re.IGNORECASE)

T = TypeVar("T")

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


def check_addresses(addresses: Iterable[Address]) -> None:
    """See whether one can listen there now.

    Raises OSError, naming the address.
    """
    for address in addresses:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            socket.create_server(address, family=family).close()
        except OSError as error:
            raise OSError(error.errno, f"{address}: {error.strerror}") from None


async def run_all(services: Sequence[Service], settings: Settings) -> None:
    """Run services until one fails (its error comes out) or this is cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for service in services:
            tasks.create_task(_forever(service, settings), name=service.__module__)


async def _forever(service: Service, settings: Settings) -> None:
    await service(settings)
    raise ServiceError(f"{service.__module__} ended by itself")


def describe(error: BaseException) -> str:
    """Say in one line what went wrong."""
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return f"{_last_words(error)}: stop what listens there, or choose another address"
    if isinstance(error, Unauthorized):
        return f"the API server does not accept the kubeconfig's credentials: {error}"
    return " ".join(str(error).split()) or type(error).__name__


def _last_words(error: OSError) -> str:
    # asyncio's message names the address, and somewhere in it repeats the number of the error.
    text = " ".join((error.strerror or str(error)).split())
    return _ERROR_NUMBER.sub("", text)


class _Stopped(Exception):
    """A signal ended the work; carries its number."""


def run(main: Coroutine[Any, Any, T], *, serves: bool = False) -> T:
    """Run a coroutine to its end, on uvloop where there is one, and return its result.

    The first SIGTERM or SIGINT cancels it, and when it has wound up the process exits: with 0
    where it `serves`, since being stopped is how a service ends. A second signal ends the
    process at once.
    """
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if sys.platform != "win32":
        loop_factory = importlib.import_module("uvloop").new_event_loop
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_until_signalled(main))
    except _Stopped as stopped:
        raise SystemExit(0 if serves else 128 + stopped.args[0]) from None


async def _until_signalled(main: Coroutine[Any, Any, T]) -> T:
    task = asyncio.create_task(main)
    loop = asyncio.get_running_loop()
    received = 0

    def stop(number: int) -> None:
        nonlocal received
        if received:
            os._exit(128 + number)
        received = number
        _log.info("stopping")
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise _Stopped(received) from None
