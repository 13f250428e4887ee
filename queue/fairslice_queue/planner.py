"""The queue's decisions: who starts, who is pushed out for whom, what is kept for whom.

`plan` is pure: the live service, the sandbox and the simulator call it with their own state
and time. The order is DESIGN's: production first, work within its team's guarantee before
borrowed work, class, the lowest weighted dominant share, first come.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec.structs import replace

from fairslice import messages
from fairslice.booking import Booking
from fairslice.fairshare import OrderKey, order_key
from fairslice.placement import Misfit, NodeState, Placement, PodNeeds, place
from fairslice.policy import Policy, Team, WorkClass
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.policy import Preempts
from fairslice_queue.actions import Action, Explain, Preempt, Release, Reserve
from fairslice_queue.caps import Excess, excess, limits_of
from fairslice_queue.tally import Tally
from fairslice_queue.victims import Candidate, Push, choose_victims

__all__ = ["PlanState", "Waiting", "plan"]

# A release counts at once in its team's share, as if it had run this long already; else one
# team's burst would be released whole before the next team's turn (Kueue's entry penalty).
_ENTRY_PENALTY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A booking in line. `shape` is equal for requests that fit on the same nodes.

    `not_before` keeps work back after a failed start (Unix seconds); `runtime` is the declared
    run time in seconds, 0 if none; `order` is the lead's own order, smaller first.
    """

    booking: Booking
    needs: PodNeeds
    shape: bytes
    runtime: float = 0.0
    not_before: float = 0.0
    order: int = 0


@dataclass(frozen=True, slots=True)
class PlanState:
    """All that planning reads. `nodes` is what is free now; it is not changed.

    `shares` are weighted dominant shares by team; `claims` are placements kept for work whose
    victims are on their way out; `share_of_milli` is what one milli-GPU held for a second adds
    to a share of weight 1, by pool.
    """

    policy: Policy
    teams: TeamIndex
    tally: Tally
    waiting: Sequence[Waiting]
    candidates: Sequence[Candidate]
    nodes: Mapping[str, NodeState]
    shares: Mapping[str, float] = field(default_factory=dict)
    claims: Mapping[str, Reserve] = field(default_factory=dict)
    share_of_milli: Mapping[str, float] = field(default_factory=dict)


def plan(state: PlanState, now: float) -> list[Action]:
    """Decide what to do now. Every action stands by itself; none is undone by a later one."""
    return list(_Round(state, now).run())


