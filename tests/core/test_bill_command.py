"""`fairslice bill`: asks for a month and a team, and prints it for people and for programs."""

import csv
import io
import json

from aiohttp import web

from .scripted_server import status
from .test_cli_commands import one_line, run, serving

ROW = {
    "month": "2026-11",
    "pool": "a100",
    "team": "nlp",
    "gpu_hours": "12.500000",
    "amount": "34.375000",
    "currency": "USD",
    "start": "2026-11-01T00:00:00+01:00",
    "end": "2026-12-01T00:00:00+01:00",
    "final": True,
}


async def handle(request: web.Request) -> web.StreamResponse:
    if request.query.get("month") == "2025-01":
        return await status(404, "unused")(request)
    assert dict(request.query) in ({}, {"month": "2026-11", "team": "nlp"})
    return web.json_response({"items": [ROW]})


def test_a_bill_is_a_table_json_or_csv() -> None:
    asked = ("--month", "2026-11", "--team", "nlp")
    with serving(handle) as url:
        table = run("bill", "--status-url", url).output
        assert "34.375000" in table
        assert json.loads(run("bill", *asked, "-o", "json", "--status-url", url).output) == [ROW]
        text = run("bill", *asked, "-o", "csv", "--status-url", url).output
    (row,) = csv.DictReader(io.StringIO(text))
    assert row == {**ROW, "final": "true"}


def test_a_month_that_is_none_is_refused_before_anybody_is_asked() -> None:
    done = run("bill", "--month", "november")
    assert done.exit_code == 2
    assert "is no month such as 2026-11" in done.stderr


def test_a_month_without_a_bill_is_one_line() -> None:
    with serving(handle) as url:
        assert "404" in one_line(run("bill", "--month", "2025-01", "--status-url", url))
