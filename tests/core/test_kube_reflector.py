"""The reflector: its copy equals the server's, whatever the connection goes through."""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fairslice.kube.objects import Job, Pod
from fairslice.kube.reflector import Key, Reflector, Timing

from .scripted_server import (
    ScriptedServer,
    answer,
    event,
    eventually,
    expired_event,
    page,
    pod,
    status,
    stream,
)

PODS = "/api/v1/pods"
QUICK = Timing(watch=5, grace=0.3, absent=0.1, first_backoff=0.02, longest_backoff=0.1)
SHARED = Path(os.environ.get("FAIRSLICE_SHARED", Path(__file__).parents[3] / "shared"))

Changes = list[tuple[str, str]]


@asynccontextmanager
async def reflecting(
    server: ScriptedServer, timing: Timing = QUICK
) -> AsyncIterator[tuple[Reflector[Pod], Changes]]:
    """Run a reflector; also collect its changes as (verb, name)."""
    changes: Changes = []

    def note(old: Pod | None, new: Pod | None) -> None:
        verb = "added" if old is None else "deleted" if new is None else "changed"
        item = new or old
        assert item is not None
        changes.append((verb, item.metadata.name))

    async with server.client() as client:
        reflector = Reflector(client, PODS, Pod, timing=timing)
        reflector.subscribe(note)
        task = asyncio.create_task(reflector.run())
        try:
            yield reflector, changes
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def until(changes: Changes, *wanted: tuple[str, str]) -> None:
    await eventually(lambda: changes == list(wanted))


async def test_it_lists_in_pages_and_follows_what_happens() -> None:
    script = (
        page("9", pod("a", "1"), pod("b", "2"), more="token"),
        page("9", pod("c", "3")),
        stream(
            event("MODIFIED", pod("a", "10", nodeName="n1")),
            event("ADDED", pod("d", "11")),
            event("DELETED", pod("b", "12")),
            event("BOOKMARK", {"metadata": {"resourceVersion": "20"}, "spec": {}}),
            then="end",
        ),
        stream(),
    )
    async with ScriptedServer(*script) as server, reflecting(server) as (reflector, changes):
        await until(
            changes,
            ("added", "a"),
            ("added", "b"),
            ("added", "c"),
            ("changed", "a"),
            ("added", "d"),
            ("deleted", "b"),
        )
        assert reflector.synced.is_set()
        assert sorted(key.name for key in reflector.store) == ["a", "c", "d"]
        found = reflector.get("a", "nlp")
        assert found is not None
        assert found.spec.node_name == "n1"
        await server.wait_busy(1)
        await eventually(lambda: len(server.asked) >= 4)
        first, second, watch, again = server.asked
        assert (first.query, second.query["continue"]) == ({"limit": "500"}, "token")
        assert watch.query["resourceVersion"] == "9"
        assert watch.query["allowWatchBookmarks"] == "true"
        assert 5 <= int(watch.query["timeoutSeconds"]) <= 8
        assert again.query["resourceVersion"] == "20"
        assert reflector.last_sync < 5


@pytest.mark.parametrize(
    "expiry", [status(410, "too old", "Expired"), stream(expired_event(), then="end")]
)
async def test_a_version_too_old_means_a_new_list_and_the_missed_deletion(expiry: Any) -> None:
    script = (
        page("1", pod("a", "1"), pod("b", "1"), pod("same", "1")),
        expiry,
        page("5", pod("b", "4"), pod("c", "5"), pod("same", "1")),
        stream(),
    )
    async with ScriptedServer(*script) as server, reflecting(server) as (reflector, changes):
        await until(
            changes,
            ("added", "a"),
            ("added", "b"),
            ("added", "same"),
            ("deleted", "a"),
            ("changed", "b"),
            ("added", "c"),
        )
        assert reflector.relists == 2


