"""A wish to hold GPUs as its scripts take it: taking JSON apart would cost Redis more."""

import msgspec
from msgspec import Struct

from fairslice.booking import Option
from fairslice_queue.bookkeeping import BookRequest, Limits
from fairslice_queue.ledger_records import Tentative, ask_of, fixed_lines, object_of

__all__ = ["book_arguments"]


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

    id: str
    team: str
    now: str
    expires: str
    start: bool
    overflow_queue: bool
    capacity: bool
    passes_all: bool
    max_tentative: int
    kind: str
    namespace: str
    name: str
    generate_name: str
    object: str
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


def book_arguments(request: BookRequest, waiting: tuple[Option, ...] | None) -> list[bytes]:
    """Write the arguments of book_request.lua. `waiting` are the options of one that must wait."""
    booking, limits = request.booking, request.limits
    ref = booking.ref
    now, expires = repr(request.now), repr(request.now + request.tentative_seconds)
    named = object_of(ref.kind, ref.namespace, ref.name)
    # Only what has a name can come again under it.
    ask = ask_of(booking) if named else ""
    asked = _Asked(
        booking.id,
        booking.team,
        now,
        expires,
        request.start,
        request.overflow_queue,
        request.capacity,
        request.passes_all,
        request.max_tentative,
        ref.kind,
        ref.namespace,
        ref.name,
        ref.generate_name,
        named,
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
        Tentative(booking.pods, now, expires, ref.name, named, ask).tail,
        fixed_lines(booking),
        b"" if waiting is None else fixed_lines(msgspec.structs.replace(booking, options=waiting)),
        _encode(limits),
    ]


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
