"""MIG facts: which slices a GPU model can be cut into, and what each weighs.

Names on nodes come from allocatable, never from here; this table gives weights, placements
and the sizes that slices go by. Sources: NVIDIA MIG User Guide (supported profiles), the
placements of NVIDIA/go-nvml's A100 and A30 mocks and openshift/instaslice-operator's
emulated H100/H200, NVIDIA/mig-parted's config-default.yaml for names and counts. Placements
of H100-94/96, GH200, B200 and later are inferred from H100's: all 7-slice GPUs share one
layout; RTX PRO from A30's.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

__all__ = [
    "MODELS",
    "MigModel",
    "MigProfile",
    "is_slice_size",
    "is_valid_layout",
    "model_of",
    "slice_milli",
]


class MigProfile(Struct, frozen=True, kw_only=True):
    """A slice that a model can be cut into, by the name that resources carry.

    `starts` are the memory slices at which an instance may begin; it covers as many as its
    `memory_slices`. `max_instances` is per GPU.
    """

    name: str
    size_gb: int
    compute: int
    memory_slices: int
    max_instances: int
    starts: tuple[int, ...]

    @property
    def takes_media(self) -> bool:
        """Say whether the slice takes the media extensions, which only one per GPU can."""
        return self.name.endswith((".me", ".me.all"))


class MigModel(Struct, frozen=True, kw_only=True):
    """A GPU model that can be cut into slices. `product` matches nvidia.com/gpu.product."""

    name: str
    product: re.Pattern[str]
    memory_gb: int
    compute_slices: int
    memory_slices: int
    profiles: tuple[MigProfile, ...]

    def profile(self, name: str) -> MigProfile | None:
        """Find a profile by the name that resources carry, such as 1g.10gb.me."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        return None


def _seven(name: str, product: str, quarter_half_whole: tuple[int, int, int, int]) -> MigModel:
    """Make a model of the layout that all 7-slice GPUs share, from four sizes in GB."""
    eighth, quarter, half, whole = quarter_half_whole
    rows = (
        (f"1g.{eighth}gb", eighth, 1, 1, 7, tuple(range(7))),
        (f"1g.{eighth}gb.me", eighth, 1, 1, 1, tuple(range(7))),
        (f"1g.{quarter}gb", quarter, 1, 2, 4, (0, 2, 4, 6)),
        (f"2g.{quarter}gb", quarter, 2, 2, 3, (0, 2, 4)),
        (f"3g.{half}gb", half, 3, 4, 2, (0, 4)),
        (f"4g.{half}gb", half, 4, 4, 1, (0,)),
        (f"7g.{whole}gb", whole, 7, 8, 1, (0,)),
    )
    return MigModel(
        name=name,
        product=re.compile(product),
        memory_gb=whole,
        compute_slices=7,
        memory_slices=8,
        profiles=_profiles(rows),
    )


def _four(name: str, product: str, memory_gb: int, counts: Sequence[tuple[str, int]]) -> MigModel:
    """Make a model of the 4-slice layout, from profiles and how many of each fit."""
    starts = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,)}
    rows = []
    for profile, most in counts:
        compute = int(profile[0])
        size = int(profile[3:].partition("gb")[0])
        rows.append((profile, size, compute, compute, most, starts[compute]))
    return MigModel(
        name=name,
        product=re.compile(product),
        memory_gb=memory_gb,
        compute_slices=4,
        memory_slices=4,
        profiles=_profiles(rows),
    )


def _profiles(
    rows: Sequence[tuple[str, int, int, int, int, tuple[int, ...]]],
) -> tuple[MigProfile, ...]:
    return tuple(
        MigProfile(
            name=name,
            size_gb=size,
            compute=compute,
            memory_slices=memory,
            max_instances=most,
            starts=starts,
        )
        for name, size, compute, memory, most, starts in rows
    )


