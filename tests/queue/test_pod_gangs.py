"""Pods of a group in line as one: where it stands, and by whose marks."""

from msgspec import json, structs

from fairslice.booking import Booking
from fairslice.placement import PodNeeds
from fairslice_queue.facts import PodFacts
from fairslice_queue.order import Waiting
from fairslice_queue.pod_gangs import join_groups

from .plans import NOW, booking

GROUP = "PodGroup cv/eval"


def shape(item: Booking, needs: PodNeeds) -> bytes:
    return json.encode((item.pods, needs))


def member(name: str, at: float, order: int = 0, *, marked: bool = False) -> Waiting:
    one = structs.replace(booking(name, at=at, kind="Pod"), group=GROUP)
    return Waiting(one, PodNeeds(), b"", order=order, pinned=marked, urgent=marked)


def joined(*items: Waiting) -> Waiting:
    def pods(_: str) -> list[PodFacts]:
        return [_facts(len(items)) for _ in items]

    line, members = join_groups(items, pods, shape)
    (gang,) = line
    assert len(members[gang.booking.id]) == len(items)
    return gang


def _facts(size: int) -> PodFacts:
    class Facts:
        group_size = size
        gated, ended, booking = True, False, "a"

    return Facts()  # type: ignore[return-value]


def test_a_group_stands_where_its_first_pod_does() -> None:
    gang = joined(member("b", NOW - 5), member("a", NOW - 50), member("c", NOW - 1))
    assert gang.booking.id == "a"
    assert gang.booking.pods == 3
    assert (gang.order, gang.pinned, gang.urgent) == (0, False, False)


def test_a_mark_on_any_of_its_pods_is_one_on_the_group() -> None:
    first, last = member("a", NOW - 50), member("b", NOW - 5, 3, marked=True)
    gang = joined(first, last)
    assert (gang.booking.id, gang.order, gang.pinned, gang.urgent) == ("a", 3, True, True)
    assert joined(member("a", NOW - 50, 2), member("b", NOW, -4)).order == -4
