"""Scenario 4: what breaks a team's quota is refused or waits; a rollout at the limit completes."""

import pytest

from .harness.client import Refused
from .harness.kinds import Obj
from .harness.manifests import deployment, pod
from .harness.scene import Scene
from .harness.shapes import a100
from .harness.waiting import eventually, stays

_EXPERIMENT = {"fairslice.io/class": "experiment"}
_PRODUCTION = {"fairslice.io/class": "production"}
_GATE = "fairslice.io/queued"
_STATUS = "system.fairslice.io/status"


def _gated(pods: list[Obj]) -> list[Obj]:
    return [
        found
        for found in pods
        if any(gate["name"] == _GATE for gate in found["spec"].get("schedulingGates") or ())
    ]


async def test_a_notebook_over_the_limit_is_refused_with_the_numbers(scene: Scene) -> None:
    await scene.node(a100(mig_1g_10gb=7))
    team = await scene.team("nlp", {"a100": ("0.25", "0.25")})
    for number in range(2):
        await team.create(pod(f"nb-{number}", team.namespace, labels=_EXPERIMENT))

    with pytest.raises(Refused) as refused:
        await team.create(pod("nb-2", team.namespace, labels=_EXPERIMENT))

    assert refused.value.status == 403
    text = refused.value.message
    for part in (team.name, "0.25 of 0.25", "0.125"):
        assert part in text, f"{part!r} is not in {text!r}"
    assert await scene.api.find("Pod", "nb-2", team.namespace) is None
    await scene.api.delete("Pod", "nb-0", team.namespace)
    await scene.gone("Pod", "nb-0", team.namespace)
    await eventually("there is room again", lambda: _accepted(scene, team.namespace), within=5)


async def _accepted(scene: Scene, namespace: str) -> bool:
    user = scene.api.acting_as(scene.target.user("nlp"))
    try:
        await user.create(pod("nb-3", namespace, labels=_EXPERIMENT))
    except Refused:
        return False
    return True


@pytest.mark.parametrize("labels", [_PRODUCTION, _EXPERIMENT], ids=["production", "experiment"])
async def test_replicas_over_the_limit_are_gated_and_said_to_wait(
    scene: Scene, labels: dict[str, str]
) -> None:
    production = labels is _PRODUCTION
    await scene.node(a100(mig_1g_10gb=4, mig_2g_20gb=3))
    limit, more = ("0.5", "0.75") if production else ("0.25", "0.375")
    team = await scene.team("serving", {"a100": (limit, limit)})

    answer = await team.create(deployment("serve", team.namespace, replicas=3, labels=labels))

    assert any("2 of 3" in text and team.name in text for text in answer.warnings), answer.warnings
    pods = await eventually(
        "three pods, one of them gated",
        lambda: scene.pods(team.namespace),
        lambda pods: len(pods) == 3 and len(_gated(pods)) == 1,
    )
    name = _gated(pods)[0]["metadata"]["name"]
    await scene.settled(
        "Pod",
        name,
        team.namespace,
        "says why it waits",
        lambda found: f"team {team.name}" in found["metadata"]["annotations"].get(_STATUS, ""),
    )
    await eventually("two run", lambda: scene.started(team.namespace), lambda runs: len(runs) == 2)
    await stays(
        "the third waits", lambda: scene.started(team.namespace), lambda runs: len(runs) == 2, 1
    )

    await scene.limit(team, "a100", limit, more)

    await eventually(
        "the third runs", lambda: scene.started(team.namespace), lambda runs: len(runs) == 3
    )


async def test_a_rolling_update_at_the_limit_completes(scene: Scene) -> None:
    await scene.node(a100(mig_2g_20gb=3))
    team = await scene.team("serving", {"a100": ("0.5", "0.5")})
    serve = deployment("serve", team.namespace, replicas=2, labels=_PRODUCTION)
    await team.create(serve)
    await scene.settled("Deployment", "serve", team.namespace, "is available", _rolled_out)

    env = [{"name": "VERSION", "value": "2"}]
    template = {"spec": {"containers": [{**serve["spec"]["template"]["spec"]["containers"][0]}]}}
    template["spec"]["containers"][0]["env"] = env
    await team.api.patch("Deployment", "serve", {"spec": {"template": template}}, team.namespace)

    await scene.settled(
        "Deployment",
        "serve",
        team.namespace,
        "is rolled out anew",
        lambda found: found["metadata"]["generation"] == 2 and _rolled_out(found),
    )
    assert len(scene.runs(team.namespace)) == 4


def _rolled_out(found: Obj) -> bool:
    status = found.get("status") or {}
    return (
        status.get("observedGeneration") == found["metadata"]["generation"]
        and status.get("updatedReplicas") == 2
        and status.get("availableReplicas") == 2
        and status.get("replicas") == 2
    )
