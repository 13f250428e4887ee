"""A booking as it lies in Redis: lines of what changes, of what scripts read, of all of it."""

from hashlib import blake2b

import msgspec
from msgspec import Struct, structs

from fairslice.booking import Booking, Option, State, offer_key
from fairslice_queue.shared_bookings import SharedParts

__all__ = [
    "Live",
    "Tentative",
    "ask_of",
    "decode_record",
    "encode_record",
    "fixed_lines",
    "lines_of",
    "object_of",
    "split_record",
]


class Live(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What scripts change. Times are text: Lua's JSON would cut their digits.

    `object` is `Kind namespace/name` once the name is known, `ask` a digest of what was asked,
    `linger` marks what an ended pod left to its successor; `kept` are units set aside for a
    booking that waits, with its option `keeps`; `lifted` ones stand before every rank. Scripts
    keep more here: the reason for waiting, the caps of a surge.
    """

    state: State
    pods: int
    chosen: int
    place: dict[str, int] = {}
    since: str = "0.0"
    bound: bool = False
    expires: str = ""
    surge: bool = False
    reason: str = ""
    name: str = ""
    uid: str = ""
    object: str = ""
    ask: str = ""
    blocked: bool = False
    lifted: bool = False
    linger: bool = False
    kept: dict[str, int] | None = None
    keeps: int = -1


class Tentative(Struct, frozen=True, omit_defaults=True):
    """What is known of a booking's first line before the script that books it has decided."""

    pods: int
    since: str
    expires: str
    name: str = ""
    object: str = ""
    ask: str = ""

    @property
    def tail(self) -> bytes:
        """The line but for its beginning: state, chosen and place."""
        return _encoder.encode(self)[1:]


class _FixedRef(Struct, frozen=True, omit_defaults=True):
    kind: str
    namespace: str
    name: str = ""
    generate_name: str = ""


class _FixedOption(Struct, frozen=True):
    pool: str
    product: str
    milli: int
    units: dict[str, int]


class _Fixed(Struct, frozen=True, omit_defaults=True):
    """What scripts read of a booking and never change."""

    team: str
    work_class: str
    user: str
    rank: int
    ref: _FixedRef
    options: tuple[_FixedOption, ...]
    group: str = ""
    group_revision: str = ""
    sizes: tuple[int, ...] = ()


class _Ask(Struct, frozen=True):
    team: str
    work_class: str
    user: str
    pods: int
    options: tuple[Option, ...]
    group: str
    group_revision: str
    sizes: tuple[int, ...]


_encoder = msgspec.json.Encoder()
_live_decoder = msgspec.json.Decoder(Live)
_booking_decoder = msgspec.json.Decoder(Booking)
_shared = SharedParts()
_NOWHERE: dict[str, int] = {}  # one for all that wait; nobody changes a booking's place


def object_of(kind: str, namespace: str, name: str) -> str:
    """Name an object in the index of tentative bookings; empty while it has no name."""
    return f"{kind} {namespace}/{name}" if name else ""


def ask_of(booking: Booking) -> str:
    """Digest what is asked, to tell a request that came twice from another for the same name."""
    ask = _Ask(
        booking.team,
        booking.work_class,
        booking.user,
        booking.pods,
        booking.options,
        booking.group,
        booking.group_revision,
        booking.sizes,
    )
    return blake2b(_encoder.encode(ask), digest_size=8).hexdigest()


def fixed_lines(booking: Booking) -> bytes:
    """Write the two lines that stay: what scripts read, and all of it as it is now."""
    ref = booking.ref
    fixed = _Fixed(
        booking.team,
        booking.work_class,
        booking.user,
        booking.rank,
        _FixedRef(ref.kind, ref.namespace, ref.name, ref.generate_name),
        tuple([_FixedOption(o.pool, o.product, o.milli, o.units) for o in booking.options]),
        booking.group,
        booking.group_revision,
        booking.sizes,
    )
    return _encoder.encode(fixed) + b"\n" + _encoder.encode(booking)


def encode_record(booking: Booking) -> bytes:
    """Write a booking as the scripts read it."""
    ref = booking.ref
    tentative = not booking.bound and booking.tentative_until > 0
    named = object_of(ref.kind, ref.namespace, ref.name)
    live = Live(
        state=booking.state,
        pods=booking.pods,
        chosen=booking.chosen,
        place=booking.place,
        since=repr(booking.since),
        bound=booking.bound,
        expires=repr(booking.tentative_until) if tentative else "",
        surge=booking.surge,
        reason=booking.reason,
        name=ref.name,
        uid=ref.uid,
        object=named,
        ask=ask_of(booking) if tentative and named else "",
    )
    return _encoder.encode(live) + b"\n" + fixed_lines(booking)


def lines_of(option: Option) -> list[str]:
    """Name the lines in which an option is waited for: its offers; what DRA allocates has none."""
    return [*option.offers] or [offer_key(option.pool, option.product, "")]


def split_record(raw: bytes) -> tuple[Live, Booking]:
    """Read what changes, and the booking as it was made."""
    live, _, whole = raw.split(b"\n", 2)
    return _live_decoder.decode(live), _booking_decoder.decode(whole)


def decode_record(raw: bytes) -> Booking:
    """Read a booking as it now is."""
    live, booking = split_record(raw)
    return structs.replace(
        booking,
        ref=_shared.ref(booking.ref, live.name, live.uid),
        team=_shared.word(booking.team),
        work_class=_shared.word(booking.work_class),
        user=_shared.word(booking.user),
        options=_shared.options(booking.options),
        state=live.state,
        pods=live.pods,
        chosen=live.chosen,
        place=live.place or _NOWHERE,
        since=float(live.since),
        bound=live.bound,
        tentative_until=float(live.expires) if live.expires else 0.0,
        surge=live.surge,
        reason=live.reason,
    )
