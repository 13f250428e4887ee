"""The environment variables by which a container comes to GPUs that it does not hold.

Read by the webhook's hiding and by the policy that hides inside the API server, so that both
close the same channels. Source: nvidia-container-toolkit, internal/config/image.
"""

__all__ = ["ALWAYS_HIDDEN", "MPS_PREFIX", "RUNTIME_CLASS_PREFIX", "VISIBLE_DEVICES", "VOID"]

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
VOID = "void"
"""Its value that injects nothing; `none` still injects driver libraries."""

ALWAYS_HIDDEN = frozenset(
    {
        "NVIDIA_GDRCOPY",
        "NVIDIA_GDS",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
        "NVIDIA_MOFED",
        "NVIDIA_NVSWITCH",
    }
)
MPS_PREFIX = "CUDA_MPS_"
"""Begins the names of variables that lead to an MPS daemon; all of them are hidden."""

RUNTIME_CLASS_PREFIX = "nvidia"
"""Begins the names of runtime classes that a pod without GPUs has no use for."""
