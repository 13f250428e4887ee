"""The recount: all totals and indexes of the ledger, made anew from its bookings."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairslice.booking import Booking, State
from fairslice_queue.ledger_records import Live

__all__ = ["Totals", "differences"]

Entries = dict[tuple[str, str], str]
"""(key without prefix, field or member) → value or score, as text."""

_RECOUNTED = (
    "held:",
    "placed:",
    "free:",
    "waiting:",
    "tentative:",
    "lingering:",
    "group:",
    "surging:",
    "deadlines",
    "objects",
)


@dataclass(frozen=True, slots=True)
class Totals:
    """What Redis holds beside the bookings."""

    derived: Entries
    capacity: Mapping[str, Mapping[str, int]]
    attached: frozenset[str]

    @classmethod
    def read(cls, reply: Sequence[Any]) -> "Totals":
        """Read the answer of totals.lua."""
        derived: Entries = {}
        capacity: dict[str, dict[str, int]] = {}
        attached: set[str] = set()
        for name, flat in reply:
            key = name.decode()
            pairs = [(a.decode(), b.decode()) for a, b in zip(flat[::2], flat[1::2], strict=True)]
            if key.startswith("capacity:"):
                capacity[key.removeprefix("capacity:")] = {node: int(n) for node, n in pairs}
            elif key.startswith("pods:"):
                attached.add(key.removeprefix("pods:"))
            elif key.startswith(_RECOUNTED):
                derived.update({(key, field): value for field, value in pairs})
        return cls(derived, capacity, frozenset(attached))


def differences(books: Mapping[str, tuple[Live, Booking]], totals: Totals) -> list[str]:
    """Name each total or index entry that the bookings don't bear out, in order."""
    expected = _recount(books, totals.capacity)
    found = []
    for place in sorted(expected.keys() | totals.derived.keys()):
        wanted, actual = expected.get(place), totals.derived.get(place)
        if not _equal(wanted, actual):
            key, field = place
            found.append(
                f"{key} {field}: {actual or 'nothing'}, bookings say {wanted or 'nothing'}"
            )
    found += [f"pods:{name}: no such booking" for name in sorted(totals.attached - books.keys())]
    return found


def _equal(wanted: str | None, actual: str | None) -> bool:
    if wanted == actual:
        return True
    if wanted is None or actual is None:
        return False
    try:
        return float(wanted) == float(actual)
    except ValueError:
        return False


def _recount(
    books: Mapping[str, tuple[Live, Booking]], capacity: Mapping[str, Mapping[str, int]]
) -> Entries:
    amounts: defaultdict[tuple[str, str], int] = defaultdict(int)
    entries: Entries = {}
    for identity, (live, booking) in books.items():
        for place, amount in _amounts(live, booking):
            amounts[place] += amount
        entries.update(_entries(identity, live, booking))
    for offer, nodes in capacity.items():
        for node, units in nodes.items():
            entries[f"free:{offer}", node] = str(units - amounts.get((f"placed:{offer}", node), 0))
    entries.update({place: str(amount) for place, amount in amounts.items() if amount})
    return entries


def _holds(live: Live) -> bool:
    return live.state.holds and live.chosen >= 0


def _amounts(live: Live, booking: Booking) -> Iterator[tuple[tuple[str, str], int]]:
    if not _holds(live):
        return
    option, held = booking.options[live.chosen], f"held:{booking.team}"
    milli = option.milli * live.pods
    if live.surge:
        yield (held, f"s|{option.pool}"), milli
    else:
        yield (held, f"p|{option.pool}"), milli
        yield (held, f"c|{booking.work_class}"), milli
        yield (held, f"u|{booking.user}"), milli
        for resource, units in option.units.items():
            yield (held, f"r|{resource}"), units * live.pods
    for offer, units in option.offers.items():
        for node, pods in live.place.items():
            yield (f"placed:{offer}", node), units * pods


def _entries(identity: str, live: Live, booking: Booking) -> Entries:
    entries: Entries = {}
    group = f"{booking.team}|{booking.group}"
    if live.linger:
        entries["deadlines", identity] = entries[f"lingering:{group}", identity] = live.expires
    else:
        if live.expires and not live.bound:
            entries["deadlines", identity] = live.expires
            entries[f"tentative:{booking.team}", identity] = live.expires
            if live.object:
                entries["objects", live.object] = identity
        if booking.group and _holds(live) and live.pods > 0:
            entries[f"group:{group}", identity] = booking.group_revision
    if live.state is State.QUEUED and live.bound and not live.blocked:
        for option in booking.options:
            entries[f"waiting:{option.pool}", identity] = str(booking.rank)
    if live.surge:
        entries[f"surging:{booking.team}", identity] = "0"
    return entries