async def test_an_expired_continue_token_starts_the_list_over() -> None:
    script = (
        page("1", pod("a", "1"), more="old"),
        status(410, "the continue token is too old", "Expired"),
        page("2", pod("b", "2")),
        stream(),
    )
    async with ScriptedServer(*script) as server, reflecting(server) as (_, changes):
        await until(changes, ("added", "b"))


async def test_pages_that_always_expire_give_way_to_one_list() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await stream()(request)
        if "continue" in request.query:
            return await status(410, "too old", "Expired")(request)
        if "limit" in request.query:
            return await page("1", pod("a", "1"), more="x")(request)
        return await page("1", pod("a", "1"), pod("b", "1"))(request)

    async with ScriptedServer(default=handle) as server, reflecting(server) as (_, changes):
        await until(changes, ("added", "a"), ("added", "b"))


async def test_an_object_replaced_in_the_gap_is_a_deletion_and_an_addition() -> None:
    script = (
        page("1", pod("a", "1", uid="old")),
        status(410, "too old"),
        page("9", pod("a", "8", uid="new")),
        stream(),
    )
    async with ScriptedServer(*script) as server, reflecting(server) as (_, changes):
        await until(changes, ("added", "a"), ("deleted", "a"), ("added", "a"))


@pytest.mark.parametrize("then", ["reset", "end"])
async def test_a_connection_cut_within_an_event_resumes_where_it_was(then: str) -> None:
    half = event("ADDED", pod("b", "3"))
    script = (
        page("1", pod("a", "1")),
        stream(event("MODIFIED", pod("a", "2")), half[:20], then=then),
        stream(half),
    )
    async with ScriptedServer(*script) as server, reflecting(server) as (reflector, changes):
        await until(changes, ("added", "a"), ("changed", "a"), ("added", "b"))
        assert server.asked[-1].query["resourceVersion"] == "2"
        assert reflector.relists == 1


async def test_a_connection_gone_silent_is_replaced() -> None:
    timing = Timing(watch=0.2, grace=0.1, first_backoff=0.01, longest_backoff=0.1)
    script = (page("1"), stream(), stream(event("ADDED", pod("a", "2"))))
    async with ScriptedServer(*script) as server, reflecting(server, timing) as (_, changes):
        await until(changes, ("added", "a"))


async def test_a_server_that_ends_every_watch_at_once_is_not_hammered() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await stream(then="end")(request)
        return await page("1")(request)

    timing = Timing(first_backoff=0.1, longest_backoff=0.4)
    async with ScriptedServer(default=handle) as server, reflecting(server, timing):
        await asyncio.sleep(1.0)
        assert len(server.asked) < 10


async def test_refusals_are_spaced_as_the_server_asks() -> None:
    busy = status(503, "later", headers={"Retry-After": "1"})
    script = (page("1"), busy, stream(event("ADDED", pod("a", "2"))))
    async with ScriptedServer(*script) as server, reflecting(server) as (_, changes):
        await until(changes, ("added", "a"))
        assert server.asked[2].at - server.asked[1].at >= 1.0


async def test_a_refusal_is_kept_for_status_and_ends_with_success() -> None:
    refusal = status(403, "pods is forbidden")
    async with ScriptedServer(default=refusal) as server, reflecting(server) as (reflector, _):
        await eventually(lambda: reflector.last_error != "")
        assert reflector.last_error == "pods is forbidden"
        assert not reflector.synced.is_set()
        server.script.extend([page("1"), stream(then="end")])
        server.default = stream()
        await asyncio.wait_for(reflector.synced.wait(), 5)
        await eventually(lambda: reflector.last_error == "")


async def test_a_kind_that_is_not_installed_costs_a_slow_poll_and_appears_later() -> None:
    missing = status(404, "the server could not find the requested resource")
    script = (missing, missing, page("1", pod("a", "1")), missing)
    async with (
        ScriptedServer(*script, default=missing) as server,
        reflecting(server) as (reflector, changes),
    ):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        assert reflector.absent
        await until(changes, ("added", "a"), ("deleted", "a"))
        assert reflector.absent
        assert reflector.last_error == ""


