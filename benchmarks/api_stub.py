"""An API server in process: 50,000 Jobs rendered on demand, writes that take a fixed time.

It is a KubeClient without network, so that what is measured is the queue. It plays the Job
controller and kubelet in the least possible way: a Job that is let go has a running pod at
once, on a node with room; a Job is finished when the benchmark says so.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from msgspec import json

from fairslice import stamps
from fairslice.kube.client import DEFAULT_SECONDS, MERGE_PATCH, KubeClient, NotFound, Params
from fairslice.kube.configuration import Endpoint
from fairslice.v1alpha1.resources import POLICIES, TEAMS

from .scenery import CLASSES, FEATURES

__all__ = ["GPUS_PER_NODE", "ApiStub", "Backlog", "booking_id"]

GPUS_PER_NODE = 8
_GPU = "nvidia.com/gpu"
_CREATED = "2026-01-01T00:00:00Z"
_JOBS, _PODS = "/apis/batch/v1/jobs", "/api/v1/pods"
_NODES, _NAMESPACES = "/api/v1/nodes", "/api/v1/namespaces"


def booking_id(number: int) -> str:
    """Name the booking of a Job."""
    return f"b{number:020x}"


@dataclass(frozen=True)
class Backlog:
    """How much there is: Jobs 0 … running-1 run, the rest waits, spread over the teams."""

    teams: int
    queued: int
    nodes: int

    @property
    def running(self) -> int:
        """As many Jobs of one GPU as the nodes have room for."""
        return self.nodes * GPUS_PER_NODE

    @property
    def jobs(self) -> int:
        """All Jobs."""
        return self.running + self.queued

    def team(self, number: int) -> str:
        """Name the team of a Job."""
        return f"team-{number % self.teams:04}"


@dataclass
class _Job:
    """What of a Job differs from how it began."""

    suspended: bool
    finished: bool = False
    version: int = 1
    annotations: dict[str, str] = field(default_factory=dict)
    assignment: str = ""
    node: str = ""


class _NoCredentials:
    """Nobody: nothing is ever sent."""

    async def authorization(self, *, rejected: bool = False) -> str | None:
        return None


class ApiStub(KubeClient):
    """`latency` is what a write takes, in seconds. `released` hears of Jobs that are let go."""

    def __init__(self, backlog: Backlog, latency: float) -> None:
        super().__init__(Endpoint(url="http://127.0.0.1:1", credentials=_NoCredentials()))
        self.writes = 0
        self.on_release: Callable[[int, float], None] = lambda number, at: None
        self._backlog = backlog
        self._latency = latency
        self._jobs: dict[int, _Job] = {}
        self._version = 10
        self._watches: dict[str, list[asyncio.Queue[bytes]]] = {}
        self._room: dict[str, int] = {}
        for number in range(backlog.running):
            self._jobs[number] = _Job(False, node=_node_name(number // GPUS_PER_NODE))
        self._template = _job_template()

    # What the benchmark does.

    def finish(self, number: int) -> None:
        """Let a running Job complete: its pod ends, then it does."""
        job = self._jobs[number]
        job.finished = True
        self._room[job.node] = self._room.get(job.node, 0) + 1
        self._tell(_PODS, "MODIFIED", self._pod(number, job))
        self._tell(_JOBS, "MODIFIED", self._job(number))

    def clean(self, number: int) -> None:
        """Delete a finished Job and its pod."""
        job = self._jobs[number]
        self._tell(_PODS, "DELETED", self._pod(number, job))
        self._tell(_JOBS, "DELETED", self._job(number))

    def touch(self, number: int, note: str) -> None:
        """Change a Job in what the queue reads of it: its declared run time, in seconds."""
        self._state(number).annotations[stamps.RUNTIME] = f"{note}s"
        self._tell(_JOBS, "MODIFIED", self._job(number))

    def running(self) -> list[int]:
        """Number the Jobs that run."""
        return [n for n, job in self._jobs.items() if not job.suspended and not job.finished]

    # What the queue sees.

    async def get(
        self, path: str, params: Params | None = None, *, within: float = DEFAULT_SECONDS
    ) -> bytes:
        collection = path
        if collection not in (_JOBS, _PODS, _NODES, _NAMESPACES, TEAMS, POLICIES):
            if path.startswith(("/apis/batch/", "/api/v1/namespaces/")):
                return json.encode(self._object(path))
            return json.encode({"metadata": {"resourceVersion": str(self._version)}, "items": []})
        limit = int((params or {}).get("limit", 0))
        offset = int((params or {}).get("continue", 0) or 0)
        items, total = self._page(collection, offset, limit)
        meta = {"resourceVersion": str(self._version)}
        if limit and offset + limit < total:
            meta["continue"] = str(offset + limit)
        await asyncio.sleep(0)
        return b'{"metadata":%b,"items":[%b]}' % (json.encode(meta), b",".join(items))

    async def stream(
        self, path: str, params: Params | None = None, *, inactivity: float = 90.0
    ) -> AsyncGenerator[bytes, None]:
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        watching = self._watches.setdefault(path, [])
        watching.append(lines)
        try:
            while True:
                yield await lines.get()
        finally:
            watching.remove(lines)

    async def patch(
        self,
        path: str,
        body: object,
        content_type: str = MERGE_PATCH,
        params: Params | None = None,
        *,
        within: float = DEFAULT_SECONDS,
    ) -> bytes:
        await self._written()
        if "/jobs/" not in path or not isinstance(body, dict):
            return b"{}"
        number = _number(path)
        self._apply(number, body)
        return self._job(number)

    async def create(
        self,
        path: str,
        body: object,
        params: Params | None = None,
        *,
        within: float = DEFAULT_SECONDS,
    ) -> bytes:
        await self._written()
        return b"{}"

    async def replace(
        self,
        path: str,
        body: object,
        params: Params | None = None,
        *,
        within: float = DEFAULT_SECONDS,
    ) -> bytes:
        await self._written()
        return b"{}"

    async def _written(self) -> None:
        self.writes += 1
        await asyncio.sleep(self._latency)

    def _apply(self, number: int, body: dict[str, Any]) -> None:
        job, spec = self._state(number), body.get("spec") or {}
        for key, value in (body["metadata"].get("annotations") or {}).items():
            if value is None:
                job.annotations.pop(key, None)
            else:
                job.annotations[key] = value
        begins = job.suspended and spec.get("suspend") is False
        if begins:
            job.suspended = False
            template = spec["template"]["metadata"]["annotations"]
            job.assignment = template[stamps.ASSIGNMENT]
            job.node = next((name for name, free in self._room.items() if free > 0), "")
            if job.node:
                self._room[job.node] -= 1
        self._tell(_JOBS, "MODIFIED", self._job(number))
        if begins:
            self._tell(_PODS, "ADDED", self._pod(number, job))
            self.on_release(number, time.perf_counter())

    def _state(self, number: int) -> _Job:
        return self._jobs.setdefault(number, _Job(suspended=True))

    def _tell(self, collection: str, kind: str, obj: bytes) -> None:
        line = b'{"type":"%b","object":%b}' % (kind.encode(), obj)
        for lines in self._watches.get(collection, ()):
            lines.put_nowait(line)

    def _object(self, path: str) -> Any:
        number = _number(path)
        if number >= self._backlog.jobs:
            raise NotFound(404, "NotFound", path)
        return json.decode(self._job(number))

    def _page(self, collection: str, offset: int, limit: int) -> tuple[list[bytes], int]:
        backlog = self._backlog
        makers: dict[str, tuple[int, Callable[[int], bytes]]] = {
            _JOBS: (backlog.jobs, self._job),
            _NODES: (backlog.nodes, _node),
            _NAMESPACES: (backlog.teams, lambda n: _named(backlog.team(n))),
            TEAMS: (backlog.teams, lambda n: _team(backlog.team(n))),
            POLICIES: (1, lambda _: _policy()),
        }
        if collection == _PODS:
            pods = list(self._running_pods())
            return pods[offset : offset + limit] if limit else pods, len(pods)
        total, make = makers[collection]
        end = min(total, offset + limit) if limit else total
        return [make(number) for number in range(offset, end)], total

    def _running_pods(self) -> Iterator[bytes]:
        for number, job in sorted(self._jobs.items()):
            if not job.suspended and not job.finished:
                yield self._pod(number, job)

    def _job(self, number: int) -> bytes:
        """Render a Job as the API server would show it."""
        job = self._jobs.get(number)
        obj = dict(self._template)
        name, team = f"train-{number:06}", self._backlog.team(number)
        state = "queued" if job is None or job.suspended else "released"
        obj["metadata"] = {
            "name": name,
            "namespace": team,
            "uid": f"uid-{number:06}",
            "resourceVersion": self._next_version() if job is not None else "1",
            "creationTimestamp": _CREATED,
            "labels": {
                stamps.LABEL_MANAGED: "true",
                stamps.STATE: state,
                stamps.CLASS: "training",
            },
            "annotations": {
                stamps.BOOKING: booking_id(number),
                stamps.USER: f"user-{number % 7}@example.com",
                stamps.QUEUED_AT: _CREATED,
                **(job.annotations if job is not None else {}),
            },
        }
        obj["spec"] = {**obj["spec"], "suspend": job is None or job.suspended}
        if job is not None and job.assignment:
            template = obj["spec"]["template"]
            meta = {**template["metadata"], "annotations": {stamps.ASSIGNMENT: job.assignment}}
            obj["spec"] = {**obj["spec"], "template": {**template, "metadata": meta}}
        if job is not None and job.finished:
            obj["status"] = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
        return json.encode(obj)

    def _pod(self, number: int, job: _Job) -> bytes:
        name = f"train-{number:06}"
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": f"uid-{number:06}",
            "controller": True,
        }
        obj = {
            "metadata": {
                "name": f"{name}-0",
                "namespace": self._backlog.team(number),
                "uid": f"pod-{number:06}",
                "resourceVersion": self._next_version(),
                "creationTimestamp": _CREATED,
                "labels": {stamps.LABEL_MANAGED: "true"},
                "annotations": {stamps.BOOKING: booking_id(number)},
                "ownerReferences": [owner],
            },
            "spec": {**self._template["spec"]["template"]["spec"], "nodeName": job.node},
            "status": {
                "phase": "Succeeded" if job.finished else "Running",
                "startTime": _CREATED,
            },
        }
        return json.encode(obj)

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)


def _number(path: str) -> int:
    return int(urlsplit(path).path.split("/jobs/")[1].split("/")[0].removeprefix("train-"))


def _node_name(number: int) -> str:
    return f"node-{number:03}"


def _named(name: str) -> bytes:
    return json.encode({"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}})


def _node(number: int) -> bytes:
    name = _node_name(number)
    amounts = {"cpu": "256", "memory": "2Ti", "pods": "250", _GPU: str(GPUS_PER_NODE)}
    labels = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.memory": "81920",
        "nvidia.com/gpu.count": str(GPUS_PER_NODE),
        "nvidia.com/gpu.replicas": "1",
    }
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", "labels": labels}
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": amounts, "capacity": amounts, "conditions": conditions}
    return json.encode({"metadata": meta, "status": status})


def _team(name: str) -> bytes:
    spec = {
        "namespaces": [name],
        "pools": [{"pool": "a100", "guaranteed": "0", "limit": "8"}],
        "allowedClasses": ["training", "experiment"],
    }
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    return json.encode({"metadata": meta, "spec": spec})


def _policy() -> bytes:
    spec = {
        "mode": dict.fromkeys(FEATURES, "Enforce"),
        "pools": [{"name": "a100", "products": ["NVIDIA-A100-*"]}],
        "classes": CLASSES,
    }
    return json.encode({"metadata": {"name": "default", "resourceVersion": "1"}, "spec": spec})


def _job_template() -> dict[str, Any]:
    amounts = {_GPU: "1", "cpu": "4", "memory": "16Gi"}
    container = {
        "name": "train",
        "image": "registry.example.com/train:3",
        "command": ["python", "train.py", "--epochs", "3"],
        "env": [{"name": f"OPTION_{n}", "value": "x" * 20} for n in range(5)],
        "resources": {"limits": amounts, "requests": amounts},
    }
    pod = {
        "containers": [container],
        "restartPolicy": "Never",
        "schedulerName": "default-scheduler",
    }
    template = {"metadata": {"labels": {stamps.CLASS: "training"}}, "spec": pod}
    spec = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec, "status": {}}
