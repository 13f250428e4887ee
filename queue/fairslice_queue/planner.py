"""The queue's decisions: who starts, who is pushed out for whom, what is kept for whom.

`plan` is pure: the live service, the sandbox and the simulator call it with their own state
and time. Nothing becomes free within a round, so what is found not to fit is remembered by
shape, and like requests behind it cost a look-up.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec.structs import replace

from fairslice import messages
from fairslice.booking import Booking, Option
from fairslice.budgets import Stop
from fairslice.fairshare import entry_penalty
from fairslice.periods import moment_text
from fairslice.placement import Misfit, NodeState, Placement, place
from fairslice.policy import Policy, Team, WorkClass
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.policy import Preempts
from fairslice_queue.actions import Action, Explain, Preempt, Release, Reserve
from fairslice_queue.bookkeeping import Limits
from fairslice_queue.caps import Excess, excess, limits_of
from fairslice_queue.expecting import free_by
from fairslice_queue.line import Line, Waiting
from fairslice_queue.quota_cuts import over_limit
from fairslice_queue.rights import Rights
from fairslice_queue.room import Room
from fairslice_queue.tally import Tally
from fairslice_queue.victims import Candidate, Contender, Push, Victims

__all__ = ["PlanState", "Waiting", "plan"]


@dataclass(frozen=True, slots=True)
class PlanState:
    """All that planning reads. `nodes` is what is free now; it is not changed.

    `shares` are weighted dominant shares by team; `claims` are placements kept for work whose
    victims are on their way out; `share_of_milli` is what one milli-GPU held for a second adds
    to a share of weight 1, by pool. `stops` are the budgets that are gone, by team; `capacity`
    is milli-GPU by pool.
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
    stops: Mapping[str, Sequence[Stop]] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)


def plan(state: PlanState, now: float) -> list[Action]:
    """Decide what to do now. Every action stands by itself; none is undone by a later one."""
    return list(_Round(state, now).run())


@dataclass(frozen=True, slots=True)
class _Waits:
    """Why work does not start. `capped`: nothing but its own team's caps is in the way."""

    reason: str
    capped: bool = False


@dataclass(slots=True)
class _Caps:
    """Which options the team's caps leave open, and what the closed ones exceed them by.

    `closed` is why others may not be had, if it isn't for a cap.
    """

    eligible: list[int]
    broken: Excess | None
    over: dict[int, int]
    closed: str = ""


