"""The sharing policy of a run: pools of its own nodes, classes with short times."""

from .kinds import Obj
from .manifests import manifest
from .nodes import RUN_LABEL

__all__ = ["FEATURES", "modes", "pool_name", "suite_policy"]

FEATURES = ("hide", "guards", "rewrite", "quota", "queue")
PRODUCTS = {"a100": "NVIDIA-A100-*", "h100": "NVIDIA-H100-*", "t4": "Tesla-T4*"}
_RATES = {"a100": "1.0", "h100": "2.2", "t4": "0.15"}


def pool_name(run: str, model: str) -> str:
    """Name of the run's pool of a GPU model."""
    return f"suite-{run}-{model}"


def modes(mode: str) -> dict[str, str]:
    """The same mode for every feature."""
    return dict.fromkeys(FEATURES, mode)


def suite_policy(run: str, exempt_namespace: str, mode: str = "Enforce") -> Obj:
    """Make the policy under which the scenarios run."""
    quick = {"notice": "1s", "grace": "2s", "minRuntime": "0s"}
    spec = {
        "mode": modes(mode),
        "exempt": [
            {"namespace": "gpu-operator", "serviceAccounts": ["*"]},
            {"namespace": exempt_namespace, "serviceAccounts": ["*"]},
        ],
        "pools": [
            {
                "name": pool_name(run, model),
                "products": [product],
                "nodeSelector": {RUN_LABEL: run},
                "rate": _RATES[model],
            }
            for model, product in PRODUCTS.items()
        ],
        "classes": [
            {
                "name": "production",
                "priorityClassName": "fairslice-production",
                "memory": "20G",
                "modes": ["mig", "whole"],
                "isolation": "Required",
                "preempts": "Everyone",
                "preemptible": False,
                **quick,
            },
            {
                "name": "training",
                "priorityClassName": "fairslice-training",
                "modes": ["whole"],
                **quick,
            },
            # Small work that waits: the built-in small class rejects what finds no room.
            {"name": "sweep", "memory": "10G", "modes": ["mig"], **quick},
            {
                "name": "experiment",
                "priorityClassName": "fairslice-experiment",
                "memory": "10G",
                "modes": ["mig", "mps", "timeslice", "whole"],
                "overflow": "Reject",
                "match": [{"podLabels": {"component": "singleuser-server"}}],
                **quick,
            },
        ],
        "queue": {"evictGrace": "2s", "startTimeout": "2m"},
    }
    return manifest("SharingPolicy", "default", spec=spec)
