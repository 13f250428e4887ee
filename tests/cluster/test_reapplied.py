"""Manifests that are applied again, as GitOps tools do all day: nothing changes, nothing fails."""

import pytest

from .harness.kinds import Obj
from .harness.manifests import container, job, pod
from .harness.scene import Scene, Team
from .harness.shapes import a100

_EXPERIMENT = {"fairslice.io/class": "experiment"}
_ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
_MPS = {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"}
_MINE = {"name": "MODEL", "value": "bert"}
_STRATEGIC = "application/strategic-merge-patch+json"


async def _team(scene: Scene) -> Team:
    await scene.node(a100(1, mig_1g_10gb=4))
    return await scene.team("nlp", {"a100": ("2", "2")})


def _manifest(namespace: str, what: str) -> Obj:
    made = pod("again", namespace, labels=_EXPERIMENT)
    main = made["spec"]["containers"][0]
    match what:
        case "variables":
            main["env"] = [_MINE, _ALL, _MPS]
        case "another priority":
            made["spec"]["priorityClassName"] = "system-cluster-critical"
        case "a gate":
            made["spec"]["schedulingGates"] = [{"name": "fairslice.io/queued"}]
        case "a zero":
            made["spec"]["containers"].append(container({"nvidia.com/gpu": "0"}, name="side"))
        case "an init container":
            made["spec"]["initContainers"] = [container(name="init", env=[_ALL])]
    return made


KINDS = ["a request", "variables", "another priority", "a gate", "a zero", "an init container"]


@pytest.mark.parametrize("what", KINDS)
async def test_a_pods_manifest_is_applied_again_on_the_servers_side(
    scene: Scene, what: str
) -> None:
    if scene.target.name != "real":
        pytest.skip("the sandbox's API server knows no owners of fields")
    team = await _team(scene)
    manifest = _manifest(team.namespace, what)
    first = (await team.api.apply(manifest)).obj
    await scene.running("again", team.namespace)
    again = (await team.api.apply(manifest)).obj
    assert again["spec"]["containers"] == first["spec"]["containers"]
    assert again["metadata"]["uid"] == first["metadata"]["uid"]


@pytest.mark.parametrize("what", KINDS)
async def test_a_pods_manifest_is_applied_again_on_the_clients_side(
    scene: Scene, what: str
) -> None:
    team = await _team(scene)
    manifest = _manifest(team.namespace, what)
    first = (await team.create(manifest)).obj
    await scene.running("again", team.namespace)
    # kubectl sends what differs from what is stored, which these may do.
    fields = ("containers", "initContainers", "priorityClassName", "schedulingGates")
    patch = {"spec": {key: value for key, value in manifest["spec"].items() if key in fields}}
    again = (
        await team.api.patch("Pod", "again", patch, team.namespace, content_type=_STRATEGIC)
    ).obj
    assert again["spec"]["containers"] == first["spec"]["containers"]
    assert again["spec"].get("priorityClassName") == first["spec"].get("priorityClassName")


async def test_a_jobs_manifest_is_applied_again(scene: Scene) -> None:
    team = await _team(scene)
    manifest = job("again", team.namespace, labels=_EXPERIMENT, seconds=None)
    manifest["spec"]["podReplacementPolicy"] = "TerminatingOrFailed"
    manifest["spec"]["suspend"] = False
    first = (await team.api.apply(manifest)).obj
    assert first["spec"]["podReplacementPolicy"] == "Failed"
    again = (await team.api.apply(manifest)).obj
    assert again["spec"]["podReplacementPolicy"] == "Failed"
    assert again["spec"]["suspend"] is False
