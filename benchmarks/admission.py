"""`make bench-admission`: the webhook against a constant reply, in the same minutes.

A server of one process (the webhook is one on two cores) and the load generator have a core each;
the Redis server, and servers of several processes, float.
Rounds alternate between floor and webhook, so that a machine that slows down slows both.
"""

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec

from fairslice.redis_connection import RedisConnection
from fairslice.redis_embedded import EmbeddedRedis
from fairslice_queue.ledger import Ledger
from fairslice_webhook.workers import usual_count

from .deciding import steps
from .load import Plan, Result
from .measuring import (
    MachineWatch,
    Samples,
    median,
    spare_core,
)
from .report import Figure, Report, ms
from .reviews import ReviewSet, find_reviews, large_review
from .scenery import NODES, TEAMS, view
from .served import SECRET, Certificate, Part, Served

_PARTS = ("decide", "throughput", "latency", "large", "memory")
# So many fall to one second of open loop.
_RATE = 1000.0
_BOOKINGS = r'bookings_total\{.*verdict="(\w+)"\} (\S+)'
_MIX = ("plain",) * 8 + ("pod",) * 1 + ("job",) * 1


@dataclass
class Bench:
    """Floor and webhook, up; and the books between them and Redis."""

    servers: dict[Part, Served]
    redis: RedisConnection
    certificate: Certificate
    reviews: ReviewSet
    report: Report
    first_name: int = field(default=0)

    async def send(
        self, part: Part, *bodies: bytes, seconds: float, rate: float = 0.0, connections: int = 16
    ) -> Result:
        """Put a server under load."""
        served = self.servers[part]
        plan = Plan(
            port=served.port,
            authority=self.certificate.authority,
            path=f"/{SECRET}/mutate?timeout=10s",
            bodies=bodies,
            seconds=seconds,
            connections=connections,
            rate=rate,
            teams=TEAMS,
            first_name=self.first_name,
            core=spare_core(1),
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.load"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[1],
        )
        out, _ = await process.communicate(msgspec.json.encode(plan))
        if process.returncode:
            raise RuntimeError("the load generator failed; see above")
        result = msgspec.msgpack.decode(out, type=Result)
        self.first_name = result.last_name + 1
        if result.failed:
            self.report.note(f"{result.failed} of {result.answers} requests to the {part} failed")
        if result.refused and part is Part.WEBHOOK:
            self.report.note(f"{result.refused} of {result.answers} reviews were denied")
        return result

    async def clear_books(self) -> None:
        """Empty the ledger, and tell it what the nodes offer and that all lend all."""
        await cast(Any, self.redis.client).flushdb()
        ledger = Ledger(self.redis)
        epoch = await ledger.lead()
        await ledger.rebuild(epoch, (), view().inventory.capacity())
        await ledger.publish_lending(epoch, {})

    async def bookings(self) -> dict[str, int]:
        """Read from the webhook's metrics what wishes to book came to."""
        found: dict[str, int] = {}
        async with aiohttp.ClientSession() as session:
            for port in self.servers[Part.WEBHOOK].healths:
                async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                    text = await response.text()
                for verdict, count in re.findall(_BOOKINGS, text):
                    found[verdict] = found.get(verdict, 0) + int(float(count))
        return found


@asynccontextmanager
async def _bench(report: Report, workers: int) -> AsyncIterator[Bench]:
    certificate = Certificate.make()
    with tempfile.TemporaryDirectory(prefix="fairslice-bench-") as directory:
        async with EmbeddedRedis(Path(directory) / "redis") as server:
            core = spare_core(0)
            servers: dict[Part, Served] = {}
            try:
                for part in Part:
                    servers[part] = await Served.start(part, certificate, server.url, core, workers)
                async with RedisConnection.parse(server.url) as redis:
                    bench = Bench(servers, redis, certificate, find_reviews(), report)
                    await bench.clear_books()
                    yield bench
            finally:
                for served in servers.values():
                    await served.stop()


def _decide(reviews: ReviewSet, report: Report) -> None:
    for name, samples in steps(reviews).items():
        required = name == "decide a GPU pod"
        report.add(
            Figure(
                subject="in process",
                measure=name,
                value=samples.p50 * 1e6,
                unit="µs",
                required="< 100 µs" if required else "",
                met=samples.p50 < 100e-6 if required else None,
                note=f"p99 {samples.p99 * 1e6:.0f} µs",
            )
        )


async def _throughput(bench: Bench, seconds: float, rounds: int) -> None:
    """Closed loop, 16 connections, in turn floor and each kind of review."""
    floors = {
        "floor": Part.FLOOR,
        "floor on asyncio's own loop": Part.STOCK,
        "floor without routing": Part.BARE,
    }
    if (count := len(bench.servers[Part.FLOORS].processes)) > 1:
        floors[f"floor of {count} processes"] = Part.FLOORS
    alike, unlike = bench.reviews, bench.reviews.unlike()
    kinds: dict[str, tuple[bytes, float | None]] = {
        "pod without GPUs": (alike.plain, 0.75),
        "GPU pod with a booking": (alike.pod, 0.5),
        "Job with a booking": (alike.job, 0.5),
        "pod without GPUs, no two alike": (unlike.plain, None),
        "GPU pod with a booking, no two alike": (unlike.pod, None),
        "Job with a booking, no two alike": (unlike.job, None),
    }
    rates: dict[str, list[float]] = {name: [] for name in (*floors, *kinds)}
    latencies: dict[str, list[float]] = {name: [] for name in rates}
    costs: dict[str, list[float]] = {name: [] for name in rates}
    for _ in range(rounds):
        for name in rates:
            part = floors.get(name, Part.WEBHOOK)
            body = bench.reviews.pod if name in floors else kinds[name][0]
            await bench.clear_books()
            served = bench.servers[part]
            used = served.cpu_seconds
            result = await bench.send(part, body, seconds=seconds)
            rates[name].append(result.answers / result.seconds)
            latencies[name] += result.latencies
            costs[name].append((served.cpu_seconds - used) / max(1, result.answers))
    floor = median(rates["floor"])
    for name, found in rates.items():
        needed = kinds[name][1] if name in kinds else None
        ratio = median(found) / floor
        samples = Samples.of(latencies[name])
        bench.report.add(
            Figure(
                subject=name,
                measure="closed loop, 16 connections",
                value=median(found),
                unit="req/s",
                ratio=ratio,
                p50_ms=ms(samples.p50),
                p99_ms=ms(samples.p99),
                required=f">= {needed} of floor" if needed else "",
                met=None if needed is None else ratio >= needed,
                note=f"CPU {median(costs[name]) * 1e6:.0f} µs",
            )
        )
    bench.report.note(
        "bookings: names are new in every request, the ledger is emptied before every round "
        f"({seconds:g} s); what they came to: {await bench.bookings()}"
    )


