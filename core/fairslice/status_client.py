"""Reading the queue's status endpoint, and printing what it says."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp
import click
from msgspec import DecodeError, json
from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["StatusUnavailable", "fetch", "post", "print_rows"]

_SECONDS = 10.0
_WIDEST = 10_000

Row = Mapping[str, Any]


class StatusUnavailable(ConnectionError):
    """The status endpoint gave no usable answer: where, and why."""


async def fetch(url: str, path: str, params: Mapping[str, str] | None = None) -> Sequence[Row]:
    """Read a list of rows: the answer itself, or its `items`.

    Raises StatusUnavailable.
    """
    whole = url.rstrip("/") + path
    hint = "is the queue running? Name its address with --status-url"
    return await _rows("GET", whole, hint, params=params)


async def post(url: str, path: str, body: object) -> Sequence[Row]:
    """Send JSON to the webhook and read a list of rows, as `fetch` does.

    Raises StatusUnavailable.
    """
    whole = url.rstrip("/") + path
    hint = "is the webhook running? Name its address with --webhook-url"
    return await _rows("POST", whole, hint, data=json.encode(body))


async def _rows(method: str, whole: str, hint: str, **request: Any) -> Sequence[Row]:
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(method, whole, **request) as response,
        ):
            body = await response.read()
            if response.status != 200:
                raise StatusUnavailable(f"{whole} answered {response.status}{_reason(body)}")
        answer = json.decode(body)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if isinstance(error, StatusUnavailable):
            raise
        raise StatusUnavailable(f"can't read {whole}: {hint}") from None
    except DecodeError:
        raise StatusUnavailable(f"{whole} did not answer with JSON") from None
    rows = answer.get("items", []) if isinstance(answer, dict) else answer
    return rows if isinstance(rows, list) else []


def _reason(body: bytes) -> str:
    try:
        answer = json.decode(body)
    except DecodeError:
        return ""
    return f": {answer['error']}" if isinstance(answer, dict) and "error" in answer else ""


def print_rows(rows: Sequence[Row], output: str, *, empty: str) -> None:
    """Print rows as JSON, or as a table of their plain fields."""
    if output == "json":
        click.echo(json.format(json.encode(rows), indent=2).decode())
        return
    if not rows:
        click.echo(empty)
        return
    plain = (str, int, float, bool, type(None))
    columns = [name for name, value in rows[0].items() if isinstance(value, plain)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name.upper(), no_wrap=True)
    for row in rows:
        table.add_row(*(escape(_cell(name, row.get(name))) for name in columns))
    # As kubectl does: a row is a line, however narrow the terminal, and nothing is cut.
    Console(width=_WIDEST, highlight=False, soft_wrap=True).print(table)


def _cell(name: str, value: object) -> str:
    if value is None:
        return ""
    if name == "at" and isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)
