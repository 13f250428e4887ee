"""Bad input: one clear line, an exit code, no traceback, and nothing half-installed."""

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from .harness.installation import leftovers
from .harness.processes import Result, command, free_port, run_command
from .harness.reviews import entries, post
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.target import Target

_LONGEST_LINE = 300


def _check_one_line(result: Result, *parts: str) -> None:
    """Fail unless the command ended with an error told in one clear line."""
    assert result.code != 0, result
    text = result.out + result.err
    assert "Traceback" not in text, result
    last = result.err.strip().splitlines()[-1]
    assert "error" in last.lower(), result
    assert len(last) <= _LONGEST_LINE, result
    for part in parts:
        assert part in last, result


async def _fairslice(*args: str, directory: Path) -> Result:
    env = {"FAIRSLICE_DATA_DIR": str(directory), "FAIRSLICE_LOG_LEVEL": "warning"}
    return await run_command((command("fairslice"), *args), env=env, within=60)


@pytest.fixture
def busy_port() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def _serve(part: str, kubeconfig: Path | str, port: int) -> Sequence[str]:
    listen = f"127.0.0.1:{port}"
    return (
        *("serve", part, "--kubeconfig", str(kubeconfig)),
        *("--listen", listen, "--advertise", f"https://{listen}"),
        *("--status-listen", f"127.0.0.1:{free_port()}"),
        *("--health-listen", f"127.0.0.1:{free_port()}"),
        *("--redis-url", "unix:///nowhere/redis.sock"),
    )


async def test_a_kubeconfig_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.kubeconfig"
    result = await _fairslice(*_serve("all", missing, free_port()), directory=tmp_path)
    _check_one_line(result, "nowhere.kubeconfig")


async def test_a_kubeconfig_that_is_something_else(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("replicas: 3\n")
    result = await _fairslice(*_serve("all", other, free_port()), directory=tmp_path)
    _check_one_line(result, "other.yaml")


async def test_an_api_server_that_is_not_there(tmp_path: Path) -> None:
    server = f"https://127.0.0.1:{free_port()}"
    kubeconfig = tmp_path / "silent.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(_config(server, {"token": "x"})))
    result = await _fairslice(*_serve("all", kubeconfig, free_port()), directory=tmp_path)
    _check_one_line(result, server)


async def test_a_port_that_is_in_use(
    target: Target, fairslice: Fairslice, busy_port: int, tmp_path: Path
) -> None:
    arguments = _serve("webhook", target.kubeconfig, busy_port)
    result = await _fairslice(*arguments, directory=tmp_path)
    _check_one_line(result, str(busy_port))
    # The one that serves is still the one that is registered.
    servers = {entry.url.split("/")[2] for entry in await entries(target.api)}
    assert servers == {f"127.0.0.1:{fairslice.port}"}


async def test_an_option_that_makes_no_sense(tmp_path: Path) -> None:
    result = await _fairslice("serve", "all", "--listen", "nowhere", directory=tmp_path)
    _check_one_line(result, "--listen", "host:port")


async def test_a_user_who_may_not_install(target: Target, tmp_path: Path) -> None:
    before = await leftovers(target.api)
    kubeconfig = tmp_path / "nobody.kubeconfig"
    kubeconfig.write_text(await _as_nobody(target))
    result = await _fairslice("install", "--kubeconfig", str(kubeconfig), directory=tmp_path)
    _check_one_line(result)
    assert "create" in result.err or "may not" in result.err, result
    assert await leftovers(target.api) == before


async def _as_nobody(target: Target) -> str:
    """Write the target's kubeconfig for a ServiceAccount without rights."""
    namespace = target.exempt_namespace
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await target.api.call("POST", path, request)
    return _with_token(target.kubeconfig, answer.obj["status"]["token"])


def _with_token(kubeconfig: str, token: str) -> str:
    config = yaml.safe_load(Path(kubeconfig).read_text())
    config["users"] = [{"name": "nobody", "user": {"token": token}}]
    config["contexts"] = config["contexts"][:1]
    config["contexts"][0]["context"]["user"] = "nobody"
    config["current-context"] = config["contexts"][0]["name"]
    return str(yaml.safe_dump(config))


def _config(server: str, user: dict[str, str]) -> object:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"kind": "AdmissionReview"}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": 7}}',
        b'{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}',
    ],
    ids=["empty", "half", "list", "no request", "wrong type", "no review"],
)
async def test_a_malformed_review_gets_a_plain_no(scene: Scene, body: bytes) -> None:
    for entry in await entries(scene.api):
        status, answer = await post(entry, body)
        assert 400 <= status < 500, (entry.name, status, answer)
        assert b"Traceback" not in answer
        assert answer.count(b"\n") <= 1


async def test_a_stranger_without_the_secret_path_learns_nothing(scene: Scene) -> None:
    (entry, *_) = await entries(scene.api)
    base = "/".join(entry.url.split("/")[:3])
    for path in ("/", "/mutate", "/validate"):
        guessed = type(entry)(entry.name, entry.mutates, entry.rules, base + path, entry.ca)
        status, _ = await post(guessed, b"{}")
        assert status in (403, 404)
