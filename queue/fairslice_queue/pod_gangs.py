"""Pod groups in line: each pod has a booking of its own, but they are planned as one."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from fairslice import messages
from fairslice.booking import Booking
from fairslice.gangs import common_options, size_in, sizes_of
from fairslice.placement import PodNeeds, SetNeeds, gang_needs
from fairslice.pod_groups import is_pod_group
from fairslice_queue.actions import Release
from fairslice_queue.facts import PodFacts
from fairslice_queue.order import Waiting

__all__ = ["Joined", "join_groups", "releases_of"]

MembersOf = Callable[[str], Sequence[PodFacts]]
ShapeOf = Callable[[Booking, PodNeeds], bytes]


class Joined(NamedTuple):
    """The line with each complete group as one item, and the members by that item's booking id."""

    waiting: list[Waiting]
    members: Mapping[str, tuple[Booking, ...]]


def join_groups(waiting: Iterable[Waiting], members_of: MembersOf, shape_of: ShapeOf) -> Joined:
    """Put the waiting pods of each group together. A group that can't start says why.

    A group stands in line where its first pod does, and under that one's booking.
    """
    line: list[Waiting] = []
    groups: defaultdict[tuple[str, str], list[Waiting]] = defaultdict(list)
    for item in waiting:
        if is_pod_group(item.booking.group):
            groups[item.booking.team, item.booking.group].append(item)
        else:
            line.append(item)
    members: dict[str, tuple[Booking, ...]] = {}
    for (_, group), items in groups.items():
        items.sort(key=lambda item: (item.booking.queued_at, item.booking.id))
        why = _hindrance(group, items, members_of(group))
        gang = _joined(items, shape_of) if not why else None
        if gang is None:
            name = group.rpartition("/")[2]
            blocked = why or messages.group_mixed(name)
            line += [structs.replace(item, blocked=blocked) for item in items]
            continue
        line.append(gang)
        members[gang.booking.id] = tuple(item.booking for item in items)
    return Joined(line, members)


def releases_of(action: Release, members: Sequence[Booking]) -> tuple[Release, ...]:
    """Take a group's release apart: one of each member, with its own option and node."""
    if len(members) == 1:
        return (replace(action, booking=members[0].id, sets=(), option=None),)
    given = action.option
    assert given is not None
    found = []
    for booking, place in zip(members, action.sets, strict=True):
        chosen = next(n for n, option in enumerate(booking.options) if size_in(given, option))
        found.append(Release(booking.id, chosen, place))
    return tuple(found)


def _hindrance(group: str, items: Sequence[Waiting], pods: Sequence[PodFacts]) -> str:
    """Say what a group waits for before it is looked at; empty if it is complete."""
    name = group.rpartition("/")[2]
    sizes = {pod.group_size for pod in pods}
    if len(sizes) != 1:
        return messages.group_disagrees(name, sizes)
    ready = {item.booking.id for item in items}
    # Those that someone holds back count as not there yet.
    absent = sum(1 for pod in pods if pod.gated and not pod.ended and pod.booking not in ready)
    (size,) = sizes
    present = len(pods) - absent
    return messages.group_incomplete(name, present, size) if present < size else ""


def _joined(items: Sequence[Waiting], shape_of: ShapeOf) -> Waiting | None:
    bookings = [item.booking for item in items]
    sizes = sizes_of([sum(each.options[0].units.values()) or 1 for each in bookings])
    options = common_options([each.options for each in bookings], sizes)
    if not options:
        return None
    first = items[0]
    booking = structs.replace(
        first.booking,
        pods=sum(sizes),
        options=options,
        sizes=tuple(sorted(set(sizes))),
        rank=max(each.rank for each in bookings),
    )
    sets = [
        SetNeeds(count=1, size=size, needs=item.needs)
        for item, size in zip(items, sizes, strict=True)
    ]
    needs = gang_needs(sets)
    return structs.replace(
        first,
        booking=booking,
        needs=needs,
        shape=shape_of(booking, needs),
        runtime=max(item.runtime for item in items),
        not_before=max(item.not_before for item in items),
        failure=next((item.failure for item in items if item.failure), ""),
        # Whichever of its pods the team's lead has marked, he means them all.
        order=min((item.order for item in items if item.order), default=0),
        pinned=any(item.pinned for item in items),
        urgent=any(item.urgent for item in items),
    )
