"""What work is given is chosen when it starts: of its class's modes in order, by what is free."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from fairslice_sandbox.model.nodes import NodeSpec
from fairslice_sandbox.store import Obj
from fairslice_sandbox.users import ADMIN

from .porter import HOOKS, Porter
from .world import CLASSES, World, job, pod, policy, team, world

SLICE, WHOLE = "nvidia.com/mig-1g.10gb", "nvidia.com/gpu"
_CLASSES = [
    {**item, "memory": "10G", "modes": ["mig", "whole"]} if item["name"] == "experiment" else item
    for item in CLASSES
]


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """One slice on one node, a whole GPU on another; both are taken."""
    async with world(redis_url, tmp_path, door=Porter, hooks=()) as made:
        rules = policy()
        rules["spec"]["classes"] = _CLASSES
        await made.create(rules)
        await made.create(team("cv"))
        await made.create(team("nlp"))
        sliced = NodeSpec(name="gpu-1", model="h100-80gb", gpus=1, slices={"1g.10gb": 1})
        await made.cluster.add_node(sliced)
        await made.cluster.add_node(NodeSpec(name="gpu-2", model="h100-80gb", gpus=1))
        leader = await made.start()
        await made.until(lambda: len(leader.watch.inventory.node_states()) == 2)
        for hook in HOOKS:
            resource = f"{hook['kind'].lower()}s.admissionregistration.k8s.io"
            await made.api.create(resource, "", hook, user=ADMIN)
        await made.create(job("small", seconds=None, work_class="experiment"), "cv")
        await made.create(job("large", seconds=None), "cv")
        await made.until(lambda: made.running() == {"small", "large"})
        yield made
        made.check_alive()
        assert await made.audit() == []


def given(box: World, name: str) -> dict[str, str]:
    """What the running pod of some work holds."""
    pods = [item for item in box.objects("Pod") if name in item["metadata"]["name"]]
    (found,) = [item for item in pods if item["status"].get("phase") == "Running"]
    limits: dict[str, str] = found["spec"]["containers"][0]["resources"]["limits"]
    return limits


async def test_a_waiting_job_takes_whichever_of_its_modes_is_free_first(box: World) -> None:
    assert given(box, "small") == {SLICE: "1"}
    await box.create(job("next", seconds=None, work_class="experiment"), "nlp")
    await box.until(lambda: "next" in box.suspended())
    await box.delete("Job", "large", "cv")
    await box.until(lambda: "next" in box.running())
    assert given(box, "next") == {WHOLE: "1"}


async def test_it_prefers_the_first_of_its_modes_where_both_are_free(box: World) -> None:
    for name in ("small", "large"):
        await box.delete("Job", name, "cv")
    await box.until(lambda: not box.running() and len(box.books) == 0)
    await box.create(job("next", seconds=None, work_class="experiment"), "nlp")
    await box.until(lambda: "next" in box.running())
    assert given(box, "next") == {SLICE: "1"}


async def test_a_replica_that_waits_for_a_slice_is_made_anew_for_a_whole_gpu(box: World) -> None:
    template = pod("x", work_class="experiment")
    labels = {**template["metadata"]["labels"], "app": "serve"}
    serve: Obj = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "serve"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {**template["spec"], "restartPolicy": "Always"},
            },
        },
    }
    await box.create(serve, "nlp")
    gated = await box.until(
        lambda: [p for p in box.objects("Pod", "nlp") if p["spec"].get("schedulingGates")]
    )
    assert gated[0]["spec"]["containers"][0]["resources"]["limits"] == {SLICE: "1"}
    await box.delete("Job", "large", "cv")
    await box.until(
        lambda: any(p["status"].get("phase") == "Running" for p in box.objects("Pod", "nlp")),
        12.0,
    )
    assert given(box, "serve") == {WHOLE: "1"}
    assert box.books.tally.pools["nlp", "default"] == 1000
