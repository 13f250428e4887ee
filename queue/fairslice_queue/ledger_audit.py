"""The recount: all totals and indexes of the ledger, made anew from its bookings."""

from collections.abc import Iterator, Mapping
from typing import Any

from fairslice.booking import Booking, State
from fairslice_queue.ledger_records import Live, lines_of, split_record

__all__ = ["Recount", "read_content"]

_AMOUNTS = ("held:", "placed:", "kept:")
_FREE, _CAPACITY, _PODS, _LENDING = "free:", "capacity:", "pods:", "lending:"
_RECOUNTED = (
    *_AMOUNTS,
    _FREE,
    _LENDING,
    "waiting:",
    "tentative:",
    "lingering:",
    "group:",
    "surging:",
    "keeping",
    "deadlines",
    "objects",
)


class Recount:
    """What the ledger's keys should hold, by the bookings put in so far.

    Keys are named without the prefix; their content is field or member → value or score.
    """

    def __init__(self) -> None:
        """Begin with no bookings."""
        self._books: dict[str, tuple[Live, Booking]] = {}
        self._amounts: dict[str, dict[str, int]] = {}
        self._entries: dict[str, dict[str, str]] = {}

    def put(self, identity: str, raw: bytes) -> None:
        """Count a booking as it now is; empty: it ended."""
        old = self._books.pop(identity, None)
        if old is not None:
            self._count(identity, *old, -1)
        if raw:
            new = self._books[identity] = split_record(raw)
            self._count(identity, *new, 1)

    def keys(self) -> set[str]:
        """Name the keys that should exist."""
        return {
            *(key for key, fields in self._amounts.items() if any(fields.values())),
            *(key for key, fields in self._entries.items() if fields),
        }

    def differences(self, found: Mapping[str, Mapping[str, str]]) -> list[str]:
        """Name each entry of these keys that the bookings don't bear out.

        The key of what is free needs that of the capacity beside it.
        """
        told = []
        for key, actual in sorted(found.items()):
            if key.startswith(_PODS):
                if actual and key.removeprefix(_PODS) not in self._books:
                    told.append(f"{key}: no such booking")
                continue
            if not key.startswith(_RECOUNTED):
                continue
            wanted = self._expected(key, found)
            for field in sorted(wanted.keys() | actual.keys()):
                a, b = actual.get(field), wanted.get(field)
                if not _equal(a, b):
                    told.append(f"{key} {field}: {a or 'nothing'}, bookings say {b or 'nothing'}")
        return told

    def _expected(self, key: str, found: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        if key.startswith(_FREE):
            offer = key.removeprefix(_FREE)
            placed = self._amounts.get(f"placed:{offer}", {})
            kept = self._amounts.get(f"kept:{offer}", {})
            capacity = found.get(_CAPACITY + offer, {})
            return {
                node: str(int(n) - placed.get(node, 0) - kept.get(node, 0))
                for node, n in capacity.items()
            }
        if key.startswith(_LENDING):
            return self._lending(key.removeprefix(_LENDING), found[key])
        if key.startswith(_AMOUNTS):
            return {field: str(n) for field, n in self._amounts.get(key, {}).items() if n}
        return self._entries.get(key, {})

    def _lending(self, pool: str, found: Mapping[str, str]) -> dict[str, str]:
        """Count who holds what of a pool, where so much is kept by such teams."""
        holds: dict[str, int] = {}
        for key, fields in self._amounts.items():
            if key.startswith("held:"):
                team = key.removeprefix("held:")
                holds[team] = fields.get(f"p|{pool}", 0) + fields.get(f"s|{pool}", 0)
        kept = {name[2:]: int(n) for name, n in found.items() if name.startswith("k|")}
        unmet = sum(max(0, milli - holds.get(team, 0)) for team, milli in kept.items())
        return {
            "capacity": found.get("capacity", "0"),
            "used": str(sum(holds.values())),
            "kept": str(unmet),
            **{f"k|{team}": str(milli) for team, milli in kept.items()},
            **{f"h|{team}": str(holds.get(team, 0)) for team in kept},
        }

    def _count(self, identity: str, live: Live, booking: Booking, sign: int) -> None:
        for key, field, amount in _amounts(live, booking):
            fields = self._amounts.setdefault(key, {})
            fields[field] = fields.get(field, 0) + sign * amount
        for key, field, value in _entries(identity, live, booking):
            entries = self._entries.setdefault(key, {})
            if sign > 0:
                entries[field] = value
            elif entries.get(field) == value:
                del entries[field]


def read_content(flat: list[Any]) -> dict[str, str]:
    """Read a hash or sorted set as a script answers it."""
    return {a.decode(): b.decode() for a, b in zip(flat[::2], flat[1::2], strict=True)}


def _equal(a: str | None, b: str | None) -> bool:
    if a == b:
        return True
    if a is None or b is None:
        return False
    try:
        return float(a) == float(b)
    except ValueError:
        return False


def _holds(live: Live) -> bool:
    return live.state.holds and live.chosen >= 0


def _amounts(live: Live, booking: Booking) -> Iterator[tuple[str, str, int]]:
    if live.kept is not None:
        for offer, units in booking.options[live.keeps].offers.items():
            for node, pods in live.kept.items():
                yield f"kept:{offer}", node, units * pods
    if not _holds(live):
        return
    option, held = booking.options[live.chosen], f"held:{booking.team}"
    milli = option.milli * live.pods
    if live.surge:
        yield held, f"s|{option.pool}", milli
    else:
        yield held, f"p|{option.pool}", milli
        yield held, f"c|{booking.work_class}", milli
        yield held, f"u|{booking.user}", milli
        for resource, units in option.units.items():
            yield held, f"r|{resource}", units * live.pods
    for offer, units in option.offers.items():
        for node, pods in live.place.items():
            yield f"placed:{offer}", node, units * pods


def _entries(identity: str, live: Live, booking: Booking) -> Iterator[tuple[str, str, str]]:
    group = f"{booking.team}|{booking.group}"
    if live.linger:
        yield "deadlines", identity, live.expires
        yield f"lingering:{group}", identity, live.expires
    else:
        if live.expires and not live.bound:
            yield "deadlines", identity, live.expires
            yield f"tentative:{booking.team}", identity, live.expires
            if live.object:
                yield "objects", live.object, identity
        if booking.group and _holds(live) and live.pods > 0:
            yield f"group:{group}", identity, booking.group_revision
    waits = live.state is State.QUEUED and live.bound
    if waits and not live.blocked and live.kept is None:
        for option in booking.options:
            for line in lines_of(option):
                yield f"waiting:{line}", identity, "-1" if live.lifted else str(booking.rank)
    if live.kept is not None:
        yield "keeping", identity, str(live.keeps)
    if live.surge:
        yield f"surging:{booking.team}", identity, "0"
