"""The lead's controls over HTTP: with the caller's own token, and with no right beyond it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from fairslice import stamps
from fairslice.lead_marks import authors
from fairslice_queue.line_api import line_routes
from fairslice_sandbox.users import UserInfo

from .world import World, job, node, pod, policy, team, world

Post = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]
RBAC = "rbac.authorization.k8s.io"
GRANTS = {
    "jobs": ("batch", "jobs", ["get", "patch", "delete"]),
    "pods": ("", "pods", ["get", "patch"]),
}


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Work that waits, and Anna, who may edit Jobs and pods in cv."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv", limit=0))
        await made.cluster.add_node(node())
        await made.start()
        for name, (group, resource, verbs) in GRANTS.items():
            body = {"rules": [{"apiGroups": [group], "resources": [resource], "verbs": verbs}]}
            bound = {
                "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
                "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "anna"}],
            }
            for kind, fields in (("Role", body), ("RoleBinding", bound)):
                item = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": name}}
                root = UserInfo("root", ("system:masters",))
                where = f"{kind.lower()}s.{RBAC}"
                await made.api.create(where, "cv", {**item, **fields}, user=root)
        yield made
        made.check_alive()


@pytest_asyncio.fixture
async def post(box: World, unused_tcp_port: int) -> AsyncIterator[Post]:
    app = web.Application()
    app.add_routes(line_routes(box.client))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()

    async with aiohttp.ClientSession(f"http://127.0.0.1:{unused_tcp_port}") as session:

        async def send(path: str, user: str = "anna", **fields: Any) -> tuple[int, dict[str, Any]]:
            known = UserInfo(user, ("system:authenticated",))
            token = "made-up" if user == "nobody" else box.api.tokens.of_user(known)
            headers = {"Authorization": f"Bearer {token}"} if user else {}
            async with session.post(path, headers=headers, **fields) as answer:
                return answer.status, await answer.json()

        yield send
    await runner.cleanup()


async def test_each_control_acts_as_the_caller(
    box: World, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairslice.line_control._ANSWER_SECONDS", 0.0)  # nobody looks at marks
    await box.create(job("train"), "cv")
    await box.create(pod("nb"), "cv")

    def notes(name: str, kind: str = "Job") -> dict[str, str]:
        found: dict[str, str] = (box.get(kind, name, "cv") or {})["metadata"]["annotations"]
        return found

    code, said = await post("/workloads/cv/train/hold")
    assert (code, said["message"]) == (200, "Job cv/train: held; what runs already goes on")
    assert notes("train")[stamps.HOLD] == "true"
    assert (await post("/workloads/cv/train/resume"))[0] == 200
    assert stamps.HOLD not in notes("train")
    assert (await post("/workloads/cv/nb/hold?kind=pod"))[0] == 200
    assert notes("nb", "Pod")[stamps.HOLD] == "true"
    for verb in ("pin", "urgent"):
        assert (await post(f"/workloads/cv/train/{verb}"))[0] == 200
    assert (await post("/workloads/cv/train/move", json={"order": -2}))[0] == 200
    written = {key: author.user for key, author in authors(notes("train")).items()}
    assert written == {stamps.PIN: "anna", stamps.URGENT: "anna", stamps.ORDER: "anna"}
    assert (await post("/workloads/cv/train/unpin"))[0] == 200
    assert stamps.PIN not in notes("train")
    assert (await post("/workloads/cv/train/cancel"))[0] == 200
    await box.until(lambda: box.get("Job", "train", "cv") is None)


@pytest.mark.parametrize(
    ("path", "user", "body", "code", "says"),
    [
        ("/workloads/cv/train/pin", "", None, 401, "send your Kubernetes token"),
        ("/workloads/cv/train/pin", "nobody", None, 401, "Unauthorized"),
        ("/workloads/cv/train/pin", "ben", None, 403, "forbidden"),
        ("/workloads/nlp/train/pin", "anna", None, 403, "forbidden"),
        ("/workloads/cv/nb/cancel?kind=pod", "anna", None, 403, "cannot delete"),
        ("/workloads/cv/none/pin", "anna", None, 404, "there is no Job or Pod none"),
        ("/workloads/cv/x/pin?kind=teapot", "anna", None, 404, "none of the kinds"),
        ("/workloads/cv/train/sing", "anna", None, 404, "none of hold, resume"),
        ("/workloads/cv/train/move", "anna", {"order": "first"}, 400, "write"),
        ("/workloads/cv/train/move", "anna", {"order": 10**7}, 400, "between"),
    ],
)
async def test_what_the_caller_may_not_do_is_refused_as_the_api_server_would(
    box: World, post: Post, path: str, user: str, body: Any, code: int, says: str
) -> None:
    await box.create(job("train"), "cv")
    await box.create(pod("nb"), "cv")
    status, said = await post(path, user, **({} if body is None else {"json": body}))
    assert status == code
    assert says in said["error"]
    assert box.note("Job", "train", "cv", stamps.PIN) == ""
