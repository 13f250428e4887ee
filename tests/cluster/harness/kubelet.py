"""The kubelet of the suite's nodes: runs what is bound to them, for as long as it is told.

Which devices a container gets and what it then sees are decided as on the sandbox's nodes.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from fairslice_sandbox.model.devices import (
    Allocation,
    AllocationError,
    Device,
    allocate,
    inventory,
)
from fairslice_sandbox.model.visibility import Runtime, visible

from .client import STRATEGIC, Api, Refused, Seen
from .kinds import Obj
from .nodes import Nodes

__all__ = ["EXIT_CODE", "FOREVER", "RUN_SECONDS", "Kubelet", "Run", "Sight"]

RUN_SECONDS = "fairslice-suite/run-seconds"  # annotation; without it a pod runs until deleted
EXIT_CODE = "fairslice-suite/exit-code"
FOREVER = 1e9
_STOP_SECONDS = 0.2  # what a process takes to heed its SIGTERM
_KILLED = 143


@dataclass(frozen=True)
class Sight:
    """What one container held, and what it could see: device uuids."""

    namespace: str
    pod: str
    container: str
    held: frozenset[str]
    seen: frozenset[str]


@dataclass(frozen=True)
class Run:
    """One start of a pod's containers, and what it ran for."""

    namespace: str
    pod: str
    uid: str
    owner: str
    resources: Mapping[str, int]


