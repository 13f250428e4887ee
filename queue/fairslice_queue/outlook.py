"""The planner's state, drawn from watch, books and meter."""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from msgspec import json

from fairslice import messages, stamps
from fairslice.booking import Booking
from fairslice.budgets import Budget, Stop, stops_of
from fairslice.fairshare import ENTRY_SECONDS, PoolWeight, dominant_share
from fairslice.placement import PodNeeds
from fairslice.pod_groups import is_pod_group
from fairslice.policy import Policy, Team
from fairslice.pool_capacity import pool_capacity
from fairslice.v1alpha1.scalars import Mode, duration_seconds
from fairslice_queue.actions import Reserve
from fairslice_queue.books import Books
from fairslice_queue.planner import PlanState, Waiting
from fairslice_queue.pod_gangs import join_groups
from fairslice_queue.spending import budget_states
from fairslice_queue.usage import Meter
from fairslice_queue.victims import Candidate
from fairslice_queue.watching import Watch

__all__ = ["Outlook", "pool_weights", "team_shares", "team_use"]

_JUDGE_SECONDS = 60


class _Judged(NamedTuple):
    """What was found of a team's budgets, of what, and how long it holds."""

    budgets: tuple[Budget, ...]
    changes: int
    until: float
    stops: tuple[Stop, ...]


class Outlook:
    """Draws the state, round after round; what did not change since the last one is kept.

    `members` are the pods of each group in line, by the booking under which the group stands.
    """

    def __init__(self, watch: Watch, meter: Meter) -> None:
        self.members: Mapping[str, tuple[Booking, ...]] = {}
        self._watch = watch
        self._meter = meter
        # By booking: what was read, of which booking and which object's annotations and needs.
        self._read: dict[str, tuple[Booking, object, object, Waiting]] = {}
        self._judged: dict[str, _Judged] = {}
        self._judged_by: Policy | None = None

    def draw(
        self,
        books: Books,
        now: float,
        *,
        busy: Container[str],
        leaving: Container[str],
        held_back: Mapping[str, tuple[float, str]],
        claims: Mapping[str, Reserve],
    ) -> PlanState:
        """Draw the state. `busy` bookings have a call in flight and are left out of the line.

        `held_back` says until when (Unix seconds), and for what failure.
        """
        watch = self._watch
        waiting = [
            item
            for booking in books.waiting()
            if booking.id not in busy
            and (item := self._waiting(booking, held_back.get(booking.id))) is not None
        ]
        waiting, self.members = join_groups(waiting, watch.group_members, _shape)
        if len(self._read) > 2 * len(waiting) + 100:
            kept = {booking.id for booking in books.waiting()}
            self._read = {key: read for key, read in self._read.items() if key in kept}
        candidates = [_candidate(watch, booking, leaving) for booking in books.holding()]
        weights = pool_weights(watch)
        half_life = float(watch.policy.half_life)
        self._meter.use_half_life(half_life, now)
        return PlanState(
            policy=watch.policy,
            teams=watch.teams,
            tally=books.tally,
            waiting=waiting,
            candidates=candidates,
            nodes=watch.free_nodes(books),
            shares=team_shares(watch, self._meter, now, fresh=candidates),
            claims=claims,
            share_of_milli={
                pool: dominant_share({pool: 1.0}, weights, 1, half_life) for pool in weights
            },
            stops=self.budgets_gone(now),
            capacity={pool: weight.capacity for pool, weight in weights.items()},
        )

    def budgets_gone(self, now: float) -> Mapping[str, Sequence[Stop]]:
        """Find the budgets that are gone, by team.

        A team is judged anew when it holds more or less than before, or when one of its budgets
        will be gone at its present pace, or a period turns.
        """
        watch, spending = self._watch, self._meter.spending
        if self._judged_by is not watch.policy:
            self._judged_by, self._judged = watch.policy, {}
            spending.use_policy(watch.policy, now)
        stops: dict[str, Sequence[Stop]] = {}
        for number, team in enumerate(watch.teams.budgeted):
            found = self._judged.get(team.name)
            changes = spending.changes(team.name)
            if (
                found is None
                or found.budgets != team.budgets
                or found.changes != changes
                or now >= found.until
            ):
                found = self._judged[team.name] = self._judge(team, changes, number, now)
            if found.stops and watch.policy.modes_for(team).quota is Mode.ENFORCE:
                stops[team.name] = found.stops
        return stops

    def _judge(self, team: Team, changes: int, number: int, now: float) -> _Judged:
        policy = self._watch.policy
        states = budget_states(team, policy, self._meter.spending, now)
        # Prices may change before then; not all teams are judged at once.
        until = now + _JUDGE_SECONDS + number % _JUDGE_SECONDS
        for state in states:
            soon = state.end if state.exhausted or state.forecast is None else state.forecast
            until = min(until, soon)
        return _Judged(team.budgets, changes, until, stops_of(team.name, states, policy.zone))

    def waiting(self, booking: Booking) -> Waiting | None:
        """Look at one booking in line; None if there is nothing to be planned for it."""
        return self._waiting(booking, None)

    def holding(self, booking: Booking) -> Candidate:
        """Look at one holder."""
        return _candidate(self._watch, booking, ())

    def _waiting(self, booking: Booking, held_back: tuple[float, str] | None) -> Waiting | None:
        needs = self._watch.needs_of(booking.id)
        annotations = self._watch.annotations_of(booking.id)
        held = annotations.get(stamps.HOLD) == "true"
        # A member of a pod group that is held back is missing there.
        if needs is None or not booking.options or (held and is_pod_group(booking.group)):
            return None
        found = self._read.get(booking.id)
        if (
            found is None
            or found[0] is not booking
            or found[1] is not annotations
            or found[2] is not needs
        ):
            item = Waiting(
                booking=booking,
                needs=needs,
                shape=_shape(booking, needs),
                runtime=_seconds(annotations.get(stamps.RUNTIME)),
                order=_order(annotations.get(stamps.ORDER)),
                blocked=messages.held_by_annotation() if held else "",
            )
            self._read[booking.id] = (booking, annotations, needs, item)
        else:
            item = found[3]
        if held_back is None:
            return item
        return replace(item, not_before=held_back[0], failure=held_back[1])


