"""`fairslice bill`: what teams owe for a month, for finance."""

import csv
import io
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import click

from fairslice.status_client import fetch, print_rows

__all__ = ["add_bill_command"]

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)


def add_bill_command(group: click.Group, run: Run, *, status_url: Decorator) -> None:
    """Add the command to the group; `run` runs a coroutine and tells its failure."""

    @group.command("bill")
    @click.option("--team", default="", help="Only this team's; else all, and what was idle.")
    @click.option("--month", default="", callback=_month, help="Such as 2026-11  [default: this]")
    @click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json", "csv"]),
        default="table",
        help="Form of output.",
    )
    @status_url
    def bill(status_url: str, team: str, month: str, output: str) -> None:
        """Show what teams owe for their GPUs in a month.

        All rows of a pool sum to the price of its hardware, to the millionth.
        """
        asked = {"team": team, "month": month}
        params = {name: value for name, value in asked.items() if value}
        rows = run(fetch(status_url, "/bill", params))
        if output == "csv":
            click.echo(_csv(rows), nl=False)
        else:
            print_rows(rows, output, empty="nothing is owed")


def _month(_context: click.Context, _option: click.Parameter, value: str) -> str:
    if value and not _MONTH.fullmatch(value):
        raise click.BadParameter(f"{value!r} is no month such as 2026-11")
    return value


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    columns = ("month", "pool", "team", "gpu_hours", "amount", "currency", "start", "end", "final")
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row, "final": str(row.get("final", False)).lower()})
    return text.getvalue()
