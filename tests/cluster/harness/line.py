"""Ten small Jobs of two equal teams on capacity for three, and what became of them."""

from dataclasses import dataclass

from .history import is_complete, is_suspended, phase
from .kinds import Obj
from .kubelet import Run
from .manifests import job
from .scene import Scene, Team
from .shapes import a100
from .waiting import eventually

__all__ = ["CAPACITY", "SLICES", "Line"]

CAPACITY = 3
SLICES = 10


@dataclass
class Line:
    """Two teams of five Jobs each, `seconds` long; all of the first team's come first."""

    scene: Scene
    first: Team
    second: Team
    seconds: float
    work_class: str

    @classmethod
    async def of(cls, scene: Scene, seconds: float, *, whole: bool = False) -> "Line":
        """Set the scene: a node with three small slices, or GPUs, and two teams to borrow them."""
        await scene.node(a100(CAPACITY) if whole else a100(mig_1g_10gb=CAPACITY))
        first = await scene.team("first", {"a100": ("0", f"{CAPACITY}")})
        second = await scene.team("second", {"a100": ("0", f"{CAPACITY}")})
        work_class = "training" if whole else "sweep"
        return cls(scene, first, second, seconds, work_class)

    @property
    def teams(self) -> tuple[Team, Team]:
        """Both teams."""
        return self.first, self.second

    async def submit_all(self) -> None:
        """Submit the Jobs one after the other, as a loop in a shell would."""
        for team in self.teams:
            for number in range(SLICES // 2):
                await self.submit(team, number)

    async def submit(self, team: Team, number: int) -> None:
        """Submit one Job."""
        labels = {"fairslice.io/class": self.work_class}
        obj = job(f"job-{number}", team.namespace, labels=labels, seconds=self.seconds)
        await team.create(obj)

    async def jobs(self) -> list[Obj]:
        """All Jobs as they are now."""
        self.scene.target.check_alive()
        per_team = [await self.scene.api.list("Job", team.namespace) for team in self.teams]
        return [found for jobs in per_team for found in jobs]

    async def started(self) -> list[Run]:
        """All starts so far."""
        return [run for team in self.teams for run in self.scene.runs(team.namespace)]

    async def all_complete(self, jobs: int = SLICES, within: float = 60) -> None:
        """Wait until all Jobs have completed."""

        async def look() -> list[Obj]:
            pods = [await self.scene.pods(team.namespace) for team in self.teams]
            return [*await self.jobs(), *(pod for found in pods for pod in found)]

        def done(found: list[Obj]) -> bool:
            mine = [obj for obj in found if obj["kind"] == "Job"]
            return len(mine) == jobs and all(map(is_complete, mine))

        await eventually(f"all {jobs} Jobs complete", look, done, within)

    async def completed(self, jobs: int) -> None:
        """Wait until so many have completed."""
        await eventually(
            f"{jobs} Jobs are complete",
            self.jobs,
            lambda found: len(list(filter(is_complete, found))) >= jobs,
        )

    def check_nothing_ran_twice(self) -> None:
        """Fail if a Job had more than one pod running, ever."""
        for team in self.teams:
            owners = [run.owner for run in self.scene.runs(team.namespace)]
            assert sorted(owners) == sorted(set(owners)), f"ran twice in {team.name}: {owners}"

    def most_at_once(self) -> int:
        """The largest number of pods that ran at the same time."""
        running: set[str] = set()
        most = 0
        for seen in self.scene.target.history.events:
            if seen.obj["kind"] != "Pod" or not self._is_ours(seen.obj):
                continue
            uid = seen.obj["metadata"]["uid"]
            if seen.type != "DELETED" and phase(seen.obj) == "Running":
                running.add(uid)
            else:
                running.discard(uid)
            most = max(most, len(running))
        return most

    def order_of_release(self) -> list[tuple[str, str]]:
        """Namespace and name of the Jobs, in the order in which they were let go."""
        return [key for _, key in sorted(self._releases())]

    def delays_of_release(self) -> list[float]:
        """Seconds from each pod's end to the release that it made possible.

        Measured between two watch events: the pod's terminal phase, the Job's `suspend: false`.
        """
        ends = sorted(self._ends())
        queued = sorted(at for at, key in self._releases() if key in self._suspended())
        # The n-th release of the queue needs the n-th end.
        return [max(0.0, at - end) for at, end in zip(queued, ends, strict=False)]

    def _is_ours(self, obj: Obj) -> bool:
        return obj["metadata"].get("namespace") in {team.namespace for team in self.teams}

    def _releases(self) -> list[tuple[float, tuple[str, str]]]:
        released: dict[tuple[str, str], float] = {}
        for seen in self.scene.target.history.events:
            if seen.obj["kind"] == "Job" and self._is_ours(seen.obj):
                meta = seen.obj["metadata"]
                if not is_suspended(seen.obj):
                    released.setdefault((meta["namespace"], meta["name"]), seen.at)
        return [(at, key) for key, at in released.items()]

    def _suspended(self) -> set[tuple[str, str]]:
        return {
            (seen.obj["metadata"]["namespace"], seen.obj["metadata"]["name"])
            for seen in self.scene.target.history.events
            if seen.obj["kind"] == "Job" and self._is_ours(seen.obj) and is_suspended(seen.obj)
        }

    def _ends(self) -> list[float]:
        ends: dict[str, float] = {}
        for seen in self.scene.target.history.events:
            if seen.obj["kind"] != "Pod" or not self._is_ours(seen.obj):
                continue
            if phase(seen.obj) in ("Succeeded", "Failed"):
                ends.setdefault(seen.obj["metadata"]["uid"], seen.at)
        return list(ends.values())
