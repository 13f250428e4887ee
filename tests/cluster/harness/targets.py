"""Which cluster the suite runs on: one that is named, else a sandbox of its own."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from .client import Api
from .target import Target

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
    raise NotImplementedError
