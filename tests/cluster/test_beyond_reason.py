"""Objects and numbers beyond all reason: a plain no, at once, and nothing gets by."""

import time

import pytest

from .harness.client import Refused
from .harness.manifests import deployment, pod
from .harness.scene import Scene
from .harness.shapes import a100
from .harness.waiting import eventually, stays

_TRAINING = {"fairslice.io/class": "training"}


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
@pytest.mark.parametrize("gpus", [0, 1])
async def test_a_pod_of_thousands_of_containers_is_refused_at_once(scene: Scene, gpus: int) -> None:
    await scene.node(a100(1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    asked = pod("large", team.namespace, gpus, labels=_TRAINING)
    first = asked["spec"]["containers"][0]
    more = [{"name": f"c{number}", "image": first["image"]} for number in range(4000)]
    asked["spec"]["containers"] = [first, *more]
    started = time.monotonic()
    with pytest.raises(Refused, match="more than 1024 containers"):
        await team.create(asked)
    assert time.monotonic() - started < 5.0


async def test_a_replica_that_asks_for_a_million_gpus_is_refused_in_words(scene: Scene) -> None:
    await scene.node(a100(1))
    team = await scene.team("nlp", {"a100": ("1", "1")})
    asked = deployment("greedy", team.namespace, labels=_TRAINING)
    limits = {"limits": {"nvidia.com/gpu": "1000000"}}
    asked["spec"]["template"]["spec"]["containers"][0]["resources"] = limits
    answer = await team.create(asked)
    assert any("no node has as many" in text for text in answer.warnings)

    async def told() -> str:
        return "".join(
            str(item.get("status", {}).get("conditions", ""))
            for item in await scene.api.list("ReplicaSet", team.namespace)
            if item["metadata"]["name"].startswith("greedy-")
        )

    await eventually("its ReplicaSet says why", told, lambda text: "no node has as many" in text)
    await stays("no pod comes of it", lambda: scene.pods(team.namespace), [].__eq__, 0.5)
