"""The view follows the cluster, and stays the same where nothing of note changes."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairslice.install import install
from fairslice.kube.client import KubeClient
from fairslice_webhook.view import View
from fairslice_webhook.watching import ViewKeeper

box = pytest.importorskip("fairslice_sandbox.box")

NODES = "/api/v1/nodes"


def node(gpus: int) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "Tesla-T4"}},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


async def until(look: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not look():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_heartbeat_leaves_the_view_and_a_change_replaces_it(tmp_path: Path) -> None:
    async with (
        box.cluster_in_a_box(tmp_path / "box") as cluster,
        await KubeClient.connect(str(cluster.kubeconfig)) as client,
    ):
        await install(client)
        keeper = ViewKeeper(client, frozenset())
        following = asyncio.create_task(keeper.run())

        def seen() -> View:
            assert keeper.view is not None
            return keeper.view

        await until(lambda: keeper.view is not None)
        await client.create(NODES, node(2))
        await until(lambda: seen().inventory.offers)
        before = seen()
        beat = {"metadata": {"annotations": {"beat": "1"}}}
        await client.patch(f"{NODES}/n1", beat)
        await until(lambda: _beats(keeper))
        assert seen() is before
        await client.patch(
            f"{NODES}/n1", {"metadata": {"labels": {"nvidia.com/gpu.product": "Tesla-T4-X"}}}
        )
        await until(lambda: seen() is not before)
        following.cancel()
        await asyncio.wait({following})


def _beats(keeper: ViewKeeper) -> bool:
    return any("beat" in (item.metadata.annotations or {}) for item in keeper._nodes.store.values())
