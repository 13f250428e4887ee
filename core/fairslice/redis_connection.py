"""The connection to Redis: one setting, short time limits, and a breaker for bad times."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from fairslice.redis_lane import AWAY_REPLIES, ELSEWHERE_REPLIES, Lane, LaneDown, Script
from fairslice.redis_setting import RedisSetting

__all__ = ["Breaker", "Client", "RedisConnection", "RedisUnavailable", "Script"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
Client = Redis | RedisCluster

# redis-py's defaults (10 retries of 5 s, redis-py#261) can hold a caller for a minute and run
# a script eight times. One short try; what is tried again is the caller's to say. Each call has
# its own time limit; those of the sockets are there for what it doesn't reach.
_CALL_SECONDS = 0.25
_CONNECT_SECONDS = 0.3
_SOCKET_SECONDS = 5.0
# Redis does one thing at a time; more connections only make a worse rush at the start.
_CONNECTIONS = 16
_WAIT_MARGIN_SECONDS = 1.0
_CANCEL_SECONDS = 0.05
_AWAY = "Redis is away; it is tried again shortly"

_DOWN = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.RedisClusterException,
    exceptions.ClusterError,
    exceptions.TryAgainError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    OSError,  # TimeoutError among them
)


class RedisUnavailable(RuntimeError):
    """Redis didn't answer in time, or is known not to: try again later."""


@dataclass(slots=True)
class Breaker:
    """Lets calls fail at once while Redis is known to be away; times in monotonic seconds.

    The first failure opens it. From then on one caller at a time is let through as a probe,
    after `first` seconds and then at doubling distances up to `longest`; its success closes.
    """

    first: float = 0.1
    longest: float = 1.0
    open: bool = False
    retry_at: float = 0.0
    _distance: float = 0.0
    _probing: bool = False

    def admits(self, now: float) -> bool:
        """Say whether a call may go out now: always while closed, else as the probe."""
        return not self.open or (not self._probing and now >= self.retry_at)

    def begin(self) -> bool:
        """Note that an admitted call goes out; return whether it is the probe."""
        self._probing = self.open
        return self._probing

    def succeeded(self) -> None:
        """Note that a call got an answer."""
        self.open = False
        self._probing = False
        self._distance = 0.0

    def failed(self, now: float, *, probe: bool) -> None:
        """Note that a call got none."""
        if probe or not self.open:
            self._distance = min(max(self._distance * 2, self.first), self.longest)
            self.retry_at = now + self._distance
            self._probing = False
        self.open = True

    def abandoned(self, *, probe: bool) -> None:
        """Note that a call was cancelled before it got an answer or failed."""
        if probe:
            self._probing = False


