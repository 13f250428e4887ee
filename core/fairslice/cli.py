"""The `fairslice` command, also found by kubectl as a plugin.

It reaches the components by entry name only, so that each starts without loading the others.
"""

import functools
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from msgspec import json

from fairslice import log, service
from fairslice.bill_command import add_bill_command
from fairslice.brake import BrakeReport
from fairslice.brake import brake as put_brake_on
from fairslice.brake import release as release_brake
from fairslice.explain_command import explain
from fairslice.install import InstallError, InstallReport
from fairslice.install import install as install_into
from fairslice.kube.connection import connect
from fairslice.line_commands import add_line_commands
from fairslice.manifest_check import CheckError, check_file
from fairslice.preflight import AccessDenied
from fairslice.redis_embedded import EmbeddedRedis, EmbeddedRedisError
from fairslice.settings import PREFIX, Settings, SettingsError
from fairslice.status_client import StatusUnavailable, fetch, print_rows
from fairslice.uninstall import QueueRunning
from fairslice.uninstall import uninstall as uninstall_from

__all__ = ["main"]

WEBHOOK = "fairslice_webhook.service:serve"
QUEUE = "fairslice_queue.service:serve"
SANDBOX = "fairslice_sandbox.command:run"

_ADDRESSES = {WEBHOOK: ("listen", "health_listen"), QUEUE: ("status_listen",)}
_PARTS = {"webhook": (WEBHOOK,), "queue": (QUEUE,), "all": (WEBHOOK, QUEUE)}
_EXPECTED: tuple[type[Exception], ...] = (
    *service.EXPECTED_ERRORS,
    AccessDenied,
    CheckError,
    EmbeddedRedisError,
    InstallError,
    QueueRunning,
    StatusUnavailable,
)

F = TypeVar("F", bound=Callable[..., Any])


class _Failure(click.ClickException):
    """An error told in one line, exit code 1."""

    def show(self, file: Any = None) -> None:
        click.echo(f"error: {self.message}", err=True)


def _option(name: str, help_text: str, **more: Any) -> Callable[[F], F]:
    return click.option(f"--{name}", help=help_text, default=None, **more)


_OPTIONS = {
    "kubeconfig": _option("kubeconfig", "Kubeconfig; default: in-cluster, else kubectl's."),
    "context": _option("context", "Context of the kubeconfig."),
    "namespace": _option("namespace", "fairslice's own namespace  [default: fairslice-system]"),
    "mode": _option("mode", "Set every feature of the policy: off, audit or enforce."),
    "redis-url": _option("redis-url", "Redis; default: an embedded server in --data-dir."),
    "listen": _option("listen", "Where the webhook listens  [default: 0.0.0.0:9443]"),
    "advertise": _option(
        "advertise", "The webhook's URL for the API server; default: the in-cluster Service."
    ),
    "status-listen": _option(
        "status-listen", "Where status and metrics are served  [default: 127.0.0.1:8080]"
    ),
    "health-listen": _option(
        "health-listen", "Where the webhook's health and metrics are  [default: 127.0.0.1:8081]"
    ),
    "workers": _option(
        "workers",
        "Processes that answer the API server  [default: 2, on 1 or 2 cores and with all: 1]",
    ),
    "hide-by": _option(
        "hide-by",
        "auto, or webhook: not by the API server, though it could (1.36 on)  [default: auto]",
    ),
    "data-dir": _option("data-dir", "Where files are kept  [default: .fairslice]"),
    "log-level": _option(
        "log-level", "debug, info, warning or error  [default: info; sandbox: warning]"
    ),
    "log-format": _option("log-format", "plain or json; default: plain on a terminal."),
}
_CLUSTER = ("kubeconfig", "context", "namespace", "log-level", "log-format")
_SERVING = (
    "mode",
    "redis-url",
    "listen",
    "advertise",
    "status-listen",
    "health-listen",
    "hide-by",
    "workers",
    "data-dir",
)


def _with_settings(*names: str, **defaults: str) -> Callable[[F], Callable[..., Any]]:
    """Add options and hand the command its Settings, with logging set up.

    `defaults` are the command's own, where nobody says otherwise.
    """
    usual = {PREFIX + name.upper(): value for name, value in defaults.items()}

    def decorate(command: F) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapped(**arguments: Any) -> Any:
            own = {name.replace("-", "_") for name in names}
            given = {key: arguments.pop(key) for key in list(arguments) if key in own}
            try:
                settings = Settings.load(usual | os.environ, given)
            except SettingsError as error:
                raise click.UsageError(str(error)) from None
            log.configure(settings.log_level, settings.log_format)
            return command(settings=settings, **arguments)

        for name in reversed(names):
            wrapped = _OPTIONS[name](wrapped)
        return wrapped

    return decorate