def _candidate(watch: Watch, booking: Booking, leaving: Container[str]) -> Candidate:
    pods = watch.pods_of(booking.id).values()
    started = [pod.started for pod in pods if pod.started and not pod.ended]
    return Candidate(
        booking=booking,
        needs=watch.needs_of(booking.id) or PodNeeds(),
        started=min(started, default=booking.since),
        checkpoint_every=_seconds(watch.annotations_of(booking.id).get(stamps.CHECKPOINT_EVERY)),
        leaving=booking.state.leaves or booking.id in leaving,
        runtime=_seconds(watch.annotations_of(booking.id).get(stamps.RUNTIME)),
    )


def team_shares(
    watch: Watch, meter: Meter, now: float, *, fresh: Iterable[Candidate] = ()
) -> dict[str, float]:
    """Compute each team's weighted dominant share of decayed use.

    `fresh` work counts at once as if it had run for a while: the entry penalty, which is paid
    off as it runs.
    """
    weights = pool_weights(watch)
    half_life = float(watch.policy.half_life)
    use = team_use(meter, weights, now, fresh=fresh)
    return {
        team.name: dominant_share(use.get(team.name, {}), weights, team.weight, half_life)
        for team in watch.teams.teams
    }


def team_use(
    meter: Meter,
    weights: Mapping[str, PoolWeight],
    now: float,
    *,
    fresh: Iterable[Candidate] = (),
) -> Mapping[str, Mapping[str, float]]:
    """Sum up the use that shares come from: decayed milli-GPU-seconds by team and pool."""
    use: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (team, pool), reading in meter.readings(now).items():
        if pool in weights:
            use[team][pool] = reading.decayed
    for item in fresh:
        booking, option = item.booking, item.booking.option
        left = ENTRY_SECONDS - (now - item.started)
        if option is not None and booking.team and left > 0 and option.pool in weights:
            owed = item.milli * min(left, ENTRY_SECONDS)
            pools = use[booking.team]
            pools[option.pool] = pools.get(option.pool, 0.0) + owed
    return use


def pool_weights(watch: Watch) -> dict[str, PoolWeight]:
    """Weigh each pool that has capacity: its milli-GPU, and its exchange rate."""
    capacity = pool_capacity(watch.inventory)
    rates = {pool.name: pool.rate_millionths for pool in watch.policy.pools}
    return {
        pool: PoolWeight(capacity=milli, rate_millionths=rates.get(pool, 1_000_000))
        for pool, milli in capacity.items()
    }


def _shape(booking: Booking, needs: PodNeeds) -> bytes:
    return json.encode(
        (booking.pods, [(o.pool, o.product, o.units) for o in booking.options], needs)
    )


def _order(text: str | None) -> int:
    """Read the lead's order; what can't be read was not given."""
    if not text or len(text) > 9:
        return 0
    try:
        return int(text)
    except ValueError:
        return 0


def _seconds(text: str | None) -> float:
    """Read a declared time span; what can't be read was not declared."""
    if not text:
        return 0.0
    try:
        return float(duration_seconds(text))
    except ValueError:
        return 0.0