class _Round:
    """One pass over the line, with what it gives out taken off as it goes."""

    def __init__(self, state: PlanState, now: float) -> None:
        self._state = state
        self._now = now
        self._policy = state.policy
        self._tally = state.tally.copy()
        self._nodes = {name: node.copy() for name, node in state.nodes.items()}
        self._shares = dict(state.shares)
        self._kept: dict[str, Reserve] = {}
        self._by_id = {item.booking.id: item for item in state.waiting}
        # What did not fit, by shape: nothing becomes free within a round.
        self._misfits: dict[bytes, Misfit] = {}
        self._hopeless: set[tuple[bytes, str, str]] = set()
        self._pushed: set[str] = set()
        self._revisions: defaultdict[str, set[str]] = defaultdict(set)
        for held in (candidate.booking for candidate in state.candidates):
            self._revisions[held.group].add(held.group_revision)
        for claim in state.claims.values():
            self._keep(claim)

    def run(self) -> Iterator[Action]:
        queued: defaultdict[str, int] = defaultdict(int)
        for item in self._state.waiting:
            queued[item.booking.team] += 1
        position: defaultdict[str, int] = defaultdict(int)
        for item in self._in_order():
            team = self._state.teams.named(item.booking.team)
            if team is None:
                continue
            actions = list(self._decide(item, team))
            released = any(isinstance(action, Release) for action in actions)
            if not released:
                position[team.name] += 1
            for action in actions:
                if isinstance(action, Explain):
                    yield Explain(
                        action.booking,
                        position[team.name],
                        queued[team.name],
                        action.reason,
                        action.capped,
                    )
                else:
                    yield action

    def _in_order(self) -> Iterator[Waiting]:
        """Yield the line in order; a team's place is judged anew after each of its releases."""
        lines: dict[str, list[Waiting]] = {}
        for item in self._state.waiting:
            lines.setdefault(item.booking.team, []).append(item)
        heads: list[tuple[OrderKey, str, int]] = []
        for name, line in lines.items():
            line.sort(key=self._within_team)
            team = self._state.teams.named(name)
            if team is not None:
                heapq.heappush(heads, (self._key(line[0], team), name, 0))
        while heads:
            key, name, index = heapq.heappop(heads)
            team = self._state.teams.named(name)
            assert team is not None
            item = lines[name][index]
            fresh = self._key(item, team)
            if fresh > key and heads and heads[0][0] < fresh:
                heapq.heappush(heads, (fresh, name, index))
                continue
            yield item
            if index + 1 < len(lines[name]):
                following = lines[name][index + 1]
                heapq.heappush(heads, (self._key(following, team), name, index + 1))

    def _within_team(self, item: Waiting) -> tuple[int, int, float, str]:
        booking = item.booking
        return (booking.rank, item.order, booking.queued_at, booking.id)

    def _key(self, item: Waiting, team: Team) -> OrderKey:
        booking = item.booking
        work_class = self._class(booking)
        return order_key(
            passes_all=work_class is not None and work_class.preempts is Preempts.EVERYONE,
            aged=0 < self._policy.aging <= self._now - booking.queued_at,
            within_guarantee=self._within_guarantee(booking, team),
            rank=booking.rank,
            share=self._shares.get(team.name, 0.0),
            queued_at=booking.queued_at,
            name=booking.id,
        )

    def _class(self, booking: Booking) -> WorkClass | None:
        return self._policy.classes.get(booking.work_class)

    def _within_guarantee(self, booking: Booking, team: Team) -> bool:
        return any(
            self._tally.pool_held(team.name, option.pool) + option.milli * booking.pods
            <= team.quota(option.pool).guaranteed
            for option in booking.options
        )

    def _decide(self, item: Waiting, team: Team) -> Iterator[Action]:
        booking = item.booking
        limits = limits_of(team, booking.work_class, booking.options)
        over: Excess | None = None
        eligible: list[int] = []
        for index, option in enumerate(booking.options):
            found = excess(
                booking, option, limits, self._tally, replaces=self._replaces_another(booking)
            )
            if found is None:
                eligible.append(index)
            elif over is None:
                over = found
        if not eligible:
            reason = _over_cap(team, over) if over is not None else messages.no_option_left()
            yield Explain(booking.id, 0, 0, reason, capped=True)
            return
        if item.not_before > self._now:
            until = f"{datetime.fromtimestamp(item.not_before, UTC):%H:%M:%S} UTC"
            yield Explain(
                booking.id, 0, 0, messages.failed_to_start(booking.reason, until), capped=True
            )
            return
        claim = self._kept.pop(booking.id, None)
        if claim is not None:
            self._take(claim.booking, claim.chosen, claim.place, sign=-1)
        fit = self._place(item, eligible, fresh=claim is not None)
        if isinstance(fit, Placement):
            yield self._release(item, fit)
            return
        if claim is not None:
            self._keep(claim)
            yield claim
            yield Explain(booking.id, 0, 0, messages.waits_for_victims(fit.reason), capped=False)
            return
        yield from self._push_or_wait(item, team, eligible, fit)

    def _replaces_another(self, booking: Booking) -> bool:
        """Say whether pods of another revision of the same rollout hold something."""
        revision = booking.group_revision
        return bool(booking.group and revision and self._revisions[booking.group] - {revision})

    def _place(self, item: Waiting, eligible: Sequence[int], *, fresh: bool) -> Placement | Misfit:
        known = None if fresh else self._misfits.get(item.shape)
        if known is not None:
            return known
        options = [item.booking.options[index] for index in eligible]
        fit = place(item.booking.pods, item.needs, options, self._nodes.values())
        if isinstance(fit, Misfit):
            if len(eligible) == len(item.booking.options) and not fresh:
                self._misfits[item.shape] = fit
            return fit
        return Placement(chosen=eligible[fit.chosen], place=fit.place)

    def _release(self, item: Waiting, fit: Placement) -> Release:
        booking = item.booking
        option = booking.options[fit.chosen]
        self._take(booking.id, fit.chosen, fit.place)
        team = self._state.teams.named(booking.team)
        assert team is not None
        limits = limits_of(team, booking.work_class, booking.options)
        is_surge = excess(booking, option, limits, self._tally) is not None
        self._tally.add(replace(booking, surge=is_surge), option)
        added = option.milli * booking.pods * _ENTRY_PENALTY_SECONDS
        self._shares[booking.team] = self._shares.get(
            booking.team, 0.0
        ) + added * self._state.share_of_milli.get(option.pool, 0.0)
        return Release(booking.id, fit.chosen, fit.place)

    def _push_or_wait(
        self, item: Waiting, team: Team, eligible: Sequence[int], misfit: Misfit
    ) -> Iterator[Action]:
        booking = item.booking
        right = (item.shape, team.name, booking.work_class)
        work_class = self._class(booking)
        if work_class is not None and right not in self._hopeless:
            pushed = choose_victims(
                item.booking,
                item.needs,
                eligible,
                work_class=work_class,
                team=team,
                state=self._state,
                tally=self._tally,
                nodes=self._nodes,
                passed_over=self._pushed,
                now=self._now,
            )
            if pushed is not None:
                yield from self._push(item, team, pushed, work_class)
                return
            self._hopeless.add(right)
        if self._should_reserve(booking):
            kept = self._reservation(item, eligible)
            if kept is not None:
                self._keep(kept)
                yield kept
        yield Explain(booking.id, 0, 0, messages.waits_for_room(misfit.reason), capped=False)

    def _push(
        self,
        item: Waiting,
        team: Team,
        push: Push,
        work_class: WorkClass,
    ) -> Iterator[Action]:
        booking = item.booking
        for victim in push.victims:
            self._pushed.add(victim.booking.id)
            theirs = self._class(victim.booking)
            yield Preempt(
                victim=victim.booking.id,
                beneficiary=booking.id,
                rule=_rule(work_class, team, victim.booking),
                lost_seconds=victim.lost(self._now),
                notice=theirs.notice if theirs is not None else 0,
                grace=theirs.grace if theirs is not None else 30,
            )
        kept = Reserve(booking.id, push.placement.chosen, push.placement.place)
        self._keep(kept)
        yield kept
        reason = messages.waits_for_victims(f"{len(push.victims)} to go")
        yield Explain(booking.id, 0, 0, reason, capped=False)

    def _should_reserve(self, booking: Booking) -> bool:
        return self._now - booking.queued_at >= self._policy.reserve_after

    def _reservation(self, item: Waiting, eligible: Sequence[int]) -> Reserve | None:
        """Choose the nodes on which a large workload will be able to start first.

        They are those where it fits if everything that may be waited for has ended.
        """
        emptied = {name: node.copy() for name, node in self._nodes.items()}
        for candidate in self._state.candidates:
            option = candidate.booking.option
            if option is None:
                continue
            for node, pods in candidate.booking.place.items():
                if node in emptied:
                    emptied[node].take(candidate.needs, option.offers, -pods)
        options = [item.booking.options[index] for index in eligible]
        fit = place(item.booking.pods, item.needs, options, emptied.values())
        if isinstance(fit, Misfit):
            return None
        return Reserve(item.booking.id, eligible[fit.chosen], fit.place)

    def _keep(self, kept: Reserve) -> None:
        if kept.booking in self._by_id:
            self._kept[kept.booking] = kept
            self._take(kept.booking, kept.chosen, kept.place)

    def _take(
        self, booking_id: str, chosen: int, nodes: Mapping[str, int], *, sign: int = 1
    ) -> None:
        item = self._by_id[booking_id]
        option = item.booking.options[chosen]
        for name, pods in nodes.items():
            node = self._nodes.get(name)
            if node is not None:
                node.take(item.needs, option.offers, sign * pods)


def _over_cap(team: Team, over: Excess) -> str:
    return messages.cap_reached(
        team.name, over.cause, over.subject, over.used, over.limit, over.asked
    )


def _rule(work_class: WorkClass, team: Team, victim: Booking) -> str:
    if work_class.preempts is Preempts.EVERYONE:
        return messages.rule_class(work_class.name, victim.work_class or "unclassified")
    return messages.rule_borrower(victim.work_class or "unclassified", team.name)
