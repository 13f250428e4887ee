"""Rights that change by themselves: windows, loans that end, budgets that run out."""

from datetime import UTC, datetime, timedelta

from .harness.client import Refused
from .harness.history import is_suspended
from .harness.kinds import Obj
from .harness.manifests import job
from .harness.policy import pool_name
from .harness.scene import Scene, Team
from .harness.shapes import a100
from .harness.waiting import eventually

_TRAINING = {"fairslice.io/class": "training"}
_STATUS = "system.fairslice.io/status"


async def _quota(scene: Scene, team: Team, **spec: object) -> None:
    await scene.api.patch("Team", team.name, {"spec": spec})


def _pool(scene: Scene) -> str:
    return pool_name(scene.target.run_id, "a100")


def _window(opens: timedelta, closes: timedelta, **quota: str) -> Obj:
    """Make a window relative to now, by the minute, in UTC as the suite's policy has it."""
    now = datetime.now(UTC)
    return {"from": f"{now + opens:%H:%M}", "to": f"{now + closes:%H:%M}", **quota}


async def _says(scene: Scene, team: Team, name: str, text: str) -> None:
    await scene.settled(
        "Job",
        name,
        team.namespace,
        f"says {text!r}",
        lambda obj: text in str((obj["metadata"].get("annotations") or {}).get(_STATUS)),
    )


async def test_a_window_that_is_open_lifts_the_limit_and_one_that_is_not_waits(
    scene: Scene,
) -> None:
    await scene.node(a100(2))
    team = await scene.team("nlp", {"a100": ("0", "1")})
    await team.create(job("one", team.namespace, labels=_TRAINING, seconds=None))
    # More than it may hold now, though not more than it ever may.
    hour = timedelta(hours=1)
    later = _window(2 * hour, 3 * hour, limit="2")
    pool = {"pool": _pool(scene), "limit": "1", "windows": [later]}
    await _quota(scene, team, pools=[pool])

    async def told() -> bool:
        wish = job("both", team.namespace, pods=2, labels=_TRAINING)
        try:
            return is_suspended((await team.api.create(wish, dry_run=True)).obj)
        except Refused:
            return False

    await eventually("the webhook knows the window", told)
    await team.create(job("two", team.namespace, labels=_TRAINING, seconds=None))
    await _says(scene, team, "two", "limit: 1 of 1 GPUs in use, 1 asked")

    await _quota(
        scene, team, pools=[{**pool, "windows": [_window(-2 * hour, 2 * hour, limit="2")]}]
    )

    await eventually("the second runs", lambda: scene.started(team.namespace, "two"))

    def told_until(obj: Obj) -> bool:
        pools = obj.get("status", {}).get("pools") or [{}]
        return pools[0].get("limit") == "2" and str(pools[0].get("until")).startswith("20")

    await scene.settled("Team", team.name, "", "says until when", told_until)


async def test_when_a_loan_ends_what_is_too_much_goes_back_in_line(scene: Scene) -> None:
    await scene.node(a100(2))
    team = await scene.team("nlp", {"a100": ("0", "1")}, onQuotaCut="Evict")

    async def lend(seconds: int) -> None:
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        loan = {"pool": _pool(scene), "gpus": "1", "until": f"{until:%Y-%m-%dT%H:%M:%SZ}"}
        await _quota(scene, team, loans=[loan])

    await lend(3600)
    for name in ("one", "two"):
        await team.create(job(name, team.namespace, labels=_TRAINING, seconds=None))
        await eventually(f"{name} runs", lambda name=name: scene.started(team.namespace, name))  # type: ignore[misc]

    await lend(3)

    async def pushed() -> list[str]:
        jobs = await scene.api.list("Job", team.namespace)
        return [found["metadata"]["name"] for found in jobs if is_suspended(found)]

    (name,) = await eventually("one of them is back in line", pushed)
    await _says(scene, team, name, "limit: 1 of 1 GPUs in use")
    assert await pushed() == [name]
    events = await scene.api.list("Event", team.namespace)
    assert any("its limit is 1 now" in str(event.get("message")) for event in events)


async def test_a_budget_that_is_gone_says_until_when_and_scavengers_give_way(scene: Scene) -> None:
    await scene.node(a100(1))
    team = await scene.team(
        "nlp", {"a100": ("1", "1")}, budgets=[{"gpuHours": 0, "period": "Daily"}]
    )

    async def told() -> bool:
        wish = job("wish", team.namespace, labels=_TRAINING)
        return is_suspended((await team.api.create(wish, dry_run=True)).obj)

    await eventually("the webhook knows that nothing is left", told)
    await team.create(job("waits", team.namespace, labels=_TRAINING, seconds=None))
    tomorrow = f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d} 00:00 UTC"
    await _says(scene, team, "waits", f"has used up its budget of 0 GPU-hours a day: it starts "
                f"anew {tomorrow}")  # fmt: skip

    await _quota(
        scene, team, budgets=[{"gpuHours": 0, "period": "Daily", "onExhausted": "Scavenge"}]
    )
    await eventually("it has what is idle", lambda: scene.started(team.namespace, "waits"))
    other = await scene.team("cv", {"a100": ("0", "1")})
    await other.create(job("wanted", other.namespace, labels=_TRAINING, seconds=0.5))

    await eventually("it gives way", lambda: scene.started(other.namespace, "wanted"))
    await eventually(
        "it comes back",
        lambda: scene.started(team.namespace, "waits"),
        lambda runs: len(runs) == 2,
        within=60,
    )
