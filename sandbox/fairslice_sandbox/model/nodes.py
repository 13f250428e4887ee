"""Node objects as the GPU operator and the device plugin leave them.

Labels follow gpu-feature-discovery: memory in MiB, counts as strings, `-SHARED` on the
product where replicas keep the resource's name, zero replicas on MIG-enabled GPUs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from fairslice_sandbox.model.devices import FAIL_GREATER_THAN_ONE
from fairslice_sandbox.model.kubelet import MANAGED
from fairslice_sandbox.model.objects import Obj, rfc3339

__all__ = ["GPU", "GpuModel", "NodeSpec", "lease", "node_object"]


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU as its labels describe it; memory in MiB."""

    product: str
    memory: int
    family: str
    compute: tuple[int, int]
    mig: bool


GPU: Mapping[str, GpuModel] = {
    "a100-80gb": GpuModel("NVIDIA-A100-SXM4-80GB", 81920, "ampere", (8, 0), True),
    "a100-40gb": GpuModel("NVIDIA-A100-SXM4-40GB", 40960, "ampere", (8, 0), True),
    "h100-80gb": GpuModel("NVIDIA-H100-80GB-HBM3", 81559, "hopper", (9, 0), True),
    "t4": GpuModel("Tesla-T4", 15360, "turing", (7, 5), False),
    "l4": GpuModel("NVIDIA-L4", 23034, "ada-lovelace", (8, 9), False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """A node to add to the cluster.

    `slices` maps MIG profiles ("1g.10gb") to their number on the whole node; with `single`
    they are advertised as `nvidia.com/gpu`. `whole` GPUs are not partitioned (default: all,
    unless there are slices). `replicas` above 1 shares each whole GPU; `renamed` advertises
    replicas as `nvidia.com/gpu.shared`. `managed` nodes get a kubelet that runs pods.
    """

    name: str
    model: str = ""
    gpus: int = 0
    slices: Mapping[str, int] = field(default_factory=dict)
    whole: int | None = None
    single: bool = False
    replicas: int = 1
    sharing: str = "time-slicing"
    renamed: bool = False
    fail_greater_than_one: bool | None = None
    cpu: str = "64"
    memory: str = "512Gi"
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Obj, ...] = ()
    managed: bool = True

    @property
    def whole_gpus(self) -> int:
        """GPUs that are not partitioned."""
        return self.whole if self.whole is not None else (0 if self.slices else self.gpus)


def _slice_labels(spec: NodeSpec, model: GpuModel, profile: str, count: int) -> dict[str, str]:
    match = re.match(r"(\d)g\.(\d+)gb", profile)
    if match is None:
        raise ValueError(f"{profile!r} is no MIG profile such as 1g.10gb")
    compute, memory = int(match[1]), int(match[2]) * 1024 - 512
    fields = {
        "product": f"{model.product}-MIG-{profile}",
        "count": count,
        "replicas": 1,
        "sharing-strategy": "none",
        "memory": memory,
        "multiprocessors": compute * 14,
        "slices.gi": compute,
        "slices.ci": compute,
    }
    prefix = "nvidia.com/gpu" if spec.single else f"nvidia.com/mig-{profile.replace('+', '.')}"
    return {f"{prefix}.{name}": str(value) for name, value in fields.items()}


def _gpu_labels(spec: NodeSpec, model: GpuModel) -> dict[str, str]:
    shared = spec.replicas > 1
    suffix = "-SHARED" if shared and not spec.renamed else ""
    replicas = spec.replicas if spec.whole_gpus else 0
    result = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.deploy.device-plugin": "true",
        "nvidia.com/gpu.deploy.gpu-feature-discovery": "true",
        "nvidia.com/gpu.product": model.product + suffix,
        "nvidia.com/gpu.count": str(spec.gpus),
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.memory": str(model.memory),
        "nvidia.com/gpu.family": model.family,
        "nvidia.com/gpu.compute.major": str(model.compute[0]),
        "nvidia.com/gpu.compute.minor": str(model.compute[1]),
        "nvidia.com/gpu.sharing-strategy": spec.sharing if shared else "none",
        "nvidia.com/mig.capable": str(model.mig).lower(),
        "nvidia.com/cuda.driver.major": "570",
    }
    if model.mig:
        result["nvidia.com/mig.strategy"] = "single" if spec.single else "mixed"
        result["nvidia.com/mig.config"] = "custom" if spec.slices else "all-disabled"
        result["nvidia.com/mig.config.state"] = "success"
    for profile, count in spec.slices.items():
        result |= _slice_labels(spec, model, profile, count)
    return result


def _extended(spec: NodeSpec) -> dict[str, str]:
    result: dict[str, str] = {}
    if spec.whole_gpus:
        name = "nvidia.com/gpu.shared" if spec.renamed and spec.replicas > 1 else "nvidia.com/gpu"
        result[name] = str(spec.whole_gpus * spec.replicas)
    for profile, count in spec.slices.items():
        name = "nvidia.com/gpu" if spec.single else f"nvidia.com/mig-{profile.replace('+', '.')}"
        result[name] = str(count)
    return result


def node_object(spec: NodeSpec, now: datetime) -> Obj:
    """Build the Node, Ready.

    Raises ValueError for an unknown GPU model or MIG profile.
    """
    labels = {
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    if spec.gpus:
        if spec.model not in GPU:
            raise ValueError(f"unknown GPU {spec.model!r}; known: {', '.join(GPU)}")
        labels |= _gpu_labels(spec, GPU[spec.model])
    notes: dict[str, str] = {MANAGED: "true"} if spec.managed else {}
    if spec.fail_greater_than_one is not None:
        notes[FAIL_GREATER_THAN_ONE] = str(spec.fail_greater_than_one).lower()
    capacity = {
        "cpu": spec.cpu,
        "memory": spec.memory,
        "pods": str(spec.pods),
        "ephemeral-storage": "1000Gi",
        **_extended(spec),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": spec.name,
            "labels": {**labels, **spec.labels},
            "annotations": notes,
        },
        "spec": {"taints": list(spec.taints)} if spec.taints else {},
        "status": {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "conditions": [ready_condition(True, now)],
            "addresses": [
                {"type": "Hostname", "address": spec.name},
                {"type": "InternalIP", "address": f"10.0.0.{sum(spec.name.encode()) % 254 + 1}"},
            ],
            "nodeInfo": {
                "kubeletVersion": "v1.34.0",
                "containerRuntimeVersion": "containerd://2.1.4",
                "osImage": "Debian GNU/Linux 12 (bookworm)",
                "kernelVersion": "6.1.0-37-amd64",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def ready_condition(ready: bool, now: datetime) -> Obj:
    """Build a node's Ready condition: True, or Unknown once its kubelet fell silent."""
    return {
        "type": "Ready",
        "status": "True" if ready else "Unknown",
        "reason": "KubeletReady" if ready else "NodeStatusUnknown",
        "message": "kubelet is posting ready status"
        if ready
        else "Kubelet stopped posting node status.",
        "lastHeartbeatTime": rfc3339(now),
        "lastTransitionTime": rfc3339(now),
    }


def lease(node: str, now: datetime) -> Obj:
    """Build the node's heartbeat."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": 40,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }
