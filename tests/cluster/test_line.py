"""Scenario 5: ten Jobs on capacity for three wait their turn, in fair order, and all complete."""

from .harness.history import is_suspended
from .harness.kinds import Obj
from .harness.line import CAPACITY, SLICES, Line
from .harness.scene import Scene
from .harness.waiting import eventually

_RELEASE_SECONDS = 1.0


async def test_three_run_and_seven_are_told_where_they_stand(scene: Scene) -> None:
    line = await Line.of(scene, seconds=600)
    await line.submit_all()

    jobs = await eventually(
        "seven Jobs are suspended and say why",
        line.jobs,
        lambda jobs: len([job for job in jobs if _status(job)]) == 7,
        within=10,
    )

    waiting = [job for job in jobs if is_suspended(job)]
    assert len(waiting) == 7
    for job in waiting:
        team = job["metadata"]["namespace"]
        assert job["metadata"]["labels"]["system.fairslice.io/state"] == "queued"
        assert f"team {team}" in _status(job)
        # What the user wrote is what the user reads.
        container = job["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    places = sorted(_status(job).partition(" in team")[0] for job in waiting)
    first = [f"position {place} of 2" for place in (1, 2)]
    second = [f"position {place} of 5" for place in (1, 2, 3, 4, 5)]
    assert places == sorted(first + second)
    await eventually("three run", line.started, lambda runs: len(runs) == CAPACITY)

    async def told() -> list[Obj]:
        events = await scene.api.list("Event", line.first.namespace)
        ours = [event for event in events if "fairslice" in str(event.get("reportingComponent"))]
        return [event for event in ours if event["involvedObject"]["kind"] == "Job"]

    await eventually("an event on a Job tells it, too", told)


async def test_each_finish_releases_the_next_and_all_complete(scene: Scene) -> None:
    line = await Line.of(scene, seconds=2.5)
    await line.submit_all()

    await line.all_complete()

    line.check_nothing_ran_twice()
    assert line.most_at_once() <= CAPACITY
    order = line.order_of_release()
    # Those of one team start in the order in which they came.
    for team in line.teams:
        mine = [name for namespace, name in order if namespace == team.namespace]
        assert mine == sorted(mine)
    # The first team has three running when the second's first is waiting: now it is its turn.
    owners = [namespace for namespace, _ in order]
    assert owners[:CAPACITY] == [line.first.namespace] * CAPACITY
    assert owners[CAPACITY] == line.second.namespace
    assert owners[CAPACITY : 2 * CAPACITY].count(line.second.namespace) >= 2
    delays = line.delays_of_release()
    assert len(delays) == SLICES - CAPACITY
    assert max(delays) < _RELEASE_SECONDS, delays


def _status(job: Obj) -> str:
    """What a Job says of its place in line, if anything yet."""
    notes = job["metadata"].get("annotations") or {}
    _, found, rest = notes.get("system.fairslice.io/status", "").partition("position ")
    return f"{found}{rest}"
