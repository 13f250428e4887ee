"""Webhook replicas are replaced under load, and no request is lost by it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from .harness.client import Refused
from .harness.manifests import pod
from .harness.reviews import entries
from .harness.scene import Scene, Team
from .harness.serving import Fairslice, Replica
from .harness.shapes import a100
from .harness.splitter import Splitter
from .harness.waiting import eventually

_EXPERIMENT = {"fairslice.io/class": "experiment"}
_CUSTOMERS = 4
# So long a Service goes on sending connections to a replica that is about to end.
_NOTICED_SECONDS = 0.2
_SETTLED_SECONDS = 1.0


@pytest_asyncio.fixture(loop_scope="session")
async def replicas(
    scene: Scene, fairslice: Fairslice, tmp_path: Path
) -> AsyncIterator[tuple[Splitter, list[Replica]]]:
    """Two replicas behind one address, in the place of the suite's own webhook."""
    async with Splitter() as splitter:
        base = f"https://127.0.0.1:{splitter.port}"
        made = [fairslice.replica(name, tmp_path, base) for name in ("first", "second")]
        await fairslice.webhook.stop()
        try:
            await _bring_up(fairslice, splitter, made[0])
            await eventually(
                "the new address is registered",
                lambda: entries(scene.api),
                lambda found: {entry.url.rsplit("/", 2)[0] for entry in found} == {base},
            )
            yield splitter, made
        finally:
            for replica in made:
                await replica.program.stop()
            await fairslice.webhook.start()
            await fairslice.ready()
            own = f"https://127.0.0.1:{fairslice.port}"
            await eventually(
                "the suite's own webhook is registered",
                lambda: entries(scene.api),
                lambda found: {entry.url.rsplit("/", 2)[0] for entry in found} == {own},
            )


async def _bring_up(fairslice: Fairslice, splitter: Splitter, replica: Replica) -> None:
    await replica.program.start()
    if not splitter.backends:
        # The first is not ready before it has registered what it can be reached by.
        splitter.backends.append(replica.port)
    await fairslice.ready_one(replica.program, replica.health)
    if replica.port not in splitter.backends:
        splitter.backends.append(replica.port)


async def _take_down(splitter: Splitter, replica: Replica) -> None:
    stopping = asyncio.create_task(replica.program.stop())
    await asyncio.sleep(_NOTICED_SECONDS)
    splitter.backends.remove(replica.port)
    await stopping


async def test_replicas_come_and_go_under_load_and_no_request_is_lost(
    scene: Scene, fairslice: Fairslice, replicas: tuple[Splitter, list[Replica]]
) -> None:
    splitter, (first, second) = replicas
    await scene.node(a100(mig_1g_10gb=3))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    outcomes: Counter[str] = Counter()
    over = asyncio.Event()
    async with asyncio.TaskGroup() as customers:
        for number in range(_CUSTOMERS):
            customers.create_task(_submit(team, number % 2, over, outcomes))
        for coming, going in ((second, first), (first, second)):
            await _bring_up(fairslice, splitter, coming)
            await asyncio.sleep(_SETTLED_SECONDS)
            await _take_down(splitter, going)
            await asyncio.sleep(_SETTLED_SECONDS)
        over.set()
    assert outcomes.pop("admitted") > 50
    assert not outcomes


async def _submit(team: Team, gpus: int, over: asyncio.Event, outcomes: Counter[str]) -> None:
    """Ask for admission again and again, and count what comes of it."""
    number = 0
    while not over.is_set():
        number += 1
        asked = pod(f"p-{number}", team.namespace, gpus, labels=_EXPERIMENT)
        try:
            made = (await team.create(asked, dry_run=True)).obj
        except Refused as refusal:
            outcomes[refusal.message] += 1
            continue
        (container,) = made["spec"]["containers"]
        done = "mig-1g.10gb" in str(container["resources"]) if gpus else container.get("env")
        outcomes["admitted" if done else "passed as it was"] += 1