class RedisConnection:
    """Clients for one Redis, whatever its topology; replies are bytes.

    Short scripts go through `run_script`, which is much the cheapest, other commands through
    `call`, blocking reads through `wait`, which has a client of its own: a socket timeout
    shorter than the wait would cut every wait short.
    """

    def __init__(
        self,
        setting: RedisSetting,
        *,
        call_seconds: float = _CALL_SECONDS,
        connections: int = _CONNECTIONS,
    ) -> None:
        """Prepare the clients; nothing is connected yet."""
        self.call_seconds = call_seconds
        self.breaker = Breaker()
        self._sentinels: list[Sentinel] = []
        self.client = self._client(setting, connections, _SOCKET_SECONDS)
        self.blocking = self._client(setting, 4, None)
        # Callers queue here rather than in the pool, so that they hear of an open breaker.
        self._turns = asyncio.Semaphore(connections)
        self._moved = asyncio.Lock()
        self._lane = Lane(
            self._connect,
            call_seconds,
            answered=self._answered,
            failed=lambda words, probe: self._unavailable(f"Redis doesn't answer: {words}", probe),
            abandoned=lambda: self.breaker.abandoned(probe=True),
        )

    @classmethod
    def parse(cls, setting: str, **options: Any) -> Self:
        """Prepare the clients for a setting in text form. Raises RedisSettingError."""
        return cls(RedisSetting.parse(setting), **options)

    @property
    def available(self) -> bool:
        """Say whether the last that was heard of Redis was good."""
        return not self.breaker.open

    async def call(
        self, command: Callable[[Client], Awaitable[T]], *, seconds: float | None = None
    ) -> T:
        """Run a command within the time limit.

        Raises RedisUnavailable when there is no answer; the command may have been carried
        out all the same. At once, when others found out before.
        """
        self._check()
        async with self._turns:
            self._check()
            return await self._run(command, self.client, seconds or self.call_seconds)

    async def run_script(
        self, script: Script, arguments: Sequence[bytes], *, seconds: float | None = None
    ) -> Any:
        """Run a script; a short one (no `seconds`) on a connection that all of them share.

        Raises RedisUnavailable as `call` does, and ResponseError if the script fails. A caller
        may be cancelled; the script may have been run all the same.
        """
        if seconds is not None:
            return await self._run_alone(script, arguments, seconds)
        self._check()
        # redis-py finds out which node of a cluster serves now.
        if self.breaker.open and isinstance(self.client, RedisCluster):
            return await self._run_alone(script, arguments)
        try:
            return await self._lane.call(script, arguments, probe=self.breaker.begin())
        except LaneDown as error:
            raise RedisUnavailable(f"Redis doesn't answer: {error}") from error
        except exceptions.ResponseError as error:
            if not str(error).startswith(ELSEWHERE_REPLIES):
                raise
        # One finds out where the slot went; for many at once redis-py would close connections
        # that are in use.
        async with self._moved:
            return await self._run_alone(script, arguments)

    async def _run_alone(
        self, script: Script, arguments: Sequence[bytes], seconds: float | None = None
    ) -> Any:
        """Run a script through redis-py, which goes to the node that has the key."""

        def by_name(client: Client) -> Awaitable[Any]:
            return client.evalsha(script.sha, 1, script.key, *arguments)

        def whole(client: Client) -> Awaitable[Any]:
            return client.eval(script.text, 1, script.key, *arguments)

        try:
            return await self.call(by_name, seconds=seconds)
        except exceptions.NoScriptError:
            return await self.call(whole, seconds=seconds)

    async def _connect(self, key: str) -> AbstractConnection:
        """Connect and log in, to the node that has the keys' slot."""
        client = self.client
        if isinstance(client, RedisCluster):
            await client.initialize()
            node = client.get_node_from_key(key)
            if node is None:
                raise exceptions.ClusterError("no node has the slot")
            connection: Any = node.connection_class(**node.connection_kwargs)
        else:
            pool: Any = client.connection_pool
            connection = pool.make_connection()
        await connection.connect()
        return cast(AbstractConnection, connection)

    async def wait(self, command: Callable[[Client], Awaitable[T]], *, seconds: float) -> T:
        """Run a command that blocks up to `seconds`; never as a probe. Raises RedisUnavailable."""
        if self.breaker.open:
            raise RedisUnavailable(_AWAY)
        limit = seconds + _WAIT_MARGIN_SECONDS
        task = asyncio.ensure_future(self._run(command, self.blocking, limit))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            # Once is not enough: see _run.
            while not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
            raise
        return task.result()

    def _check(self) -> None:
        if not self.breaker.admits(time.monotonic()):
            raise RedisUnavailable(_AWAY)

    async def _run(
        self, command: Callable[[Client], Awaitable[T]], client: Client, seconds: float
    ) -> T:
        breaker = self.breaker
        probe = breaker.begin()
        task = asyncio.current_task()
        cancelled = task.cancelling() if task else 0

        def check_cancelled() -> None:
            # redis-py 8.1 can swallow a cancellation that comes while it connects.
            if task and task.cancelling() > cancelled:
                raise asyncio.CancelledError

        try:
            async with asyncio.timeout(seconds):
                result = await command(client)
        except _DOWN as error:
            failure = self._unavailable(f"Redis doesn't answer: {_words(error)}", probe)
            check_cancelled()
            raise failure from error
        except exceptions.ResponseError as error:
            if str(error).startswith(AWAY_REPLIES):
                failure = self._unavailable(f"Redis can't serve: {_words(error)}", probe)
                check_cancelled()
                raise failure from error
            breaker.succeeded()
            check_cancelled()
            raise
        except asyncio.CancelledError:
            breaker.abandoned(probe=probe)
            raise
        self._answered()
        check_cancelled()
        return result

    def _answered(self) -> None:
        if self.breaker.open:
            _log.info("Redis answers again")
        self.breaker.succeeded()

    def _unavailable(self, text: str, probe: bool) -> RedisUnavailable:
        # Once for each time it goes away, however many calls find out.
        if not self.breaker.open:
            _log.warning("%s", text)
        self.breaker.failed(time.monotonic(), probe=probe)
        return RedisUnavailable(text)

    def _client(
        self, setting: RedisSetting, connections: int, socket_seconds: float | None
    ) -> Client:
        arguments: dict[str, Any] = {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": max(_CONNECT_SECONDS, self.call_seconds),
            "socket_timeout": socket_seconds,
            **setting.options,
        }
        if setting.topology == "cluster":
            return RedisCluster(
                startup_nodes=[ClusterNode(host, port) for host, port in setting.hosts],
                ssl=setting.tls,
                max_connections=connections,
                **arguments,
            )
        if setting.topology == "sentinel":
            sentinel = Sentinel(  # type: ignore[no-untyped-call]
                setting.hosts,
                sentinel_kwargs={
                    **arguments,
                    "socket_timeout": _SOCKET_SECONDS,
                    "db": 0,
                    "username": None,
                    "password": None,
                    "ssl": setting.tls,
                    **setting.sentinel_options,
                },
            )
            self._sentinels.append(sentinel)
            # Never more than `connections` in use at once: see _turns.
            pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]
                setting.service, sentinel, ssl=setting.tls, max_connections=connections, **arguments
            )
            return Redis(connection_pool=pool)
        return Redis(
            connection_pool=BlockingConnectionPool(
                max_connections=connections, timeout=_SOCKET_SECONDS, **arguments
            )
        )

    async def aclose(self) -> None:
        """Close all connections."""
        await self._lane.aclose()
        for client in (self.client, self.blocking):
            await client.aclose()
            if isinstance(client, Redis):
                await client.connection_pool.disconnect()
        for sentinel in self._sentinels:
            for one in sentinel.sentinels:
                await one.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


def _words(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
