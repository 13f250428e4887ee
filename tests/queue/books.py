"""Bookings, options and caps as the ledger's tests write them."""

from typing import Any

from fairslice.booking import Booking, Option, Ref, State
from fairslice_queue.ledger import BookRequest, Limits

POOL = "a100"
PRODUCT = "A100-80GB"
WHOLE = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"
WHOLES = f"{POOL}|{PRODUCT}|{WHOLE}"
SLICES = f"{POOL}|{PRODUCT}|{SLICE}"

NOW = 1_700_000_000.123456


def option(resource: str = WHOLE, milli: int = 1000, units: int = 1, pool: str = POOL) -> Option:
    return Option(
        pool=pool, product=PRODUCT, mode="whole", milli=milli * units, units={resource: units}
    )


def booking(identity: str, **fields: Any) -> Booking:
    """A queued booking of one whole-GPU pod of team cv, unless said otherwise."""
    name = fields.pop("name", identity)
    kind = fields.pop("kind", "Job")
    base: dict[str, Any] = {
        "ref": Ref(kind=kind, namespace="ns", name=name),
        "team": "cv",
        "work_class": "training",
        "rank": 1,
        "user": "ada",
        "state": State.QUEUED,
        "pods": 1,
        "options": (option(),),
    }
    return Booking(id=identity, **{**base, **fields})


def limits(pool: int | None = None, **fields: Any) -> Limits:
    return Limits(pools={POOL: pool, "t4": pool}, **fields)


def request(asked: Booking, caps: Limits | None = None, **fields: Any) -> BookRequest:
    """A request at NOW, without caps unless given."""
    return BookRequest(booking=asked, limits=caps or limits(), **{"now": NOW, **fields})
