"""`fairslice explain`: what would happen to a manifest and why, without creating anything."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import json

from fairslice import service
from fairslice.manifest_check import CheckError, read_documents
from fairslice.status_client import StatusUnavailable, post

__all__ = ["explain"]

_EXIT = {"runs": 0, "waits": 3, "refused": 1}
_REFUSED = 1


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.Path(path_type=Path, allow_dash=True),
    multiple=True,
    required=True,
    help="Manifest, - for standard input; may be given more than once.",
)
@click.option(
    "-n", "--namespace", default="default", show_default=True, help="Where a manifest doesn't say."
)
@click.option("--user", default="", help="Whose caps count  [default: nobody's in particular]")
@click.option(
    "--webhook-url",
    envvar="FAIRSLICE_WEBHOOK_URL",
    default="http://127.0.0.1:8081",
    show_default=True,
    show_envvar=True,
    help="Where the webhook serves its health.",
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of output."
)
def explain(
    files: tuple[Path, ...], namespace: str, user: str, webhook_url: str, output: str
) -> None:
    """Say what would happen to a manifest and why, without creating anything.

    Ends with 0 if all would run now, with 3 if something would wait, with 1 if something would
    be refused.
    """
    try:
        objects = [item for file in files for item in read_documents(file)]
        body = {"namespace": namespace, "user": user, "objects": objects}
        items = service.run(post(webhook_url, "/explain", body))
    except (CheckError, StatusUnavailable) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(_REFUSED)
    if output == "json":
        click.echo(json.format(json.encode(items), indent=2).decode())
    else:
        click.echo("\n\n".join(_shown(item) for item in items))
    verdicts = {str(item.get("verdict")) for item in items}
    worst = next((word for word in ("refused", "waits") if word in verdicts), "runs")
    sys.exit(_EXIT[worst])


def _shown(item: Mapping[str, Any]) -> str:
    lines = [f"{item['object']}: {item['verdict']}", f"  why: {item['why']}"]
    if item.get("team"):
        lines.append(f"  team: {item['team']}")
    if item.get("work_class"):
        source = item.get("class_source", "")
        named = "" if source in ("", item["work_class"]) else f" ({source})"
        lines.append(f"  class: {item['work_class']}{named}")
    if item.get("pods", 0) > 1:
        lines.append(f"  pods: {item['pods']}")
    lines += _section("options, best first", [_option(row) for row in item.get("options", ())])
    caps = [
        f"{row['cap']}: {row['used']} of {row['limit']} in use, {row['asked']} asked"
        for row in item.get("caps", ())
    ]
    lines += _section("caps", caps)
    if item.get("ahead"):
        lines.append(f"  waiting before it: {item['ahead']}")
    lines += _section("containers", [_container(row) for row in item.get("containers", ())])
    lines += _section("warnings", list(item.get("warnings", ())))
    stamps = [f"{key}: {value}" for key, value in item.get("stamps", {}).items()]
    lines += _section("stamps", stamps)
    return "\n".join(lines)


def _section(title: str, rows: Sequence[str]) -> list[str]:
    return [f"  {title}:", *(f"    {row}" for row in rows)] if rows else []


def _option(row: Mapping[str, Any]) -> str:
    mark = "*" if row.get("chosen") else "-"
    free = row.get("free")
    room = "" if free is None else f"; room for {free} now"
    stopped = f"; {row['stopped_by']}" if row.get("stopped_by") else ""
    return f"{mark} {row['what']} [{row['pool']}, {row['gpus']} GPUs{room}{stopped}]"


def _container(row: Mapping[str, Any]) -> str:
    asked, given = (_resources(row[key]) for key in ("asked", "given"))
    return f"{row['name']}: {asked} → {given}" if asked != given else f"{row['name']}: {asked}"


def _resources(amounts: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {amount}" for name, amount in amounts.items()) or "none"
