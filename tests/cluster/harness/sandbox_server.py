"""An empty sandbox as a process of its own: API server and control plane, no nodes.

    python sandbox_server.py KUBECONFIG

The administrator's kubeconfig is written once the server answers.
"""

import asyncio
import signal
import sys
from pathlib import Path

from fairslice_sandbox.api import Api
from fairslice_sandbox.clock import RealClock
from fairslice_sandbox.model.cluster import Cluster
from fairslice_sandbox.server import ApiServer
from fairslice_sandbox.store import Store
from fairslice_sandbox.users import ADMIN


async def serve(kubeconfig: Path) -> None:
    """Serve until the process is told to end."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    store, clock = Store(), RealClock()
    api = Api(store, clock)
    server = ApiServer(store, api)
    await server.start()
    async with Cluster(api, clock).running():
        unfinished = kubeconfig.with_suffix(".new")
        server.write_kubeconfig(unfinished, ADMIN)
        unfinished.rename(kubeconfig)
        await ended.wait()
    await server.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
