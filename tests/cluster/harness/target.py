"""The cluster under test: its API, the suite's nodes on it, and the names of this run."""

import asyncio
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from .client import Api, User
from .history import History
from .kinds import Obj
from .kubelet import Kubelet
from .manifests import manifest, namespace
from .nodes import RUN_LABEL, Nodes
from .processes import Program
from .stream import Stream
from .waiting import eventually

__all__ = ["Target"]

_STARTED_SECONDS = 30.0


@dataclass
class Target:
    """A cluster with the suite at work on it. `name` is `sandbox` or `real`."""

    name: str
    kubeconfig: str
    api: Api
    run_id: str = field(default_factory=lambda: secrets.token_hex(2))

    def __post_init__(self) -> None:
        self.nodes = Nodes(self.api, self.run_id)
        self.kubelet = Kubelet(self.api, self.nodes)
        self.history = History()
        self.pods = Stream(self.api, "Pod")
        self.jobs = Stream(self.api, "Job")
        self.made: list[tuple[str, str]] = []
        self.programs: list[Program] = []
        self._work: asyncio.Task[None] | None = None
        self._namespaces = 0

    @property
    def exempt_namespace(self) -> str:
        """The namespace whose pods the run's policy leaves alone."""
        return f"suite-{self.run_id}-exempt"

    async def __aenter__(self) -> Self:
        for stream in (self.pods, self.jobs):
            stream.listen(self.history.hear)
        self.pods.listen(self.kubelet.hear)
        self._work = asyncio.create_task(self._play())
        async with asyncio.timeout(_STARTED_SECONDS):
            for stream in (self.pods, self.jobs):
                await stream.ready.wait()
        await self.make_namespace(self.exempt_namespace)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.clean_up()
        finally:
            if self._work is not None:
                self._work.cancel()
                with suppress(asyncio.CancelledError):
                    await self._work
            await self.api.close()

    async def _play(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.kubelet.run())
            group.create_task(self.nodes.keep_ready())
            group.create_task(self.pods.run())
            group.create_task(self.jobs.run())

    def check_alive(self) -> None:
        """Fail if the suite's own kubelet or watches, or the sandbox, have crashed."""
        for program in self.programs:
            assert program.is_running, program.tail()
        if self._work is not None and self._work.done():
            self._work.result()

    def logs(self) -> str:
        """The ends of the target's own logs."""
        return "\n".join(program.tail() for program in self.programs)

    def user(self, name: str) -> User:
        """Somebody of this run, who has rights only where a namespace was made for them."""
        return User(f"{name}-{self.run_id}@example.com", (f"suite-{self.run_id}",))

    async def make_namespace(self, name: str = "", stem: str = "ns", **labels: str) -> str:
        """Make a namespace in which the run's users may do what an editor may."""
        self._namespaces += 1
        name = name or f"suite-{self.run_id}-{stem}-{self._namespaces}"
        await self.own(namespace(name, {RUN_LABEL: self.run_id, **labels}))
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
        group = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Group",
            "name": f"suite-{self.run_id}",
        }
        binding = manifest("RoleBinding", "editors", name, roleRef=role, subjects=[group])
        await self.api.create(binding)
        # Pods are refused until the namespace's ServiceAccount is there.
        await eventually(
            f"namespace {name} has its ServiceAccount",
            lambda: self.api.find("ServiceAccount", "default", name),
        )
        return name

    async def own(self, obj: Obj) -> Obj:
        """Create a cluster-scoped object that the run takes away again at its end."""
        made = (await self.api.create(obj)).obj
        self.made.append((obj["kind"], obj["metadata"]["name"]))
        return made

    async def disown(self, kind: str, name: str) -> None:
        """Delete an object of the run."""
        await self.api.delete(kind, name)
        if (kind, name) in self.made:
            self.made.remove((kind, name))

    async def clean_up(self) -> None:
        """Delete all that the run made, and fail if anything of it is left after a while."""
        made, self.made = self.made, []
        for kind, name in reversed(made):
            await self.api.delete(kind, name)
        for kind, name in made:
            await eventually(
                f"{kind} {name} is gone",
                partial(self.api.find, kind, name),
                lambda found: found is None,
                within=60,
            )
        await self.nodes.remove(list(self.nodes.objects))
        await eventually("nothing of the run is left", self._left, lambda left: not left, within=60)

    async def _left(self) -> list[str]:
        left = [
            f"{kind} {obj['metadata']['name']}"
            for kind in ("Namespace", "Node")
            for obj in await self.api.list(kind, labels=f"{RUN_LABEL}={self.run_id}")
        ]
        prefix = f"suite-{self.run_id}-"
        for kind in ("Pod", "Job", "Lease"):
            for obj in await self.api.list(kind):
                meta = obj["metadata"]
                if meta["namespace"].startswith(prefix) or meta["name"].startswith(prefix):
                    left.append(f"{kind} {meta['namespace']}/{meta['name']}")
        return left
