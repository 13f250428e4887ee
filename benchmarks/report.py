"""Figures as a table for people, or as JSON."""

import sys
from collections.abc import Sequence

from msgspec import Struct, json
from rich.console import Console
from rich.table import Table

from .measuring import Machine

__all__ = ["Figure", "Report", "ms"]


class Figure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: what was measured, the value as people read it, and what is required.

    `ratio` is to the floor measured in the same run; `met` is None where nothing is required.
    """

    subject: str
    measure: str
    value: float
    unit: str = ""
    ratio: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    required: str = ""
    met: bool | None = None
    note: str = ""


class Report(Struct, kw_only=True):
    """All figures of a run, with how they came about."""

    title: str
    figures: list[Figure] = []
    notes: list[str] = []
    machine: Machine | None = None

    def add(self, figure: Figure) -> None:
        """Take a figure in, and show on stderr that the work goes on."""
        self.figures.append(figure)
        print(f"  {figure.subject}: {figure.measure} {_number(figure.value)} {figure.unit}",
              file=sys.stderr, flush=True)  # fmt: skip

    def note(self, text: str) -> None:
        """Say something that the figures don't say by themselves."""
        self.notes.append(text)

    def show(self, output: str) -> None:
        """Print as `table` or `json`."""
        if output == "json":
            sys.stdout.write(json.format(json.encode(self)).decode() + "\n")
            return
        console = Console(width=None if sys.stdout.isatty() else 150)
        table = Table(title=self.title)
        for name in ("what", "measure", "value", "of floor", "p50 ms", "p99 ms", "required", ""):
            table.add_column(name, justify="left" if name in ("what", "measure") else "right")
        for figure in self.figures:
            table.add_row(*_cells(figure))
        console.print(table)
        for text in self.notes:
            console.print(f"- {text}", markup=False, highlight=False)
        if self.machine is not None:
            console.print(f"machine: {self.machine}", markup=False, highlight=False)


def ms(seconds: float) -> float:
    """Milliseconds."""
    return seconds * 1000


def _cells(figure: Figure) -> Sequence[str]:
    met = {None: "", True: "met", False: "NOT MET"}[figure.met]
    return (
        figure.subject,
        figure.measure + (f" ({figure.note})" if figure.note else ""),
        f"{_number(figure.value)} {figure.unit}".strip(),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if figure.p50_ms is None else f"{figure.p50_ms:.2f}",
        "" if figure.p99_ms is None else f"{figure.p99_ms:.2f}",
        figure.required,
        met,
    )


def _number(value: float) -> str:
    if value != value:
        return "n/a"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
