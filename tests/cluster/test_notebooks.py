"""Scenario 2: a notebook asks for a GPU and gets the slice that its class stands for."""

from collections.abc import Mapping

import pytest

from .harness.kinds import Obj
from .harness.manifests import pod
from .harness.nodes import RUN_LABEL
from .harness.reviews import ask, entries, review
from .harness.scene import Scene
from .harness.shapes import a100

_CLASS = "fairslice.io/class"
_SLICE = {"nvidia.com/mig-1g.10gb": "1"}
_CREATE = {"resource": {"group": "", "version": "v1", "resource": "pods"}, "operation": "CREATE"}


def _resources(obj: Obj) -> Obj:
    found: Obj = obj["spec"]["containers"][0]["resources"]
    return found


@pytest.mark.parametrize(
    ("labels", "by_namespace"),
    [
        pytest.param({_CLASS: "experiment"}, False, id="by label"),
        pytest.param({}, True, id="by the namespace's default"),
        pytest.param({"component": "singleuser-server"}, False, id="by a match rule"),
    ],
)
async def test_a_notebook_runs_on_a_small_slice(
    scene: Scene, labels: Mapping[str, str], by_namespace: bool
) -> None:
    node = await scene.node(a100(1, mig_1g_10gb=2))
    default = "experiment" if by_namespace else ""
    team = await scene.team("nlp", {"a100": ("1", "2")}, namespace_class=default)

    answer = await team.create(pod("nb", team.namespace, labels=labels))

    stored = await scene.running("nb", team.namespace)
    assert _resources(stored) == {"limits": _SLICE, "requests": _SLICE}
    assert stored["spec"]["nodeName"] == node
    assert [run.resources for run in scene.runs(team.namespace)] == [{"nvidia.com/mig-1g.10gb": 1}]
    priority = await scene.api.get("PriorityClass", "fairslice-experiment")
    assert stored["spec"]["priorityClassName"] == "fairslice-experiment"
    assert stored["spec"]["priority"] == priority["value"]
    assert any("mig-1g.10gb" in text for text in answer.warnings), answer.warnings


async def test_a_second_pass_over_a_notebook_changes_nothing(scene: Scene) -> None:
    await scene.node(a100(1, mig_1g_10gb=2))
    team = await scene.team("nlp", {"a100": ("1", "2")})
    user = scene.target.user("nlp").name
    notebook = pod("nb", team.namespace, labels={_CLASS: "experiment"})
    # As the API server fills it in before admission: nobody touches pods of this namespace.
    elsewhere = {**notebook["metadata"], "namespace": scene.target.exempt_namespace}
    filled = (await scene.api.create({**notebook, "metadata": elsewhere}, dry_run=True)).obj
    written = {**filled, "metadata": notebook["metadata"], "status": {}}
    mutating = [hook for hook in await entries(scene.api) if hook.mutates and hook.sees(_CREATE)]
    once = written
    for hook in mutating:
        once = (await ask(hook, review("Pod", once, user=user))).obj
    assert _resources(once)["limits"] == _SLICE
    twice = once
    for hook in mutating:
        twice = (await ask(hook, review("Pod", twice, user=user))).obj
    assert twice == once

    await team.create(notebook)
    stored = await scene.running("nb", team.namespace)
    for hook in mutating:
        verdict = await ask(hook, review("Pod", stored, user=user, old=stored))
        assert verdict.allowed, verdict
        assert verdict.obj == stored


async def test_a_pod_without_a_class_keeps_its_whole_gpu(scene: Scene) -> None:
    await scene.node(a100(1, mig_1g_10gb=2))
    team = await scene.team("nlp", {"a100": ("1", "2")})
    here = {RUN_LABEL: scene.target.run_id}

    await team.create(pod("plain", team.namespace, nodeSelector=here))

    stored = await scene.running("plain", team.namespace)
    whole = {"nvidia.com/gpu": "1"}
    assert _resources(stored) == {"limits": whole, "requests": whole}
    assert "priorityClassName" not in stored["spec"]
    assert stored["spec"]["priority"] == 0
    assert "env" not in stored["spec"]["containers"][0]


async def test_a_forged_variable_shows_nothing(scene: Scene) -> None:
    await scene.node(a100(1, mig_1g_10gb=2))
    team = await scene.team("nlp", {"a100": ("1", "2")})
    forged = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    here = {RUN_LABEL: scene.target.run_id}
    for name, gpus in (("with", 1), ("without", 0)):
        greedy = pod(name, team.namespace, gpus, labels={_CLASS: "experiment"}, nodeSelector=here)
        greedy["spec"]["containers"][0]["env"] = forged
        await team.create(greedy)
        await scene.running(name, team.namespace)
    seen = {sight.pod: len(sight.seen) for sight in scene.sights(team.namespace)}
    assert seen == {"with": 1, "without": 0}