async def test_a_kind_of_ours_that_is_not_installed_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing = status(404, "the server could not find the requested resource")
    async with ScriptedServer(default=missing) as server, server.client() as client:
        reflector = Reflector(client, "/apis/x/v1/teams", Pod, missing="install it", timing=QUICK)
        running = asyncio.create_task(reflector.run())
        await eventually(lambda: len(server.asked) >= 3)
        running.cancel()
    assert [record.message for record in caplog.records] == ["/apis/x/v1/teams: install it"]


async def test_an_unreadable_object_keeps_its_last_good_state_and_harms_no_other() -> None:
    broken: dict[str, Any] = {**pod("b", "2"), "spec": {"nodeName": 7}}
    script = (
        page("3", pod("a", "1"), broken),
        stream(
            event("MODIFIED", {**pod("a", "4"), "spec": {"tolerations": "no"}}),
            event("ADDED", pod("c", "5")),
            event("MODIFIED", pod("b", "6")),
            event("DELETED", {**pod("a", "7"), "spec": 1}),
        ),
    )
    async with ScriptedServer(*script) as server, reflecting(server) as (reflector, changes):
        await until(changes, ("added", "a"), ("added", "c"), ("added", "b"), ("deleted", "a"))
        assert reflector.invalid == {}


async def test_an_unreadable_object_is_named() -> None:
    broken = {**pod("b", "2"), "spec": {"nodeName": 7}}
    async with (
        ScriptedServer(page("3", broken), stream()) as server,
        reflecting(server) as (reflector, _),
    ):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        assert "nodeName" in reflector.invalid[Key("nlp", "b")]


async def test_an_event_of_many_megabytes_is_read() -> None:
    big = pod("big", "2")
    big["metadata"]["annotations"] = {"x": "y" * 6_000_000}
    async with (
        ScriptedServer(page("1"), stream(event("ADDED", big))) as server,
        reflecting(server) as (_, changes),
    ):
        await until(changes, ("added", "big"))


async def test_selectors_go_with_every_request() -> None:
    async with ScriptedServer(page("1"), stream()) as server, server.client() as client:
        reflector = Reflector(
            client, PODS, Pod, label_selector="a=b", field_selector="spec.nodeName=n"
        )
        task = asyncio.create_task(reflector.run())
        await server.wait_busy(1)
        await asyncio.wait_for(reflector.synced.wait(), 5)
        await eventually(lambda: len(server.asked) >= 2)
        task.cancel()
        await asyncio.wait((task,))
        for asked in server.asked:
            assert asked.query["labelSelector"] == "a=b"
            assert asked.query["fieldSelector"] == "spec.nodeName=n"


async def test_a_late_subscriber_hears_of_what_is_there() -> None:
    async with (
        ScriptedServer(page("1", pod("a", "1")), stream()) as server,
        reflecting(server) as (reflector, _),
    ):
        await asyncio.wait_for(reflector.synced.wait(), 5)
        seen: list[str] = []
        reflector.subscribe(lambda old, new: seen.append(new.metadata.name if new else ""))
        assert seen == ["a"]


async def test_an_error_in_a_subscriber_ends_the_reflector() -> None:
    def fail(old: Pod | None, new: Pod | None) -> None:
        raise LookupError("a bug")

    async with ScriptedServer(page("1", pod("a", "1"))) as server, server.client() as client:
        reflector = Reflector(client, PODS, Pod)
        reflector.subscribe(fail)
        with pytest.raises(LookupError):
            await asyncio.wait_for(reflector.run(), 5)


