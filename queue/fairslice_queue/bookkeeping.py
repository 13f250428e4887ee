"""What is said to the ledger and what it answers."""

from enum import StrEnum

from msgspec import Struct

from fairslice.booking import Booking, Option

__all__ = [
    "Attachment",
    "BookRequest",
    "BookingTaken",
    "Change",
    "Free",
    "Held",
    "Keep",
    "LedgerError",
    "LedgerUnavailable",
    "Lending",
    "Limits",
    "Outcome",
    "ReleaseOrder",
    "Snapshot",
    "StaleEpoch",
    "Verdict",
]


class LedgerError(RuntimeError):
    """The ledger refused: what was asked, and why."""


class BookingTaken(LedgerError):
    """The id asked for belongs to another object, and no spare one was given."""


class LedgerUnavailable(LedgerError):
    """Redis can't be reached in time, or its books are not rebuilt yet."""


class StaleEpoch(LedgerError):
    """Another leader has taken over; this one must stop."""


class Verdict(StrEnum):
    """What booking came to."""

    BOOKED = "booked"
    QUEUED = "queued"
    DENIED = "denied"


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The caps that a booking must keep, in milli-GPU; None is no cap.

    `pools` has an entry for every pool among the options. `surge` is what a rollout may hold
    beyond the pool limit. `guaranteed` is what of a pool the team has a right to whatever others
    keep of theirs; a pool that isn't named there is nobody's.
    """

    pools: dict[str, int | None]
    work_class: int | None = None
    user: int | None = None
    resources: dict[str, int] = {}
    surge: int = 0
    guaranteed: dict[str, int] = {}


class BookRequest(Struct, frozen=True, kw_only=True):
    """A wish to hold GPUs.

    `booking.state` is Queued and nothing is chosen yet. With `start` the ledger may book at
    once (the fast path) if a fitting option is free, the caps allow it and nothing of equal or
    higher standing waits; with `overflow_queue` what can't start is queued, else denied.
    `capacity` False books on caps alone, for work that the kube-scheduler places by itself.
    `spare` is booked under if the id is taken by another object, as that of copied stamps is.
    With `max_tentative` unfinished requests of its team, nothing more starts at once.
    `passes_all` says that its class goes before all others' work, guaranteed or not.
    `queued_options` are the options of a booking that must wait, if they are fewer: what a
    gated pod asks for can't change any more. `held_up` is why `start` is False, if the caller
    knows more than the ledger.
    """

    booking: Booking
    limits: Limits
    now: float
    start: bool = True
    overflow_queue: bool = True
    capacity: bool = True
    tentative_seconds: float = 10.0
    passes_all: bool = False
    max_tentative: int = 200
    spare: str = ""
    queued_options: tuple[Option, ...] | None = None
    held_up: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """The answer to a BookRequest, with the numbers that explain it.

    `cause` of Queued or Denied: `limit` (pool), `class`, `user`, `resource`, `capacity`,
    `standing` (others wait), `placement` (the queue must look at it), `lending` (of `limit` that
    is free, others keep `used`; both 0: the queue hasn't said what they keep), `tentative` (too
    many unfinished requests of this team: none of them starts at once until some have come to
    something).
    More causes of a release: `gone` (no such booking), `state` (not queued: `subject` is what it
    is), `invalid` (no such option, or more pods placed than booked), `group` (`subject` is the
    booking that its group could not do without).
    `used`, `limit`, `asked` are milli-GPU (units for `resource`) of the cap or pool named.
    `why` are the caller's own words for `placement`, if it gave any.
    `option` is the one chosen, or the only one that is waited for: of an earlier booking, if
    the request came again.
    """

    verdict: Verdict
    id: str
    chosen: int = -1
    place: dict[str, int] = {}
    cause: str = ""
    subject: str = ""
    used: int = 0
    limit: int = 0
    asked: int = 0
    surge: bool = False
    why: str = ""
    option: Option | None = None


class Lending(Struct, frozen=True, kw_only=True):
    """What of a pool's capacity is not lent, in milli-GPU: by team, what it keeps for itself."""

    capacity: int
    kept: dict[str, int]


class Keep(Struct, frozen=True, kw_only=True):
    """Units kept for a booking that waits: of which of its options, for how many pods by node."""

    chosen: int
    place: dict[str, int]


class ReleaseOrder(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queued booking to let go: with which of its options, and where (pods by node).

    Only the nodes in `place` are checked; pods left out wait for nodes to come. Neighbours with
    the same `group` (not empty) go together: all of them, or none.
    """

    id: str
    chosen: int
    place: dict[str, int]
    limits: Limits
    group: str = ""


class Attachment(Struct, frozen=True, kw_only=True):
    """The answer to a pod that says it belongs to a released workload.

    `option` is what the pod itself is given, `pod` the stamp that it is known by.
    """

    accepted: bool
    option: Option | None = None
    cause: str = ""
    pod: str = ""


class Held(Struct, frozen=True, kw_only=True):
    """A team's holdings in milli-GPU: by pool, class, user; in units: by resource."""

    pools: dict[str, int] = {}
    surge: dict[str, int] = {}
    classes: dict[str, int] = {}
    users: dict[str, int] = {}
    resources: dict[str, int] = {}


class Free(Struct, frozen=True, kw_only=True):
    """Units that are free, and how many wait that go first, by offer."""

    units: dict[str, int] = {}
    waiting: dict[str, int] = {}


class Change(Struct, frozen=True, kw_only=True):
    """One entry of the ledger's log: a booking as it now is, or None for one that ended."""

    sequence: str
    id: str
    booking: Booking | None


class Snapshot(Struct, frozen=True, kw_only=True):
    """All bookings, and the log position from which changes go on."""

    sequence: str
    bookings: tuple[Booking, ...]
