"""The GPU nodes that the scenarios need, labelled as GPU feature discovery labels them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Shape", "a100", "h100", "t4_shared", "t4_whole"]

_GFD = "nvidia.com/"


@dataclass(frozen=True)
class Shape:
    """A node's model (also the pool it belongs to), its devices by resource, its labels."""

    model: str
    devices: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)


def _card(product: str, memory_mib: int, count: int, family: str) -> dict[str, str]:
    return {
        _GFD + "gpu.present": "true",
        _GFD + "gpu.product": product,
        _GFD + "gpu.memory": str(memory_mib),
        _GFD + "gpu.count": str(count),
        _GFD + "gpu.family": family,
        _GFD + "gpu.replicas": "1",
        _GFD + "gpu.sharing-strategy": "none",
    }


def a100(whole: int = 0, **slices: int) -> Shape:
    """A100-80GB under the mixed strategy: `a100(1, mig_1g_10gb=4)`.

    The slices are taken as cut from as many further cards as they need.
    """
    product = "NVIDIA-A100-SXM4-80GB"
    labels = _card(product, 81920, whole + bool(slices), "ampere")
    labels |= {
        _GFD + "mig.capable": "true",
        _GFD + "mig.strategy": "mixed",
        _GFD + "mig.config.state": "success",
    }
    devices = {_GFD + "gpu": whole} if whole else {}
    for key, count in slices.items():
        profile = key.removeprefix("mig_").replace("_", ".")
        resource = f"{_GFD}mig-{profile}"
        size = int(profile.partition(".")[2].removesuffix("gb"))
        devices[resource] = count
        labels |= {
            f"{resource}.product": f"{product}-MIG-{profile}",
            f"{resource}.count": str(count),
            f"{resource}.replicas": "1",
            f"{resource}.memory": str(size * 1024 - 512),
            f"{resource}.sharing-strategy": "none",
        }
    return Shape("a100", devices, labels)


def h100(whole: int) -> Shape:
    """H100-80GB, nothing partitioned."""
    labels = _card("NVIDIA-H100-80GB-HBM3", 81559, whole, "hopper")
    labels |= {_GFD + "mig.capable": "true", _GFD + "mig.strategy": "mixed"}
    return Shape("h100", {_GFD + "gpu": whole}, labels)


def t4_whole(count: int = 1) -> Shape:
    """T4s, each given out whole."""
    return Shape("t4", {_GFD + "gpu": count}, _card("Tesla-T4", 15360, count, "turing"))


def t4_shared(replicas: int = 4) -> Shape:
    """One time-sliced T4 whose replicas carry a name of their own."""
    labels = _card("Tesla-T4", 15360, 1, "turing")
    labels |= {
        _GFD + "gpu.replicas": str(replicas),
        _GFD + "gpu.sharing-strategy": "time-slicing",
    }
    return Shape("t4", {_GFD + "gpu.shared": replicas}, labels)
