"""Habits that sharing breaks: told where they break, and only there."""

from typing import Any

import pytest

from .conftest import MakeCluster
from .scene import (
    GPU,
    SLICE_10,
    T4_SHARED,
    Cluster,
    a100_node,
    container,
    deployment,
    job,
    node,
    notebook,
    pod,
    policy,
    team,
    view,
)

EXPERIMENT = {"fairslice.io/class": "experiment"}
TRAINING = {"fairslice.io/class": "training"}


def shared() -> Any:
    """A cluster that has nothing but replicas of one T4."""
    teams = (team(pools=[{"pool": "t4", "limit": "4"}]),)
    classes = [{"name": "experiment", "modes": ["timeslice"]}]
    return view(policy(classes=classes), teams, (node("t", T4_SHARED, {GPU: 4}),))


def one(gpus: int = 1, labels: Any = TRAINING, **fields: Any) -> dict[str, Any]:
    return pod("p", container(gpus=gpus, **fields), labels=labels)


async def told(place: Cluster, body: dict[str, Any]) -> list[str]:
    done = await place.create(body)
    assert done.allowed, done.message
    return [text for text in done.warnings if text.startswith("container ")]


@pytest.mark.parametrize(
    ("gpus", "value", "warns"),
    [
        (1, "0", False),
        (1, "1", True),
        (1, "0,1", True),
        (2, "0,1", False),
        (2, "2", True),
        (1, "GPU-8d3c", True),
        (1, "", False),
        (1, "-1", False),
    ],
)
async def test_cuda_visible_devices_is_told_where_it_names_what_is_not_held(
    cluster: MakeCluster, gpus: int, value: str, warns: bool
) -> None:
    place = await cluster()
    env = [{"name": "CUDA_VISIBLE_DEVICES", "value": value}]
    found = await told(place, one(gpus, env=env))
    assert [f"CUDA_VISIBLE_DEVICES={value}" in text for text in found] == [True] * warns


COMMANDS = {
    "torchrun": ["torchrun", "--nproc_per_node=4", "train.py"],
    "torchrun, hyphens": ["torchrun", "--nproc-per-node", "4", "train.py"],
    "in a shell": ["sh", "-c", "cd /x && torchrun --nproc_per_node 4 train.py"],
    "vLLM": ["vllm", "serve", "m", "--tensor-parallel-size", "4"],
    "vLLM, short": ["vllm", "serve", "m", "-tp", "4"],
    "SGLang": ["python", "-m", "sglang.launch_server", "--tp=4"],
    "DeepSpeed": ["deepspeed", "--num_gpus", "4", "train.py"],
    "TGI": ["text-generation-launcher", "--num-shard", "4"],
}


@pytest.mark.parametrize("tool", COMMANDS)
async def test_more_processes_than_gpus_are_told(cluster: MakeCluster, tool: str) -> None:
    place = await cluster()
    found = await told(place, one(command=COMMANDS[tool]))
    assert any("wants 4 GPUs, it can use 1" in text for text in found)
    enough = one(4, args=COMMANDS[tool])
    enough["metadata"]["name"] = "enough"
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "9"}]),)))
    assert await told(place, enough) == []


@pytest.mark.parametrize(
    "command",
    [
        ["torchrun", "--nproc_per_node=gpu", "x"],
        ["torchrun", "--nproc_per_node=1", "x"],
        ["tool", "--tps", "4"],
        ["tool", "--gpus-per-node-file", "4"],
        ["echo", "nproc_per_node 4"],
        ["tool", "--tp", "4.5"],
    ],
)
async def test_other_words_are_none(cluster: MakeCluster, command: list[str]) -> None:
    assert await told(await cluster(), one(command=command)) == []


async def test_a_slice_is_one_gpu_to_a_process_however_large(cluster: MakeCluster) -> None:
    place = await cluster()
    body = notebook()
    body["spec"]["containers"][0]["env"] = [{"name": "NPROC_PER_NODE", "value": "2"}]
    assert any("NPROC_PER_NODE 2" in text for text in await told(place, body))


async def test_several_slices_of_one_container_are_told(cluster: MakeCluster) -> None:
    place = await cluster()
    body = pod("p", container(gpus=2, resource=SLICE_10), labels=TRAINING)
    assert any("a process sees one MIG slice" in text for text in await told(place, body))
    one_each = pod(
        "q",
        container("a", gpus=1, resource=SLICE_10),
        container("b", gpus=1, resource=SLICE_10),
        labels=TRAINING,
    )
    assert await told(place, one_each) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"args": ["--gpu-memory-utilization", "0.9"]},
        {"command": ["vllm", "serve", "m"]},
        {"command": ["python", "-m", "vllm.entrypoints.openai.api_server"]},
        {"image": "vllm/vllm-openai:v0.9"},
        {"args": ["--mem-fraction-static=0.8"]},
    ],
)
async def test_a_fraction_of_the_cards_memory_is_told_on_a_replica_only(
    cluster: MakeCluster, fields: dict[str, Any]
) -> None:
    body = one(labels=EXPERIMENT)
    body["spec"]["containers"][0] |= fields
    found = await told(await cluster(shared()), body)
    assert any("memory fraction" in text for text in found)
    assert await told(await cluster(), body) == []


async def test_jobs_and_deployments_are_told_since_their_pods_can_not_be(
    cluster: MakeCluster,
) -> None:
    place = await cluster()
    body = job()
    body["spec"]["template"]["spec"]["containers"][0]["command"] = COMMANDS["torchrun"]
    done = await place.mutate(body)
    assert any("wants 4 GPUs" in text for text in done.warnings)
    serving = deployment(1)
    serving["spec"]["template"]["spec"]["containers"][0]["command"] = COMMANDS["vLLM"]
    told_at_once = (await place.mutate(serving)).warnings
    assert any("wants 4 GPUs" in text for text in told_at_once)
    assert any("fairslice gives" in text for text in told_at_once)


async def test_a_queued_job_is_told_of_what_it_will_be_given(cluster: MakeCluster) -> None:
    place = await cluster(view(nodes=(a100_node(whole=1),)))
    await place.create(job("first"))
    body = job("second")
    body["spec"]["template"]["spec"]["containers"][0]["command"] = COMMANDS["torchrun"]
    done = await place.mutate(body)
    assert done.spec["suspend"] is True
    assert any("wants 4 GPUs" in text for text in done.warnings)