_output = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Form of output."
)
_status_url = click.option(
    "--status-url",
    envvar="FAIRSLICE_STATUS_URL",
    default="http://127.0.0.1:8080",
    show_default=True,
    show_envvar=True,
    help="Where the queue serves its status.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(installed_version("fairslice"), message="fairslice %(version)s")
def cli() -> None:
    """GPU sharing with fair rules on Kubernetes.

    Every option can be given as a variable, too: --redis-url as FAIRSLICE_REDIS_URL.
    """


@cli.command()
@click.argument("part", type=click.Choice(list(_PARTS)), default="all")
@click.option("--install/--no-install", default=None, help="Install first  [default: with all]")
@_with_settings(*_CLUSTER, *_SERVING)
def serve(settings: Settings, part: str, install: bool | None) -> None:
    """Run the webhook, the queue, or both.

    `serve all` first installs or updates CRDs, classes and access on the cluster.
    """
    wanted = (part == "all") if install is None else install
    _run(_serve(settings, part, wanted), serves=True)


async def _serve(settings: Settings, part: str, wanted: bool) -> None:
    services = [service.load_entry(name) for name in _PARTS[part]]
    if settings.redis_url is None and len(services) == 1:
        raise SettingsError("--redis-url is missing: webhook and queue share one Redis")
    # What can fail on this machine fails before the cluster is touched.
    service.check_addresses(
        [getattr(settings, name) for entry in _PARTS[part] for name in _ADDRESSES[entry]]
    )
    if len(services) > 1 and not settings.workers:
        settings = replace(settings, workers=1)
    async with AsyncExitStack() as stack:
        if settings.redis_url is None:
            server = await stack.enter_async_context(EmbeddedRedis(settings.data_dir / "redis"))
            settings = replace(settings, redis_url=server.url)

            async def guard(_: Settings) -> None:
                code = await server.wait_for_exit()
                raise service.ServiceError(f"the embedded Redis ended by itself (exit code {code})")

            services.append(guard)
        if wanted:
            async with connect(settings) as client:
                await install_into(client, namespace=settings.namespace, mode=settings.mode)
        await service.run_all(services, settings)


@cli.command()
@click.option("--once", is_flag=True, help="Play the day, print a summary, end.")
@_with_settings(
    "redis-url", "status-listen", "health-listen", "log-level", "log-format", log_level="warning"
)
def sandbox(settings: Settings, once: bool) -> None:
    """Run a cluster in a box and play a short working day on it.

    Keeps running until Ctrl-C; with --once it ends with 1 if a promise of the day was broken.
    """
    _run(_sandbox(settings, once), serves=True)


async def _sandbox(settings: Settings, once: bool) -> None:
    await service.load_entry(SANDBOX)(settings, once=once)


@cli.command()
@_with_settings(*_CLUSTER, "mode")
@_output
def install(settings: Settings, output: str) -> None:
    """Install or update CRDs, PriorityClasses, policy and access.

    A new policy audits everywhere: nothing is changed or denied until its modes say so. The
    webhook registers itself once it serves.
    """
    _show_install(_run(_install(settings)), output)


async def _install(settings: Settings) -> InstallReport:
    async with connect(settings) as client:
        return await install_into(client, namespace=settings.namespace, mode=settings.mode)


def _show_install(report: InstallReport, output: str) -> None:
    if output == "json":
        click.echo(json.encode(report).decode())
        return
    for done, names in (("created", report.created), ("updated", report.updated)):
        for name in names:
            click.echo(f"{name}: {done}")
    click.echo(f"installed ({len(report.unchanged)} objects were up to date)")


@cli.command()
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--force", is_flag=True, help="Go ahead although a queue is running.")
@_with_settings(*_CLUSTER)
@_output
def uninstall(settings: Settings, yes: bool, force: bool, output: str) -> None:
    """Take fairslice off the cluster and let queued work go.

    Teams and the policy go with their CRDs; running work is not touched.
    """
    if not yes:
        click.confirm(
            "Remove fairslice, all Teams and the SharingPolicy, and start all queued work?",
            abort=True,
            err=True,
        )
    report = _run(_uninstall(settings, force))
    if output == "json":
        click.echo(json.encode(report).decode())
        return
    for done, names in (("let go", report.released), ("removed", report.removed)):
        for name in names:
            click.echo(f"{name}: {done}")
    for name in report.left:
        click.echo(f"left as it is: {name}", err=True)
    if not (report.released or report.removed or report.left):
        click.echo("fairslice is not installed there")


async def _uninstall(settings: Settings, force: bool) -> Any:
    async with connect(settings) as client:
        return await uninstall_from(client, namespace=settings.namespace, force=force)


@cli.command()
@click.option("--release", is_flag=True, help="Put fairslice back.")
@click.option("--reason", default="", help="Why, for others to read.")
@click.option(
    "--wait",
    type=click.FloatRange(0, 600),
    default=30.0,
    show_default=True,
    help="With --release: seconds to wait for a webhook to register.",
)
@_with_settings(*_CLUSTER)
@_output
def brake(settings: Settings, release: bool, reason: str, wait: float, output: str) -> None:
    """Take fairslice out of the admission path, within seconds.

    Needs nothing but the API server. New pods then run as they were submitted; queued work stays
    in line and is still released. The brake stays on until it is released. Ends with 1 if
    something could not be done.
    """
    report = _run(_brake(settings, release, reason, wait))
    if output == "json":
        click.echo(json.encode(report).decode())
    else:
        _show_brake(report)
    if report.problems:
        sys.exit(1)


async def _brake(settings: Settings, off: bool, reason: str, wait: float) -> BrakeReport:
    async with connect(settings) as client:
        if off:
            return await release_brake(client, namespace=settings.namespace, wait=wait)
        return await put_brake_on(client, namespace=settings.namespace, reason=reason)


def _show_brake(report: BrakeReport) -> None:
    for line in report.done:
        click.echo(line)
    for line in report.problems:
        click.echo(f"error: {line}", err=True)
    if report.brake == "on" and not report.problems:
        click.echo(
            "the brake is on: new pods run as submitted, unbooked; what is queued stays in line; "
            "put fairslice back with: fairslice brake --release"
        )


@cli.command()
@click.option(
    "-f",
    "--filename",
    "files",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="Manifest; may be given more than once.",
)
@_output
def check(files: tuple[Path, ...], output: str) -> None:
    """Check Team and SharingPolicy manifests, one line per fault."""
    try:
        results = [check_file(file) for file in files]
    except CheckError as error:
        raise _Failure(str(error)) from None
    findings = [finding for _, found in results for finding in found]
    if output == "json":
        click.echo(json.encode(findings).decode())
    for finding in findings if output == "table" else ():
        click.echo(str(finding), err=True)
    if findings:
        sys.exit(1)
    if output == "table":
        click.echo(f"{sum(count for count, _ in results)} objects are fine")


cli.add_command(explain)


@cli.group()
def audit() -> None:
    """What enforcing would have done."""


@audit.command("report")
@_status_url
@_output
def audit_report(status_url: str, output: str) -> None:
    """Show who would have been shrunk, queued or denied."""
    print_rows(_run(fetch(status_url, "/audit")), output, empty="nothing would have been changed")


@cli.group()
def queue() -> None:
    """What waits and what runs, and the place of each."""


@queue.command("status")
@click.option("--team", default="", help="Only this team.")
@_status_url
@_output
def queue_status(status_url: str, output: str, team: str) -> None:
    """Show the line: position, state, reason."""
    params = {"team": team} if team else {}
    print_rows(_run(fetch(status_url, "/queue", params)), output, empty="nothing waits")


add_line_commands(
    queue,
    lambda work: _run(work),
    with_settings=_with_settings("kubeconfig", "context", "log-level", "log-format"),
    status_url=_status_url,
    output=_output,
)


add_bill_command(cli, lambda work: _run(work), status_url=_status_url)


@cli.command()
def version() -> None:
    """Show the version."""
    click.echo(f"fairslice {installed_version('fairslice')}")


T = TypeVar("T")


def _run(work: Coroutine[Any, Any, T], *, serves: bool = False) -> T:
    try:
        return service.run(work, serves=serves)
    except ExceptionGroup as group:
        # Several may fail together; a failure that nobody expected is worth its traceback.
        if group.split(_EXPECTED)[1] is not None:
            raise
        _fail(_first(group))
    except _EXPECTED as error:
        _fail(error)


def _first(group: ExceptionGroup[Exception]) -> BaseException:
    error: BaseException = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _fail(error: BaseException) -> NoReturn:
    raise _Failure(service.describe(error)) from None


def main() -> None:
    """Run the command."""
    cli()
