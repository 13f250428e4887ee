"""The client: time limits, retries, errors in words, identities."""

import asyncio
import contextlib
import json
import socket
import stat
import sys
import time
from pathlib import Path

import pytest
import yaml

from fairslice.kube.client import (
    JSON_PATCH,
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeClient,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from fairslice.kube.configuration import Endpoint, KubeconfigError, load_endpoint
from fairslice.kube.tokens import ServiceAccountTokens

from .scripted_server import FixedToken, ScriptedServer, answer, slow, status, stream


async def test_verbs_send_their_body_type_and_credentials() -> None:
    async with ScriptedServer(default=answer({"ok": True})) as server:
        async with server.client("Bearer t0ken") as client:
            assert json.loads(await client.get("/api/v1/pods", {"limit": 5})) == {"ok": True}
            await client.create("/api/v1/pods", {"a": 1})
            await client.replace("/api/v1/pods/x", b'{"b":2}')
            await client.patch("/api/v1/pods/x", [{"op": "test"}], JSON_PATCH)
            await client.delete("/api/v1/pods/x", {"gracePeriodSeconds": 0})
        get, post, put, patch, delete = server.asked
        assert (get.method, get.query, get.headers["Authorization"]) == (
            "GET",
            {"limit": "5"},
            "Bearer t0ken",
        )
        assert (post.method, post.body) == ("POST", b'{"a":1}')
        assert (put.method, put.body) == ("PUT", b'{"b":2}')
        assert (patch.method, patch.headers["Content-Type"]) == ("PATCH", JSON_PATCH)
        assert (delete.method, delete.body) == ("DELETE", b'{"gracePeriodSeconds":0}')


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (401, "Unauthorized", Unauthorized),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", AlreadyExists),
        (410, "Expired", Gone),
        (422, "Invalid", Invalid),
        (500, "InternalError", ApiError),
    ],
)
async def test_each_refusal_has_its_type_and_the_servers_words(
    code: int, reason: str, kind: type[ApiError]
) -> None:
    refusal = status(code, "pods\n is  bad", reason)
    async with ScriptedServer(default=refusal) as server, server.client() as client:
        with pytest.raises(ApiError) as caught:
            await client.create("/api/v1/pods", {})
    assert type(caught.value) is kind
    assert str(caught.value) == "pods is bad"
    assert caught.value.reason == reason


async def test_an_error_page_that_is_not_json_is_still_one_line() -> None:
    page = answer(b"<html>\nBad Gateway</html>", 502)
    async with ScriptedServer(default=page) as server, server.client() as client:
        with pytest.raises(ApiError, match=r"^502: <html> Bad Gateway</html>$"):
            await client.get("/x")


async def test_a_busy_server_is_asked_again_when_it_said() -> None:
    busy = status(429, "later", "TooManyRequests", {"Retry-After": "1"})
    async with ScriptedServer(busy, default=answer({})) as server, server.client() as client:
        await client.get("/x")
        first, second = server.asked
        assert 1.0 <= second.at - first.at < 1.6


async def test_retries_end_within_the_time_limit() -> None:
    busy = status(503, "later", headers={"Retry-After": "5"})
    async with ScriptedServer(default=busy) as server, server.client() as client:
        started = time.monotonic()
        with pytest.raises(ApiError) as caught:
            await client.get("/x", within=1.0)
        assert time.monotonic() - started < 1.0
        assert caught.value.retry_after == 5.0
        assert len(server.asked) == 1


async def test_what_may_already_be_done_is_not_sent_again() -> None:
    async with ScriptedServer(default=status(503, "later")) as server, server.client() as client:
        for call in (client.create("/x", {}), client.patch("/x", {})):
            with pytest.raises(ApiError):
                await call
        assert len(server.asked) == 2


async def test_an_evictions_429_reaches_its_caller_at_once() -> None:
    budget = status(429, "the budget forbids it", "TooManyRequests", {"Retry-After": "10"})
    async with ScriptedServer(default=budget) as server, server.client() as client:
        with pytest.raises(TooManyRequests, match="budget"):
            await client.create("/api/v1/namespaces/a/pods/b/eviction", {})


async def test_a_silent_server_costs_no_more_than_the_time_limit() -> None:
    async with ScriptedServer(default=slow(30)) as server, server.client() as client:
        started = time.monotonic()
        with pytest.raises(Unreachable, match=r"127\.0\.0\.1.*no answer within 0\.2 s"):
            await client.get("/x", within=0.2)
        assert time.monotonic() - started < 1


async def test_a_refused_connection_is_one_line_that_names_the_server() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with KubeClient(Endpoint(url=url, credentials=FixedToken())) as client:
        with pytest.raises(Unreachable) as caught:
            await client.get("/x")
    assert str(caught.value) == f"can't reach the API server at {url}: connection refused"


