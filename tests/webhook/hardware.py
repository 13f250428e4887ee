"""Nodes of every way to share GPUs, and what one unit of each resource on them really is.

The table is written down from NVIDIA's documents, not worked out by the code under test.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fairslice.kube.objects import Node

from .scene import GPU, node

SHARED = "nvidia.com/gpu.shared"
MIG = "nvidia.com/mig-"


class Share(NamedTuple):
    """One unit: its memory in MiB, the GB it goes by, its part of a card in thousandths.

    `mode` is how it comes about, `card_mib` what the card has that it is a part of.
    """

    mode: str
    memory_mib: int
    named_gb: int
    milli: int
    card_mib: int

    @property
    def isolated(self) -> bool:
        """Whether neighbours can neither crash it nor take its memory."""
        return self.mode in ("mig", "whole")


class Kind(NamedTuple):
    """A kind of node: its labels, what it advertises, what a unit of that is."""

    labels: Mapping[str, str]
    amounts: Mapping[str, int]
    shares: Mapping[str, Share]

    def made(self, name: str) -> Node:
        """Make a node of this kind."""
        return node(name, self.labels, self.amounts)


def _labels(product: str, memory: int, count: int, **others: str) -> dict[str, str]:
    keys = {key.replace("__", "-").replace("_", "."): value for key, value in others.items()}
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.memory": str(memory),
        "nvidia.com/gpu.count": str(count),
        **{f"nvidia.com/{key}": value for key, value in keys.items()},
    }


A100, T4, A30 = "NVIDIA-A100-SXM4-80GB", "Tesla-T4", "NVIDIA-A30"
_A100_MIB, _T4_MIB, _A30_MIB = 81920, 15360, 24576

_WHOLE_A100 = Share("whole", _A100_MIB, 80, 1000, _A100_MIB)
_WHOLE_T4 = Share("whole", _T4_MIB, 15, 1000, _T4_MIB)
_SLICES = {
    f"{MIG}1g.10gb": Share("mig", 9728, 10, 125, _A100_MIB),
    f"{MIG}2g.20gb": Share("mig", 19968, 20, 250, _A100_MIB),
    f"{MIG}3g.40gb": Share("mig", 40192, 40, 500, _A100_MIB),
}
_MEMORIES = {f"{name}.memory": str(share.memory_mib) for name, share in _SLICES.items()}

KINDS: dict[str, Kind] = {
    "whole A100s": Kind(
        _labels(A100, _A100_MIB, 8, gpu_replicas="1", mig_strategy="none"),
        {GPU: 8},
        {GPU: _WHOLE_A100},
    ),
    "A100s under mixed": Kind(
        {**_labels(A100, _A100_MIB, 8, gpu_replicas="1", mig_strategy="mixed"), **_MEMORIES},
        {GPU: 2, **dict.fromkeys(_SLICES, 3)},
        {GPU: _WHOLE_A100, **_SLICES},
    ),
    "A100s under single": Kind(
        _labels(f"{A100}-MIG-1g.10gb", 9728, 14, gpu_replicas="1", mig_strategy="single"),
        {GPU: 14},
        {GPU: _SLICES[f"{MIG}1g.10gb"]},
    ),
    "slices shared by time, renamed": Kind(
        {
            **_labels(A100, _A100_MIB, 8, gpu_replicas="0", mig_strategy="mixed"),
            f"{MIG}1g.10gb.memory": "9728",
            f"{MIG}1g.10gb.replicas": "2",
        },
        {f"{MIG}1g.10gb.shared": 14},
        {f"{MIG}1g.10gb.shared": Share("timeslice", 4864, 0, 62, 9728)},
    ),
    "whole T4s": Kind(_labels(T4, _T4_MIB, 2, gpu_replicas="1"), {GPU: 2}, {GPU: _WHOLE_T4}),
    "T4s shared by time": Kind(
        _labels(f"{T4}-SHARED", _T4_MIB, 2, gpu_replicas="4", gpu_sharing__strategy="time-slicing"),
        {GPU: 8},
        {GPU: Share("timeslice", 3840, 0, 250, _T4_MIB)},
    ),
    "T4s shared by time, renamed": Kind(
        _labels(T4, _T4_MIB, 2, gpu_replicas="4", gpu_sharing__strategy="time-slicing"),
        {SHARED: 8},
        {SHARED: Share("timeslice", 3840, 0, 250, _T4_MIB)},
    ),
    "A30s under MPS": Kind(
        _labels(f"{A30}-SHARED", _A30_MIB, 2, gpu_replicas="2", gpu_sharing__strategy="mps"),
        {GPU: 4},
        {GPU: Share("mps", 12288, 0, 500, _A30_MIB)},
    ),
    "A30s under MPS, renamed": Kind(
        _labels(A30, _A30_MIB, 2, gpu_replicas="2", gpu_sharing__strategy="mps"),
        {SHARED: 4},
        {SHARED: Share("mps", 12288, 0, 500, _A30_MIB)},
    ),
}
