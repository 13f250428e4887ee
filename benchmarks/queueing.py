"""`make bench-queue`: the planner in process and, with KUBECONFIG, a real control plane."""

import argparse
import asyncio

from .churn import measure_churn
from .creating import measure_creating
from .measuring import MachineWatch
from .planning import measure_planning
from .report import Report

_PARTS = ("planner", "jobs", "churn")


async def run(options: argparse.Namespace) -> Report:
    """Measure, and return the figures."""
    report, machine = Report(title="queue"), MachineWatch()
    parts = options.only or _PARTS
    if "planner" in parts:
        await measure_planning(report, tuple(options.sizes), options.seconds)
    kubeconfig = options.kubeconfig
    if not kubeconfig:
        report.note("no cluster named: nothing was measured on a real control plane")
    else:
        report.note("of the machine's load, the control plane's counts as that of others")
        if "jobs" in parts:
            await measure_creating(report, kubeconfig, options.jobs, options.controllers)
        if "churn" in parts:
            await measure_churn(report, kubeconfig, options.churn, options.controllers)
    report.machine = machine.seen()
    return report


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="bench-queue", description=__doc__)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument("--only", nargs="*", choices=_PARTS, help="parts to run")
    parser.add_argument(
        "--sizes", nargs="*", type=int, default=(1_000, 10_000, 50_000), help="lengths of the line"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="time for each figure")
    parser.add_argument("--kubeconfig", default="", help="a real control plane to use")
    parser.add_argument("--jobs", type=int, default=1_000, help="Jobs to create")
    parser.add_argument("--churn", type=int, default=320, help="Jobs of 2 s on 64 slots")
    parser.add_argument(
        "--controllers",
        nargs="*",
        type=int,
        default=(),
        metavar="PID",
        help="a local control plane's controller-manager and scheduler, stopped for `jobs`",
    )
    options = parser.parse_args()
    asyncio.run(run(options)).show(options.output)


if __name__ == "__main__":
    main()
