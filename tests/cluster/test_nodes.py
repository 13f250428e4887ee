"""The suite's own nodes: what every other scenario stands on."""

from .harness.history import is_complete
from .harness.manifests import container, job, pod
from .harness.nodes import RUN_LABEL
from .harness.scene import Scene
from .harness.shapes import a100, t4_whole


async def test_a_job_runs_on_a_node_of_the_suite_and_completes(bare_scene: Scene) -> None:
    scene = bare_scene
    here = {RUN_LABEL: scene.target.run_id}
    await scene.node(t4_whole())
    namespace = await scene.namespace()
    await scene.api.create(job("short", namespace, nodeSelector=here, seconds=0.3))
    await scene.settled("Job", "short", namespace, "completes", is_complete)
    assert [run.resources for run in scene.runs(namespace)] == [{"nvidia.com/gpu": 1}]


async def test_a_deleted_pod_ends_within_its_grace(bare_scene: Scene) -> None:
    scene = bare_scene
    await scene.node(a100(1))
    namespace = await scene.namespace()
    here = {RUN_LABEL: scene.target.run_id}
    await scene.api.create(pod("idle", namespace, gpus=0, nodeSelector=here))
    await scene.running("idle", namespace)
    await scene.api.delete("Pod", "idle", namespace)
    await scene.gone("Pod", "idle", namespace, within=10)


async def test_the_kubelet_notices_a_container_that_sees_more_than_it_holds(
    bare_scene: Scene,
) -> None:
    scene = bare_scene
    await scene.node(a100(2))
    # Where nobody hides anything, whether fairslice is there or not.
    namespace = scene.target.exempt_namespace
    here = {RUN_LABEL: scene.target.run_id}
    greedy = pod("greedy", namespace, gpus=1, nodeSelector=here)
    greedy["spec"]["containers"].append(
        container(name="sidecar", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    )
    await scene.api.create(greedy)
    await scene.running("greedy", namespace)
    seen = {sight.container: len(sight.seen - sight.held) for sight in scene.sights(namespace)}
    assert seen == {"main": 0, "sidecar": 2}
