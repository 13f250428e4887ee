"""A queue process that can die at any await: where it may, and how it is told to.

Every task that such a process starts is watched. What it waits at is known by the lines of the
queue's code that are waiting there, outermost first; a process is told to die when it goes on
from one of these places. Nothing that it does afterwards reaches the API server or Redis.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import fairslice_queue

_CALLS = ("kube/client.py", "redis_connection.py")
_QUEUE = str(Path(fairslice_queue.__file__).parent)


class Killed(BaseException):
    """The process is no more."""


class Point(NamedTuple):
    """Where a process waits, and the how-many-th time it goes on from there within one wait.

    A call over the network waits several times: for a connection, for an answer, for its end.
    """

    place: tuple[str, ...]
    turn: int

    def __str__(self) -> str:
        return f"{' > '.join(self.place)} (turn {self.turn})"


@dataclass
class Fate:
    """Counts where a process goes on; it dies the `visit`-th time it does so at `point`."""

    point: Point | None = None
    visit: int = 1
    dead: bool = False
    seen: Counter[Point] = field(default_factory=Counter)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    haunts: list[str] = field(default_factory=list)
    """Calls that it still made when it was dead: a fault of this test."""

    def goes_on(self, point: Point) -> None:
        self.seen[point] += 1
        if point == self.point and self.seen[point] == self.visit:
            self.dead = True

    async def bury(self) -> None:
        """End all tasks of the process, dead or alive."""
        self.dead = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


_FATE: ContextVar[Fate | None] = ContextVar("fate", default=None)


def mortals(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    """A task factory: tasks of a process with a fate are watched."""
    context: Context | None = options.get("context")
    fate = context.get(_FATE) if context is not None else _FATE.get()
    if fate is None or not asyncio.iscoroutine(coro):
        return asyncio.Task(coro, loop=loop, **options)
    task = asyncio.Task(_Watched(coro, fate), loop=loop, **options)
    fate.tasks.add(task)
    task.add_done_callback(fate.tasks.discard)
    return task


def spawn(fate: Fate, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a process that has a fate."""
    context = copy_context()
    context.run(_FATE.set, fate)
    return asyncio.create_task(coro, name="mortal", context=context)


class _Watched(Coroutine[Any, Any, Any]):
    """A coroutine that goes on no more once its process is dead: no clean-up code runs either."""

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate
        self._place: tuple[str, ...] = ()
        self._turn = 0

    def send(self, value: Any) -> Any:
        place = _place_of(self._inner)
        if place and not self._fate.dead:
            self._turn = self._turn + 1 if place == self._place else 1
            self._place = place
            self._fate.goes_on(Point(place, self._turn))
        if self._fate.dead:
            return next(iter(asyncio.get_running_loop().create_future()))
        found = self._inner.send(value)
        if _place_of(self._inner) != place:
            self._place = ()
        return found

    def throw(self, *error: Any) -> Any:
        if not self._fate.dead:
            return self._inner.throw(*error)
        # It is buried: what it would still wait for, it waits for no more.
        while True:
            try:
                self._inner.throw(Killed())
            except BaseException:  # noqa: BLE001
                raise asyncio.CancelledError from None
            self._fate.haunts += [
                f"{name} from {_place_of(self._inner)}"
                for name in _files_of(self._inner)
                if name.endswith(_CALLS)
            ]

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        found: Generator[Any, Any, Any] = self._inner.__await__()
        return found


def _place_of(coro: Any) -> tuple[str, ...]:
    """Name the queue's lines that a coroutine waits at, outermost first; none: not the queue's."""
    place: list[str] = []
    while coro is not None:
        frame = getattr(coro, "cr_frame", None)
        code = getattr(coro, "cr_code", None)
        if code is not None and code.co_filename.startswith(_QUEUE):
            started = frame is not None and frame.f_lasti >= 0
            line = str(frame.f_lineno) if started else "start"
            place.append(f"{Path(code.co_filename).stem}.{code.co_name}:{line}")
        coro = getattr(coro, "cr_await", None)
    return tuple(place)


def _files_of(coro: Any) -> list[str]:
    files: list[str] = []
    while coro is not None:
        code = getattr(coro, "cr_code", None)
        if code is not None:
            files.append(code.co_filename)
        coro = getattr(coro, "cr_await", None)
    return files