class Kubelet:
    """Plays every node of the run. `runs` and `sights` record all that ever started."""

    def __init__(self, api: Api, nodes: Nodes) -> None:
        self.runs: list[Run] = []
        self.sights: list[Sight] = []
        self._api = api
        self._nodes = nodes
        self._pods: dict[str, Obj] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._holding: dict[str, tuple[str, frozenset[Device]]] = {}
        self._group: asyncio.TaskGroup | None = None

    def hear(self, seen: Seen) -> None:
        """Take note of a pod's change."""
        pod = seen.obj
        uid = pod["metadata"]["uid"]
        if seen.type == "DELETED":
            self._pods.pop(uid, None)
            self._holding.pop(uid, None)
        elif (pod["spec"].get("nodeName") or "") in self._nodes.objects:
            self._pods[uid] = pod
            if uid not in self._workers and self._group is not None:
                self._changed[uid] = asyncio.Event()
                self._workers[uid] = self._group.create_task(self._live(uid))
        if uid in self._changed:
            self._changed[uid].set()

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    async def _live(self, uid: str) -> None:
        """See one pod through its life."""
        try:
            await self._run_to_end(uid)
            await self._until_deleted(uid, FOREVER)
            await self._remove(uid)
        finally:
            self._holding.pop(uid, None)
            self._workers.pop(uid, None)
            self._changed.pop(uid, None)

    async def _run_to_end(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is None or _terminal(pod):
            return
        if not pod["metadata"].get("deletionTimestamp"):
            node = self._nodes.objects[pod["spec"]["nodeName"]]
            try:
                devices = self._allocate(uid, pod, node)
            except AllocationError as error:
                await self._write(uid, _failed("UnexpectedAdmissionError", str(error)))
                return
            self._record(pod, node, devices)
            await self._write(uid, _running(pod))
            notes = pod["metadata"].get("annotations") or {}
            if not await self._until_deleted(uid, float(notes.get(RUN_SECONDS, FOREVER))):
                await self._end(uid, _ended(pod, int(notes.get(EXIT_CODE, "0"))))
                return
        grace = (self._pods.get(uid) or pod)["metadata"].get("deletionGracePeriodSeconds", 0)
        await asyncio.sleep(min(float(grace or 0), _STOP_SECONDS))
        await self._end(uid, _ended(pod, _KILLED))

    async def _end(self, uid: str, status: Obj) -> None:
        # What the scheduler sees as free must be free.
        self._holding.pop(uid, None)
        await self._write(uid, status)

    async def _until_deleted(self, uid: str, seconds: float) -> bool:
        """Wait for the pod's deletion, at most so long. True if it came."""
        changed = self._changed[uid]
        try:
            async with asyncio.timeout(seconds):
                while True:
                    changed.clear()
                    pod = self._pods.get(uid)
                    if pod is None or pod["metadata"].get("deletionTimestamp"):
                        return True
                    await changed.wait()
        except TimeoutError:
            return False

    def _allocate(self, uid: str, pod: Obj, node: Obj) -> Allocation:
        name = node["metadata"]["name"]
        taken = [device for at, held in self._holding.values() if at == name for device in held]
        devices = allocate(pod["spec"], inventory(node), taken)
        held = frozenset(device for given in devices.values() for device in given)
        self._holding[uid] = (name, held)
        return devices

    def _record(self, pod: Obj, node: Obj, devices: Allocation) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        held: dict[str, int] = {}
        for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
            given = devices[container["name"]]
            for device in given:
                held[device.resource] = held.get(device.resource, 0) + 1
            seen = visible(pod, container, given, inventory(node), Runtime(), _no_data)
            self.sights.append(
                Sight(
                    meta["namespace"],
                    meta["name"],
                    container["name"],
                    frozenset(device.uuid for device in given),
                    frozenset(seen),
                )
            )
        owner = next((ref["name"] for ref in meta.get("ownerReferences") or ()), "")
        self.runs.append(Run(meta["namespace"], meta["name"], meta["uid"], owner, held))

    async def _write(self, uid: str, status: Obj) -> None:
        pod = self._pods.get(uid)
        if pod is None:
            return
        meta = pod["metadata"]
        # The uid makes the write a conflict if another pod has the name by now.
        body = {"metadata": {"uid": uid}, "status": status}
        try:
            await self._api.patch(
                "Pod",
                meta["name"],
                body,
                meta["namespace"],
                subresource="status",
                content_type=STRATEGIC,
            )
        except Refused as refusal:
            if refusal.status not in (404, 409, 422):
                raise

    async def _remove(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is not None:
            meta = pod["metadata"]
            await self._api.delete("Pod", meta["name"], meta["namespace"], grace=0, uid=uid)


def _no_data(kind: str, name: str) -> Mapping[str, str]:
    """Answer for ConfigMaps and Secrets, of which the scenarios have none."""
    return {}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _terminal(pod: Obj) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _conditions(ready: str, reason: str = "") -> list[Obj]:
    extra = {"reason": reason} if reason else {}
    return [
        {"type": kind, "status": status, "lastTransitionTime": _now(), **extra}
        for kind, status in (("Initialized", "True"), ("ContainersReady", ready), ("Ready", ready))
    ]


def _containers(pod: Obj, state: Obj, ready: bool) -> list[Obj]:
    return [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": container.get("image", ""),
            "containerID": f"suite://{pod['metadata']['uid']}/{container['name']}",
            "restartCount": 0,
            "ready": ready,
            "started": ready,
            "state": state,
        }
        for container in pod["spec"]["containers"]
    ]


def _running(pod: Obj) -> Obj:
    return {
        "phase": "Running",
        "startTime": _now(),
        "podIP": "192.0.2.1",
        "podIPs": [{"ip": "192.0.2.1"}],
        "conditions": _conditions("True"),
        "containerStatuses": _containers(pod, {"running": {"startedAt": _now()}}, True),
    }


def _ended(pod: Obj, code: int) -> Obj:
    reason = "Error" if code else "Completed"
    state = {
        "terminated": {
            "exitCode": code,
            "reason": reason,
            "startedAt": _now(),
            "finishedAt": _now(),
        }
    }
    return {
        "phase": "Failed" if code else "Succeeded",
        "conditions": _conditions("False", "PodFailed" if code else "PodCompleted"),
        "containerStatuses": _containers(pod, state, False),
    }


def _failed(reason: str, message: str) -> Obj:
    return {"phase": "Failed", "reason": reason, "message": message}
