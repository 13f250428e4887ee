"""The variables and annotations by which a container comes to GPUs that it does not hold.

Read by the webhook and by what the API server evaluates itself, so that both close the same
channels. Sources: nvidia-container-toolkit, internal/config/image and its NRI plugins;
containerd/nri, plugins/device-injector, and GKE's of the same name; cri-o, pkg/annotations.
"""

__all__ = [
    "ALWAYS_HIDDEN",
    "INJECTING_DOMAINS",
    "INJECTING_PREFIXES",
    "MPS_PREFIX",
    "RUNTIME_CLASS_PREFIX",
    "VISIBLE_DEVICES",
    "VOID",
]

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

INJECTING_PREFIXES = (
    "cdi.k8s.io/",
    "nvidia.cdi.k8s.io",
    "devices.gke.io",
    # CRI-O's own, where a runtime handler allows it.
    "io.kubernetes.cri-o.Devices",
    "devices.crio.io",
)
"""Begin the keys of annotations by which a runtime injects devices."""

INJECTING_DOMAINS = (".nri.io", ".noderesource.dev")
"""End the domains of such keys: `devices`, `cdi-devices`, `mounts` and others come before."""
