"""A sandbox API server to talk to, and webhooks for it to call."""

import base64
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fairslice_sandbox.api import Api
from fairslice_sandbox.clock import RealClock
from fairslice_sandbox.pki import Authority, new_authority
from fairslice_sandbox.server import ApiServer
from fairslice_sandbox.store import Store
from fairslice_sandbox.users import ADMIN, UserInfo

Obj = dict[str, Any]

ALICE = UserInfo("alice", ("team-nlp", "system:authenticated"))
BOB = UserInfo("bob", ("system:authenticated",))
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


def shared(*parts: str) -> Path:
    """Find the data that the repository doesn't hold; skips the test without it."""
    default = Path(__file__).resolve().parents[2].parent / "shared"
    path = Path(os.environ.get("FAIRSLICE_SHARED", default), *parts)
    if not path.exists():
        pytest.skip("no shared data")
    return path


def new_api() -> Api:
    return Api(Store(), RealClock())


async def api_with_namespace(name: str = "nlp") -> Api:
    api = new_api()
    await api.create("namespaces", "", {"metadata": {"name": name}}, user=ADMIN)
    return api


def pod(name: str = "nb", gpus: int | str | None = None, **spec: Any) -> Obj:
    container: Obj = {"name": "m", "image": "x"}
    if gpus is not None:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}


def job(name: str = "train", **spec: Any) -> Obj:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "m", "image": "x"}]}}
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def encode(body: Any) -> bytes:
    return json.dumps(body).encode()


@dataclass
class Client:
    """One user's view of the server, over HTTPS."""

    url: str
    session: aiohttp.ClientSession
    token: str
    warnings: list[str] = field(default_factory=list)

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> tuple[int, Any]:
        """Send a request: the code and the decoded answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Accept": accept}
        data = body if isinstance(body, (bytes, type(None))) else encode(body)
        if data is not None:
            headers["Content-Type"] = content_type
        async with self.session.request(
            method, self.url + path, data=data, headers=headers
        ) as response:
            self.warnings = response.headers.getall("Warning", [])
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator["Stream"]:
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self.session.get(self.url + path, headers=headers) as response:
            assert response.status == 200
            yield Stream(response)


@dataclass
class Stream:
    response: aiohttp.ClientResponse

    async def next(self, *, bookmarks: bool = False) -> Obj | None:
        """Give the next event, None at the end."""
        while line := await self.response.content.readline():
            event: Obj = json.loads(line)
            if bookmarks or event["type"] != "BOOKMARK":
                return event
        return None


@dataclass
class World:
    """A running server."""

    server: ApiServer
    api: Api
    session: aiohttp.ClientSession

    def client(self, user: UserInfo = ADMIN) -> Client:
        return Client(self.server.url, self.session, self.api.tokens.of_user(user))


@asynccontextmanager
async def running_server() -> AsyncIterator[World]:
    """Run a server with the namespace nlp, in which alice may edit."""
    api = await api_with_namespace()
    binding = {
        "metadata": {"name": "edit"},
        "roleRef": {"kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "User", "name": "alice"}],
    }
    await api.create("rolebindings.rbac.authorization.k8s.io", "nlp", binding, user=ADMIN)
    server = ApiServer(api.store, api)
    await server.start()
    context = ssl.create_default_context(cadata=server.authority.pem.decode())
    connector = aiohttp.TCPConnector(ssl=context)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield World(server, api, session)
    finally:
        await server.stop()


Answer = Callable[[Obj], Obj | Awaitable[Obj]]
"""The response to a review's request, without its uid."""


def allow(_: Obj) -> Obj:
    return {"allowed": True}


def patch_response(*operations: Obj) -> Obj:
    patch = base64.b64encode(encode(operations)).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": patch}


@dataclass
class Hooks:
    """A webhook server: what it was asked, and what it answers by path."""

    authority: Authority
    url: str
    port: int
    requests: list[Obj] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)

    @property
    def bundle(self) -> str:
        return base64.b64encode(self.authority.pem).decode()

    def webhook(self, name: str, answer: Answer = allow, **fields: Any) -> Obj:
        """Give the registration of a webhook that answers so."""
        self.answers[f"/{name}"] = answer
        rule = {
            "apiGroups": ["*"],
            "apiVersions": ["*"],
            "resources": ["pods"],
            "operations": ["*"],
        }
        return {
            "name": f"{name}.fairslice.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"url": f"{self.url}/{name}", "caBundle": self.bundle},
            "rules": [rule],
            **fields,
        }

    async def handle(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.requests.append(review["request"])
        self.queries.append(request.query_string)
        answered = self.answers[request.path](review["request"])
        response = answered if isinstance(answered, dict) else await answered
        body = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], **response},
        }
        return web.json_response(body)


@asynccontextmanager
async def webhook_server() -> AsyncIterator[Hooks]:
    authority = new_authority()
    names = ("127.0.0.1", "hook.fairslice.svc")
    context = authority.issue(*names).context()
    app = web.Application(client_max_size=8 * 1024 * 1024)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    hooks: list[Hooks] = []

    async def handle(request: web.Request) -> web.Response:
        return await hooks[0].handle(request)

    app.router.add_post("/{path:.*}", handle)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    port = runner.addresses[0][1]
    hooks.append(Hooks(authority, f"https://127.0.0.1:{port}", port))
    try:
        yield hooks[0]
    finally:
        await runner.cleanup()


async def register(api: Api, *webhooks: Obj, kind: str = "Mutating", name: str = "test") -> None:
    """Register webhooks as one configuration."""
    resource = f"{kind.lower()}webhookconfigurations.admissionregistration.k8s.io"
    body = {"metadata": {"name": name}, "webhooks": list(webhooks)}
    await api.create(resource, "", body, user=ADMIN)
