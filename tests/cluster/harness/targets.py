"""Which cluster the suite runs on: one that is named, else a sandbox of its own."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from .client import Api
from .processes import Program
from .target import Target
from .waiting import eventually

__all__ = ["VARIABLE", "find_target"]

VARIABLE = "FAIRSLICE_CLUSTER_KUBECONFIG"


@asynccontextmanager
async def find_target(directory: Path) -> AsyncIterator[Target]:
    """Open the cluster under test; a sandbox keeps its files in the directory."""
    kubeconfig = os.environ.get(VARIABLE)
    if kubeconfig:
        async with Target("real", kubeconfig, await Api.connect(kubeconfig)) as target:
            yield target
        return
    written = directory / "kubeconfig"
    script = str(Path(__file__).with_name("sandbox_server.py"))
    sandbox = Program(
        "sandbox", (sys.executable, "-P", script, str(written)), directory / "log", {}
    )
    await sandbox.start()
    try:
        await eventually("the sandbox is up", partial(_is_up, sandbox, written))
        async with Target("sandbox", str(written), await Api.connect(str(written))) as target:
            target.programs.append(sandbox)
            yield target
    finally:
        await sandbox.stop()


async def _is_up(sandbox: Program, written: Path) -> bool:
    if not sandbox.is_running:
        raise AssertionError(sandbox.tail())
    return await asyncio.to_thread(written.exists)
