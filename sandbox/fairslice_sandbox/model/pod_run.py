"""A pod's life on its node: what its annotations say it does, and the status that shows it."""

from dataclasses import dataclass, field
from datetime import datetime

from fairslice_sandbox.model.objects import Obj, annotations, rfc3339
from fairslice_sandbox.model.resources import is_sidecar

__all__ = ["ContainerRun", "PodRun", "Script"]

PREFIX = "sandbox.fairslice.io/"
KILLED = 137
TERMINATED = 143


@dataclass(frozen=True, slots=True)
class Script:
    """What the pod's annotations make it do; seconds, None: until it is deleted."""

    run_seconds: float | None
    exit_code: int
    init_seconds: float
    ready_seconds: float
    term_seconds: float
    term_exit_code: int

    @classmethod
    def of(cls, pod: Obj) -> "Script":
        """Read the annotations; a value that is no number counts as absent."""
        notes = annotations(pod)

        def number(name: str, default: float) -> float:
            try:
                return float(notes[PREFIX + name])
            except (KeyError, ValueError):
                return default

        run = number("run-seconds", -1.0)
        return cls(
            run_seconds=run if run >= 0 else None,
            exit_code=int(number("exit-code", 0)),
            init_seconds=number("init-seconds", 0.0),
            ready_seconds=number("ready-seconds", 0.0),
            term_seconds=number("term-seconds", 0.1),
            term_exit_code=int(number("term-exit-code", TERMINATED)),
        )


@dataclass(slots=True)
class ContainerRun:
    """One container: waiting with a reason, running since, or ended with a code."""

    name: str
    image: str
    sidecar: bool = False
    waiting: str = "PodInitializing"
    started: datetime | None = None
    finished: datetime | None = None
    exit_code: int | None = None
    ready: bool = False
    restarts: int = 0
    last: Obj = field(default_factory=dict)

    def start(self, now: datetime) -> None:
        """Let it run."""
        if self.exit_code is not None:
            self.last, self.restarts = self.state(), self.restarts + 1
        self.waiting, self.started, self.finished, self.exit_code = "", now, None, None

    def end(self, code: int, now: datetime) -> None:
        """Let it end; a container that never ran, or has ended, stays as it is."""
        if self.started is not None and self.finished is None:
            self.finished, self.exit_code, self.ready = now, code, False

    def state(self) -> Obj:
        """Give the container state."""
        if self.exit_code is not None and self.started and self.finished:
            ended = {
                "exitCode": self.exit_code,
                "reason": "Completed" if self.exit_code == 0 else "Error",
                "startedAt": rfc3339(self.started),
                "finishedAt": rfc3339(self.finished),
            }
            return {"terminated": ended}
        if self.started is not None:
            return {"running": {"startedAt": rfc3339(self.started)}}
        return {"waiting": {"reason": self.waiting}}

    def status(self) -> Obj:
        """Give the container status."""
        return {
            "name": self.name,
            "state": self.state(),
            "lastState": self.last,
            "ready": self.ready,
            "restartCount": self.restarts,
            "image": self.image,
            "imageID": "",
            "started": self.started is not None and self.finished is None,
        }


@dataclass(slots=True)
class PodRun:
    """The containers of one pod on its node."""

    inits: list[ContainerRun]
    mains: list[ContainerRun]
    begun: datetime
    phase: str = "Pending"
    initialized: bool = False

    @classmethod
    def of(cls, pod: Obj, now: datetime) -> "PodRun":
        """Start with everything waiting."""
        spec = pod["spec"]
        inits = [
            ContainerRun(item["name"], item.get("image", ""), sidecar=is_sidecar(item))
            for item in spec.get("initContainers") or ()
        ]
        mains = [ContainerRun(c["name"], c.get("image", "")) for c in spec["containers"]]
        if not inits:
            for main in mains:
                main.waiting = "ContainerCreating"
        return cls(inits, mains, now)

    @property
    def sidecars(self) -> list[ContainerRun]:
        """The init containers that keep running."""
        return [item for item in self.inits if item.sidecar]

    def end_all(self, code: int, now: datetime) -> None:
        """End whatever runs, and settle the phase."""
        for item in (*self.mains, *self.inits):
            item.end(code, now)
        # A container that never started did not do its work either.
        succeeded = all(main.exit_code == 0 for main in self.mains)
        self.phase = "Succeeded" if succeeded else "Failed"

    def status(self, now: datetime, pod_ip: str, host_ip: str) -> Obj:
        """Give the pod status, for a strategic merge: conditions merge by type."""
        ready = self.phase == "Running" and all(main.ready for main in self.mains)
        ended = self.phase in ("Succeeded", "Failed")
        reason = {"reason": "PodCompleted"} if self.phase == "Succeeded" else {}
        not_ready = reason if ended else {"reason": "ContainersNotReady"}
        verdicts: dict[str, tuple[bool, Obj]] = {
            "PodReadyToStartContainers": (not ended, {}),
            "Initialized": (self.initialized, {} if self.initialized else not_ready),
            "Ready": (ready, {} if ready else not_ready),
            "ContainersReady": (ready, {} if ready else not_ready),
            "PodScheduled": (True, {}),
        }
        result: Obj = {
            "phase": self.phase,
            "startTime": rfc3339(self.begun),
            "hostIP": host_ip,
            "podIP": pod_ip,
            "podIPs": [{"ip": pod_ip}],
            "conditions": [
                {
                    "type": kind,
                    "status": "True" if holds else "False",
                    "lastTransitionTime": rfc3339(now),
                    "reason": why.get("reason"),
                }
                for kind, (holds, why) in verdicts.items()
            ],
            "containerStatuses": [main.status() for main in self.mains],
        }
        if self.inits:
            result["initContainerStatuses"] = [item.status() for item in self.inits]
        return result
