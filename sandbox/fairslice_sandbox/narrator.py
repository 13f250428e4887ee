"""Telling the day in the terminal."""

import time
from collections.abc import Iterable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["Narrator"]


# A file has no width of its own; rich's default of 80 would break every cell.
_FILE_WIDTH = 160


class Narrator:
    """Prints what happens, with the seconds since the day began."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        if console is None and not self.console.is_terminal:
            self.console.width = _FILE_WIDTH
        self._began = time.monotonic()

    def chapter(self, title: str) -> None:
        """Begin a part of the day."""
        self.console.print(f"\n[bold]{escape(title)}[/bold]")

    def does(self, who: str, what: str) -> None:
        """Tell what somebody does."""
        self._line("cyan", f"{who}: {what}")

    def happens(self, what: str) -> None:
        """Tell what comes of it."""
        self._line("green", what)

    def warns(self, texts: Iterable[str]) -> None:
        """Tell what the cluster said along the way."""
        for text in texts:
            self._line("yellow", f"Warning: {text}")

    def fails(self, text: str) -> None:
        """Tell that something went wrong."""
        self._line("bold red", text)

    def plain(self, text: str) -> None:
        """Print a line as it is."""
        self.console.print(escape(text))

    def table(self, title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        """Print a table."""
        table = Table(title=title, title_justify="left", box=None, header_style="bold")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(escape(cell) for cell in row))
        self.console.print(table)

    def _line(self, style: str, text: str) -> None:
        elapsed = time.monotonic() - self._began
        self.console.print(f"[dim]{elapsed:5.1f} s[/dim]  [{style}]{escape(text)}[/{style}]")