async def test_a_server_that_hangs_up_is_unreachable() -> None:
    rude = stream(b"{", then="reset")
    async with ScriptedServer(default=rude) as server, server.client() as client:
        with pytest.raises(Unreachable):
            await client.get("/x")


async def test_watches_do_not_starve_verbs_and_verbs_are_bounded() -> None:
    async with ScriptedServer(default=answer({})) as server, server.client() as client:
        server.script.extend(stream() for _ in range(60))

        async def watch() -> None:
            async for _ in client.stream("/watch"):
                pass

        watches = [asyncio.create_task(watch()) for _ in range(60)]
        await server.wait_busy(60)
        await client.get("/x", within=2)
        server.default = slow(0.05)
        await asyncio.gather(*(client.get("/y") for _ in range(100)))
        assert server.most_busy <= 60 + 32
        for task in watches:
            task.cancel()
        await asyncio.gather(*watches, return_exceptions=True)


async def test_a_stream_yields_lines_of_any_length_however_they_are_cut() -> None:
    long = b"x" * 6_000_000
    chunks = (b"a\nb", b"b\n", b"\n", long[:5], long[5:], b"\nlast")
    async with ScriptedServer(stream(*chunks, then="end")) as server, server.client() as client:
        lines = [line async for line in client.stream("/x")]
    assert lines == [b"a", b"bb", long, b"last"]


async def test_a_silent_stream_is_given_up() -> None:
    async with ScriptedServer(stream(b"a\n")) as server, server.client() as client:
        lines = client.stream("/x", inactivity=0.2)
        assert await anext(lines) == b"a"
        with pytest.raises(Unreachable, match="silent"):
            await anext(lines)


async def test_a_cancelled_call_leaves_the_client_usable() -> None:
    async with ScriptedServer(slow(30), default=answer({})) as server, server.client() as client:
        task = asyncio.create_task(client.get("/x"))
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await client.get("/x") == b"{}"


async def test_service_account_tokens_are_asked_for_once_and_again_when_refused() -> None:
    tokens = [answer({"status": {"token": f"t{n}"}}, 201) for n in (1, 2)]
    async with ScriptedServer() as server, server.client("Bearer admin") as admin:
        credentials = ServiceAccountTokens(admin, "fairslice-system", "fairslice-queue")
        async with admin.acting_as(credentials) as client:
            server.script.extend([tokens[0], answer({}), answer({})])
            await client.get("/x")
            await client.get("/x")
            asked, first, second = server.asked
            assert asked.path.endswith("/serviceaccounts/fairslice-queue/token")
            assert asked.headers["Authorization"] == "Bearer admin"
            assert first.headers["Authorization"] == second.headers["Authorization"] == "Bearer t1"
            await asyncio.sleep(1.1)
            server.script.extend([status(401, "expired"), tokens[1], answer({})])
            await client.get("/x")
            assert server.asked[-1].headers["Authorization"] == "Bearer t2"
        shown = f"{credentials!r} {client!r} {admin!r} {admin._endpoint!r}"
        assert "t2" not in shown
        assert "admin" not in shown


def _kubeconfig(path: Path, user: dict[str, object], server: str = "http://127.0.0.1:1") -> Path:
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


async def test_a_kubeconfigs_token_is_used(tmp_path: Path) -> None:
    path = _kubeconfig(tmp_path / "config", {"token": "abc"})
    endpoint = await load_endpoint(str(path))
    assert endpoint.url == "http://127.0.0.1:1"
    assert await endpoint.credentials.authorization() == "Bearer abc"
    assert "abc" not in repr(endpoint)


async def test_a_plugins_token_is_renewed_when_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "count"
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!{sys.executable}\nimport json\nfrom pathlib import Path\n"
        f"count = Path({str(counter)!r})\n"
        "n = int(count.read_text()) + 1 if count.exists() else 1\ncount.write_text(str(n))\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1',"
        " 'kind': 'ExecCredential', 'status': {'token': f't{n}'}}))\n"
    )
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    endpoint = await load_endpoint(str(_kubeconfig(tmp_path / "config", user)))
    assert await endpoint.credentials.authorization() == "Bearer t1"
    assert await endpoint.credentials.authorization(rejected=True) == "Bearer t1"
    await asyncio.sleep(1.1)
    assert await endpoint.credentials.authorization(rejected=True) == "Bearer t2"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "name one with --kubeconfig"),
        ("{", "not YAML"),
        ("just text", "not a kubeconfig"),
        ("{}", "."),
        ("clusters: []\ncontexts: []\ncurrent-context: nope\n", "nope"),
    ],
)
async def test_a_useless_kubeconfig_is_told_in_one_line(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KubeconfigError) as caught:
        await load_endpoint(str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
