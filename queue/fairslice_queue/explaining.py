"""Why work stands where it does: every term that decides, with the numbers behind it."""

import math
from collections.abc import Iterator, Mapping

from msgspec import Struct

from fairslice.booking import Booking
from fairslice.fairshare import PoolWeight, dominant_share
from fairslice.periods import moment_text
from fairslice.policy import Policy, Team
from fairslice.quantity import format_milli
from fairslice_queue.order import Order, Waiting
from fairslice_queue.precedence import why_before
from fairslice_queue.rights import Rights
from fairslice_queue.tally import Tally

__all__ = ["Explanation", "PoolPart", "Term", "explain"]

_PASSES = (
    "its class passes everyone",
    "marked as urgent by its team's lead",
    "has waited longer than the queue's aging time",
    "ordinary",
    "its team's budget is used up: after everybody else",
)


class Term(Struct, frozen=True, kw_only=True):
    """One term of the order, in the order in which they count; smaller goes first."""

    term: str
    value: float | str
    how: str


class PoolPart(Struct, frozen=True, kw_only=True):
    """What a team used of a pool, decayed, against all that could be used.

    `part` is used_gpu_hours / (capacity_gpus × horizon_hours) × rate; the share is the largest
    part over the team's weight.
    """

    pool: str
    used_gpu_hours: float
    capacity_gpus: float
    horizon_hours: float
    rate: float
    part: float


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a workload stands where it does. Positions count from 1 within the team."""

    workload: str
    team: str
    position: int
    queued: int
    reason: str
    terms: tuple[Term, ...]
    pools: tuple[PoolPart, ...]


def explain(
    item: Waiting,
    team: Team,
    policy: Policy,
    tally: Tally,
    rights: Rights,
    use: Mapping[str, float],
    weights: Mapping[str, PoolWeight],
    now: float,
    *,
    position: int = 0,
    queued: int = 0,
    reason: str = "",
    before: Waiting | None = None,
) -> Explanation:
    """Explain a waiting workload. `use` is its team's decayed milli-GPU-seconds by pool.

    `before` is what stands right before it in its team's line.
    """
    half_life = float(policy.half_life)
    share = dominant_share(use, weights, team.weight, half_life)
    order = Order(policy, tally, lambda _: share, now, rights)
    key = order.key(item)
    booking = item.booking
    parts = tuple(_parts(use, weights, half_life))
    work_class = booking.work_class or "unclassified"
    moment = moment_text(booking.queued_at, policy.zone)
    held = tally.users[booking.team, booking.user]
    terms = (
        Term(term="passes", value=key.passes, how=_PASSES[key.passes]),
        Term(term="borrowed", value=key.borrowed, how=_guarantee(booking, team, tally, rights)),
        Term(
            term="class",
            value=key.rank,
            how=f"{work_class}, place {key.rank + 1} of {len(policy.classes)} (0 is the best)",
        ),
        Term(term="share", value=key.share, how=_share(parts, team)),
        Term(
            term="order",
            value=item.order,
            how="the lead's, among its team's work of the same class"
            + ("; pinned: before all of its team's but what passes everyone" * item.pinned),
        ),
        Term(
            term="user",
            value=float(format_milli(held)),
            how=f"GPUs held by {booking.user}; withinTeam is {policy.within_team.value}",
        ),
        Term(
            term="queued at",
            value=booking.queued_at,
            how=f"first in line {moment}, {max(0, int(now - booking.queued_at))} s ago",
        ),
        Term(term="name", value=booking.id, how="decides between equals"),
        *_behind(item, before, order),
        Term(term="waits for", value=position, how=reason or "not looked at yet"),
    )
    return Explanation(
        workload=str(booking.ref),
        team=team.name,
        position=position,
        queued=queued,
        reason=reason,
        terms=terms,
        pools=parts,
    )


def _behind(item: Waiting, before: Waiting | None, order: Order) -> Iterator[Term]:
    if before is not None:
        why = why_before(order.in_team(before), order.in_team(item))
        yield Term(term="behind", value=str(before.booking.ref), how=f"which {why}")


def _parts(
    use: Mapping[str, float], weights: Mapping[str, PoolWeight], half_life: float
) -> Iterator[PoolPart]:
    # Holding one GPU for ever leaves this many decayed GPU-hours; without decay there is none.
    horizon = half_life / math.log(2) if half_life > 0 else 1.0
    for pool, amount in sorted(use.items()):
        weight = weights.get(pool)
        if weight is None or weight.capacity <= 0:
            continue
        yield PoolPart(
            pool=pool,
            used_gpu_hours=amount / 3_600_000,
            capacity_gpus=weight.capacity / 1000,
            horizon_hours=horizon / 3600,
            rate=weight.rate_millionths / 1_000_000,
            part=dominant_share({pool: amount}, {pool: weight}, 1, half_life),
        )


def _share(parts: tuple[PoolPart, ...], team: Team) -> str:
    if not parts:
        return f"team {team.name} has used nothing lately"
    top = max(parts, key=lambda item: item.part)
    return (
        f"{top.pool}: {top.used_gpu_hours:.6g} GPU-hours (decayed) / ({top.capacity_gpus:g} GPUs "
        f"× {top.horizon_hours:.6g} h) × rate {top.rate:g} = {top.part:.6g}, / weight {team.weight}"
    )


def _guarantee(booking: Booking, team: Team, tally: Tally, rights: Rights) -> str:
    told = []
    for pool, asked in {(o.pool, o.milli * booking.pods): None for o in booking.options}:
        held = tally.pools[team.name, pool]
        told.append(
            f"{pool}: holds {format_milli(held)} + asks {format_milli(asked)} = "
            f"{format_milli(held + asked)} of {format_milli(rights.guaranteed(team.name, pool))} "
            "guaranteed"
        )
    return "; ".join(told)
