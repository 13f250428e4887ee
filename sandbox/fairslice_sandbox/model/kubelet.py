"""The kubelets: one task per bound pod, from admission to its removal."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from fairslice_sandbox.model.client import ApiError, Client, Clock
from fairslice_sandbox.model.controller import Signal
from fairslice_sandbox.model.devices import (
    DEVICES,
    Allocation,
    AllocationError,
    Device,
    Inventory,
    allocate,
    inventory,
    recorded,
)
from fairslice_sandbox.model.objects import (
    Key,
    Obj,
    annotations,
    condition,
    is_deleting,
    is_pod_terminal,
    key_of,
    parse_time,
    rfc3339,
    uid,
)
from fairslice_sandbox.model.pod_run import KILLED, PodRun, Script
from fairslice_sandbox.model.visibility import Runtime, visible

__all__ = ["MANAGED", "VISIBLE", "Kubelets"]

MANAGED = "sandbox.fairslice.io/kubelet"
VISIBLE = "sandbox.fairslice.io/visible"
_MAX_RESTART_DELAY = 300.0
_RETRY_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


class _Gone(Exception):
    """The pod is to stop, or is no longer there."""


@dataclass(slots=True)
class _Worker:
    key: Key
    uid: str
    node: str
    changed: Signal
    task: asyncio.Task[None] | None = None
    held: Allocation = field(default_factory=dict)
    run: PodRun | None = None
    ephemeral: int = 0
    number: int = 0


class Kubelets:
    """Runs the pods of every node that carries the `MANAGED` annotation.

    Pods do what their `sandbox.fairslice.io/…` annotations say (see `pod_run.Script`); each
    container's devices and what it can see are written to two more annotations.
    """

    def __init__(
        self,
        client_of: Callable[[str], Client],
        clock: Clock,
        runtime: Runtime,
        start_seconds: float = 0.2,
        restart_seconds: float = 10.0,
    ) -> None:
        """`client_of` gives the client of a node's kubelet; restarts back off from a base."""
        self._client_of = client_of
        self._clock = clock
        self._runtime = runtime
        self._start_seconds = start_seconds
        self._restart_seconds = restart_seconds
        self._workers: dict[str, _Worker] = {}
        self._dead: set[str] = set()
        self._group: asyncio.TaskGroup | None = None
        self._started = 0

    async def run(self) -> None:
        """Keep the pods' tasks until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    def runs_on(self, node: Obj) -> bool:
        """Say whether we play this node's kubelet, and it is alive."""
        return MANAGED in annotations(node) and key_of(node).name not in self._dead

    def kill(self, node: str) -> None:
        """Stop the node's kubelet: its pods are neither updated nor ended any more."""
        self._dead.add(node)
        for worker in [item for item in self._workers.values() if item.node == node]:
            if worker.task is not None:
                worker.task.cancel()

    def revive(self, node: str) -> None:
        """Let the node's kubelet go on; its pods must be shown to `on_pod` again."""
        self._dead.discard(node)

    def on_pod(self, pod: Obj) -> None:
        """Take notice of a pod that was added or changed."""
        worker = self._workers.get(uid(pod))
        if worker is not None:
            worker.changed.set()
            return
        name = pod["spec"].get("nodeName")
        if not name or self._group is None or _is_over(pod):
            return
        node = self._client_of(name).get("nodes", Key("", name))
        if node is None or not self.runs_on(node):
            return
        self._started += 1
        worker = _Worker(key_of(pod), uid(pod), name, Signal(self._clock), number=self._started)
        if _was_running(pod):
            worker.held = recorded(pod, inventory(node))
        self._workers[worker.uid] = worker
        worker.task = self._group.create_task(self._live(worker))

    def on_pod_gone(self, pod: Obj) -> None:
        """Take notice of a pod that was removed."""
        worker = self._workers.get(uid(pod))
        if worker is not None:
            worker.held = {}
            worker.changed.set()

    async def _live(self, worker: _Worker) -> None:
        client = self._client_of(worker.node)
        try:
            with suppress(_Gone):
                await self._work(worker, client)
            with suppress(_Gone):
                await self._terminate(worker, client)
        finally:
            del self._workers[worker.uid]
        left = self._pod(worker, client)
        if left is not None and is_deleting(left):
            # Deletion came while the last status was written.
            self.on_pod(left)

    def _pod(self, worker: _Worker, client: Client) -> Obj | None:
        pod = client.get("pods", worker.key)
        return pod if pod is not None and uid(pod) == worker.uid else None

    def _current(self, worker: _Worker, client: Client) -> Obj:
        pod = self._pod(worker, client)
        if pod is None or is_deleting(pod) or is_pod_terminal(pod):
            raise _Gone
        return pod

    # Running.

    async def _work(self, worker: _Worker, client: Client) -> None:
        pod = self._current(worker, client)
        node = client.get("nodes", Key("", worker.node))
        if node is None:
            raise _Gone
        now = self._clock.now()
        run = worker.run = PodRun.of(pod, now)
        available = inventory(node)
        resumed = _resume(pod, run)
        try:
            if not resumed:
                worker.held = self._admit(worker, pod, available)
        except AllocationError as error:
            await self._reject(worker, client, str(error))
            return
        await self._write(worker, client, self._notes(worker, client, pod, available))
        script = Script.of(pod)
        if not resumed:
            await self._pause(worker, client, available, self._start_seconds)
            await self._initialize(worker, client, available, script)
            for main in run.mains:
                main.start(self._clock.now())
        run.phase = "Running"
        while True:
            await self._run_once(worker, client, available, script)
            code = script.exit_code
            policy = pod["spec"].get("restartPolicy", "Always")
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                run.end_all(code, self._clock.now())
                await self._write(worker, client)
                return
            await self._restart(worker, client, available, code)

    def _admit(self, worker: _Worker, pod: Obj, available: Inventory) -> Allocation:
        taken = {
            device
            for other in self._workers.values()
            if other.node == worker.node and other is not worker
            for units in other.held.values()
            for device in units
        }
        return allocate(pod["spec"], available, taken)

    async def _reject(self, worker: _Worker, client: Client, why: str) -> None:
        status = {
            "phase": "Failed",
            "reason": "UnexpectedAdmissionError",
            "message": f"Pod was rejected: {why}",
            "startTime": rfc3339(self._clock.now()),
        }
        await self._patch(worker, client, {"status": status})
        await client.event(
            "v1", "Pod", worker.key, worker.uid, "Warning", "UnexpectedAdmissionError", why
        )

    async def _initialize(
        self, worker: _Worker, client: Client, available: Inventory, script: Script
    ) -> None:
        run = worker.run
        assert run is not None
        for init in run.inits:
            init.start(self._clock.now())
            if init.sidecar:
                init.ready = True
                continue
            await self._write(worker, client)
            await self._pause(worker, client, available, script.init_seconds)
            init.end(0, self._clock.now())
        run.initialized = True

    async def _run_once(
        self, worker: _Worker, client: Client, available: Inventory, script: Script
    ) -> None:
        run = worker.run
        assert run is not None
        run.initialized = True
        started = max((main.started for main in run.mains if main.started), default=run.begun)
        if script.ready_seconds and not all(main.ready for main in run.mains):
            await self._write(worker, client)
            await self._pause(worker, client, available, script.ready_seconds)
        for main in run.mains:
            main.ready = True
        await self._write(worker, client)
        left = None
        if script.run_seconds is not None:
            left = script.run_seconds - (self._clock.now() - started).total_seconds()
        await self._pause(worker, client, available, left)

    async def _restart(
        self, worker: _Worker, client: Client, available: Inventory, code: int
    ) -> None:
        run = worker.run
        assert run is not None
        now = self._clock.now()
        for main in run.mains:
            main.end(code, now)
        await self._write(worker, client)
        restarts = min(run.mains[0].restarts, 30)
        delay = min(_MAX_RESTART_DELAY, self._restart_seconds * 2**restarts)
        await self._pause(worker, client, available, delay)
        for main in run.mains:
            main.start(self._clock.now())

    async def _pause(
        self, worker: _Worker, client: Client, available: Inventory, seconds: float | None
    ) -> None:
        """Let time pass, for ever if None. Raises _Gone as soon as the pod is to stop."""
        end = None if seconds is None else self._clock.monotonic() + seconds
        while True:
            pod = self._current(worker, client)
            if len(pod["spec"].get("ephemeralContainers") or ()) > worker.ephemeral:
                await self._write(worker, client, self._notes(worker, client, pod, available))
                continue
            left = None if end is None else end - self._clock.monotonic()
            if left is not None and left <= 0:
                return
            await worker.changed.wait(left)

    # Ending.

    async def _terminate(self, worker: _Worker, client: Client) -> None:
        pod = self._pod(worker, client)
        if pod is None:
            return
        if not is_pod_terminal(pod):
            script, run = Script.of(pod), worker.run or PodRun.of(pod, self._clock.now())
            worker.run = run
            grace = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
            await self._clock.sleep(min(script.term_seconds, grace))
            in_time = script.term_seconds <= grace
            run.end_all(script.term_exit_code if in_time else KILLED, self._clock.now())
            await self._write(worker, client)
        if is_deleting(pod):
            await self._persist(
                lambda: client.delete("pods", worker.key, uid=worker.uid, grace_seconds=0)
            )

    # Writing.

    def _notes(
        self, worker: _Worker, client: Client, pod: Obj, available: Inventory
    ) -> Mapping[str, str]:
        """Say what every container holds and sees, those added for debugging included."""

        def read(kind: str, name: str) -> Mapping[str, str]:
            resource = "configmaps" if kind == "configMapRef" else "secrets"
            found = client.get(resource, Key(worker.key.namespace, name)) or {}
            data: Mapping[str, str] = found.get("stringData") or found.get("data") or {}
            return data

        spec = pod["spec"]
        added = spec.get("ephemeralContainers") or ()
        worker.ephemeral = len(added)
        held: dict[str, list[str]] = {}
        seen: dict[str, tuple[str, ...]] = {}
        for container in (*(spec.get("initContainers") or ()), *spec["containers"], *added):
            units: tuple[Device, ...] = worker.held.get(container["name"], ())
            if units:
                held[container["name"]] = [unit.id for unit in units]
            seen[container["name"]] = visible(pod, container, units, available, self._runtime, read)
        return {DEVICES: json.dumps(held), VISIBLE: json.dumps(seen)}

    async def _write(
        self, worker: _Worker, client: Client, notes: Mapping[str, str] | None = None
    ) -> None:
        run = worker.run
        assert run is not None
        if run.phase in ("Succeeded", "Failed"):
            # The scheduler may use the devices as soon as it sees this status.
            worker.held = {}
        host = f"10.0.0.{sum(worker.node.encode()) % 254 + 1}"
        address = f"10.1.{worker.number // 250 % 250}.{worker.number % 250 + 1}"
        status = run.status(self._clock.now(), address, host)
        pod = self._pod(worker, client)
        if pod is not None:
            for item in status["conditions"]:
                old = condition(pod, item["type"]) or {}
                if old.get("status") == item["status"]:
                    item["lastTransitionTime"] = old.get("lastTransitionTime")
            for item in pod["spec"].get("ephemeralContainers") or ():
                status.setdefault("ephemeralContainerStatuses", []).append(
                    {
                        "name": item["name"],
                        "image": item.get("image", ""),
                        "imageID": "",
                        "ready": False,
                        "restartCount": 0,
                        "state": {"running": {"startedAt": rfc3339(self._clock.now())}},
                    }
                )
        patch: Obj = {"status": status}
        if notes is not None:
            patch["metadata"] = {"annotations": dict(notes)}
        await self._patch(worker, client, patch)

    async def _patch(self, worker: _Worker, client: Client, patch: Obj) -> None:
        async def write() -> None:
            if self._pod(worker, client) is None:
                raise _Gone
            await client.patch("pods", worker.key, patch, "status")

        await self._persist(write)

    async def _persist(self, write: Callable[[], Coroutine[None, None, None]]) -> None:
        """Repeat a write until the API server takes it or the pod is gone."""
        while True:
            try:
                await write()
            except ApiError as error:
                if error.code == 404:
                    raise _Gone from error
                _LOG.warning("a kubelet's write was refused, will try again: %s", error)
                await self._clock.sleep(_RETRY_SECONDS)
            else:
                return


def _was_running(pod: Obj) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running")


def _is_over(pod: Obj) -> bool:
    """Say whether the kubelet has nothing left to do for the pod."""
    confirmed = is_deleting(pod) and pod["metadata"].get("deletionGracePeriodSeconds") == 0
    return is_pod_terminal(pod) and (confirmed or not is_deleting(pod))


def _resume(pod: Obj, run: PodRun) -> bool:
    """Take up a pod that ran before this kubelet started; says whether there was one."""
    if not _was_running(pod):
        return False
    status = pod["status"]
    run.begun = parse_time(status.get("startTime")) or run.begun
    known = {item["name"]: item for item in status.get("containerStatuses") or ()}
    for main in run.mains:
        state = known.get(main.name, {}).get("state", {})
        since = parse_time((state.get("running") or {}).get("startedAt"))
        main.waiting, main.started = "", since or run.begun
        main.restarts = known.get(main.name, {}).get("restartCount", 0)
    for init in run.inits:
        init.start(run.begun)
        if init.sidecar:
            init.ready = True
        else:
            init.end(0, run.begun)
    return True
