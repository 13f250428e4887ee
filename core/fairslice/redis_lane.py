"""One connection that many calls of scripts share: what comes at once goes out as one write.

A round trip of its own costs a client several times the work of the call. Redis answers in
order, so answers find their callers without a search, and nobody holds a connection while he
waits. redis-py connects (TLS, login, database, Sentinel, Cluster); then the lane takes over.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from hashlib import sha1
from typing import Any, cast

from redis import exceptions
from redis.asyncio.connection import AbstractConnection

__all__ = ["AWAY_REPLIES", "ELSEWHERE_REPLIES", "Lane", "LaneDown", "Script", "parse_reply"]

# So many are on their way at once. The rest wait here, where they hear at once that Redis is
# away, and in bad times aren't carried out for callers who have given up.
_WINDOW = 64
# So many of one turn of the loop go out without waiting for the rest.
_FEW = 4
_GRACE_SECONDS = 0.01
_HEADS = tuple(b"$%d\r\n" % n for n in range(4096))
_END = b"\r\n"
# Redis is there but can't serve; or another node has the key.
AWAY_REPLIES = (
    *("MISCONF", "LOADING", "MASTERDOWN", "NOREPLICAS", "READONLY", "OOM"),
    *("CLUSTERDOWN", "TRYAGAIN"),
)
ELSEWHERE_REPLIES = ("MOVED", "ASK")
_COUNTS = tuple(b"*%d\r\n" % n for n in range(256))


class LaneDown(ConnectionError):
    """The connection failed, or there was no answer in time."""


class Script:
    """A Lua script that works on one key."""

    __slots__ = ("by_name", "key", "sha", "text", "whole")

    def __init__(self, text: str, key: str) -> None:
        self.text = text
        self.key = key
        # The protocol's way of naming a script, no protection.
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        fixed = (b"1", key.encode())
        self.by_name = _packed((b"EVALSHA", self.sha.encode(), *fixed))
        self.whole = _packed((b"EVAL", text.encode(), *fixed))


class _Call:
    __slots__ = ("arguments", "count", "deadline", "future", "probe", "script")

    def __init__(
        self, script: Script, arguments: Sequence[bytes], future: asyncio.Future[Any], probe: bool
    ) -> None:
        self.script = script
        self.arguments = _packed(arguments)
        self.count = _count(4 + len(arguments))
        self.future = future
        self.probe = probe
        self.deadline = 0.0


class Lane:
    """Calls scripts; `connect` makes a logged-in connection of redis-py that serves a key.

    `answered` is told when Redis serves, `failed` when it doesn't: why, and whether a call that
    was let through as a probe is among those whom it befell; `abandoned`, that the probe never
    went out.
    """

    def __init__(
        self,
        connect: Callable[[str], Coroutine[Any, Any, AbstractConnection]],
        seconds: float,
        *,
        answered: Callable[[], None],
        failed: Callable[[str, bool], object],
        abandoned: Callable[[], None],
    ) -> None:
        """Prepare; the first call connects, within the `seconds` that each call may take."""
        self._connect = connect
        self._seconds = seconds
        self._answered = answered
        self._failed = failed
        self._abandoned = abandoned
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: deque[_Call] = deque()
        self._link: _Link | None = None
        self._connecting: asyncio.Task[AbstractConnection] | None = None
        self._connect_by = 0.0
        self._flush: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._late = False

    def call(
        self, script: Script, arguments: Sequence[bytes], *, probe: bool
    ) -> asyncio.Future[Any]:
        """Run a script; its reply to come: bytes, int, None or lists of these.

        It raises LaneDown, or ResponseError as Redis answered it. A caller who is cancelled
        leaves the others alone.
        """
        # (Each time it is asked for, Python 3.11 makes a system call.)
        loop = self._loop = self._loop or asyncio.get_running_loop()
        call = _Call(script, arguments, loop.create_future(), probe)
        self._outbox.append(call)
        if len(self._outbox) == _FEW:
            # Redis need not wait for the rest of a crowd.
            self._send()
        elif self._flush is None:
            # Those who come in the same turn of the loop go together.
            self._flush = loop.call_soon(self._send)
        return call.future

    async def aclose(self) -> None:
        """Close the connection. Calls that wait fail."""
        for handle in (self._flush, self._timer):
            if handle is not None:
                handle.cancel()
        connecting, link = self._connecting, self._link
        self._fail("the connection was closed", told=False)
        while connecting is not None and not connecting.done():
            connecting.cancel()
            await asyncio.wait({connecting}, timeout=0.05)
        if link is not None:
            await link.wait_closed()

    def _send(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        link = self._link
        if link is None:
            self._begin_to_connect()
            return
        if link.leaving:
            return
        waiting, outbox = link.waiting, self._outbox
        deadline = time.monotonic() + self._seconds
        parts: list[bytes] = []
        while outbox and len(waiting) < _WINDOW:
            call = outbox.popleft()
            if call.future.done():
                if call.probe:
                    self._abandoned()
                continue
            call.deadline = deadline
            waiting.append(call)
            parts += (call.count, call.script.by_name, call.arguments)
        if parts:
            link.write(b"".join(parts))
            self._watch(deadline)

    def _begin_to_connect(self) -> None:
        if self._connecting is not None or not self._outbox:
            return
        loop = asyncio.get_running_loop()
        self._connect_by = time.monotonic() + self._seconds
        key = self._outbox[0].script.key
        self._connecting = loop.create_task(self._connect(key))
        self._connecting.add_done_callback(self._connected)
        self._watch(self._connect_by)

    def _connected(self, task: asyncio.Task[AbstractConnection]) -> None:
        current = task is self._connecting
        if current:
            self._connecting = None
        error = None if task.cancelled() else task.exception()
        connection = None if task.cancelled() or error is not None else task.result()
        if connection is not None:
            link = _Link(connection, self._receive, self._lost)
            if current:
                self._link = link
                self._send()
            else:
                link.abort()
        elif current and isinstance(error, OSError | exceptions.RedisError):
            self._fail(_words(error))
        elif current and error is not None:
            # No bad times but a mistake: whoever called is to know.
            calls = [*self._outbox]
            self._outbox.clear()
            for call in calls:
                if not call.future.done():
                    call.future.set_exception(error)

    def _receive(self, link: "_Link", replies: list[Any]) -> None:
        """Hand out answers, in the order of the calls."""
        waiting, serves = link.waiting, False
        for reply in replies:
            call = waiting.popleft()
            if isinstance(reply, exceptions.ResponseError):
                serves |= self._refused(link, call, reply)
                continue
            serves = True
            if not call.future.done():
                call.future.set_result(reply)
        if serves:
            self._answered()
        if link.leaving and not waiting:
            self._link = None
            link.abort()
        if self._outbox and self._flush is None:
            self._send()

    def _refused(self, link: "_Link", call: _Call, error: exceptions.ResponseError) -> bool:
        """Take an answer that is an error; say whether Redis serves all the same."""
        text = str(error)
        if text.startswith("NOSCRIPT"):
            # Its text, once, makes Redis know it again.
            call.deadline = time.monotonic() + self._seconds
            link.waiting.append(call)
            link.write(b"".join((call.count, call.script.whole, call.arguments)))
            return True
        away = text.startswith(AWAY_REPLIES)
        link.leaving |= away or text.startswith(ELSEWHERE_REPLIES)
        if away:
            self._failed(text, call.probe)
            self._give_up((call,), text)
        elif not call.future.done():
            call.future.set_exception(error)
        return not away

    def _lost(self, link: "_Link", error: BaseException | None) -> None:
        if link is not self._link:
            return
        self._link = None
        # An idle connection that goes is no failure of anybody's.
        if link.waiting or self._outbox:
            words = _words(error) if error else "Redis closed the connection"
            self._fail(words, calls=link.waiting)

    def _watch(self, deadline: float) -> None:
        # (A loop's own time may be that of its turn's beginning.)
        if self._timer is None:
            delay = max(0.0, deadline - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        """See whether what was begun first is overdue."""
        self._timer = None
        now = time.monotonic()
        link = self._link
        if link is not None and link.waiting:
            deadline = link.waiting[0].deadline
        elif self._connecting is not None:
            deadline = self._connect_by
        else:
            self._late = False
            return
        if deadline > now:
            self._late = False
            self._watch(deadline)
        elif not self._late:
            # A loop that was busy for so long may not have read yet what lies there.
            self._late = True
            self._watch(now + _GRACE_SECONDS)
        else:
            self._late = False
            self._fail(f"no answer in {self._seconds:g} s")

    def _fail(self, words: str, *, calls: Iterable[_Call] = (), told: bool = True) -> None:
        """Give up the connection, or the attempt at one, and tell all who wait."""
        link, self._link = self._link, None
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
        stranded = [*calls, *(link.waiting if link is not None else ()), *self._outbox]
        self._outbox.clear()
        if link is not None:
            link.abort()
        if told:
            self._failed(words, any(call.probe for call in stranded))
        self._give_up(stranded, words)

    def _give_up(self, calls: Iterable[_Call], words: str) -> None:
        for call in calls:
            if not call.future.done():
                call.future.set_exception(LaneDown(words))


class _Link(asyncio.Protocol):
    """A live connection and the calls that it owes an answer."""

    def __init__(
        self,
        connection: AbstractConnection,
        receive: "Callable[[_Link, list[Any]], None]",
        lost: "Callable[[_Link, BaseException | None], None]",
    ) -> None:
        # redis-py has no public way to its transport.
        self._connection = cast(Any, connection)
        self._transport: asyncio.Transport = self._connection._writer.transport
        self._former = self._transport.get_protocol()
        self._receive = receive
        self._lost = lost
        self._rest = b""
        self.waiting: deque[_Call] = deque()
        self.leaving = False
        self._transport.set_protocol(self)

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        at, size, replies = 0, len(data), list[Any]()
        try:
            while at < size:
                reply, at = parse_reply(data, at)
                replies.append(reply)
        except EOFError:
            pass
        self._rest = data[at:]
        if len(replies) > len(self.waiting):
            self.abort()
        elif replies:
            self._receive(self, replies)

    def connection_lost(self, error: Exception | None) -> None:
        # redis-py's own end waits for this.
        self._former.connection_lost(error)
        self._connection._close()
        self._lost(self, error)

    def abort(self) -> None:
        self._transport.abort()

    async def wait_closed(self) -> None:
        """Let the loop close the socket."""
        await asyncio.sleep(0)


def parse_reply(data: bytes, at: int) -> tuple[Any, int]:
    """Read a reply (RESP2) and where the next one begins. Raises EOFError if it isn't all there.

    An error is returned as ResponseError.
    """
    end = data.find(_END, at)
    if end < 0:
        raise EOFError
    kind, head = data[at], data[at + 1 : end]
    end += 2
    if kind == 36:  # $, text
        size = int(head)
        if size < 0:
            return None, end
        stop = end + size
        if len(data) < stop + 2:
            raise EOFError
        return data[end:stop], stop + 2
    if kind == 42:  # *, list
        items = []
        for _ in range(int(head)):
            item, end = parse_reply(data, end)
            items.append(item)
        return items, end
    if kind == 58:  # :, number
        return int(head), end
    if kind == 45:  # -, error
        return exceptions.ResponseError(head.decode("utf-8", "replace")), end
    return head, end


def _packed(arguments: Sequence[bytes]) -> bytes:
    parts: list[bytes] = []
    for argument in arguments:
        size = len(argument)
        parts += (_HEADS[size] if size < 4096 else b"$%d\r\n" % size, argument, _END)
    return b"".join(parts)


def _count(number: int) -> bytes:
    return _COUNTS[number] if number < 256 else b"*%d\r\n" % number


def _words(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
