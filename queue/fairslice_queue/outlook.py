"""The planner's view, drawn from watch, books and meter, and kept up to date by what changed."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from msgspec import json

from fairslice import messages, stamps
from fairslice.booking import Booking
from fairslice.budgets import Budget, Stop, stops_of
from fairslice.fairshare import ENTRY_SECONDS, PoolWeight, dominant_share
from fairslice.lead_marks import NO_MARKS
from fairslice.placement import PodNeeds
from fairslice.pod_groups import is_pod_group
from fairslice.policy import Policy
from fairslice.pool_capacity import pool_capacity
from fairslice.team import Team
from fairslice.v1alpha1.scalars import Mode, duration_seconds
from fairslice_queue.actions import Reserve
from fairslice_queue.books import Books
from fairslice_queue.changes import Changes
from fairslice_queue.leads import Leads
from fairslice_queue.order import Waiting
from fairslice_queue.planner import Planner
from fairslice_queue.pod_gangs import join_groups
from fairslice_queue.scene import Scene
from fairslice_queue.spending import budget_states
from fairslice_queue.standing import StandingLine
from fairslice_queue.usage import Meter
from fairslice_queue.victims import Candidate
from fairslice_queue.watching import Watch

__all__ = ["Outlook", "pool_weights", "team_shares", "team_use"]

_JUDGE_SECONDS = 60
_SHAPE_BYTES = 16

_Group = tuple[str, str]


class _Judged(NamedTuple):
    """What was found of a team's budgets, of what, and how long it holds."""

    budgets: tuple[Budget, ...]
    changes: int
    until: float
    stops: tuple[Stop, ...]


