"""Coming and going: uninstalling lets work go, and a fresh install only watches."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from .harness.history import is_suspended
from .harness.installation import get_policy, leftovers, set_policy
from .harness.kinds import Obj
from .harness.manifests import job, pod
from .harness.nodes import RUN_LABEL
from .harness.policy import modes, suite_policy
from .harness.scene import Scene
from .harness.serving import Fairslice
from .harness.shapes import a100

_TRAINING = {"fairslice.io/class": "training"}


@pytest_asyncio.fixture(loop_scope="session")
async def departing(scene: Scene, fairslice: Fairslice) -> AsyncIterator[Fairslice]:
    """An installation that may be taken away, and is put back afterwards."""
    if not fairslice.may_uninstall:
        pytest.skip("uninstalling would take away teams that were here before")
    yield fairslice
    await fairslice.all_in_one.stop()
    for program in fairslice.programs:
        await program.stop()
    await fairslice.serve()
    await set_policy(scene.api, suite_policy(scene.target.run_id, scene.target.exempt_namespace))


async def test_uninstalling_lets_queued_work_go_and_leaves_nothing(
    scene: Scene, departing: Fairslice
) -> None:
    await scene.node(a100(1))
    team = await scene.team("vision", {"a100": ("0", "1")})
    await team.create(job("first", team.namespace, labels=_TRAINING, seconds=600))
    await team.create(job("second", team.namespace, labels=_TRAINING, seconds=600))
    assert is_suspended(await scene.api.get("Job", "second", team.namespace))
    for program in departing.programs:
        await program.stop()

    result = await departing.command("uninstall", "--yes", within=60)

    assert result.code == 0, result
    assert await leftovers(scene.api) == []
    assert not is_suspended(await scene.api.get("Job", "second", team.namespace))
    assert len(await scene.pods(team.namespace)) >= 1


async def test_one_command_installs_and_serves_and_only_audits_at_first(
    scene: Scene, departing: Fairslice
) -> None:
    for program in departing.programs:
        await program.stop()
    result = await departing.command("uninstall", "--yes", within=60)
    assert result.code == 0, result

    await departing.all_in_one.start()
    await departing.ready_one(departing.all_in_one, departing.queue_status)

    policy: Obj = await get_policy(scene.api) or {}
    assert policy["spec"]["mode"] == modes("Audit")
    await scene.node(a100(1))
    namespace = await scene.namespace()
    scene.audited.add(namespace)
    here = {RUN_LABEL: scene.target.run_id}
    await scene.api.create(pod("plain", namespace, nodeSelector=here))
    stored = await scene.running("plain", namespace)
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "schedulingGates" not in stored["spec"]
