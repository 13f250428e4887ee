"""The leader dies at every call that changes something, before it is done and after.

Whatever died when: everything submitted runs to its end, nothing runs twice that was not pushed
out, no team goes over its limit, and the books are empty and add up at the end.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from fairslice import stamps
from fairslice.kube.client import KubeClient
from fairslice_queue.ledger import Ledger

from .mortal import Fate, Killed, Mortal
from .world import World, job, node, pod, policy, team, world

_LIMIT = 2
# Of all points, each run of the suite tries every so-many-th; all of them with EVERY_CRASH=1.
_STRIDE = 1 if os.environ.get("EVERY_CRASH") else 8


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """Three GPUs; cv has one guaranteed, nlp borrows and may hold two."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        await made.create(team("cv", guaranteed=1))
        await made.create(team("nlp", limit=_LIMIT))
        await made.cluster.add_node(node(gpus=2))
        yield made


async def _start(box: World, fate: Fate) -> None:
    mortal = cast(KubeClient, Mortal(box.client, fate))
    await box.start(client=mortal, ledger=cast(Ledger, Mortal(box.ledger, fate)))


async def _succeed_the_dead(box: World) -> None:
    """Let a new leader follow one that was killed."""
    task = box.leader.task if box.leader is not None else None
    if task is None or not task.done():
        return
    error = task.exception()
    assert error is not None
    assert _only_killed(error), error
    await _start(box, Fate())


def _only_killed(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_only_killed(item) for item in error.exceptions)
    return isinstance(error, Killed)


async def _until(box: World, holds: Callable[[], Any], seconds: float = 25.0) -> None:
    for _ in range(int(seconds / 0.01)):
        await _succeed_the_dead(box)
        held = box.books.tally.pools["nlp", "default"]
        assert held <= _LIMIT * 1000, box.describe()
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(box.describe())


async def _line_with_a_push(box: World, name: str) -> set[str]:
    """A borrower is pushed out by a guarantee, others wait in line; all come to their end."""
    await box.create(job(f"wide-{name}", gpus=2, seconds=0.25), "nlp")
    await _until(box, lambda: f"wide-{name}" in box.running())
    await box.create(job(f"owner-{name}", seconds=0.1), "cv")
    await box.create(job(f"next-{name}", seconds=0.05), "cv")
    await box.create(job(f"array-{name}", seconds=0.05, completions=2), "nlp")
    names = {f"{kind}-{name}" for kind in ("wide", "owner", "next", "array")}
    await _until(box, lambda: names <= box.finished())
    return names


async def _pod_that_returns(box: World, name: str) -> set[str]:
    """A bare pod that asks for it is pushed out, and made again when there is room."""
    await box.create(pod(f"nb-{name}", gpus=2, restart=True), "nlp")
    await _until(box, lambda: f"nb-{name}" in box.running())
    await box.create(job(f"owner-{name}", seconds=0.05), "cv")
    await _until(box, lambda: f"owner-{name}" in box.finished())

    def is_back() -> bool:
        restarts = box.note("Pod", f"nb-{name}", "nlp", stamps.RESTARTS)
        return restarts in ("1", "2") and f"nb-{name}" in box.running()

    def is_looked_after() -> bool:
        # A leader that dies between making it and forgetting that it must can't tell later
        # whether its owner deleted it meanwhile.
        found = box.objects("PodTemplate", "nlp")
        return len(found) == 1 and stamps.DISRUPTED not in found[0]["metadata"]["annotations"]

    await _until(box, is_back)
    await _until(box, is_looked_after)
    await box.delete("Pod", f"nb-{name}", "nlp", grace=0)
    await _until(box, lambda: not box.objects("PodTemplate", "nlp"))
    assert box.get("Pod", f"nb-{name}", "nlp") is None
    return {f"owner-{name}"}


_SCENARIOS = {"line": _line_with_a_push, "pod": _pod_that_returns}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("scenario", _SCENARIOS)
async def test_a_leader_may_die_at_any_call(box: World, scenario: str, after: bool) -> None:
    await _start(box, Fate())
    point, died_at = 1 + (len(scenario) + 3 * after) % _STRIDE, Counter[str]()
    while True:
        assert box.leader is not None
        await box.leader.stop()
        fate = Fate(last=point, after=after)
        await _start(box, fate)
        try:
            names = await _SCENARIOS[scenario](box, f"{point}")
            await _until(box, lambda: len(box.books) == 0)
        except AssertionError as error:
            raise AssertionError(f"died {after=} call {point} ({fate.met_at}): {error}") from error
        started = Counter(box.doorman.started)
        once = [name for name in names if name.startswith(("owner", "next"))]
        assert all(started[name] == 1 for name in once), (point, fate.met_at, started)
        assert started[f"wide-{point}"] <= 3
        assert await box.audit() == []
        for item in box.objects("Job") + box.objects("Pod"):
            with suppress(Exception):
                await box.delete(item["kind"], item["metadata"]["name"],
                                 item["metadata"]["namespace"], grace=0)  # fmt: skip
        await _until(box, lambda: not box.objects("Job") and not box.objects("Pod"))
        if not fate.met_at:
            break
        died_at[fate.met_at] += 1
        point += _STRIDE
    assert sum(died_at.values()) > 20 / _STRIDE, died_at
