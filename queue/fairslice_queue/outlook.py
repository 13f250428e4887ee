"""The planner's state, drawn from watch, books and meter."""

from collections.abc import Container, Mapping

from msgspec import json

from fairslice import stamps
from fairslice.booking import Booking
from fairslice.fairshare import PoolWeight, dominant_share
from fairslice.placement import PodNeeds
from fairslice.v1alpha1.scalars import duration_seconds
from fairslice_queue.actions import Reserve
from fairslice_queue.books import Books
from fairslice_queue.planner import PlanState, Waiting
from fairslice_queue.usage import Meter
from fairslice_queue.victims import Candidate
from fairslice_queue.watching import Watch

__all__ = ["outlook", "pool_weights", "team_shares"]


def outlook(
    watch: Watch,
    books: Books,
    meter: Meter,
    now: float,
    *,
    busy: Container[str],
    leaving: Container[str],
    not_before: Mapping[str, float],
    claims: Mapping[str, Reserve],
) -> PlanState:
    """Draw the state. `busy` bookings have a call in flight and are left out of the line."""
    waiting = [
        item
        for booking in books.waiting()
        if booking.id not in busy
        and (item := _waiting(watch, booking, not_before.get(booking.id, 0.0))) is not None
    ]
    weights = pool_weights(watch)
    half_life = float(watch.policy.half_life)
    return PlanState(
        policy=watch.policy,
        teams=watch.teams,
        tally=books.tally,
        waiting=waiting,
        candidates=[_candidate(watch, booking, leaving) for booking in books.holding()],
        nodes=watch.free_nodes(books),
        shares=team_shares(watch, meter, now),
        claims=claims,
        share_of_milli={
            pool: dominant_share({pool: 1.0}, weights, 1, half_life) for pool in weights
        },
    )


def _waiting(watch: Watch, booking: Booking, not_before: float) -> Waiting | None:
    needs = watch.needs_of(booking.id)
    if needs is None or not booking.options:
        return None
    workload = watch.workload_of(booking.id)
    annotations = workload.annotations if workload is not None else {}
    if annotations.get(stamps.HOLD) == "true":
        return None
    return Waiting(
        booking=booking,
        needs=needs,
        shape=_shape(booking, needs),
        runtime=_seconds(annotations.get(stamps.RUNTIME)),
        not_before=not_before,
    )


def _candidate(watch: Watch, booking: Booking, leaving: Container[str]) -> Candidate:
    pods = watch.pods_of(booking.id).values()
    workload = watch.workload_of(booking.id)
    if workload is not None:
        annotations = workload.annotations
    else:
        annotations = next((pod.annotations for pod in pods), {})
    started = [pod.started for pod in pods if pod.started and not pod.ended]
    return Candidate(
        booking=booking,
        needs=watch.needs_of(booking.id) or PodNeeds(),
        started=min(started, default=booking.since),
        checkpoint_every=_seconds(annotations.get(stamps.CHECKPOINT_EVERY)),
        leaving=booking.state.leaves or booking.id in leaving,
    )


def team_shares(watch: Watch, meter: Meter, now: float) -> dict[str, float]:
    """Compute each team's weighted dominant share of decayed use."""
    weights = pool_weights(watch)
    half_life = float(watch.policy.half_life)
    readings = meter.readings(now)
    shares: dict[str, float] = {}
    for team in watch.teams.teams:
        use = {
            pool: readings[team.name, pool].decayed
            for pool in weights
            if (team.name, pool) in readings
        }
        shares[team.name] = dominant_share(use, weights, team.weight, half_life)
    return shares


def pool_weights(watch: Watch) -> dict[str, PoolWeight]:
    """Weigh each pool that has capacity: its milli-GPU, and its exchange rate."""
    capacity: dict[str, int] = {}
    offers = {offer.key: offer for offer in watch.inventory.offers}
    for key, nodes in watch.inventory.capacity().items():
        offer = offers.get(key)
        if offer is not None:
            milli = offer.milli * sum(nodes.values())
            capacity[offer.pool] = capacity.get(offer.pool, 0) + milli
    rates = {pool.name: pool.rate_millionths for pool in watch.policy.pools}
    return {
        pool: PoolWeight(capacity=milli, rate_millionths=rates.get(pool, 1_000_000))
        for pool, milli in capacity.items()
        if milli
    }


def _shape(booking: Booking, needs: PodNeeds) -> bytes:
    return json.encode(
        (booking.pods, [(o.pool, o.product, o.units) for o in booking.options], needs)
    )


def _seconds(text: str | None) -> float:
    """Read a declared time span; what can't be read was not declared."""
    if not text:
        return 0.0
    try:
        return float(duration_seconds(text))
    except ValueError:
        return 0.0
