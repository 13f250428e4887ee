"""The cluster that admission is measured on: policy, teams and nodes, as the webhook sees them."""

from typing import Any

import msgspec

from fairslice.inventory import Inventory
from fairslice.kube.objects import Node
from fairslice.policy import Policy, Team
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import TeamSpec
from fairslice_webhook.view import Priority, View

__all__ = ["CLASSES", "FEATURES", "NODES", "TEAMS", "team_name", "view"]

FEATURES = ("hide", "guards", "rewrite", "quota", "queue")
TEAMS = 256
NODES = 64
# Drawn large, so that tens of thousands of bookings fit, in a cluster as in the unfinished ones
# that a team may have, and nothing waits while throughput is measured.
_UNITS = 4000
_PRODUCT = "NVIDIA-A100-SXM4-80GB"
CLASSES: list[dict[str, Any]] = [
    {
        "name": "production",
        "priorityClassName": "fairslice-production",
        "memory": "20G",
        "modes": ["mig", "whole"],
        "isolation": "Required",
        "preempts": "Everyone",
        "preemptible": False,
    },
    {"name": "training", "priorityClassName": "fairslice-training", "modes": ["whole"]},
    {
        "name": "experiment",
        "priorityClassName": "fairslice-experiment",
        "memory": "10G",
        "modes": ["mig", "whole"],
        "overflow": "Reject",
    },
]


def team_name(number: int) -> str:
    """Name a team, and its one namespace."""
    return f"bench-team-{number:03}"


def view(teams: int = TEAMS, nodes: int = NODES) -> View:
    """Make what the webhook knows. All features enforce; pods without a class are experiments."""
    spec: dict[str, Any] = {
        "mode": dict.fromkeys(FEATURES, "Enforce"),
        "pools": [{"name": "a100", "products": ["NVIDIA-A100-*"]}],
        "classes": CLASSES,
    }
    policy = Policy.compile(msgspec.convert(spec, SharingPolicySpec))
    return View(
        policy=policy,
        teams=TeamIndex.build([_team(number) for number in range(teams)], {}),
        inventory=Inventory.build([_node(number) for number in range(nodes)], policy),
        own_users=frozenset(("system:serviceaccount:fairslice-system:fairslice-queue",)),
        priority_classes={
            f"fairslice-{item['name']}": Priority(1_000_000 - 10_000 * rank, "Never")
            for rank, item in enumerate(CLASSES)
        },
    )


def _team(number: int) -> Team:
    name = team_name(number)
    spec = {
        "namespaces": [name],
        "pools": [{"pool": "a100", "guaranteed": "10", "limit": "100000"}],
        "allowedClasses": [item["name"] for item in CLASSES],
        "namespaceClasses": {name: "experiment"},
    }
    return Team.compile(name, f"uid-{name}", msgspec.convert(spec, TeamSpec))


def _node(number: int) -> Node:
    name = f"node-{number:03}"
    amounts = {"cpu": "256", "memory": "2Ti", "pods": "500", "nvidia.com/gpu": str(_UNITS)}
    amounts |= {f"nvidia.com/mig-{profile}": str(_UNITS) for profile in ("1g.10gb", "2g.20gb")}
    labels = {
        "kubernetes.io/hostname": name,
        "nvidia.com/gpu.product": _PRODUCT,
        "nvidia.com/gpu.memory": "81920",
        "nvidia.com/gpu.count": str(_UNITS),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/mig.strategy": "mixed",
    }
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"allocatable": amounts, "capacity": amounts, "conditions": conditions}
    return msgspec.convert({"metadata": {"name": name, "labels": labels}, "status": status}, Node)
