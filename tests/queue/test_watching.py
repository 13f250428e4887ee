"""The watch over an API of which the test says what it has, and what happens there."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from fairslice import stamps
from fairslice.booking import State
from fairslice.kube.client import DEFAULT_SECONDS, KubeClient, NotFound, Params
from fairslice.kube.configuration import Endpoint
from fairslice.v1alpha1.resources import POLICIES, TEAMS
from fairslice_queue.books import Books
from fairslice_queue.changes import Changes
from fairslice_queue.watching import Watch

from .plans import GPU, booking, option

JOBS, PODS, NODES = "/apis/batch/v1/jobs", "/api/v1/pods", "/api/v1/nodes"
NAMESPACES = "/api/v1/namespaces"
DRA = "/apis/resource.k8s.io"
CLASSES = f"{DRA}/v1/deviceclasses"
Obj = dict[str, Any]


class _Nobody:
    async def authorization(self, *, rejected: bool = False) -> str | None:
        return None


class Stub(KubeClient):
    """An API server without network: lists what it was given, then tells what it is told."""

    def __init__(self, **lists: list[Obj]) -> None:
        super().__init__(Endpoint(url="http://127.0.0.1:1", credentials=_Nobody()))
        self.listed: list[str] = []
        self.lists = {
            NODES: [node()],
            NAMESPACES: [{"metadata": {"name": "nlp", "uid": "ns"}}],
            TEAMS: [team()],
            POLICIES: [policy()],
            **lists,
        }
        self._version = 1
        self._lines: dict[str, asyncio.Queue[bytes]] = {}

    async def get(
        self, path: str, params: Params | None = None, *, within: float = DEFAULT_SECONDS
    ) -> bytes:
        if path == DRA and CLASSES not in self.lists:
            raise NotFound(404, "NotFound", path)
        self.listed.append(path)
        metadata = {"resourceVersion": str(self._version)}
        items = self.lists.get(path, [])
        versions = [{"version": "v1"}]
        body = {"metadata": metadata, "items": items, "groups": [], "versions": versions}
        return msgspec.json.encode(body)

    async def stream(
        self, path: str, params: Params | None = None, *, inactivity: float = 90.0
    ) -> AsyncGenerator[bytes, None]:
        lines = self._lines.setdefault(path, asyncio.Queue())
        while True:
            yield await lines.get()

    async def tell(self, path: str, kind: str, obj: Obj) -> None:
        """Let something happen, and let the watch take it in."""
        self._version += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}
        lines = self._lines.setdefault(path, asyncio.Queue())
        lines.put_nowait(msgspec.json.encode({"type": kind, "object": obj}))
        for _ in range(3):
            await asyncio.sleep(0)


def node(name: str = "n1", gpus: int = 8, **fields: Any) -> Obj:
    amounts = {"cpu": "32", "memory": "64Gi", "pods": "110", GPU: str(gpus)}
    status: Obj = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "uid": name}, "status": {**status, **fields}}


def team(**spec: Any) -> Obj:
    return {
        "metadata": {"name": "nlp", "uid": "nlp"},
        "spec": {"namespaces": ["nlp"], "pools": [], **spec},
    }


def policy(**fields: Any) -> Obj:
    classes = [{"name": "training", "preempts": "Nobody", **fields}]
    return {"metadata": {"name": "default"}, "spec": {"classes": classes}}


def job(name: str = "a", **annotations: str) -> Obj:
    container = {"resources": {"limits": {GPU: "1", "cpu": "4"}}}
    return {
        "metadata": {
            "name": name,
            "namespace": "nlp",
            "uid": name,
            "labels": {"tool": name},
            "annotations": {stamps.BOOKING: name, **annotations},
        },
        "spec": {"suspend": True, "template": {"spec": {"containers": [container]}}},
    }


def pod(name: str, owner: str, *, labels: Obj | None = None, **spec: Any) -> Obj:
    container = {"resources": {"limits": {GPU: "1", "cpu": "4"}}}
    meta = {"name": name, "namespace": "nlp", "uid": name, "annotations": {stamps.BOOKING: owner}}
    return {
        "metadata": {**meta, "labels": labels or {}},
        "spec": {"containers": [container], **spec},
        "status": {"phase": "Running"},
    }


@asynccontextmanager
async def watching(stub: Stub) -> AsyncIterator[Watch]:
    watch = Watch(stub)
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(_follow(watch))
        await asyncio.wait_for(watch.synced(), 5)
        yield watch
        following.cancel()


async def _follow(watch: Watch) -> None:
    async with asyncio.TaskGroup() as tasks:
        await watch.run(tasks)


def quiet(watch: Watch, books: Books) -> bool:
    """Say whether nobody was woken, and nothing is told as changed."""
    woken = watch.changed.is_set()
    watch.changed.clear()
    return not woken and watch.take_changes(books) == Changes()


async def test_the_first_look_is_at_everything_and_then_only_at_what_changes() -> None:
    stub, books = Stub(**{JOBS: [job("a"), job("b")]}), Books([booking("a"), booking("b")])
    async with watching(stub) as watch:
        first = watch.take_changes(books)
        assert (first.everything, first.teams, first.policy, first.capacity) == (True,) * 4
        assert first.nodes == {"n1"}
        watch.changed.clear()
        assert quiet(watch, books)
        await stub.tell(JOBS, "MODIFIED", job("b", **{stamps.ORDER: "1"}))
        assert watch.changed.is_set()
        assert watch.take_changes(books) == Changes(bookings={"b"})
        books.put(booking("a", pods=2))
        assert watch.take_changes(books) == Changes(bookings={"a"})


async def test_what_holds_and_its_pods_are_taken_off_their_node() -> None:
    stub, books = Stub(**{JOBS: [job("a")]}), Books([booking("a")])
    async with watching(stub) as watch:
        watch.take_changes(books)
        before = watch.free_nodes(books)["n1"]
        books.put(booking("a", state=State.RELEASED, options=[option(2)], place={"n1": 1}))
        assert watch.take_changes(books) == Changes(bookings={"a"}, nodes={"n1"})
        after = watch.free_nodes(books)["n1"]
        assert (before.cpu_milli - after.cpu_milli, before.pods - after.pods) == (4000, 1)
        assert after.units["a100|A100|" + GPU] == -2  # of another model than the node's
        await stub.tell(PODS, "ADDED", pod("a-0", "a", nodeName="n1"))
        assert watch.free_nodes(books)["n1"] == after
        assert watch.take_changes(books) == Changes(bookings={"a"})
        await stub.tell(PODS, "ADDED", pod("web", "", nodeName="n1"))
        assert watch.take_changes(books).nodes == {"n1"}


async def test_heartbeats_and_writings_of_others_wake_nobody() -> None:
    stub, books = Stub(**{JOBS: [job()], PODS: [pod("a-0", "a")]}), Books([booking("a")])
    async with watching(stub) as watch:
        watch.take_changes(books)
        watch.changed.clear()
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": "now"}
        full = {"type": "DiskPressure", "status": "False"}
        await stub.tell(NODES, "MODIFIED", node(conditions=[condition, full], images=[{}]))
        await stub.tell(JOBS, "MODIFIED", job("a", progress="half", **{stamps.STATUS: "Queued"}))
        await stub.tell(PODS, "MODIFIED", pod("a-0", "a", labels={"seen": "yes"}))
        await stub.tell(TEAMS, "MODIFIED", {**team(), "status": {"held": []}})
        space = {"name": "nlp", "uid": "ns", "annotations": {"tool": "x"}}
        await stub.tell(NAMESPACES, "MODIFIED", {"metadata": space})
        await stub.tell(POLICIES, "MODIFIED", policy())
        assert quiet(watch, books)
        assert watch.annotations_of("a")[stamps.STATUS] == "Queued"


async def test_nodes_that_advertise_no_gpus_count_only_where_claims_may_give_some() -> None:
    cpu = node("cpu-1", gpus=0)
    books = Books()
    async with watching(Stub(**{NODES: [node(), cpu]})) as watch:
        assert set(watch.free_nodes(books)) == {"n1"}
    classes = [{"metadata": {"name": "net.example.com"}, "spec": {"selectors": [
        {"cel": {"expression": 'device.driver == "net.example.com"'}}]}}]  # fmt: skip
    stub = Stub(**{NODES: [node(), cpu], CLASSES: classes})
    async with watching(stub) as watch:
        assert set(watch.free_nodes(books)) == {"n1"}
        watch.changed.clear()
        await stub.tell(CLASSES, "ADDED", {"metadata": {"name": "gpu.nvidia.com"}})
        assert watch.changed.is_set()
        assert set(watch.free_nodes(books)) == {"n1", "cpu-1"}


async def test_teams_policy_and_capacity_are_told_apart() -> None:
    stub, books = Stub(), Books()
    async with watching(stub) as watch:
        watch.take_changes(books)
        await stub.tell(TEAMS, "MODIFIED", team(weight=2))
        assert watch.take_changes(books) == Changes(teams=True)
        await stub.tell(NODES, "MODIFIED", node(gpus=4))
        assert watch.take_changes(books) == Changes(capacity=True, nodes={"n1"})
        await stub.tell(POLICIES, "MODIFIED", policy(maxRuntime="1h"))
        assert watch.take_changes(books) == Changes(policy=True, capacity=True)


async def test_books_read_anew_mean_everything_is_read_anew() -> None:
    stub = Stub()
    running = booking("a", state=State.RUNNING, place={"n1": 1})
    books = Books([running])
    async with watching(stub) as watch:
        watch.take_changes(books)
        taken = watch.free_nodes(books)["n1"]
        again = Books()
        changes = watch.take_changes(again)
        assert (changes.everything, changes.nodes) == (True, {"n1"})
        assert watch.free_nodes(again)["n1"].pods == taken.pods + 1


async def test_who_stood_by_looks_at_everything_when_it_leads() -> None:
    stub = Stub()
    books = Books([booking("a", state=State.RUNNING, place={"n1": 1})])
    async with watching(stub) as watch:
        watch.take_changes(books)
        await stub.tell(PODS, "ADDED", pod("a-0", "a", nodeName="n1"))
        watch.stand_by(books)
        assert watch.take_changes(books).everything
        running = watch.free_nodes(books)["n1"]
        await stub.tell(PODS, "DELETED", pod("a-0", "a", nodeName="n1"))
        watch.stand_by(books)
        # Its own pod counts once, whether it is there already or is to come.
        assert watch.free_nodes(books)["n1"].pods == running.pods


async def test_labels_are_read_once_the_policy_goes_by_them() -> None:
    stub, books = Stub(**{JOBS: [job("a")], PODS: [pod("p", "p", labels={"app": "x"})]}), Books()
    async with watching(stub) as watch:
        watch.take_changes(books)
        assert watch.workloads["Job/nlp/a"].labels == {}
        stub.lists[POLICIES] = [policy(match=[{"podLabels": {"tool": "a"}}])]
        await stub.tell(POLICIES, "MODIFIED", stub.lists[POLICIES][0])
        await stub.tell(JOBS, "BOOKMARK", {"metadata": {}})
        async with asyncio.timeout(5):
            while not watch.workloads["Job/nlp/a"].labels:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert watch.workloads["Job/nlp/a"].labels == {"tool": "a"}
