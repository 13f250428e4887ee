"""Scenario 3: production and training get what they need, or nothing smaller."""

from .harness.manifests import deployment, job, pod
from .harness.scene import Scene
from .harness.shapes import a100, h100, t4_shared, t4_whole
from .harness.waiting import eventually

_PRODUCTION = {"fairslice.io/class": "production"}
_TRAINING = {"fairslice.io/class": "training"}
_EXPERIMENT = {"fairslice.io/class": "experiment"}


async def test_production_gets_guaranteed_slices_and_never_a_replica(scene: Scene) -> None:
    await scene.node(a100(mig_1g_10gb=2, mig_2g_20gb=2))
    await scene.node(t4_shared(8))
    team = await scene.team("serving", {"a100": ("2", "2"), "t4": ("1", "1")})

    await team.create(deployment("serve", team.namespace, replicas=2, labels=_PRODUCTION))

    await eventually(
        "both replicas run", lambda: scene.started(team.namespace), lambda runs: len(runs) == 2
    )
    assert [run.resources for run in scene.runs(team.namespace)] == [
        {"nvidia.com/mig-2g.20gb": 1},
        {"nvidia.com/mig-2g.20gb": 1},
    ]


async def test_a_two_gpu_training_keeps_two_whole_gpus_of_one_model(scene: Scene) -> None:
    await scene.node(a100(1, mig_3g_40gb=2))
    h100_node = await scene.node(h100(2))
    team = await scene.team("vision", {"a100": ("4", "4"), "h100": ("2", "2")})

    await team.create(job("train", team.namespace, 2, labels=_TRAINING, seconds=30))

    (run,) = await eventually("it runs", lambda: scene.started(team.namespace))
    assert run.resources == {"nvidia.com/gpu": 2}
    (worker,) = await scene.pods(team.namespace)
    assert worker["spec"]["nodeName"] == h100_node


async def test_a_gang_of_two_never_mixes_models(scene: Scene) -> None:
    await scene.node(a100(1))
    await scene.node(h100(1))
    h100_node = await scene.node(h100(1))
    team = await scene.team("vision", {"a100": ("4", "4"), "h100": ("4", "4")})

    await team.create(job("gang", team.namespace, 1, pods=2, labels=_TRAINING, seconds=30))

    await eventually(
        "both pods run", lambda: scene.started(team.namespace), lambda runs: len(runs) == 2
    )
    nodes = {worker["spec"]["nodeName"] for worker in await scene.pods(team.namespace)}
    assert len(nodes) == 2
    assert h100_node in nodes
    assert all("-h100-" in node for node in nodes)


async def test_where_there_are_only_t4s_experiments_share_and_production_gets_a_card(
    scene: Scene,
) -> None:
    await scene.node(t4_shared(4))
    whole = await scene.node(t4_whole(1))
    team = await scene.team("small", {"t4": ("2", "2")})

    for number in range(2):
        await team.create(pod(f"nb-{number}", team.namespace, labels=_EXPERIMENT))
        await scene.running(f"nb-{number}", team.namespace)
    await team.create(deployment("serve", team.namespace, labels=_PRODUCTION))

    runs = await eventually(
        "all three run", lambda: scene.started(team.namespace), lambda runs: len(runs) == 3
    )
    shared, card = {"nvidia.com/gpu.shared": 1}, {"nvidia.com/gpu": 1}
    assert sorted(run.resources.items() for run in runs if run.owner == "") == [
        shared.items(),
        shared.items(),
    ]
    (serving,) = [run for run in runs if run.owner]
    assert serving.resources == card
    (replica,) = await scene.pods(team.namespace, "app=serve")
    assert replica["spec"]["nodeName"] == whole
