"""`fairslice queue`: commands that explain and change the place of one workload in line."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import click

from fairslice.kube.client import KubeClient
from fairslice.kube.connection import connect
from fairslice.line_control import (
    Found,
    cancel,
    find,
    hold,
    move,
    pin,
    resume,
    unpin,
    urgent,
    usual_namespace,
)
from fairslice.settings import Settings
from fairslice.status_client import fetch, print_rows

__all__ = ["add_line_commands"]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
Run = Callable[[Coroutine[Any, Any, Any]], Any]
Change = Callable[[KubeClient, Found], Awaitable[str]]

_namespace = click.option(
    "-n", "--namespace", default=None, help="Namespace of the work  [default: the context's]"
)


def add_line_commands(
    group: click.Group,
    run: Run,
    *,
    with_settings: Decorator,
    status_url: Decorator,
    output: Decorator,
) -> None:
    """Add the commands to the group; `run` runs a coroutine and tells its failure."""

    @group.command("explain")
    @click.argument("name")
    @_namespace
    @with_settings
    @status_url
    @output
    def explain(
        settings: Settings, name: str, namespace: str | None, status_url: str, output: str
    ) -> None:
        """Show what decides the place in line of NAME, and what it waits for."""
        where = namespace or usual_namespace(settings)
        path = f"/explain/{where}/{name.rpartition('/')[2]}"
        print_rows(run(fetch(status_url, path)), output, empty="nothing to explain")

    def change(settings: Settings, namespace: str | None, name: str, how: Change) -> None:
        async def work() -> str:
            async with connect(settings) as client:
                where = namespace or usual_namespace(settings)
                return await how(client, await find(client, where, name))

        click.echo(run(work()))

    def add(verb: str, how: Change, text: str) -> None:
        @group.command(verb, help=text)
        @click.argument("name")
        @_namespace
        @with_settings
        def command(settings: Settings, name: str, namespace: str | None) -> None:
            change(settings, namespace, name, how)

    add("hold", hold, "Keep NAME (such as train, pod/nb) from being released.")
    add("resume", resume, "Let NAME go on that was held or suspended.")
    add("pin", pin, "Put NAME first of its team's line, as its lead.")
    add("unpin", unpin, "Give NAME back its place in its team's line.")
    add("urgent", urgent, "Put NAME before all but production, for a token of its team's week.")
    add("cancel", cancel, "Delete NAME, whether it waits or runs.")

    @group.command("move")
    @click.argument("name")
    @click.argument("order", type=click.IntRange(-1_000_000, 1_000_000))
    @_namespace
    @with_settings
    def move_command(settings: Settings, name: str, order: int, namespace: str | None) -> None:
        """Move NAME among its team's work of the same class: smaller ORDER goes first.

        Work that was never moved has order 0; for a negative one write: move -- NAME -1.
        """
        change(settings, namespace, name, lambda client, found: move(client, found, order))
