"""A ledger and a client at whose calls a queue process dies."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

_LEDGER_WRITES = frozenset(
    (
        "adopt",
        "attach",
        "bind",
        "bind_pod",
        "block",
        "detach",
        "end",
        "expire",
        "lead",
        "publish_capacity",
        "rebuild",
        "release",
        "requeue",
        "settle",
    )
)
_CLIENT_WRITES = frozenset(("create", "delete", "patch"))


class Killed(Exception):
    """The process is no more."""


@dataclass
class Fate:
    """Counts calls that change something; at the `last` one the process dies.

    `after`: the call is still done, but nobody hears of it. 0 spares it.
    """

    last: int = 0
    after: bool = False
    calls: int = 0
    met_at: str = ""

    async def meet(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        if self.met_at:
            raise Killed(name)  # what is dead makes no more calls
        self.calls += 1
        if self.calls != self.last:
            return await call()
        self.met_at = name
        if self.after:
            await call()
        raise Killed(name)


class Mortal:
    """Stands before a ledger or client; every call that changes something may be the last."""

    def __init__(self, real: Any, fate: Fate) -> None:
        self._real = real
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name not in _LEDGER_WRITES | _CLIENT_WRITES:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._fate.meet(name, lambda: found(*args, **kwargs))

        return call