MODELS: tuple[MigModel, ...] = (
    _four(
        "A30-24GB",
        r"^(NVIDIA-)?A30(-|$)",
        24,
        (("1g.6gb", 4), ("1g.6gb.me", 1), ("2g.12gb", 2), ("2g.12gb.me", 1), ("4g.24gb", 1)),
    ),
    _seven("A100-40GB", r"A(100|800).*40GB", (5, 10, 20, 40)),
    _seven("A100-80GB", r"A(100|800).*80GB", (10, 20, 40, 80)),
    _seven("H100-80GB", r"H(100|800)-(80GB|PCIe)", (10, 20, 40, 80)),
    _seven("H100-94GB", r"H(100|800)-(NVL|94GB)", (12, 24, 47, 94)),
    _seven("H100-96GB", r"(GH200-(480GB|96GB)|H20(-|$)|H100-96GB)", (12, 24, 48, 96)),
    _seven("GH200-144GB", r"GH200-144G", (18, 36, 72, 144)),
    _seven("H200-141GB", r"(^|-)H200", (18, 35, 71, 141)),
    # One product label for two memory sizes: told apart by memory, else by profile.
    _seven("GB200-186GB", r"GB200", (23, 47, 93, 186)),
    _seven("GB200-189GB", r"GB200", (24, 47, 95, 189)),
    _seven("GB300-278GB", r"GB300", (35, 70, 139, 278)),
    _seven("B200-180GB", r"(^|-)B200(-|$)", (23, 45, 90, 180)),
    _seven("B300-269GB", r"(^|-)B300", (34, 67, 135, 269)),
    _four(
        "RTX-PRO-6000-96GB",
        r"RTX-PRO-6000-Blackwell",
        96,
        (
            ("1g.24gb", 4),
            ("1g.24gb.me", 1),
            ("1g.24gb.gfx", 4),
            ("1g.24gb.me.all", 1),
            ("1g.24gb-me", 4),
            ("2g.48gb", 2),
            ("2g.48gb.gfx", 2),
            ("2g.48gb.me.all", 1),
            ("2g.48gb-me", 2),
            ("4g.96gb", 1),
            ("4g.96gb.gfx", 1),
        ),
    ),
    # NVIDIA's own tables disagree on how many fit; the lower numbers are kept.
    _four(
        "RTX-PRO-5000-48GB",
        r"RTX-PRO-5000-Blackwell",
        48,
        (
            ("1g.12gb", 1),
            ("1g.12gb.me", 1),
            ("1g.12gb.gfx", 1),
            ("1g.12gb-me", 3),
            ("2g.24gb-me", 1),
            ("4g.48gb", 1),
            ("4g.48gb.gfx", 1),
        ),
    ),
)

_SIZES = frozenset(profile.size_gb for model in MODELS for profile in model.profiles)
_NAME = re.compile(r"[1-8]g\.(\d+)gb", re.ASCII)


@lru_cache(maxsize=1024)
def model_of(product: str, memory_mib: int = 0, profile: str = "") -> MigModel | None:
    """Find the model of a product label; memory or a profile seen on it settles a tie."""
    found = [model for model in MODELS if model.product.search(product)]
    if profile:
        found = [model for model in found if model.profile(profile)] or found
    if memory_mib and len(found) > 1:
        found.sort(key=lambda model: abs(model.memory_gb - memory_mib / 1024))
    return found[0] if found else None


@lru_cache(maxsize=4096)
def slice_milli(product: str, profile: str, memory_mib: int = 0) -> int:
    """Weigh a slice: its share of the physical GPU's memory, in milli-GPU.

    `memory_mib` is the whole GPU's memory where known. A slice of an unknown model weighs
    what its name's number is of that memory, in whole eighths as slices come; with neither
    known it weighs a whole GPU.
    """
    model = model_of(product, memory_mib, profile)
    known = model.profile(profile) if model is not None else None
    if model is not None and known is not None:
        return known.memory_slices * 1000 // model.memory_slices
    match = _NAME.match(profile)
    total_gb = model.memory_gb if model is not None else -(-memory_mib // 1024)
    if match is None or total_gb <= 0:
        return 1000
    eighths = round(8 * int(match[1]) / total_gb)
    return min(max(eighths, 1), 8) * 125


def is_slice_size(size_gb: int) -> bool:
    """Say whether some model has a slice that goes by this many GB."""
    return size_gb in _SIZES


def is_valid_layout(model: MigModel, profiles: Sequence[str]) -> bool:
    """Say whether one GPU can hold all these slices at once.

    Placements must not overlap, compute slices must suffice, no profile beyond its count,
    and media extensions go to one slice only.
    """
    wanted = [model.profile(name) for name in profiles]
    known = [profile for profile in wanted if profile is not None]
    if len(known) != len(wanted):
        return False
    if sum(profile.compute for profile in known) > model.compute_slices:
        return False
    if sum(profile.takes_media for profile in known) > 1:
        return False
    counts = Counter(profile.name for profile in known)
    if any(counts[profile.name] > profile.max_instances for profile in known):
        return False
    known.sort(key=lambda profile: (-profile.memory_slices, len(profile.starts)))
    return _placeable(tuple(known), 0)


def _placeable(rest: tuple[MigProfile, ...], taken: int) -> bool:
    """Try every start of the first slice; `taken` is a bit mask of memory slices."""
    if not rest:
        return True
    first = rest[0]
    width = (1 << first.memory_slices) - 1
    return any(
        not taken & (width << start) and _placeable(rest[1:], taken | (width << start))
        for start in first.starts
    )
