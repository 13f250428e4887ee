"""Pods of several sizes that are booked, placed and released as one.

A booking counts pods of one size. Where a workload's pods ask for different numbers of the same
share, that size is the largest which all of them are multiples of, and a pod of size 4 counts as
four. All get the same kind of share of the same GPU model: a gang never mixes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd

from msgspec import Struct
from msgspec.structs import replace

from fairslice.booking import Option
from fairslice.kube.objects import PodSpec
from fairslice.pod_sets import PodSet
from fairslice.requests import PodAsk, read_pod

__all__ = ["Member", "common_options", "part_of", "read_members", "size_in", "sizes_of"]


Reader = Callable[[PodSpec, Mapping[str, str] | None], PodAsk]


class Member(Struct, frozen=True, kw_only=True):
    """A pod set that asks for GPUs: how, and how many of the booking's pods one of its is."""

    pod_set: PodSet
    ask: PodAsk
    size: int

    @property
    def count(self) -> int:
        """How many of the booking's pods the whole set is."""
        return self.pod_set.count * self.size


def _read(spec: PodSpec, annotations: Mapping[str, str] | None) -> PodAsk:
    return read_pod(spec, annotations, fractions=True)


def read_members(pod_sets: Iterable[PodSet], read: Reader = _read) -> tuple[Member, ...]:
    """Find the pod sets that ask for GPUs. Raises what reading a pod raises (AskError)."""
    asking: list[tuple[PodSet, PodAsk]] = []
    for item in pod_sets:
        ask = read(item.template.spec, item.template.metadata.annotations)
        if ask.is_gpu:
            asking.append((item, ask))
    # What comes through claims alone has no units, and is of one size or has nothing in common.
    sizes = sizes_of([sum(ask.units.values()) or 1 for _, ask in asking])
    return tuple(
        Member(pod_set=item, ask=ask, size=size)
        for (item, ask), size in zip(asking, sizes, strict=True)
    )


def sizes_of(units: Sequence[int]) -> tuple[int, ...]:
    """Express units as multiples of the largest amount that divides all."""
    common = gcd(*units)
    return tuple(amount // common for amount in units)


def common_options(options: Sequence[Sequence[Option]], sizes: Sequence[int]) -> tuple[Option, ...]:
    """List the options that serve all pods alike, as what a pod of size 1 gets.

    `options` are those of each pod, or pod set, of these sizes; the order is that of the first.
    Empty: no kind of share serves all.
    """
    first, *others = options
    if not others and sizes[0] == 1:
        return tuple(first)
    found: list[Option] = []
    for option in first:
        shares = [option]
        for own in others:
            same = next((other for other in own if _offer(other) == _offer(option)), None)
            if same is None:
                break
            shares.append(same)
        if len(shares) < len(options):
            continue
        unit = _unit(shares, sizes)
        if unit is not None:
            found.append(unit)
    return tuple(found)


def size_in(option: Option, pod: Option) -> int:
    """Tell how many of a booking's pods a pod is, by its own option; 0: it is none of them."""
    if _offer(option) != _offer(pod):
        return 0
    size = sum(pod.units.values()) // max(sum(option.units.values()), 1)
    return size if option.times(size).units == pod.units else 0


def part_of(option: Option, size: int) -> Option:
    """Return what the booking's own pods take, given what a pod of a size takes."""
    if size == 1:
        return option
    units = {name: amount // size for name, amount in option.units.items()}
    devices = {name: amount // size for name, amount in option.devices.items()}
    return replace(option, milli=option.milli // size, units=units, devices=devices)


def _offer(option: Option) -> tuple[str, str, str, frozenset[str]]:
    return option.pool, option.product, option.mode, frozenset(option.units)


def _unit(shares: Sequence[Option], sizes: Sequence[int]) -> Option | None:
    share, size = shares[0], sizes[0]
    unit = replace(
        part_of(share, size),
        rename={old: new for each in shares for old, new in each.rename.items()},
        isolated=all(each.isolated for each in shares),
        memory_mib=min(each.memory_mib for each in shares),
    )
    for each, times in zip(shares, sizes, strict=True):
        grown = unit.times(times)
        if (grown.units, grown.milli, grown.devices) != (each.units, each.milli, each.devices):
            return None
    return unit
