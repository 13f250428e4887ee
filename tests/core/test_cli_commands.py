"""The command: helps, prints, and fails in one line with the right exit code."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from fairslice.cli import cli
from fairslice.service import describe

from .object_server import ObjectServer
from .scripted_server import Handler, ScriptedServer, answer, status


def run(*arguments: str, env: dict[str, str] | None = None, answers: str = "") -> Result:
    return CliRunner(env={"KUBECONFIG": "/nonexistent", **(env or {})}).invoke(
        cli, arguments, input=answers
    )


@contextmanager
def serving(handler: Handler) -> Iterator[str]:
    """Serve from another thread, since the command runs a loop of its own."""
    started, url = threading.Event(), ""
    stop: asyncio.Event
    loop: asyncio.AbstractEventLoop

    async def serve() -> None:
        nonlocal url, stop, loop
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with ScriptedServer(default=handler) as server:
            url = server.url
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    started.wait(5)
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def kubeconfig(path: Path, server: str) -> str:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


def one_line(result: Result) -> str:
    assert result.exit_code == 1, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.output
    return lines[0]


@pytest.mark.parametrize("command", ["", *cli.commands])
def test_every_command_has_help(command: str) -> None:
    result = run(*filter(None, [command]), "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_the_core_imports_no_component() -> None:
    code = (
        "import sys, fairslice.cli; print([m for m in sys.modules if m.startswith('fairslice_')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_kubeconfig_is_one_line() -> None:
    line = one_line(run("install", "--kubeconfig", "/nonexistent/config"))
    assert line.startswith("error: no kubeconfig at /nonexistent/config: name one with")


def test_an_unreachable_server_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    line = one_line(run("install", "--kubeconfig", kubeconfig(tmp_path / "c", url)))
    assert line == f"error: can't reach the API server at {url}: connection refused"


def test_missing_permission_is_one_line_and_writes_nothing(tmp_path: Path) -> None:
    cluster = ObjectServer()
    cluster.denied.add("namespaces")
    with serving(cluster.handle) as url:
        line = one_line(run("install", "--kubeconfig", kubeconfig(tmp_path / "c", url)))
    assert "may not create namespaces" in line
    assert cluster.writes == []


def test_install_and_uninstall_say_what_they_did(tmp_path: Path) -> None:
    cluster = ObjectServer()
    with serving(cluster.handle) as url:
        config = kubeconfig(tmp_path / "c", url)
        done = run("install", "--kubeconfig", config, "--mode", "enforce")
        assert done.exit_code == 0, done.output
        assert "Namespace fairslice-system: created" in done.output
        again = run("install", "--kubeconfig", config, "-o", "json")
        assert json.loads(again.stdout)["created"] == []
        refused = run("uninstall", "--kubeconfig", config, answers="n\n")
        assert refused.exit_code == 1
        assert cluster.objects
        gone = run("uninstall", "--kubeconfig", config, "--yes")
        assert gone.exit_code == 0, gone.output
        assert "namespaces/fairslice-system: removed" in gone.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "webhook", "--listen", "nowhere"], "--listen: 'nowhere' is not host:port"),
        (["serve", "--mode", "hard"], "--mode: 'hard' is not one of off, audit, enforce"),
        (["serve", "--advertise", "http://x"], "--advertise: 'http://x' is not a base URL"),
        (["serve", "--redis-url", "mysql://x"], "--redis-url: Redis setting has no known scheme"),
        (["serve", "--redis-url", "redis://h:99999/0"], "--redis-url: Redis setting can't be"),
        (["sandbox", "--redis-url", "redis+sentinel://h:1"], "names no Sentinel service"),
        (["serve", "everything"], "Invalid value"),
        (["check"], "Missing option"),
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_a_wrong_redis_setting_keeps_its_password() -> None:
    for url in ("mysql://:s3cret@h", "redis://:s3cret@h:99999/0", "redis+sentinel://:s3cret@h:1"):
        result = run("serve", env={"FAIRSLICE_REDIS_URL": url})
        assert result.exit_code == 2
        assert "FAIRSLICE_REDIS_URL" in result.output
        assert "s3cret" not in result.output


def test_credentials_that_are_not_good_are_said_to_be_the_kubeconfigs(tmp_path: Path) -> None:
    with serving(status(401, "Unauthorized", "Unauthorized")) as url:
        line = one_line(run("install", "--kubeconfig", kubeconfig(tmp_path / "c", url)))
    assert "does not accept the kubeconfig's credentials" in line


def test_a_wrong_variable_is_named() -> None:
    result = run("serve", env={"FAIRSLICE_STATUS_LISTEN": "x"})
    assert result.exit_code == 2
    assert "FAIRSLICE_STATUS_LISTEN: 'x' is not host:port" in result.output


def test_check_tells_every_fault_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(
        "apiVersion: fairslice.io/v1alpha1\nkind: Team\nmetadata: {name: nlp}\n"
        "spec: {weight: 0, mode: {hide: Nope}}\n"
    )
    result = run("check", "-f", str(file))
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"{file}: Team nlp: spec.weight: 0 is not between 1 and 1000",
        f"{file}: Team nlp: spec.mode.hide: 'Nope' is not one of Off, Audit, Enforce",
    ]
    listed = json.loads(run("check", "-f", str(file), "-o", "json").stdout)
    assert [each["path"] for each in listed] == ["spec.weight", "spec.mode.hide"]


def test_check_of_what_is_no_yaml_names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "team.yaml"
    file.write_text("a: 1\nb: [\n")
    assert f"{file}: line 3:" in one_line(run("check", "-f", str(file)))
    assert "No such file" in one_line(run("check", "-f", str(tmp_path / "none.yaml")))


def test_queue_status_prints_a_table_or_json() -> None:
    rows = [{"position": 1, "name": "train", "team": "nlp", "reason": "waits", "deep": {"x": 1}}]
    with serving(answer({"items": rows})) as url:
        table = run("queue", "status", "--status-url", url)
        assert table.stdout.split() == [
            *("POSITION", "NAME", "TEAM", "REASON"),
            *("1", "train", "nlp", "waits"),
        ]
        plain = run("queue", "status", "--status-url", url, "-o", "json")
        assert json.loads(plain.stdout) == rows


def test_a_table_cuts_nothing_and_keeps_a_row_on_a_line() -> None:
    message = "[audit] fairslice gives mig-1g.10gb: " + "hardware-isolated slice " * 9
    row = {"namespace": "nlp", "name": "n" * 63, "message": message, "at": 1_800_000_000.25}
    with serving(answer({"items": [row]})) as url:
        _, line = run("audit", "report", "--status-url", url).stdout.splitlines()
    assert line.split("  ")[0] == "nlp"
    assert row["name"] in line
    assert message.strip() in line
    assert line.rstrip().endswith("2027-01-15T08:00:00Z")


def test_a_queue_that_does_not_answer_is_one_line() -> None:
    line = one_line(run("queue", "status", "--status-url", "http://127.0.0.1:1"))
    assert "is the queue running?" in line


SERVICE = textwrap.dedent(
    """
    import asyncio, sys
    from fairslice import service
    from fairslice.settings import Settings

    async def good(settings):
        print("ready", flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            print("drained", flush=True)

    async def bad(settings):
        await asyncio.sleep(0.1)
        raise LookupError("a bug")

    services = [good] if sys.argv[1] == "good" else [good, bad]
    service.run(service.run_all(services, Settings()), serves=True)
    """
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_services_wind_up_and_is_no_failure(number: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVICE, "good"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, number)
    rest, _ = process.communicate(timeout=10)
    assert (process.returncode, rest) == (0, "drained\n")


def test_a_crashed_service_takes_the_process_down_after_the_others_wound_up() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVICE, "bad"], capture_output=True, text=True, timeout=10
    )
    assert done.returncode == 1
    assert done.stdout == "ready\ndrained\n"
    assert "LookupError: a bug" in done.stderr


_LISTENERS = ("--listen", "--status-listen", "--health-listen")


def serving_at(ports: dict[str, int]) -> list[str]:
    return [word for key in _LISTENERS for word in (key, f"127.0.0.1:{ports.get(key, 0)}")]


@pytest.mark.parametrize("option", _LISTENERS)
def test_with_a_port_in_use_nothing_is_installed(tmp_path: Path, option: str) -> None:
    cluster = ObjectServer()
    with socket.socket() as taken, serving(cluster.handle) as url:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = ["--kubeconfig", kubeconfig(tmp_path / "c", url), "--data-dir", str(tmp_path)]
        line = one_line(run("serve", "all", *config, *serving_at({option: port})))
    assert f"127.0.0.1:{port}" in line
    assert "choose another address" in line
    assert cluster.writes == []


def test_where_redis_can_not_start_nothing_is_installed(tmp_path: Path) -> None:
    cluster = ObjectServer()
    file = tmp_path / "file"
    file.touch()
    with serving(cluster.handle) as url:
        config = ["--kubeconfig", kubeconfig(tmp_path / "c", url), "--data-dir", str(file / "data")]
        line = one_line(run("serve", "all", *config, *serving_at({})))
    assert "can't keep Redis data" in line
    assert cluster.writes == []


def test_serving_where_nothing_is_installed_says_how_to(tmp_path: Path) -> None:
    absent = status(404, 'namespaces "fairslice-system" not found', "NotFound")
    with serving(absent) as url:
        config = ["--kubeconfig", kubeconfig(tmp_path / "c", url), "--redis-url", "unix:///none"]
        line = one_line(run("serve", "queue", *config, *serving_at({}), "--log-level", "error"))
    assert "fairslice is not installed on this cluster" in line
    assert "run `fairslice install`" in line


def test_a_second_uninstall_says_that_there_was_nothing(tmp_path: Path) -> None:
    with serving(ObjectServer().handle) as url:
        done = run("uninstall", "--yes", "--kubeconfig", kubeconfig(tmp_path / "c", url))
    assert (done.exit_code, done.stdout) == (0, "fairslice is not installed there\n")


def test_the_version_is_told_by_command_and_option() -> None:
    assert run("--version").stdout == run("version").stdout != ""


def test_the_sandbox_takes_no_option_that_it_ignores() -> None:
    for option in ("--listen", "--data-dir", "--kubeconfig"):
        assert run("sandbox", option, "x").exit_code == 2


def test_a_port_in_use_is_told_with_the_way_out() -> None:
    async def bind(address: tuple[str, int]) -> None:
        await asyncio.start_server(lambda r, w: None, *address)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use") as caught:
            asyncio.run(bind(taken.getsockname()))
    text = describe(caught.value)
    assert port in text
    assert "choose another address" in text
