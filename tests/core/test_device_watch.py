"""Claims are followed in whatever version the API has them, and cost nothing where it has none."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from fairslice import stamps
from fairslice.device_claims import counted
from fairslice.device_watch import DeviceWatch

from .scripted_server import ScriptedServer, eventually

GROUP = "/apis/resource.k8s.io"


class Claims:
    """An API server with claims in one version, or none."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.paths: list[str] = []
        flat = versions == ("v1beta1",)
        asked: dict[str, Any] = {"deviceClassName": "gpu.nvidia.com", "count": 2}
        request = {"name": "r", **(asked if flat else {"exactly": asked})}
        self.items: dict[str, list[dict[str, Any]]] = {
            "deviceclasses": [
                {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": "x/gpu"}}
            ],
            "resourceclaims": [],
            "resourceclaimtemplates": [
                {
                    "metadata": {"name": "two", "namespace": "nlp"},
                    "spec": {"spec": {"devices": {"requests": [request]}}},
                }
            ],
        }

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if request.path == GROUP and self.versions:
            served = [{"version": version} for version in self.versions]
            return web.json_response({"versions": served})
        _, _, rest = request.path.partition(GROUP + "/")
        version, _, plural = rest.partition("/")
        if version not in self.versions or plural not in self.items:
            return web.json_response({"code": 404, "reason": "NotFound"}, status=404)
        if "watch" in request.query and plural == "resourceclaims":
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(json.dumps(await self.events.get()).encode() + b"\n")
        if "watch" in request.query:
            await asyncio.sleep(30)
        return web.json_response(
            {"metadata": {"resourceVersion": "1"}, "items": self.items[plural]}
        )


@asynccontextmanager
async def following(claims: Claims) -> AsyncIterator[tuple[DeviceWatch, list[None]]]:
    changes: list[None] = []
    async with ScriptedServer(default=claims.handle) as server, server.client() as client:
        watch = DeviceWatch(client, lambda: changes.append(None))
        task = asyncio.create_task(watch.run())
        try:
            await asyncio.wait_for(watch.synced.wait(), 5)
            yield watch, changes
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("served", "used"),
    [(("v1", "v1beta2", "v1beta1"), "v1"), (("v1beta1", "v1beta2"), "v1beta2"),
     (("v1beta1",), "v1beta1")],
)  # fmt: skip
async def test_the_newest_version_that_is_served_is_followed(
    served: tuple[str, ...], used: str
) -> None:
    claims = Claims(*served)
    async with following(claims) as (watch, changes):
        devices = watch.devices
        assert devices.known
        assert devices.names["x/gpu"] == "nvidia.com/gpu"
        (spec,) = devices.templates.values()
        assert counted(devices.needs(spec)) == {"nvidia.com/gpu": 2}
        assert watch.devices is devices
        assert changes
        await eventually(lambda: f"{GROUP}/{used}/resourceclaims" in claims.paths)
    assert {path.split("/")[3] for path in claims.paths if path != GROUP} == {used}


async def test_the_allocation_of_a_claim_is_no_change_and_like_claims_share_what_they_ask() -> None:
    claims = Claims("v1")
    ask = claims.items["resourceclaimtemplates"][0]["spec"]["spec"]
    made = [
        {"metadata": {"name": name, "namespace": "nlp", "uid": name}, "spec": ask} for name in "ab"
    ]
    claims.items["resourceclaims"] = made
    heard: list[str] = []
    async with ScriptedServer(default=claims.handle) as server, server.client() as client:
        watch = DeviceWatch(
            client,
            lambda: None,
            lambda old, new: heard.append(new.metadata.name if new is not None else "gone"),
        )
        task = asyncio.create_task(watch.run())
        await asyncio.wait_for(watch.synced.wait(), 5)
        one, other = watch.devices.claims.values()
        assert one is other
        assert heard == ["a", "b"]
        allocated = {**made[0], "status": {"allocation": {"devices": {}}}}
        allocated["metadata"] = {**made[0]["metadata"], "resourceVersion": "2", "labels": {"x": ""}}
        stamp = {"annotations": {stamps.BOOKING: "b1"}, "resourceVersion": "3"}
        booked = {**made[1], "metadata": {**made[1]["metadata"], **stamp}}
        claims.events.put_nowait({"type": "MODIFIED", "object": allocated})
        claims.events.put_nowait({"type": "MODIFIED", "object": booked})
        await eventually(lambda: len(heard) > 2)
        assert heard == ["a", "b", "b"]
        assert watch.devices.booked == {("nlp", "b")}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_where_there_is_no_such_api_nothing_is_followed() -> None:
    claims = Claims()
    async with following(claims) as (watch, _):
        assert not watch.devices.known
    assert claims.paths == [GROUP]
