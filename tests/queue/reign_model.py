"""What a cluster under the queue must look like at rest: counted plainly from its objects.

Nothing here knows of bookings, rounds or patches; only of who asked for how much, and of what
runs where.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from fairslice_sandbox.store import Obj

__all__ = ["Held", "Plain", "Quota", "Work"]

_OVER = ("Succeeded", "Failed")


@dataclass
class Work:
    """What somebody submitted. `pods` at once, of `gpus` each, until `completions` are done.

    `ended` by success, by its own failure or by being deleted: it is not to come back.
    """

    name: str
    team: str
    kind: str
    gpus: int
    pods: int = 1
    work_class: str = "training"
    restart: bool = False
    held: bool = False
    ended: str = ""

    @property
    def asks(self) -> int:
        return self.gpus * self.pods


@dataclass
class Quota:
    """A team's quota in whole GPUs; `grace` is what it held when its limit was cut."""

    guaranteed: int = 0
    limit: int | None = None
    grace: int = 0


@dataclass(frozen=True)
class Held:
    """A pod that holds GPUs of a node. `work` is empty for what belongs to no team."""

    work: str
    node: str
    gpus: int
    team: str


@dataclass
class Plain:
    """The cluster as its objects show it, and what was submitted to it."""

    works: dict[str, Work]
    quotas: dict[str, Quota]
    nodes: dict[str, int] = field(default_factory=dict)
    """GPUs by node, of those that take new pods."""
    held: list[Held] = field(default_factory=list)
    queued: list[Work] = field(default_factory=list)
    present: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        works: dict[str, Work],
        quotas: dict[str, Quota],
        *,
        nodes: Iterable[Obj],
        jobs: Iterable[Obj],
        pods: Iterable[Obj],
        stored: Iterable[Obj],
    ) -> "Plain":
        """Count."""
        plain = cls(works, quotas)
        for node in nodes:
            if not node["spec"].get("unschedulable"):
                gpus = int(node["status"]["allocatable"].get("nvidia.com/gpu", 0))
                plain.nodes[node["metadata"]["name"]] = gpus
        for pod in pods:
            plain._pod(pod)
        for job in jobs:
            name = job["metadata"]["name"]
            plain.present.add(name)
            work = works.get(name)
            if work is not None and job["spec"].get("suspend"):
                done = (job.get("status") or {}).get("succeeded", 0)
                left = min(job["spec"]["parallelism"], job["spec"]["completions"] - done)
                plain.queued.append(replace(work, pods=left))
        for template in stored:
            plain.present.add(template["metadata"]["name"].removeprefix("fairslice-pod-"))
        return plain

    def _pod(self, pod: Obj) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        owners = meta.get("ownerReferences") or ()
        name = owners[0]["name"] if owners else meta["name"]
        work = self.works.get(name)
        if work is not None and work.kind == "Pod":
            self.present.add(name)
            if spec.get("schedulingGates"):
                self.queued.append(work)
        if spec.get("nodeName") and pod["status"].get("phase") not in _OVER:
            limits = spec["containers"][0]["resources"]["limits"]
            team = work.team if work is not None else ""
            gpus = int(limits["nvidia.com/gpu"])
            self.held.append(Held(name if work else "", spec["nodeName"], gpus, team))

    # What must hold.

    def faults(self) -> Iterator[str]:
        """Name what should not be, at rest."""
        yield from self._given_out()
        yield from self._over_limit()
        yield from self._lost()
        yield from self._twice()
        yield from self._idle()
        yield from self._owed()

    def held_by(self, team: str) -> int:
        return sum(item.gpus for item in self.held if item.team == team)

    def _on(self, node: str) -> int:
        return sum(item.gpus for item in self.held if item.node == node)

    def _free(self, node: str) -> int:
        return self.nodes[node] - self._on(node)

    def _given_out(self) -> Iterator[str]:
        for node, gpus in self.nodes.items():
            if self._on(node) > gpus:
                yield f"{node} has {gpus} GPUs and {self._on(node)} are given out"

    def _over_limit(self) -> Iterator[str]:
        for team, quota in self.quotas.items():
            held = self.held_by(team)
            if quota.limit is not None and held > max(quota.limit, quota.grace):
                yield f"{team} holds {held} of {quota.limit}"

    def _lost(self) -> Iterator[str]:
        for work in self.works.values():
            # A bare pod that nobody asked to bring back may be pushed out for good.
            comes_back = work.kind == "Job" or work.restart
            if not work.ended and comes_back and work.name not in self.present:
                yield f"{work.name} is lost"
            if work.ended and any(item.work == work.name for item in self.held):
                yield f"{work.name} runs although it has {work.ended}"

    def _twice(self) -> Iterator[str]:
        runs = Counter(item.work for item in self.held if item.work)
        for name, count in runs.items():
            if count > self.works[name].pods:
                yield f"{name} runs {count} times at once"

    def _idle(self) -> Iterator[str]:
        for work in self.queued:
            quota = self.quotas[work.team]
            if work.held or work.ended:
                continue
            if quota.limit is not None and self.held_by(work.team) + work.asks > quota.limit:
                continue
            fit = sum(max(0, self._free(node)) // work.gpus for node in self.nodes)
            if fit >= work.pods:
                yield f"{work.name} waits although it fits"

    def _owed(self) -> Iterator[str]:
        for work in self.queued:
            quota = self.quotas[work.team]
            within = self.held_by(work.team) + work.asks <= quota.guaranteed
            if work.held or work.ended or not within or work.pods > 1:
                continue
            if work.work_class == "experiment":  # pushes nobody out
                continue
            for item in self.held:
                helps = item.node in self.nodes and self._free(item.node) + item.gpus >= work.gpus
                if helps and self._is_borrowed(item, work):
                    yield f"{work.name} waits within its guarantee; {item.work} borrows"

    def _is_borrowed(self, item: Held, work: Work) -> bool:
        other = self.works.get(item.work)
        if other is None or other.team == work.team or other.work_class == "production":
            return False
        beyond = self.held_by(other.team) - self.quotas[other.team].guaranteed
        return beyond >= other.asks
