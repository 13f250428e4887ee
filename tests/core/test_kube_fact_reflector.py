"""The reflector that keeps facts: what changes none of them is no change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from msgspec import Struct

from fairslice.kube.objects import Pod
from fairslice.kube.reflector import FactReflector, Key, Timing

from .scripted_server import ScriptedServer, event, eventually, page, pod, stream

QUICK = Timing(watch=5, grace=0.3, first_backoff=0.02, longest_backoff=0.1, shortest_watch=0.0)


class Seat(Struct, frozen=True):
    """Where a pod is."""

    where: Key
    uid: str
    node: str


def read(found: Pod) -> Seat:
    meta = found.metadata
    return Seat(Key(meta.namespace, meta.name), meta.uid, found.spec.node_name)


@asynccontextmanager
async def following(
    server: ScriptedServer,
) -> AsyncIterator[tuple[FactReflector[Seat], list[tuple[str, str]]]]:
    """Run one; also collect what subscribers hear, as nodes before and after."""
    heard: list[tuple[str, str]] = []
    async with server.client() as client:
        reflector = FactReflector(client, "/api/v1/pods", Pod, read, timing=QUICK)
        reflector.subscribe(
            lambda old, new: heard.append((old.node if old else "-", new.node if new else "-"))
        )
        task = asyncio.create_task(reflector.run())
        try:
            yield reflector, heard
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def test_an_event_that_changes_no_fact_reaches_nobody() -> None:
    script = (
        page("1", pod("a", "1")),
        stream(
            event("MODIFIED", pod("a", "2", priorityClassName="high")),
            event("MODIFIED", pod("a", "3", nodeName="n1")),
            event("MODIFIED", pod("a", "4", nodeName="n1")),
            event("DELETED", pod("a", "5", nodeName="n1")),
        ),
    )
    async with ScriptedServer(*script) as server, following(server) as (reflector, heard):
        await eventually(lambda: heard == [("-", ""), ("", "n1"), ("n1", "-")])
        assert not reflector.store


async def test_an_object_made_anew_with_the_same_facts_is_another() -> None:
    script = (
        page("1", pod("a", "1", uid="u1", nodeName="n1")),
        stream(event("ADDED", pod("a", "2", uid="u2", nodeName="n1"))),
    )
    async with ScriptedServer(*script) as server, following(server) as (reflector, heard):
        await eventually(lambda: heard == [("-", "n1"), ("n1", "-"), ("-", "n1")])
        found = reflector.get("a", "nlp")
        assert found is not None
        assert found.uid == "u2"


async def slow_bookmark(request: web.Request) -> web.StreamResponse:
    """Answer a watch with a bookmark, after a while."""
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(0.1)
    bookmark = {"metadata": {"resourceVersion": "2"}, "spec": {}}
    await response.write(event("BOOKMARK", bookmark))
    await asyncio.sleep(60)
    return response


async def test_it_lists_again_when_asked_to_and_tells_only_what_differs() -> None:
    script = (
        page("1", pod("a", "1"), pod("b", "1")),
        slow_bookmark,
        page("3", pod("a", "3"), pod("b", "3", nodeName="n1")),
        stream(),
    )
    async with ScriptedServer(*script) as server, following(server) as (reflector, heard):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        reflector.look_again()
        await eventually(lambda: heard == [("-", ""), ("-", ""), ("", "n1")])
