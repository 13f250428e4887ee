"""The names under which GPUs appear as extended resources.

Source of the rules: NVIDIA/k8s-device-plugin, api/config/v1/resources.go and
internal/rm/device_map.go; DRA's implicit names: kubernetes, KEP-5004.
"""

import re
from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

__all__ = [
    "DEVICE_CLASS_PREFIX",
    "GPU",
    "GpuResource",
    "ResourceKind",
    "ResourceNameError",
    "parse_resource",
]

GPU = "nvidia.com/gpu"
"""What most people ask for; the one name that fairslice rewrites."""

_SHARED = ".shared"
_MIG_PREFIX = "nvidia.com/mig-"
_MIG = re.compile(
    r"nvidia\.com/mig-(?P<profile>(?P<compute>[1-8])g\.(?P<gb>\d{1,4})gb"
    r"(?:\.me\.all|\.me|\.gfx|-me)?)(?P<shared>\.shared)?",
    re.ASCII,
)
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Begins the implicit resource names by which containers ask for devices of a DRA class."""

_DEVICE_CLASS = re.compile(r"(?:[a-z0-9.-]+\.)?(?P<kind>gpu|mig)\.nvidia\.com", re.ASCII)


class ResourceNameError(ValueError):
    """A name meant for a MIG slice that no node could ever advertise."""


class ResourceKind(StrEnum):
    """What a unit of the resource is."""

    WHOLE = "whole"
    MIG = "mig"


class GpuResource(Struct, frozen=True, kw_only=True):
    """A GPU resource, taken apart.

    `profile` is the MIG profile as the name writes it (`1g.10gb.me`), `size_gb` the number in
    it. `device_class` is set for DRA's implicit names only: these hide profile and size.
    `nvidia.com/gpu` may still be a slice or replica on nodes that share without renaming.
    """

    name: str
    kind: ResourceKind
    profile: str = ""
    size_gb: int = 0
    shared: bool = False
    device_class: str = ""


@lru_cache(maxsize=4096)
def parse_resource(name: str) -> GpuResource | None:
    """Take a resource name apart; None if it doesn't name GPUs at all.

    Raises ResourceNameError for a mistyped MIG name.
    """
    if name in (GPU, GPU + _SHARED):
        return GpuResource(name=name, kind=ResourceKind.WHOLE, shared=name != GPU)
    if name.startswith(DEVICE_CLASS_PREFIX):
        device_class = name[len(DEVICE_CLASS_PREFIX) :]
        match = _DEVICE_CLASS.fullmatch(device_class)
        if match is None:
            return None
        kind = ResourceKind.MIG if match["kind"] == "mig" else ResourceKind.WHOLE
        return GpuResource(name=name, kind=kind, device_class=device_class)
    if not name.startswith(_MIG_PREFIX):
        return None
    match = _MIG.fullmatch(name)
    if match is None or int(match["gb"]) == 0:
        raise ResourceNameError(name)
    return GpuResource(
        name=name,
        kind=ResourceKind.MIG,
        profile=match["profile"],
        size_gb=int(match["gb"]),
        shared=match["shared"] is not None,
    )