class _Shares(Mapping[str, float]):
    """Weighted dominant shares, worked out for those teams that are asked for."""

    def __init__(self, outlook: "Outlook", now: float) -> None:
        self._outlook = outlook
        self._now = now
        self._known: dict[str, float] = {}

    def __getitem__(self, team: str) -> float:
        found = self._known.get(team)
        if found is None:
            found = self._known[team] = self._outlook.share(team, self._now)
        return found

    def get(self, team: str, default: float = 0.0) -> float:  # type: ignore[override]
        """Return a team's share; one that nobody knows has none."""
        return self[team]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class Outlook:
    """Tells the planner what changed, and draws what else it reads.

    `members` are the pods of each group in line, by the booking under which the group stands.
    `left` collects the ids of those who left the line, for whoever takes them from it.
    """

    def __init__(self, watch: Watch, meter: Meter, leads: Leads | None = None) -> None:
        self.planner = Planner()
        self.members: dict[str, tuple[Booking, ...]] = {}
        self.left: set[str] = set()
        self._watch = watch
        self._meter = meter
        self._leads = leads
        self._books = Books()
        self._again: set[str] = set()
        self._all_anew = True
        self._held_back: dict[str, tuple[float, str]] = {}
        self._leaving: set[str] = set()
        self._groups: defaultdict[_Group, dict[str, Waiting]] = defaultdict(dict)
        self._group_of: dict[str, _Group] = {}
        self._fresh: defaultdict[str, dict[str, Candidate]] = defaultdict(dict)
        self._shapes: dict[bytes, bytes] = {}
        self._weights: dict[str, PoolWeight] = {}
        self._share_of_milli: dict[str, float] = {}
        self._stops: Mapping[str, Sequence[Stop]] = {}
        self._judged: dict[str, _Judged] = {}
        self._judged_by: Policy | None = None

    # For the rounds.

    def follow(
        self,
        books: Books,
        now: float,
        *,
        busy: Container[str],
        leaving: Iterable[str],
        held_back: Mapping[str, tuple[float, str]],
        claims: Mapping[str, Reserve],
        thorough: bool,
    ) -> Scene:
        """Take up what changed, and draw the scene.

        `busy` bookings have a call in flight and are left out of the line. `held_back` says
        until when (Unix seconds), and for what failure.
        """
        watch, half_life = self._watch, float(self._watch.policy.half_life)
        self._meter.use_half_life(half_life, now)
        changes = watch.take_changes(books)
        self._books = books
        ids = self._changed(changes, books, set(leaving), held_back)
        if changes.capacity or changes.policy or changes.everything:
            self._weights = pool_weights(watch)
            self._share_of_milli = {
                pool: dominant_share({pool: 1.0}, self._weights, 1, half_life)
                for pool in self._weights
            }
        stale: set[_Group] = {key for key in self._groups if key[1] in changes.groups}
        for booking_id in ids:
            stale |= self._read(booking_id, books.get(booking_id), busy, now)
        for group in stale:
            self._join(group, now)
        self.planner.touch(nodes=changes.nodes)
        if thorough or changes.policy or changes.teams:
            self._stops = self.budgets_gone(now)
        return Scene(
            policy=watch.policy,
            teams=watch.teams,
            tally=books.tally,
            nodes=watch.free_nodes(books),
            shares=_Shares(self, now),
            claims=dict(claims),
            share_of_milli=self._share_of_milli,
            stops=self._stops,
            capacity={pool: weight.capacity for pool, weight in self._weights.items()},
        )

    def look_again(self, booking_id: str) -> None:
        """Read a booking again in the next round, whether it changed or not."""
        self._again.add(booking_id)

    def share(self, team: str, now: float) -> float:
        """Work out a team's weighted dominant share of decayed use."""
        found = self._watch.teams.named(team)
        weight = found.weight if found is not None else 1
        use = {pool: self._meter.read(team, pool, now).decayed for pool in self._weights}
        fresh = self._fresh.get(team)
        if fresh:
            for key in [key for key, item in fresh.items() if not _owed(item, now)]:
                del fresh[key]
            _charge(use, fresh.values(), now)
        return dominant_share(use, self._weights, weight, float(self._watch.policy.half_life))

    # For those who ask where work stands.

    def teams(self) -> list[str]:
        """List the teams that have work in line."""
        return self.planner.teams()

    def of_team(self, team: str, most: int | None = None) -> list[StandingLine]:
        """Say where a team's work stands: all of it, or the first so many; in order."""
        lines = []
        for told in self.planner.standing(team, most):
            one = self._books.get(told.booking)
            bookings = self.members.get(told.booking) or ((one,) if one is not None else ())
            lines += [
                StandingLine(
                    booking,
                    told.position,
                    told.queued,
                    told.reason,
                    self._watch.annotations_of(booking.id).get(stamps.STATUS, ""),
                )
                for booking in bookings
            ]
        return lines

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

    # Reading what changed.

    def _changed(
        self,
        changes: Changes,
        books: Books,
        leaving: set[str],
        held_back: Mapping[str, tuple[float, str]],
    ) -> set[str]:
        """List the bookings that are to be read again."""
        ids = {*changes.bookings, *self._again, *(leaving ^ self._leaving)}
        ids.update(
            key
            for key in held_back.keys() | self._held_back.keys()
            if held_back.get(key) != self._held_back.get(key)
        )
        self._again, self._leaving, self._held_back = set(), leaving, dict(held_back)
        self._all_anew = changes.everything
        if changes.everything:
            self.planner = Planner()
            self.members = {}
            self._groups.clear()
            self._group_of.clear()
            self._fresh.clear()
        if changes.everything or changes.policy:
            ids = {booking.id for booking in (*books.waiting(), *books.holding())}
        return ids

    def _read(
        self, booking_id: str, booking: Booking | None, busy: Container[str], now: float
    ) -> set[_Group]:
        """Tell the planner what a booking is now; return the groups to be joined anew."""
        planner, stale = self.planner, set[_Group]()
        group = self._group_of.pop(booking_id, None)
        if group is not None:
            self._groups[group].pop(booking_id, None)
            stale.add(group)
        item = None
        waits = booking is not None and booking.state.waits
        if booking is not None and waits:
            if booking_id in busy:
                self._again.add(booking_id)
            else:
                item = self.waiting(booking)
        if item is None:
            planner.leave(booking_id, waits=waits)
            if not waits:
                self.left.add(booking_id)
        elif is_pod_group(item.booking.group):
            group = (item.booking.team, item.booking.group)
            self._group_of[booking_id] = group
            self._groups[group][booking_id] = item
            stale.add(group)
        else:
            planner.wait(item, now, new=not self._all_anew)
        if booking is not None and booking.state.holds:
            holder = self.holding(booking)
            planner.hold(holder)
            if booking.team and _owed(holder, now):
                self._fresh[booking.team][booking_id] = holder
        else:
            ended = planner.end(booking_id)
            if ended is not None:
                self._fresh[ended.booking.team].pop(booking_id, None)
        return stale

    def _join(self, group: _Group, now: float) -> None:
        """Put a group of pods in line as one, or each with the reason why it can't be."""
        items = self._groups.get(group)
        if not items:
            self._groups.pop(group, None)
            return
        line, members = join_groups(items.values(), self._watch.group_members, self._shape)
        entered = {item.booking.id for item in line}
        for booking_id in items:
            self.members.pop(booking_id, None)
            if booking_id not in entered:
                self.planner.leave(booking_id, waits=True)
        self.members.update(members)
        for item in line:
            self.planner.wait(item, now, new=not self._all_anew)

    def waiting(self, booking: Booking) -> Waiting | None:
        """Look at one booking in line; None if there is nothing to be planned for it."""
        needs = self._watch.needs_of(booking.id)
        annotations = self._watch.annotations_of(booking.id)
        held = annotations.get(stamps.HOLD) == "true"
        # A member of a pod group that is held back is missing there.
        if needs is None or not booking.options or (held and is_pod_group(booking.group)):
            return None
        not_before, failure = self._held_back.get(booking.id, (0.0, ""))
        marks = self._leads.marks(booking, annotations) if self._leads is not None else NO_MARKS
        return Waiting(
            booking=booking,
            needs=needs,
            shape=self._shape(booking, needs),
            runtime=self._runtime(booking, annotations),
            not_before=not_before,
            blocked=messages.held_by_annotation() if held else "",
            failure=failure,
            order=marks.order,
            pinned=marks.pinned,
            urgent=marks.urgent,
        )

    def holding(self, booking: Booking) -> Candidate:
        """Look at one holder."""
        watch = self._watch
        annotations = watch.annotations_of(booking.id)
        pods = watch.pods_of(booking.id).values()
        started = [pod.started for pod in pods if pod.started and not pod.ended]
        return Candidate(
            booking=booking,
            needs=watch.needs_of(booking.id) or PodNeeds(),
            started=min(started, default=booking.since),
            checkpoint_every=_seconds(annotations.get(stamps.CHECKPOINT_EVERY)),
            leaving=booking.state.leaves or booking.id in self._leaving,
            runtime=self._runtime(booking, annotations),
        )

    def _runtime(self, booking: Booking, annotations: Mapping[str, str]) -> float:
        """Return how long it runs at most, by its own word or its class's; 0: nobody says."""
        declared = _seconds(annotations.get(stamps.RUNTIME))
        work_class = self._watch.policy.classes.get(booking.work_class)
        most = float(work_class.max_runtime) if work_class is not None else 0.0
        return min(declared, most) if declared and most else declared or most

    def _shape(self, booking: Booking, needs: PodNeeds) -> bytes:
        options = [(o.pool, o.product, o.milli, o.units, o.requirements) for o in booking.options]
        text = json.encode((booking.pods, booking.sizes, options, needs))
        digest = blake2b(text, digest_size=_SHAPE_BYTES).digest()
        return self._shapes.setdefault(digest, digest)


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
        if item.booking.team:
            pools = use[item.booking.team]
            _charge(pools, [item], now)
            for pool in pools.keys() - weights.keys():
                del pools[pool]
    return use


def _owed(item: Candidate, now: float) -> float:
    """Return the entry penalty that work hasn't paid off yet, in milli-GPU-seconds."""
    return item.milli * max(0.0, min(ENTRY_SECONDS - (now - item.started), ENTRY_SECONDS))


def _charge(use: dict[str, float], fresh: Iterable[Candidate], now: float) -> None:
    for item in fresh:
        option = item.booking.option
        if option is not None:
            use[option.pool] = use.get(option.pool, 0.0) + _owed(item, now)


def pool_weights(watch: Watch) -> dict[str, PoolWeight]:
    """Weigh each pool that has capacity: its milli-GPU, and its exchange rate."""
    capacity = pool_capacity(watch.inventory)
    rates = {pool.name: pool.rate_millionths for pool in watch.policy.pools}
    return {
        pool: PoolWeight(capacity=milli, rate_millionths=rates.get(pool, 1_000_000))
        for pool, milli in capacity.items()
    }


def _seconds(text: str | None) -> float:
    """Read a declared time span; what can't be read was not declared."""
    if not text:
        return 0.0
    try:
        return float(duration_seconds(text))
    except ValueError:
        return 0.0
