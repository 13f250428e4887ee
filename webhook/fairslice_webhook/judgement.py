"""Judging a wish to book without booking: what can never be, and what caps alone allow."""

from collections.abc import Sequence

import msgspec

from fairslice import messages
from fairslice.booking import Option
from fairslice.inventory import Inventory
from fairslice.options import describe
from fairslice.policy import Policy, Team
from fairslice.v1alpha1.policy import Overflow
from fairslice_queue.ledger import BookRequest, Held, Limits, Outcome, Verdict

__all__ = ["Cap", "cap_denial", "caps_of", "never_fits", "presume", "reason"]


class Cap:
    """One cap beside what is used of it and what one pod asks of it."""

    __slots__ = ("cause", "limit", "per_pod", "subject", "used")

    def __init__(self, cause: str, subject: str, used: int, limit: int, per_pod: int) -> None:
        self.cause = cause
        self.subject = subject
        self.used = used
        self.limit = limit
        self.per_pod = per_pod

    @property
    def fits(self) -> int:
        """How many such pods there is room for."""
        room = max(0, self.limit - self.used)
        return room // self.per_pod if self.per_pod else 1 << 30


def never_fits(request: BookRequest, team: Team, inventory: Inventory) -> str | None:
    """Say why a wish can't come true however long it waits; None if it can.

    Not now is not never: empty autoscaled pools and nodes once seen count as capacity, and a
    pool's limit is what it comes to when a window opens.
    """
    booking = request.booking
    request = _at_most(request, team)
    first_refusal: str | None = None
    for option in booking.options:
        caps = caps_of(request, option, Held())
        tight = min(caps, key=lambda cap: cap.fits, default=None)
        if tight is not None and tight.fits < booking.pods:
            refusal = messages.never_fits_cap(
                team.name,
                tight.cause,
                tight.subject,
                tight.limit,
                tight.per_pod * booking.pods,
                pods=booking.pods,
                fits=tight.fits,
            )
        else:
            have, room = _reach(option, inventory, max(booking.sizes, default=1))
            if room >= booking.pods:
                return None
            refusal = messages.never_fits_capacity(
                describe(option), have, pods=booking.pods, fits=room
            )
        first_refusal = first_refusal or refusal
    return first_refusal


def _at_most(request: BookRequest, team: Team) -> BookRequest:
    limits = request.limits
    pools = {
        pool: None if limit is None else team.most(pool, request.now)
        for pool, limit in limits.pools.items()
    }
    if pools == limits.pools:
        return request
    return msgspec.structs.replace(request, limits=msgspec.structs.replace(limits, pools=pools))


def presume(request: BookRequest, held: Held) -> Outcome:
    """Say what booking would come to by the team's caps, given what it holds."""
    booking = request.booking
    refused: Outcome | None = None
    for index, option in enumerate(booking.options):
        broken = next(
            (cap for cap in caps_of(request, option, held) if cap.fits < booking.pods), None
        )
        if broken is None and request.held_up:
            verdict = Verdict.QUEUED if request.overflow_queue else Verdict.DENIED
            return Outcome(verdict=verdict, id=booking.id, cause="placement", why=request.held_up)
        if broken is None:
            return Outcome(verdict=Verdict.BOOKED, id=booking.id, chosen=index, option=option)
        if refused is None:
            refused = Outcome(
                verdict=Verdict.QUEUED if request.overflow_queue else Verdict.DENIED,
                id=booking.id,
                cause=broken.cause,
                subject=broken.subject,
                used=broken.used,
                limit=broken.limit,
                asked=broken.per_pod * booking.pods,
            )
    return refused or Outcome(verdict=Verdict.DENIED, id=booking.id, cause="capacity")


def reason(outcome: Outcome, team: str, options: Sequence[Option]) -> str:
    """Word why work can't start now, with the numbers."""
    what = describe(options[0]) if options else "a GPU"
    match outcome.cause:
        case "limit" | "class" | "user" | "resource":
            return messages.cap_reached(
                team, outcome.cause, outcome.subject, outcome.used, outcome.limit, outcome.asked
            )
        case "standing":
            return messages.others_first(what)
        case "tentative":
            return messages.too_many_submissions(team, outcome.limit)
        case "placement":
            return outcome.why or messages.placement_planned()
        case "lending" if outcome.used:
            return messages.guarantee_kept(outcome.subject, outcome.limit, outcome.used)
        case "lending":
            return messages.lending_checked(team, outcome.subject)
        case _:
            return messages.capacity_taken(what)


def cap_denial(
    policy: Policy, team: Team, outcome: Outcome, options: Sequence[Option], way_out: str = ""
) -> str:
    """Word the denial of work that can't start now and doesn't wait."""
    waits = way_out or _way_out(policy, team)
    if outcome.cause in ("limit", "class", "user", "resource"):
        return messages.cap_exceeded(
            team.name,
            outcome.cause,
            outcome.subject,
            outcome.used,
            outcome.limit,
            outcome.asked,
            waits=waits,
        )
    return messages.no_room(reason(outcome, team.name, options), waits=waits)


def _way_out(policy: Policy, team: Team) -> str:
    """Word what someone whose work can't wait may do."""
    for work_class in policy.classes.values():
        if work_class.overflow is Overflow.QUEUE and work_class.name in team.allowed_classes:
            if not work_class.preemptible:
                continue
            return (
                f"end something you no longer need, or let it wait in line with the label "
                f"fairslice.io/class: {work_class.name}"
            )
    return "end something you no longer need, or try again later"


def caps_of(request: BookRequest, option: Option, held: Held) -> list[Cap]:
    """List the caps that this option must keep, beside what is used of each."""
    booking, limits = request.booking, request.limits
    caps: list[Cap] = []
    pool_limit = limits.pools.get(option.pool)
    if pool_limit is not None:
        used = held.pools.get(option.pool, 0)
        caps.append(Cap("limit", option.pool, used, pool_limit, option.milli))
    if limits.work_class is not None:
        used = held.classes.get(booking.work_class, 0)
        caps.append(Cap("class", booking.work_class, used, limits.work_class, option.milli))
    if limits.user is not None:
        used = held.users.get(booking.user, 0)
        caps.append(Cap("user", booking.user, used, limits.user, option.milli))
    caps += _resource_caps(limits, option, held)
    return caps


def _resource_caps(limits: Limits, option: Option, held: Held) -> list[Cap]:
    return [
        Cap("resource", name, held.resources.get(name, 0), limits.resources[name], units)
        for name, units in option.units.items()
        if name in limits.resources
    ]


def _reach(option: Option, inventory: Inventory, size: int) -> tuple[int, int]:
    """Return the most units there could be of the scarcest offer, and how many pods that holds.

    A pod of this size must have a node that holds it.
    """
    have, room = 0, 1 << 30
    for offer, units in option.offers.items():
        reach = inventory.reach(offer)
        pods = reach.total // units if reach.on_one_node >= units * size else 0
        if pods < room:
            have, room = reach.total, pods
    return have, room
