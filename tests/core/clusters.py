"""Nodes, pods and policies as the domain's tests need them."""

from collections.abc import Mapping
from typing import Any

from msgspec import convert

from fairslice.kube.objects import Node, PodSpec
from fairslice.policy import Policy, Team
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import TeamSpec

A100_80 = "NVIDIA-A100-SXM4-80GB"
A100_40 = "NVIDIA-A100-SXM4-40GB"
H100 = "NVIDIA-H100-80GB-HBM3"
T4 = "Tesla-T4"

POOLS = [
    {"name": "a100", "products": ["NVIDIA-A100-*"]},
    {"name": "h100", "products": ["NVIDIA-H100-*"], "rate": "2.2"},
    {"name": "t4", "products": ["Tesla-T4"], "rate": "0.15"},
]


def policy(**fields: Any) -> Policy:
    """Compile a policy with the three pools, or with the fields given."""
    return Policy.compile(convert({"pools": POOLS, **fields}, SharingPolicySpec))


def team(name: str = "nlp", **fields: Any) -> Team:
    """Compile a team."""
    return Team.compile(name, f"uid-{name}", convert(fields, TeamSpec))


def node(
    name: str,
    product: str,
    gpus: Mapping[str, int],
    *,
    labels: Mapping[str, str] | None = None,
    cpu: str = "64",
    memory: str = "256Gi",
    pods: str = "110",
    ready: bool = True,
    cordoned: bool = False,
    taints: list[dict[str, str]] | None = None,
) -> Node:
    """Make a node with GPU resources and the labels that feature discovery writes."""
    return convert(
        {
            "metadata": {
                "name": name,
                "labels": {
                    "nvidia.com/gpu.product": product,
                    "kubernetes.io/hostname": name,
                    **(labels or {}),
                },
            },
            "spec": {"unschedulable": cordoned, "taints": taints},
            "status": {
                "allocatable": {
                    "cpu": cpu,
                    "memory": memory,
                    "pods": pods,
                    **{resource: str(count) for resource, count in gpus.items()},
                },
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        },
        Node,
    )


def mig_node(name: str = "mig-1", product: str = A100_80) -> Node:
    """An A100-80GB node cut into slices, beside whole GPUs."""
    return node(
        name,
        product,
        {
            "nvidia.com/gpu": 2,
            "nvidia.com/mig-1g.10gb": 7,
            "nvidia.com/mig-2g.20gb": 3,
            "nvidia.com/mig-3g.40gb": 2,
        },
        labels={
            "nvidia.com/gpu.memory": "81920",
            "nvidia.com/mig.strategy": "mixed",
            "nvidia.com/mig.config.state": "success",
            "nvidia.com/mig-1g.10gb.memory": "9728",
            "nvidia.com/mig-2g.20gb.memory": "19968",
            "nvidia.com/mig-3g.40gb.memory": "40192",
        },
    )


def t4_node(name: str = "t4-1", replicas: int = 4, strategy: str = "time-slicing") -> Node:
    """A T4 node whose GPU is shared without renaming."""
    return node(
        name,
        f"{T4}-SHARED" if replicas > 1 else T4,
        {"nvidia.com/gpu": replicas},
        labels={
            "nvidia.com/gpu.memory": "15360",
            "nvidia.com/gpu.count": "1",
            "nvidia.com/gpu.replicas": str(replicas),
            "nvidia.com/gpu.sharing-strategy": strategy if replicas > 1 else "none",
        },
    )


def h100_node(name: str = "h100-1", gpus: int = 8) -> Node:
    """An H100 node with whole GPUs."""
    return node(
        name,
        H100,
        {"nvidia.com/gpu": gpus},
        labels={"nvidia.com/gpu.memory": "81559", "nvidia.com/gpu.count": str(gpus)},
    )


def pod(*containers: Mapping[str, Any], **fields: Any) -> PodSpec:
    """Make a pod spec; a container may be given by its limits alone."""
    listed = [
        item if "name" in item else {"name": f"c{index}", "resources": {"limits": dict(item)}}
        for index, item in enumerate(containers)
    ]
    return convert({"containers": listed, **fields}, PodSpec)
