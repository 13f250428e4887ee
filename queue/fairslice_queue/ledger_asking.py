"""A wish to hold GPUs as its scripts take it: taking JSON apart would cost Redis more.

What comes in bursts differs in its id, its name and its time only; the rest is written once.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple, Self

import msgspec
from msgspec import Struct

from fairslice.booking import Option
from fairslice_queue.bookkeeping import BookRequest, Limits
from fairslice_queue.ledger_records import Tentative, ask_of, fixed_lines, object_of

__all__ = ["BookingForm", "book_arguments", "waiting_options"]


class _AskedOption(Struct, frozen=True, array_like=True):
    """`resource` is empty if there is not just one; units and milli-GPU are those of a pod."""

    pool: str
    product: str
    resource: str
    units: int
    milli: int
    pool_cap: int | None
    resource_cap: int | None
    guaranteed: int | None


class _Asked(Struct, frozen=True, array_like=True):
    """The list that book_at_once.lua and book_request.lua take apart by position, from 1 on."""

    team: str
    start: bool
    overflow_queue: bool
    capacity: bool
    passes_all: bool
    max_tentative: int
    kind: str
    namespace: str
    generate_name: str
    ask: str
    work_class: str
    user: str
    rank: int
    pods: int
    group: str
    group_revision: str
    class_cap: int | None
    user_cap: int | None
    options: list[_AskedOption]


_pack = msgspec.msgpack.Encoder().encode
_encode = msgspec.json.Encoder().encode


class _Own(NamedTuple):
    """What each request has of its own; times in Unix seconds."""

    id: str
    now: str
    expires: str
    name: str
    object: str

    @classmethod
    def of(cls, request: BookRequest, booking_id: str, name: str, now: float) -> Self:
        """Write it for a request, or for another like it."""
        ref = request.booking.ref
        expires = repr(now + request.tentative_seconds)
        return cls(booking_id, repr(now), expires, name, object_of(ref.kind, ref.namespace, name))


def book_arguments(request: BookRequest) -> list[bytes]:
    """Write the arguments of book_request.lua."""
    booking, limits = request.booking, request.limits
    ref, waiting = booking.ref, waiting_options(request)
    own = _Own.of(request, booking.id, ref.name, request.now)
    # Only what has a name can come again under it.
    ask = ask_of(booking) if own.object else ""
    asked = _Asked(
        booking.team,
        request.start,
        request.overflow_queue,
        request.capacity,
        request.passes_all,
        request.max_tentative,
        ref.kind,
        ref.namespace,
        ref.generate_name,
        ask,
        booking.work_class,
        booking.user,
        booking.rank,
        booking.pods,
        booking.group,
        booking.group_revision,
        limits.work_class,
        limits.user,
        [_flat(option, limits) for option in booking.options],
    )
    return [
        _pack(asked),
        Tentative(booking.pods, own.now, own.expires, own.name, own.object, ask).tail,
        fixed_lines(booking),
        b"" if waiting is None else fixed_lines(msgspec.structs.replace(booking, options=waiting)),
        _encode(limits),
        *map(str.encode, own),
    ]


# Stand for what differs.
_ID, _NAME, _NOW = "b5f0c8e2d17a94b36c0e8", "fairslice-form-5f0c8e2d17", 1111111111.111111


class _Blank(NamedTuple):
    """An argument that values are put into: which one it is, its text, the values in order."""

    argument: int
    text: bytes
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BookingForm:
    """A request to book with blanks for id, name and time. `request` is one of those it fits."""

    request: BookRequest
    _same: tuple[bytes, ...]
    _blanks: tuple[_Blank, ...]

    @classmethod
    def of(cls, request: BookRequest) -> Self | None:
        """Make the form of a request and of those like it: named ones, or nameless ones.

        None if the request has words in it that stand for blanks; anybody may write them.
        """
        booking = request.booking
        ref = msgspec.structs.replace(booking.ref, name=_NAME if booking.ref.name else "")
        booking = msgspec.structs.replace(booking, id=_ID, ref=ref, queued_at=_NOW, since=_NOW)
        blank = msgspec.structs.replace(request, booking=booking, now=_NOW, spare=_ID)
        written = (_ID, _NAME, repr(_NOW), repr(_NOW + request.tentative_seconds))
        marks = [word.encode() for word in written]
        mark = re.compile(b"|".join(map(re.escape, marks)))
        if any(map(mark.search, book_arguments(request))):
            return None
        same = tuple(book_arguments(blank)[: -len(_Own._fields)])
        blanks = []
        for number, text in enumerate(same):
            if places := tuple(marks.index(found) for found in mark.findall(text)):
                blanks.append(_Blank(number, mark.sub(b"%b", text.replace(b"%", b"%%")), places))
        return cls(request, same, tuple(blanks))

    def filled(self, booking_id: str, name: str, now: float) -> list[bytes]:
        """Write the arguments for one object; its name counts if that of the request did."""
        named = self.request.booking.ref.name
        own = [*map(str.encode, _Own.of(self.request, booking_id, name if named else "", now))]
        values = (own[0], _encode(name)[1:-1], own[1], own[2])
        arguments = [*self._same, *own]
        for number, text, places in self._blanks:
            arguments[number] = text % tuple([values[place] for place in places])
        return arguments


def waiting_options(request: BookRequest) -> tuple[Option, ...] | None:
    """Return the options of a booking that must wait; None if they are those it has anyway."""
    waiting = request.queued_options
    return None if waiting == request.booking.options else waiting


def _flat(option: Option, limits: Limits) -> _AskedOption:
    resource, units = "", 0
    if len(option.units) == 1:
        ((resource, units),) = option.units.items()
    return _AskedOption(
        option.pool,
        option.product,
        resource,
        units,
        option.milli,
        # A pool that no cap names gives nothing.
        limits.pools.get(option.pool, 0),
        limits.resources.get(resource),
        limits.guaranteed.get(option.pool),
    )
