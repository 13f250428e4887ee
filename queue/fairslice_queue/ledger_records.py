"""A booking as it lies in Redis: a line of what changes, a line of what was asked."""

from hashlib import blake2b

import msgspec
from msgspec import Struct, structs

from fairslice.booking import Booking, Option, State

__all__ = ["Live", "ask_of", "decode_record", "encode_record", "object_of", "split_record"]


class Live(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What scripts change. Times are text: Lua's JSON would cut their digits.

    `object` is `Kind namespace/name` once the name is known, `ask` a digest of what was asked,
    `linger` marks what an ended pod left to its successor. Scripts keep more here: the reason
    for waiting, the caps of a surge.
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
    linger: bool = False


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


def encode_record(booking: Booking) -> bytes:
    """Write a booking as the scripts read it."""
    ref = booking.ref
    tentative = not booking.bound and booking.tentative_until > 0
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
        object=object_of(ref.kind, ref.namespace, ref.name),
        ask=ask_of(booking),
    )
    return _encoder.encode(live) + b"\n" + _encoder.encode(booking)


def split_record(raw: bytes) -> tuple[Live, Booking]:
    """Read both lines as they are."""
    live, _, fixed = raw.partition(b"\n")
    return _live_decoder.decode(live), _booking_decoder.decode(fixed)


def decode_record(raw: bytes) -> Booking:
    """Read a booking as it now is."""
    live, booking = split_record(raw)
    ref = booking.ref
    if (live.name and live.name != ref.name) or (live.uid and live.uid != ref.uid):
        ref = structs.replace(ref, name=live.name or ref.name, uid=live.uid or ref.uid)
    return structs.replace(
        booking,
        ref=ref,
        state=live.state,
        pods=live.pods,
        chosen=live.chosen,
        place=live.place,
        since=float(live.since),
        bound=live.bound,
        tentative_until=float(live.expires) if live.expires else 0.0,
        surge=live.surge,
        reason=live.reason,
    )
