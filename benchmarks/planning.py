"""The planner on an in-process API stub, at several lengths of the line."""

import asyncio
import sys
import tempfile
from pathlib import Path

import msgspec

from fairslice.redis_embedded import EmbeddedRedis

from .backlog import Found, Order
from .report import Figure, Report, ms

__all__ = ["WRITE_LATENCY", "measure_planning"]

WRITE_LATENCY = 0.002
"""What a write to the stub takes, in seconds."""

_SIZES = ((1_000, 1_000), (10_000, 1_000), (50_000, 1_000))
_NODES = 8


async def measure_planning(report: Report, sizes: tuple[int, ...], seconds: float) -> None:
    """Measure at each length of the line, and compare the longest with the shortest."""
    report.note(
        f"planner: in-process API stub, writes take {ms(WRITE_LATENCY):g} ms; real Redis; "
        f"{_NODES} nodes of 8 GPUs, all taken; a process of its own for each size"
    )
    found: dict[int, Found] = {}
    for queued, teams in _SIZES:
        if queued in sizes:
            lost, found[queued] = await _measure(queued, teams, seconds)
            _tell(report, queued, teams, found[queued], lost)
    if len(found) > 1:
        small, large = min(found), max(found)
        growth = found[large].decisions.p50 / found[small].decisions.p50
        required = (small, large) == (1_000, 50_000)
        report.add(
            Figure(
                subject="planner",
                measure=f"a decision at {large:,} against {small:,} queued",
                value=growth,
                unit="times",
                required="<= 3 times" if required else "",
                met=growth <= 3 if required else None,
            )
        )


async def _measure(queued: int, teams: int, seconds: float) -> tuple[Found, Found]:
    """Start on lost books, then in another process on the books that the first one made."""
    with tempfile.TemporaryDirectory(prefix="fairslice-bench-") as directory:
        async with EmbeddedRedis(Path(directory) / "redis") as redis:
            order = Order(teams, queued, _NODES, redis.url, WRITE_LATENCY, seconds, True)
            lost = await _in_process(order)
            return lost, await _in_process(msgspec.structs.replace(order, books_lost=False))


async def _in_process(order: Order) -> Found:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.backlog"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    out, _ = await process.communicate(msgspec.json.encode(order))
    if process.returncode:
        raise RuntimeError("the queue failed; see above")
    return msgspec.msgpack.decode(out, type=Found)


def _tell(report: Report, queued: int, teams: int, found: Found, lost_books: Found) -> None:
    subject = f"{queued:,} queued in {teams:,} teams"
    most, many = queued == 50_000, queued == 10_000
    decisions, releases = found.decisions, found.releases
    report.add(
        Figure(
            subject=subject,
            measure="one event's decision",
            value=ms(decisions.p50),
            unit="ms",
            p50_ms=ms(decisions.p50),
            p99_ms=ms(decisions.p99),
            required="p50 < 1 ms, p99 < 10 ms" if most else "",
            met=decisions.p50 < 0.001 and decisions.p99 < 0.010 if most else None,
            note=f"{decisions.count} rounds",
        )
    )
    lost = f", {found.lost_releases} never came" if found.lost_releases else ""
    report.add(
        Figure(
            subject=subject,
            measure="free capacity to release",
            value=ms(releases.p50),
            unit="ms",
            p50_ms=ms(releases.p50),
            p99_ms=ms(releases.p99),
            required="p99 < 50 ms" if many else "",
            met=releases.p99 < 0.050 and not found.lost_releases if many else None,
            note=f"{releases.count} releases{lost}",
        )
    )
    for name, seconds in (
        ("restart to first release", found.started),
        ("restart on lost books to first decision", lost_books.started),
    ):
        report.add(
            Figure(
                subject=subject,
                measure=name,
                value=seconds,
                unit="s",
                required="< 10 s" if most else "",
                met=seconds < 10 if most else None,
            )
        )
    report.add(
        Figure(
            subject=subject,
            measure="memory, peak",
            value=found.memory_peak,
            unit="MiB",
            required="< 300 MiB" if most else "",
            met=found.memory_peak < 300 if most else None,
            note=f"{found.memory_before:.0f} before, CPU {found.cpu_seconds:.1f} s, "
            f"{found.writes} writes",
        )
    )
