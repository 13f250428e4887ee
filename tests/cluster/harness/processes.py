"""Programs that the suite starts and ends: output kept, readiness awaited, killed at will."""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["Program", "Result", "command", "free_port", "frozen", "run_command"]

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 15.0
_TAIL = 40


def free_port() -> int:
    """Find a TCP port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def command(name: str) -> str:
    """Path of a command of the environment that runs the suite."""
    return str(Path(sys.executable).with_name(name))


def _end_with_parent() -> None:
    """Have the kernel end this process with the suite, even if that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop a process, or the group of the negated number, and let it go on."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class Program:
    """A process with a log file; starting it again appends to the log."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.argv = tuple(argv)
        self.log = log
        self._env = {**os.environ, **env}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Say whether the process lives."""
        return self._process is not None and self._process.returncode is None

    async def start(self, **env: str) -> None:
        """Start the process, with so many more variables; nothing is awaited."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._env, **env},
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have the process and its own do nothing for a while, as on a machine that hangs."""
        assert self._process is not None
        with frozen(-self._process.pid):
            yield

    async def kill(self) -> None:
        """End the process as a crash would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int | None:
        """End the process in order; return its exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> int | None:
        process = self._process
        if process is None:
            return None
        if process.returncode is None:
            process.send_signal(number)
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        return process.returncode

    def tail(self) -> str:
        """Last lines of the log, for a failure's text."""
        if not self.log.exists():
            return f"{self.name}: no output\n"
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL:]
        state = "running" if self.is_running else "ended"
        return "\n".join((f"--- {self.name} ({state}), end of its log:", *lines, ""))


class Result:
    """What a command came to."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit code {self.code}\nstdout:\n{self.out}\nstderr:\n{self.err}"


async def run_command(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, within: float = 30.0
) -> Result:
    """Run a command to its end. Raises AssertionError if it takes too long."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        async with asyncio.timeout(within):
            out, err = await process.communicate()
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
        text = err.decode(errors="replace")
        raise AssertionError(f"{' '.join(argv)} still runs after {within:g} s:\n{text}") from None
    return Result(process.returncode or 0, out.decode(), err.decode())
