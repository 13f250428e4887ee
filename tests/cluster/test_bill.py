"""What a team owes for what it held: over HTTP, by command, and in the month's ConfigMap."""

from typing import Any

from msgspec import json

from .harness.manifests import job
from .harness.policy import pool_name
from .harness.processes import command, run_command
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.shapes import a100
from .harness.waiting import eventually


async def test_a_team_is_billed_for_what_it_held_and_nobody_for_the_rest(
    scene: Scene, fairslice: Fairslice
) -> None:
    await scene.node(a100(2))
    team = await scene.team("nlp", {"a100": ("0", "1")})
    labels = {"fairslice.io/class": "training"}
    await team.create(job("train", team.namespace, labels=labels, seconds=None))
    await eventually("the Job runs", lambda: scene.started(team.namespace, "train"))
    pool = pool_name(scene.target.run_id, "a100")

    async def hours() -> dict[str, float]:
        rows = (await fairslice.status("/bill"))["items"]
        return {row["team"]: float(row["gpu_hours"]) for row in rows if row["pool"] == pool}

    found = await eventually("it has held a GPU", hours, lambda rows: rows.get(team.name, 0) > 0)
    assert found["__idle__"] > 0
    url = f"http://{fairslice.queue_status}"
    argv = (command("fairslice"), "bill", "--team", team.name, "-o", "csv", "--status-url", url)
    result = await run_command(argv)
    assert result.code == 0, result
    head, row = result.out.strip().splitlines()
    assert head.startswith("month,pool,team,gpu_hours,amount,currency")
    assert row.split(",")[1:3] == [pool, team.name]

    async def kept() -> list[dict[str, Any]]:
        maps = await scene.api.list("ConfigMap", "fairslice-system", "fairslice.io/bill=true")
        return [json.decode(each["data"]["bill.json"]) for each in maps]

    (record,) = await eventually("it is written down", kept, within=75)
    assert record["month"] == row.split(",")[0]
