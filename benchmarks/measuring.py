"""What is measured: samples of a time, what a process used, what else the machine did."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

__all__ = [
    "Machine",
    "MachineWatch",
    "Samples",
    "cpu_seconds",
    "descendants",
    "median",
    "peak_mib",
    "percentile",
    "resident_mib",
    "spare_core",
]

_TICKS = os.sysconf("SC_CLK_TCK")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of all values doesn't exceed (nearest rank)."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered)) - 1))]


def median(values: Iterable[float]) -> float:
    """Return the middle value."""
    return percentile(list(values), 0.5)


class Samples(Struct, frozen=True):
    """How long something took, many times; in seconds."""

    count: int
    p50: float
    p99: float
    worst: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Samples":
        """Summarize."""
        return cls(
            len(seconds),
            percentile(seconds, 0.5),
            percentile(seconds, 0.99),
            max(seconds, default=float("nan")),
        )


def _status(pid: int, key: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    return float("nan")


def resident_mib(pid: int) -> float:
    """Return the memory that a process holds now, in MiB."""
    return _status(pid, "VmRSS:")


def peak_mib(pid: int) -> float:
    """Return the most memory that a process ever held, in MiB."""
    return _status(pid, "VmHWM:")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def spare_core(position: int) -> int | None:
    """Name a core to pin a process to (0 the first, 1 the second); None on a single core."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[position % len(cores)] if len(cores) > 1 else None


class Machine(Struct, frozen=True):
    """What the machine did meanwhile: load averages of a minute, and how busy its cores were.

    `others` is the share of all CPU time that went to processes that are none of ours.
    """

    cores: int
    load_before: float
    load_after: float
    busy: float
    others: float

    def __str__(self) -> str:
        return (
            f"{self.cores} cores, load {self.load_before:.2f} -> {self.load_after:.2f}, "
            f"{self.busy:.0%} busy, {self.others:.0%} by others"
        )


@dataclass
class MachineWatch:
    """Watches the machine from its making on."""

    def __post_init__(self) -> None:
        self._load = os.getloadavg()[0]
        self._started = time.monotonic()
        self._idle = _idle_seconds()
        self._own = _own_seconds()

    def seen(self) -> Machine:
        """Say what happened until now. Children count once they have been waited for."""
        cores = os.cpu_count() or 1
        elapsed = max(1e-3, (time.monotonic() - self._started) * cores)
        busy = min(1.0, max(0.0, 1 - (_idle_seconds() - self._idle) / elapsed))
        own = (_own_seconds() - self._own) / elapsed
        return Machine(cores, self._load, os.getloadavg()[0], busy, max(0.0, busy - own))


def _idle_seconds() -> float:
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return (int(fields[4]) + int(fields[5])) / _TICKS


def _own_seconds() -> float:
    times = os.times()
    live = sum(cpu_seconds(pid) for pid in descendants())
    return times.user + times.system + times.children_user + times.children_system + live


def descendants() -> list[int]:
    """List the processes that this one has started, and those that they have started."""
    found, parents = [], {os.getpid()}
    rows = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            rows.append((int(entry.name), int(fields[1])))
    grown = True
    while grown:
        new = [pid for pid, parent in rows if parent in parents and pid not in parents]
        grown = bool(new)
        parents.update(new)
        found += new
    return found