class FaultyCluster:
    """A collection with a short history, served over connections that fail at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.version = 0
        self.objects: dict[str, dict[str, Any]] = {}
        self.history: list[tuple[int, bytes]] = []
        self.faults = True
        self.moved = asyncio.Event()

    def step(self) -> None:
        self.version += 1
        name = self.random.choice("abcdef")
        there = name in self.objects
        gone = there and self.random.random() < 0.4
        kind = "DELETED" if gone else "MODIFIED" if there else "ADDED"
        uid = self.objects[name]["metadata"]["uid"] if there else f"{name}{self.version}"
        item = pod(name, str(self.version), uid=uid)
        if gone:
            del self.objects[name]
        else:
            self.objects[name] = item
        self.history = [*self.history[-8:], (self.version, event(kind, item))]
        self.moved.set()
        self.moved = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.faults and self.random.random() < 0.2:
            return await status(self.random.choice((410, 429, 500, 503)), "no")(request)
        if "watch" not in request.query:
            return await page(str(self.version), *self.objects.values())(request)
        since = int(request.query["resourceVersion"])
        if since < self.version and (not self.history or since < self.history[0][0] - 1):
            return await stream(expired_event(), then="end")(request)
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            for version, line in self.history:
                if version > since:
                    since = version
                    if self.faults and self.random.random() < 0.2:
                        await response.write(line[:30])
                        assert request.transport is not None
                        request.transport.abort()
                        return response
                    await response.write(line)
            if self.faults and self.random.random() < 0.1:
                return response
            await self.moved.wait()


@pytest.mark.parametrize("seed", range(6))
async def test_no_fault_makes_the_copy_differ_in_the_end(seed: int) -> None:
    cluster = FaultyCluster(seed)
    timing = Timing(
        watch=5, first_backoff=0.001, longest_backoff=0.005, shortest_watch=0.001, absent=0.01
    )
    async with ScriptedServer(default=cluster.handle) as server, server.client() as client:
        reflector = Reflector(client, PODS, Pod, timing=timing)
        told: dict[str, str] = {}

        def follow(old: Pod | None, new: Pod | None) -> None:
            # The changes alone must be enough to keep a copy.
            if old is not None:
                assert told.pop(old.metadata.name) == old.metadata.resource_version
            if new is not None:
                assert new.metadata.name not in told
                told[new.metadata.name] = new.metadata.resource_version

        reflector.subscribe(follow)
        task = asyncio.create_task(reflector.run())
        for _ in range(150):
            cluster.step()
            await asyncio.sleep(cluster.random.choice((0, 0, 0.001, 0.004)))
        cluster.faults = False
        cluster.step()
        wanted = {n: o["metadata"]["resourceVersion"] for n, o in cluster.objects.items()}
        await eventually(lambda: told == wanted or task.done())
        task.cancel()
        await asyncio.wait((task,))
        assert {
            key.name: item.metadata.resource_version for key, item in reflector.store.items()
        } == wanted


@pytest.mark.skipif(not SHARED.exists(), reason="needs the recorded watch streams")
@pytest.mark.parametrize(("kind", "word"), [(Pod, "pods"), (Job, "jobs")])
async def test_a_recorded_preemption_is_followed(kind: type[Pod], word: str) -> None:
    (file,) = (SHARED / "fixtures/watch").glob(f"*{word}*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    verbs = Counter(json.loads(line)["type"] for line in lines)
    del verbs["BOOKMARK"]
    script = (answer({"metadata": {"resourceVersion": "0"}}), stream(*lines))
    async with ScriptedServer(*script) as server, server.client() as client:
        reflector = Reflector(client, PODS, kind, timing=QUICK)
        seen: Counter[str] = Counter()
        reflector.subscribe(
            lambda old, new: seen.update(
                ["ADDED" if old is None else "DELETED" if new is None else "MODIFIED"]
            )
        )
        task = asyncio.create_task(reflector.run())
        await eventually(lambda: seen.total() >= verbs.total())
        task.cancel()
        await asyncio.wait((task,))
    assert seen == verbs
    assert reflector.invalid == {}
