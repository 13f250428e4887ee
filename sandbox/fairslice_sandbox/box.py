"""A cluster in a box, assembled: API server, control plane, kubeconfigs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from .api import Api
from .clock import Clock, RealClock
from .model.cluster import Cluster, ClusterSettings
from .server import ApiServer
from .store import Store
from .users import ADMIN, UserInfo

__all__ = ["Box", "cluster_in_a_box"]


@dataclass(frozen=True, slots=True)
class Box:
    """A running cluster. Kubeconfigs lie in `directory`, one a user."""

    api: Api
    server: ApiServer
    cluster: Cluster
    directory: Path

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.directory / "admin.kubeconfig"

    def kubeconfig_of(self, user: str) -> Path:
        """Where a user's kubeconfig lies."""
        return self.directory / f"{user}.kubeconfig"


@asynccontextmanager
async def cluster_in_a_box(
    directory: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    people: Sequence[tuple[UserInfo, str]] = (),
    settings: ClusterSettings | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Box]:
    """Run a cluster while the context lasts. `people` are users with their namespaces.

    Raises OSError where the port is taken or the directory can't be written.
    """
    await asyncio.to_thread(directory.mkdir, mode=0o700, parents=True, exist_ok=True)
    clock = clock or RealClock()
    store = Store()
    api = Api(store, clock)
    server = ApiServer(store, api)
    cluster = Cluster(api, clock, settings)
    await server.start(host, port)
    try:
        box = Box(api, server, cluster, directory)
        server.write_kubeconfig(box.kubeconfig, ADMIN)
        for user, namespace in people:
            server.write_kubeconfig(box.kubeconfig_of(user.username), user, namespace)
        async with cluster.running():
            yield box
    finally:
        await server.stop()