async def _latency(bench: Bench, seconds: float) -> None:
    reviews = bench.reviews
    mix = tuple(cast(bytes, getattr(reviews, kind)) for kind in _MIX)
    for name, part, bodies in (
        ("floor", Part.FLOOR, (reviews.pod,)),
        ("8 pods without GPUs, 1 GPU pod, 1 Job", Part.WEBHOOK, mix),
        ("GPU pods with a booking", Part.WEBHOOK, (reviews.pod,)),
    ):
        await bench.clear_books()
        result = await bench.send(part, *bodies, seconds=seconds, rate=_RATE, connections=64)
        samples = Samples.of(result.latencies)
        required = part is Part.WEBHOOK
        bench.report.add(
            Figure(
                subject=name,
                measure="open loop, 1,000 req/s",
                value=result.answers / result.seconds,
                unit="req/s",
                p50_ms=ms(samples.p50),
                p99_ms=ms(samples.p99),
                required="p99 < 10 ms" if required else "",
                met=samples.p99 < 0.010 if required else None,
            )
        )


async def _large(bench: Bench) -> None:
    body = large_review(bench.reviews)
    floor = 0.0
    for part in (Part.FLOOR, Part.WEBHOOK):
        result = await bench.send(part, body, seconds=3.0, connections=1)
        samples = Samples.of(result.latencies)
        floor = floor or samples.p50
        required = part is Part.WEBHOOK
        bench.report.add(
            Figure(
                subject=f"object of {len(body) / 2**20:.1f} MiB",
                measure=f"the {part}, one at a time",
                value=ms(samples.p50),
                unit="ms",
                ratio=samples.p50 / floor,
                p50_ms=ms(samples.p50),
                p99_ms=ms(samples.p99),
                required="< 50 ms" if required else "",
                met=samples.p50 < 0.050 if required else None,
            )
        )


async def _memory(bench: Bench, minutes: float) -> None:
    """Under a steady mix, look at the webhook's memory; tentative bookings end by themselves."""
    reviews, served = bench.reviews, bench.servers[Part.WEBHOOK]
    mix = tuple(cast(bytes, getattr(reviews, kind)) for kind in _MIX)
    await bench.clear_books()
    await bench.send(Part.WEBHOOK, *mix, seconds=5.0, rate=_RATE, connections=64)
    seen = [served.resident_mib]
    ends = time.monotonic() + minutes * 60
    while time.monotonic() < ends:
        span = min(15.0, max(1.0, ends - time.monotonic()))
        await bench.send(Part.WEBHOOK, *mix, seconds=span, rate=_RATE, connections=64)
        seen.append(served.resident_mib)
    grown = seen[-1] - seen[0]
    bench.report.add(
        Figure(
            subject="memory",
            measure=f"growth over {minutes:g} min at 1,000 req/s",
            value=grown,
            unit="MiB",
            required="flat",
            met=grown < max(2.0, 0.03 * seen[0]),
            note=f"{seen[0]:.0f} -> {seen[-1]:.0f} MiB, peak {served.peak_mib:.0f}",
        )
    )


async def run(options: argparse.Namespace) -> Report:
    """Measure, and return the figures."""
    report = Report(title="admission")
    machine = MachineWatch()
    parts = options.only or _PARTS
    if "decide" in parts:
        _decide(find_reviews(), report)
    async with _bench(report, options.workers) as bench:
        report.note(f"reviews: {bench.reviews.source}; {TEAMS} teams, {NODES} nodes")
        report.note("floor: an aiohttp application on TLS and uvloop, body read, constant reply")
        usual = "as by default here" if options.workers == usual_count() else "as was asked for"
        report.note(f"webhook: processes: {options.workers}, {usual}")
        if "throughput" in parts:
            await _throughput(bench, options.seconds, options.rounds)
        if "latency" in parts:
            await _latency(bench, max(5.0, options.seconds))
        if "large" in parts:
            await _large(bench)
        if "memory" in parts and options.minutes > 0:
            await _memory(bench, options.minutes)
    report.machine = machine.seen()
    return report


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="bench-admission", description=__doc__)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--only", nargs="*", choices=_PARTS, help="parts to run")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of closed loop")
    parser.add_argument("--minutes", type=float, default=1.0, help="memory is watched so long")
    parser.add_argument(
        "--workers", type=int, default=usual_count(), help="processes of the webhook"
    )
    options = parser.parse_args()
    asyncio.run(run(options)).show(options.output)


if __name__ == "__main__":
    main()