class _Round:
    """One pass over the line, with what it gives out taken off as it goes."""

    def __init__(self, state: PlanState, now: float) -> None:
        self._state = state
        self._now = now
        self._policy = state.policy
        self._tally = state.tally.copy()
        self._shares = dict(state.shares)
        self._rights = Rights(state.teams, self._tally, now, state.stops, state.capacity)
        self._line = Line(state.policy, state.teams, self._tally, self._shares, now, self._rights)
        self._room = Room(state.nodes, state.candidates)
        self._victims = Victims(
            state.policy, state.teams, state.candidates, self._tally, now, self._rights
        )
        self._by_id = {item.booking.id: item for item in state.waiting}
        self._kept: dict[str, Reserve] = {}
        self._counted: set[str] = set()
        self._pushed: set[str] = set()
        self._limits: dict[tuple[str, str, bytes], Limits] = {}
        self._misfits: dict[bytes, Misfit] = {}
        self._unreservable: set[bytes] = set()
        self._hopeless: set[tuple[bytes, str, str]] = set()
        self._stuck: dict[tuple[object, ...], _Waits] = {}
        self._worded: dict[str, _Waits] = {}
        self._revisions: defaultdict[str, set[str]] = defaultdict(set)
        self._leaving: defaultdict[tuple[str, str], int] = defaultdict(int)
        for candidate in state.candidates:
            self._revisions[candidate.booking.group].add(candidate.booking.group_revision)
            if candidate.leaving:
                self._count_leaving(candidate)
        for claim in state.claims.values():
            self._claim(claim)

    def run(self) -> Iterator[Action]:
        yield from self._cut_down()
        waits: list[tuple[Booking, _Waits]] = []
        for item, team in self._line.walk(self._state.waiting):
            outcome = self._decide(item, team)
            for action in outcome:
                if isinstance(action, _Waits):
                    waits.append((item.booking, action))
                else:
                    yield action
        # Positions are told last: they count those who are left.
        queued: defaultdict[str, int] = defaultdict(int)
        for booking, _ in waits:
            queued[booking.team] += 1
        position: defaultdict[str, int] = defaultdict(int)
        for booking, why in waits:
            position[booking.team] += 1
            yield Explain(
                booking.id, position[booking.team], queued[booking.team], why.reason, why.capped
            )

    def _decide(self, item: Waiting, team: Team) -> Iterator[Action | _Waits]:
        booking = item.booking
        if item.blocked:
            yield _Waits(item.blocked, capped=True)
            return
        if item.not_before > self._now:
            until = f"{datetime.fromtimestamp(item.not_before, UTC):%H:%M:%S} UTC"
            reason = messages.failed_to_start(item.failure or booking.reason, until)
            yield _Waits(reason, capped=True)
            return
        alike = (
            team.name,
            booking.work_class,
            booking.user,
            item.shape,
            booking.group,
            booking.group_revision,
        )
        claim = self._kept.get(booking.id)
        known = self._stuck.get(alike)
        if known is not None and claim is None and (known.capped or not self._is_long(booking)):
            yield known
            return
        for action in self._judge(item, team, claim):
            if isinstance(action, _Waits) and booking.id not in self._kept:
                self._stuck[alike] = action
            yield action

    def _judge(self, item: Waiting, team: Team, claim: Reserve | None) -> Iterator[Action | _Waits]:
        if claim is not None:
            self._give_up(claim)
        caps = self._caps(item, team)
        if caps.eligible:
            fit = self._place(item, caps.eligible, fresh=claim is not None)
            if isinstance(fit, Placement):
                yield self._release(item, team, fit)
                return
            why = self._waits_for_room(fit)
        elif caps.closed:
            why = _Waits(caps.closed, capped=True)
        elif caps.broken is None:
            yield _Waits(messages.no_option_left())
            return
        else:
            why = _over_cap(team, caps.broken)
        if claim is not None:
            yield self._claim(claim)
            yield _Waits(messages.waits_for_victims(why.reason))
        elif caps.eligible or caps.over:
            # At its limit, what passes everyone has its own team's lesser work give way.
            yield from self._make_room(item, team, caps, why)
        else:
            yield why

    def _waits_for_room(self, misfit: Misfit) -> _Waits:
        why = self._worded.get(misfit.reason)
        if why is None:
            why = self._worded[misfit.reason] = _Waits(messages.waits_for_room(misfit.reason))
        return why

    def _caps(self, item: Waiting, team: Team) -> _Caps:
        booking = item.booking
        limits = self._limits_of(item, team)
        replaces = self._replaces_another(booking)
        caps = _Caps([], None, {})
        passes_all = self._passes_all(self._class(booking))
        for index, option in enumerate(booking.options):
            closed = self._closed(booking, option)
            if closed:
                caps.closed = caps.closed or closed
                continue
            found = excess(booking, option, limits, self._tally, replaces=replaces)
            if found is None:
                caps.eligible.append(index)
                continue
            if caps.broken is None:
                caps.broken = found
            if passes_all and found.cause == "limit" and found.asked <= found.limit:
                over = found.used + found.asked - found.limit
                caps.over[index] = max(0, over - self._leaving[team.name, option.pool])
        return caps

    def _closed(self, booking: Booking, option: Option) -> str:
        """Say why an option may not be had now, whatever is free; empty if it may."""
        team, pool, asked = booking.team, option.pool, option.milli * booking.pods
        stop = self._rights.stop(team, pool)
        if stop is not None and not (stop.scavenges and self._rights.scavenges(booking)):
            return stop.reason
        unlent = self._rights.unlent(team, pool, asked)
        return messages.guarantee_kept(pool, *unlent) if unlent is not None else ""

    def _limits_of(self, item: Waiting, team: Team) -> Limits:
        booking = item.booking
        key = (team.name, booking.work_class, item.shape)
        limits = self._limits.get(key)
        if limits is None:
            limits = self._limits[key] = limits_of(
                team, booking.work_class, booking.options, self._now
            )
        return limits

    def _class(self, booking: Booking) -> WorkClass | None:
        return self._policy.classes.get(booking.work_class)

    def _passes_all(self, work_class: WorkClass | None) -> bool:
        return work_class is not None and work_class.preempts is Preempts.EVERYONE

    def _replaces_another(self, booking: Booking) -> bool:
        """Say whether pods of another revision of the same rollout hold something."""
        revision = booking.group_revision
        return bool(booking.group and revision and self._revisions[booking.group] - {revision})

    def _place(self, item: Waiting, eligible: Sequence[int], *, fresh: bool) -> Placement | Misfit:
        """Find room now. `fresh`: something was given back, so what is remembered may be wrong."""
        known = None if fresh else self._misfits.get(item.shape)
        if known is not None:
            return known
        fit = self._place_in(self._room.now, item, eligible)
        if isinstance(fit, Misfit) and len(eligible) == len(item.booking.options) and not fresh:
            self._misfits[item.shape] = fit
        return fit

    def _place_in(
        self, nodes: Mapping[str, NodeState], item: Waiting, indices: Sequence[int]
    ) -> Placement | Misfit:
        options = [item.booking.options[index] for index in indices]
        fit = place(item.booking.pods, item.needs, options, nodes.values())
        if isinstance(fit, Misfit):
            return fit
        return Placement(chosen=indices[fit.chosen], place=fit.place, sets=fit.sets)

    def _release(self, item: Waiting, team: Team, fit: Placement) -> Release:
        booking = item.booking
        option = booking.options[fit.chosen]
        self._room.take(item.needs, option, fit.place)
        is_surge = excess(booking, option, self._limits_of(item, team), self._tally) is not None
        self._tally.add(replace(booking, surge=is_surge), option)
        self._line.judge_anew()
        # It counts at once; else a burst of one team would all go before the next team's turn.
        added = entry_penalty(option.milli * booking.pods)
        added *= self._state.share_of_milli.get(option.pool, 0.0) / max(team.weight, 1)
        self._shares[team.name] = self._shares.get(team.name, 0.0) + added
        return Release(booking.id, fit.chosen, fit.place, fit.sets, option if fit.sets else None)

    def _make_room(
        self, item: Waiting, team: Team, caps: _Caps, why: _Waits
    ) -> Iterator[Action | _Waits]:
        """Push others out, wait for those who leave already, or keep what will be free."""
        work_class = self._class(item.booking)
        open_ = caps.eligible or list(caps.over)
        if work_class is not None and work_class.preempts is not Preempts.NOBODY:
            contender = Contender(item.booking, item.needs, team, work_class, caps.over)
            entitled = [
                index
                for index in open_
                if self._victims.may_push(contender, item.booking.options[index], self._tally)
            ]
            if entitled:
                actions = list(self._push(item, contender, entitled))
                if actions:
                    yield from actions
                    return
        if caps.eligible and self._is_long(item.booking):
            kept = self._reservation(item, caps.eligible)
            if kept is not None:
                by = self._expected(item, kept)
                self._keep(kept)
                yield kept
                if by is not None:
                    when = moment_text(by, self._policy.zone)
                    why = _Waits(messages.expected_start(why.reason, when), why.capped)
        yield why

    def _push(
        self, item: Waiting, contender: Contender, entitled: Sequence[int]
    ) -> Iterator[Action | _Waits]:
        right = (item.shape, contender.team.name, contender.work_class.name)
        if right in self._hopeless:
            return
        if self._room.someone_leaves:
            ready = [index for index in entitled if not contender.over.get(index)]
            fit = self._place_in(self._room.after_leaving, item, ready)
            if isinstance(fit, Placement):
                yield self._claim(Reserve(item.booking.id, fit.chosen, fit.place))
                yield _Waits(messages.waits_for_victims("others leave already"))
                return
        push = self._victims.choose(
            contender, entitled, self._tally, self._room.after_leaving, self._pushed
        )
        if push is None:
            self._hopeless.add(right)
            return
        yield from self._preempt(item.booking, contender, push)
        fit = push.placement
        yield self._claim(Reserve(item.booking.id, fit.chosen, fit.place))
        yield _Waits(messages.waits_for_victims(f"{len(push.victims)} to go"))

    def _preempt(self, booking: Booking, contender: Contender, push: Push) -> Iterator[Preempt]:
        self._room.leave(push.victims)
        for victim in push.victims:
            scavenged = self._rights.has_scavenged(victim.booking)
            rule = _rule(contender, victim.booking, scavenged=scavenged)
            yield self._push_out(victim, booking.id, rule)

    def _push_out(self, victim: Candidate, beneficiary: str, rule: str) -> Preempt:
        self._pushed.add(victim.booking.id)
        self._count_leaving(victim)
        theirs = self._class(victim.booking)
        return Preempt(
            victim=victim.booking.id,
            beneficiary=beneficiary,
            rule=rule,
            lost_seconds=victim.lost(self._now),
            notice=theirs.notice if theirs is not None else 0,
            grace=theirs.grace if theirs is not None else 30,
        )

    def _cut_down(self) -> Iterator[Preempt]:
        """Push out what teams hold beyond limits that were lowered, where they say so."""
        tally = self._state.tally
        for victim, rule in over_limit(
            self._policy, self._state.teams, tally, self._victims, self._leaving, self._now
        ):
            self._room.leave([victim])
            yield self._push_out(victim, "", rule)

    def _is_long(self, booking: Booking) -> bool:
        return self._now - booking.queued_at >= self._policy.reserve_after

    def _reservation(self, item: Waiting, eligible: Sequence[int]) -> Reserve | None:
        """Choose the nodes on which work that waits for long will be able to start.

        They are those where it fits when everything that may be waited for has ended; best
        without waiting for what never ends by itself.
        """
        if item.shape in self._unreservable:
            return None
        for nodes in (self._room.after_jobs, self._room.after_all):
            fit = self._place_in(nodes, item, eligible)
            if isinstance(fit, Placement):
                return Reserve(item.booking.id, fit.chosen, fit.place)
        self._unreservable.add(item.shape)
        return None

    def _expected(self, item: Waiting, kept: Reserve) -> float | None:
        """Tell when the nodes kept for work are free at the latest, if that can be known."""

        def fits(nodes: Mapping[str, NodeState]) -> bool:
            return isinstance(self._place_in(nodes, item, [kept.chosen]), Placement)

        now = self._room.now
        nodes = {name: now[name] for name in kept.place if name in now}
        return free_by(nodes, self._state.candidates, fits, self._now)

    def _count_leaving(self, candidate: Candidate) -> None:
        booking, option = candidate.booking, candidate.booking.option
        if option is not None and not booking.surge:
            self._leaving[booking.team, option.pool] += candidate.milli

    def _claim(self, kept: Reserve) -> Reserve:
        """Keep room that is being made: it counts as held, lest its team's limit be given away."""
        item = self._by_id.get(kept.booking)
        if item is not None and kept.place:
            self._keep(kept)
            self._counted.add(kept.booking)
            self._tally.add(item.booking, item.booking.options[kept.chosen])
            self._line.judge_anew()
        return kept

    def _keep(self, kept: Reserve) -> None:
        """Keep room from those who come later in line."""
        item = self._by_id[kept.booking]
        self._kept[kept.booking] = kept
        self._room.take(item.needs, item.booking.options[kept.chosen], kept.place)

    def _give_up(self, kept: Reserve) -> None:
        item = self._by_id[kept.booking]
        option = item.booking.options[kept.chosen]
        del self._kept[kept.booking]
        self._room.take(item.needs, option, kept.place, sign=-1)
        if kept.booking in self._counted:
            self._counted.discard(kept.booking)
            self._tally.add(item.booking, option, -1)
            self._line.judge_anew()


def _over_cap(team: Team, broken: Excess) -> _Waits:
    reason = messages.cap_reached(
        team.name, broken.cause, broken.subject, broken.used, broken.limit, broken.asked
    )
    return _Waits(reason, capped=True)


def _rule(contender: Contender, victim: Booking, *, scavenged: bool) -> str:
    work_class = contender.work_class
    if scavenged:
        return messages.rule_scavenger(victim.team)
    if work_class.preempts is Preempts.EVERYONE:
        return messages.rule_class(work_class.name, victim.work_class or "unclassified")
    return messages.rule_borrower(victim.work_class or "unclassified", contender.team.name)
