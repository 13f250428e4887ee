"""A test's own corner of the cluster: its nodes, teams, namespaces and users."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .client import Answer, Api, Refused, Seen
from .history import phase
from .kinds import Obj
from .kubelet import Run, Sight
from .manifests import manifest, pod
from .policy import pool_name
from .shapes import Shape
from .target import Target
from .waiting import eventually

__all__ = ["Scene", "Team"]


@dataclass(frozen=True)
class Team:
    """A team with one namespace and one member, whose API this is."""

    name: str
    namespace: str
    api: Api

    async def create(self, obj: Obj, **how: Any) -> Answer:
        """Create an object as the member."""
        return await self.api.create(obj, **how)


@dataclass
class Scene:
    """What a test sets up; all of it is gone after the test."""

    target: Target
    nodes: list[str] = field(default_factory=list)
    namespaces: list[str] = field(default_factory=list)
    teams: list[str] = field(default_factory=list)
    audited: set[str] = field(default_factory=set)
    """Namespaces where nothing is enforced, hence containers may see too much."""

    @property
    def api(self) -> Api:
        """The API as the cluster's administrator."""
        return self.target.api

    async def node(self, shape: Shape) -> str:
        """Add a node."""
        name = await self.target.nodes.add(shape)
        self.nodes.append(name)
        return name

    async def namespace(self, stem: str = "ns", **labels: str) -> str:
        """Add a namespace of no team."""
        name = await self.target.make_namespace(stem=stem, **labels)
        self.namespaces.append(name)
        return name

    async def team(
        self,
        name: str,
        pools: Mapping[str, tuple[str, str]],
        *,
        classes: tuple[str, ...] = ("production", "training", "sweep", "experiment"),
        namespace_class: str = "",
        **spec: object,
    ) -> Team:
        """Add a team: by GPU model what it is guaranteed and its limit."""
        namespace = await self.namespace(name)
        quotas = [
            {"pool": pool_name(self.target.run_id, model), "guaranteed": guaranteed, "limit": limit}
            for model, (guaranteed, limit) in pools.items()
        ]
        body: Obj = {"namespaces": [namespace], "pools": quotas, "allowedClasses": list(classes)}
        if namespace_class:
            body["namespaceClasses"] = {namespace: namespace_class}
        await self.target.own(manifest("Team", namespace, spec={**body, **spec}))
        self.teams.append(namespace)
        member = self.target.api.acting_as(self.target.user(name))
        await self._known(namespace)
        return Team(namespace, namespace, member)

    async def _known(self, namespace: str) -> None:
        """Wait until the webhook knows the team: only then does it mind a class's name."""
        probe = pod("probe", namespace, labels={"fairslice.io/class": "no-such-class"})

        async def heeded() -> Any:
            try:
                answer = await self.api.create(probe, dry_run=True)
            except Refused as refusal:
                return refusal.message
            return answer.warnings

        await eventually("the webhook knows the team", heeded, within=10)

    async def limit(self, team: Team, model: str, guaranteed: str, limit: str) -> None:
        """Change a team's quota."""
        pool = pool_name(self.target.run_id, model)
        pools = [{"pool": pool, "guaranteed": guaranteed, "limit": limit}]
        await self.api.patch("Team", team.name, {"spec": {"pools": pools}})

    async def settled(self, kind: str, name: str, namespace: str, wish: str, holds: Any) -> Obj:
        """Wait for an object to be as wished; within half a minute."""

        async def look() -> Obj:
            return await self.api.find(kind, name, namespace) or {}

        return await eventually(
            f"{kind} {namespace}/{name} {wish}", look, lambda obj: bool(obj) and holds(obj)
        )

    async def running(self, name: str, namespace: str) -> Obj:
        """Wait until a pod runs."""
        return await self.settled(
            "Pod", name, namespace, "runs", lambda pod: phase(pod) == "Running"
        )

    async def pods(self, namespace: str, labels: str = "") -> list[Obj]:
        """List a namespace's pods."""
        return await self.api.list("Pod", namespace, labels)

    async def gone(self, kind: str, name: str, namespace: str = "", within: float = 30) -> None:
        """Wait until an object is no more."""
        await eventually(
            f"{kind} {namespace}/{name} is gone",
            lambda: self.api.find(kind, name, namespace),
            lambda found: found is None,
            within=within,
        )

    def runs(self, namespace: str, name: str = "") -> list[Run]:
        """What was started in a namespace: everything, or a pod or owner of that name."""
        return [
            run
            for run in self.target.kubelet.runs
            if run.namespace == namespace and name in ("", run.owner, run.pod)
        ]

    async def started(self, namespace: str, name: str = "") -> list[Run]:
        """The same, to wait for."""
        self.target.check_alive()
        return self.runs(namespace, name)

    def sights(self, namespace: str) -> list[Sight]:
        """What the containers of a namespace held and saw."""
        return [sight for sight in self.target.kubelet.sights if sight.namespace == namespace]

    def seen(self, namespace: str, kind: str, name: str = "") -> list[Seen]:
        """Watch events of a namespace."""
        return list(self.target.history.of(namespace, kind, name))

    def overexposed(self) -> list[str]:
        """Name the containers of this scene that saw a GPU they did not hold."""
        return [
            f"{sight.namespace}/{sight.pod} {sight.container}: "
            f"holds {sorted(sight.held)}, sees {sorted(sight.seen)}"
            for sight in self.target.kubelet.sights
            if sight.namespace in self.namespaces
            and sight.namespace not in self.audited
            and not sight.seen <= sight.held
        ]

    async def tear_down(self) -> None:
        """Take away what the test set up; its nodes last, for their pods need a kubelet."""
        await self.api.delete_all("Pod", self.target.exempt_namespace)
        for namespace in self.namespaces:
            # A namespace's own deletion begins only after five seconds.
            for kind in ("Deployment", "StatefulSet", "Job", "Pod"):
                await self.api.delete_all(kind, namespace)
            await self.target.disown("Namespace", namespace)
        for namespace in (*self.namespaces, self.target.exempt_namespace):
            await eventually(
                f"namespace {namespace} has no pods",
                partial(self.api.list, "Pod", namespace),
                lambda pods: not pods,
                within=60,
            )
        for team in self.teams:
            await self.target.disown("Team", team)
        await self.target.nodes.remove(self.nodes)
