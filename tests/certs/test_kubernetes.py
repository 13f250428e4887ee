"""The adapters, over HTTP against a server that keeps the API server's rules for versions."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import jsonpatch
import pytest
from aiohttp import web

from fairslice.kube.client import KubeClient
from fairslice.kube.configuration import Endpoint
from fairslice_certs.kubernetes import (
    CONFIGURATIONS,
    SECRET_NAME,
    ClusterConfigurations,
    ClusterSecret,
    ServiceEndpoints,
)
from fairslice_certs.replicas import OwnReplica, ProbedReplicas
from fairslice_certs.rotator import CertificateRotator
from fairslice_certs.secret import AlreadyExistsError, ConflictError, UnavailableError
from fairslice_certs.serving import ServingContext

from .world import POLICY, served, strict_client, tls_server

SECRETS = "/api/v1/namespaces/fairslice-system/secrets"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/fairslice-system/endpointslices"


class FakeApi:
    """Objects by path, with resourceVersions: 404, 409 and 422 as the API server gives them."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.forbidden = False
        self.url = ""

    def put(self, path: str, obj: dict[str, Any]) -> None:
        self.version += 1
        metadata = {**obj.get("metadata", {}), "resourceVersion": str(self.version)}
        self.objects[path] = {**obj, "metadata": metadata}

    async def answer(self, request: web.Request) -> web.Response:
        found = self.objects.get(request.path)
        if self.forbidden:
            return failure(403, "Forbidden", "you may not do this")
        if request.method == "POST":
            body = await request.json()
            path = f"{request.path}/{body['metadata']['name']}"
            if path in self.objects:
                return failure(409, "AlreadyExists", "it exists")
            self.put(path, body)
            return web.json_response(self.objects[path])
        if found is None:
            return failure(404, "NotFound", "not found")
        if request.method == "PATCH":
            change, kind = await request.json(), request.content_type
            try:
                after = (
                    jsonpatch.apply_patch(found, change)
                    if kind == "application/json-patch+json"
                    else merge(found, change)
                )
            except jsonpatch.JsonPatchException as error:
                return failure(422, "Invalid", str(error))
            if after["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                return failure(409, "Conflict", "the object has been modified")
            self.put(request.path, after)
        return web.json_response(self.objects[request.path])


def failure(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)


def merge(target: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    after = dict(target)
    for key, value in change.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = merge(after.get(key, {}), value) if isinstance(value, dict) else value
    return after


class NoCredentials:
    async def authorization(self, *, rejected: bool = False) -> str | None:
        return None


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    fake = FakeApi()
    for ref in CONFIGURATIONS:
        fake.put(
            f"{ADMISSION}/{ref.kind}/{ref.name}",
            {"webhooks": [{"name": "gpu-pods.fairslice.io", "clientConfig": {"url": "https://x"}}]},
        )
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()


@pytest.fixture
async def client(api: FakeApi) -> AsyncIterator[KubeClient]:
    async with KubeClient(Endpoint(url=api.url, credentials=NoCredentials())) as client:
        yield client


async def test_a_secret_is_created_once_and_replaced_only_over_the_version_read(
    api: FakeApi, client: KubeClient
) -> None:
    store = ClusterSecret(client, "fairslice-system")
    assert await store.get() is None
    await store.create({"ca.crt": b"1", "ca-next.crt": b"2"})
    with pytest.raises(AlreadyExistsError):
        await store.create({"ca.crt": b"other"})
    found = await store.get()
    assert found
    assert found.data == {"ca.crt": b"1", "ca-next.crt": b"2"}
    await store.replace({"ca.crt": b"2"}, found.version)
    with pytest.raises(ConflictError):
        await store.replace({"ca.crt": b"3"}, found.version)
    now = await store.get()
    assert now
    assert now.data == {"ca.crt": b"2"}


async def test_labels_and_keys_of_others_on_the_secret_survive_a_replacement(
    api: FakeApi, client: KubeClient
) -> None:
    path = f"{SECRETS}/{SECRET_NAME}"
    api.put(path, {"metadata": {"labels": {"team": "platform"}}, "type": "kubernetes.io/tls"})
    store = ClusterSecret(client, "fairslice-system")
    found = await store.get()
    assert found
    assert found.data == {}
    await store.replace({"tls.crt": b"x"}, found.version)
    assert api.objects[path]["metadata"]["labels"] == {"team": "platform"}
    assert api.objects[path]["type"] == "kubernetes.io/tls"


@contextmanager
def unavailable() -> Iterator[None]:
    with pytest.raises(UnavailableError, match="you may not do this") as caught:
        yield
    assert "\n" not in str(caught.value)


async def test_a_refusal_is_one_line_that_says_what_of(api: FakeApi, client: KubeClient) -> None:
    api.forbidden = True
    store, configurations = ClusterSecret(client, "fairslice-system"), ClusterConfigurations(client)
    with unavailable():
        await store.get()
    with unavailable():
        await store.create({})
    with unavailable():
        await store.replace({}, "1")
    with unavailable():
        await configurations.get(CONFIGURATIONS[0])
    with unavailable():
        await configurations.patch(CONFIGURATIONS[0], [])
    # Not being allowed to list endpoints only means that one does not know.
    endpoints = ServiceEndpoints(client, "fairslice-system", "fairslice-webhook", 9443)
    assert await ProbedReplicas(endpoints).serials() is None


async def test_endpoints_of_all_slices_are_found_ready_or_not(
    api: FakeApi, client: KubeClient
) -> None:
    ready = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    starting = {"addresses": ["10.0.0.2"], "conditions": {"ready": False}}
    items = [{"endpoints": [ready, starting]}, {"endpoints": None}, {"endpoints": [ready]}]
    api.put(SLICES, {"items": items})
    endpoints = ServiceEndpoints(client, "fairslice-system", "fairslice-webhook", 9443)
    assert await endpoints() == [("10.0.0.1", 9443), ("10.0.0.2", 9443)]


async def test_a_whole_installation_over_http_ends_with_clients_that_can_verify(
    api: FakeApi, client: KubeClient
) -> None:
    serving = ServingContext()
    rotator = CertificateRotator(
        store=ClusterSecret(client, "fairslice-system"),
        configurations=ClusterConfigurations(client),
        references=CONFIGURATIONS,
        replicas=OwnReplica(serving),
        serving=serving,
        policy=POLICY,
        is_leader=lambda: True,
    )
    await rotator.look()
    assert rotator.status.is_ready
    version = api.version
    await rotator.look()
    assert api.version == version
    found = await ClusterConfigurations(client).get(CONFIGURATIONS[1])
    assert found
    async with tls_server(serving.context) as port:
        await served(port, strict_client(found.ca_bundles[0]))
    stored = api.objects[f"{SECRETS}/{SECRET_NAME}"]
    assert stored["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "fairslice"
    assert "PRIVATE" not in json.dumps(
        api.objects[f"{ADMISSION}/{CONFIGURATIONS[0].kind}/fairslice"]
    )
