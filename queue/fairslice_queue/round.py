"""One round of decisions: what changed is judged in order, and what it lets happen is done.

Nothing becomes free within a round, so a want that is found not to fit is not looked at again
until something does. What the round gives out is taken off as it goes.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from msgspec.structs import replace

from fairslice import messages
from fairslice.booking import Booking, Option
from fairslice.fairshare import OrderKey, entry_penalty
from fairslice.periods import moment_text
from fairslice.placement import GangNeeds, Misfit, NodeState, Placement, fits_on, place
from fairslice.policy import WorkClass
from fairslice.team import Team
from fairslice.v1alpha1.policy import Preempts
from fairslice_queue.actions import Action, Preempt, Release, Reserve
from fairslice_queue.caps import Excess, excess, limits_of
from fairslice_queue.expecting import free_by
from fairslice_queue.line import Row, Want
from fairslice_queue.order import Order, Waiting
from fairslice_queue.quota_cuts import over_limit
from fairslice_queue.rights import Rights
from fairslice_queue.room import Room
from fairslice_queue.scene import Scene
from fairslice_queue.slate import Kept, Slate
from fairslice_queue.victims import Candidate, Contender, Push, Victims

__all__ = ["Round"]

# For so many of those who come first, nodes are kept; whoever is behind them waits behind them.
_MOST_KEPT = 32
_MOST_WORN = 32
_BACKFILL_ROWS = 50
_BACKFILL_TURNS = 20


@dataclass(slots=True)
class _Caps:
    """Which options the team's caps leave open, and what the closed ones exceed them by.

    `closed` is why others may not be had, if it isn't for a cap; `unlent` the pools of which
    others keep too much.
    """

    eligible: list[int]
    broken: Excess | None
    over: dict[int, int]
    unlent: list[str]
    closed: str = ""


class _Step(IntEnum):
    """What is looked at next, of those who are equal in line."""

    CLAIM = 0
    START = 1
    PUSH = 2
    KEEP = 3


_Entry = tuple[OrderKey, _Step, int, Row | Want | str]


class Round:
    """One round. It writes down what it finds on the slate, and changes nothing else."""

    def __init__(
        self, slate: Slate, scene: Scene, now: float, growth: float, *, thorough: bool
    ) -> None:
        self._slate = slate
        self._scene = scene
        self._now = now
        self._thorough = thorough
        self._line = slate.line
        self._tally = scene.tally.layer()
        self._added: dict[str, float] = {}
        self._rights = Rights(scene.teams, self._tally, now, scene.stops, scene.capacity)
        self.order = Order(scene.policy, self._tally, self._share, now, self._rights, growth)
        self._room = Room(scene.nodes, slate.holders, someone_leaves=slate.holders.someone_leaves)
        self._agenda: list[_Entry] = []
        self._entries = 0
        self._looking_at: dict[Want, OrderKey] = {}
        self._news: set[Row] = set()
        self._pushed: set[str] = set()
        self._leaving = slate.holders.leaving.copy()
        self._hopeless: set[tuple[bytes, str, str]] = set()
        self._unreservable: set[bytes] = set()

    def run(self, rows: Iterable[Row], nodes: Iterable[str]) -> list[Action]:
        """Judge these rows anew, and what free room on these nodes may let start."""
        return list(self._run(rows, set(nodes)))

    def _run(self, rows: Iterable[Row], nodes: set[str]) -> Iterator[Action]:
        if self._thorough:
            yield from self._cut_down()
            for booking_id in list(self._slate.kept):
                nodes |= self._slate.kept[booking_id].reserve.place.keys()
                self._slate.give_up(booking_id)
        self._take_claims(nodes)
        for kept in self._slate.kept.values():
            self._room.take(kept.needs, kept.option, kept.reserve.place)
        for row in rows:
            if row.turns:
                self._news.add(row)
                self._judge(row)
            else:
                self._slate.forget(row)
        self._look_at_nodes(nodes)
        if self._thorough:
            self._look_at_worn()
            for row in self._slate.own:
                if row.turns:
                    self._put(self.order.key(self._line.first(row)), _Step.PUSH, row)
            for want in self._line.wants:
                if want.misfit is not None:
                    self._look_beyond_room(want)
        while self._agenda:
            key, step, _, thing = heapq.heappop(self._agenda)
            match thing:
                case str():
                    yield from self._serve_claim(thing)
                case Row():
                    yield from self._push_for(thing, key)
                case Want() if step is _Step.START:
                    yield from self._serve(thing, key)
                case Want():
                    yield from self._keep_for(thing)
        if self._thorough:
            yield from self._backfill()

    # Rows: what of them is open.

    def _judge(self, row: Row) -> None:
        """Find where a row belongs, now that its caps, its first or its team changed."""
        self._slate.forget(row)
        if not row.turns:
            return
        self._slate.teams.add(row.team)
        item = self._line.first(row)
        team = self._scene.teams.named(row.team)
        was_capped = row.capped
        if row.idle or team is None:
            self._line.place(row, (), None, entitled=False)
        else:
            self._judge_open(row, item, team)
        if row.capped != was_capped:
            self._slate.flipped(row)

    def _judge_open(self, row: Row, item: Waiting, team: Team) -> None:
        caps = self._caps(item, team)
        row.own = caps.over
        for pool in caps.unlent:
            self._slate.unlent[pool].add(row)
        row.capped = not caps.eligible
        row.waits = ""
        if not caps.eligible:
            row.waits = caps.closed or caps.broken or messages.no_option_left()
            row.capped = bool(caps.closed or caps.broken)
            self._line.place(row, (), None, entitled=False)
            if row.own:
                # At its limit, what passes everyone has its own team's lesser work give way.
                self._slate.own.add(row)
                if self._thorough or row in self._news:
                    self._put(self.order.key(item), _Step.PUSH, row)
            return
        key = self.order.key(item)
        right = self._class(item.booking)
        entitled = (
            right is not None
            and right.preempts is not Preempts.NOBODY
            and (right.preempts is Preempts.EVERYONE or not key.borrowed)
        )
        want = self._line.place(row, tuple(caps.eligible), key, entitled=entitled)
        self._slate.watch_age(row, self.order)
        found = row.want
        if want is not None and self._slate.kept:
            want.misfit = None  # it may go before those for whom nodes are kept
        if found is not None and found.misfit is None:
            self._look_at(found)
        elif found is not None and row in self._news and self._may_try(row):
            self._put(key, _Step.PUSH, row)

    def _may_try(self, row: Row) -> bool:
        return bool(self._scene.stops) or (row.want is not None and row in row.want.entitled)

    def _caps(self, item: Waiting, team: Team) -> _Caps:
        booking = item.booking
        limits = limits_of(team, booking.work_class, booking.options, self._now)
        replaces = bool(
            booking.group
            and booking.group_revision
            and self._slate.holders.has_other_revisions(booking.group, booking.group_revision)
        )
        caps = _Caps([], None, {}, [])
        passes_all = self.order.passes_all(booking)
        for index, option in enumerate(booking.options):
            closed = self._closed(booking, option, caps)
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
        if caps.broken is not None:
            caps.closed = ""
        return caps

    def _closed(self, booking: Booking, option: Option, caps: _Caps) -> str:
        """Say why an option may not be had now, whatever is free; empty if it may."""
        team, pool, asked = booking.team, option.pool, option.milli * booking.pods
        stop = self._rights.stop(team, pool)
        if stop is not None and not (stop.scavenges and self._rights.scavenges(booking)):
            return stop.reason
        unlent = self._rights.unlent(team, pool, asked)
        if unlent is None:
            return ""
        caps.unlent.append(pool)
        return messages.guarantee_kept(pool, *unlent)

    # Room: who starts.

    def _serve(self, want: Want, key: OrderKey) -> Iterator[Action]:
        if self._looking_at.get(want) != key:
            return  # it was entered again, further to the front
        del self._looking_at[want]
        row = want.top(self._key_of)
        if row is None or want.misfit is not None:
            return
        assert row.key is not None
        if row.key > key and self._agenda and self._agenda[0][0] < row.key:
            self._look_at(want)
            return
        yield from self._start(self._first_of_team(row))
        if want.misfit is None:
            self._look_at(want)

    def _first_of_team(self, row: Row) -> Row:
        """Of a team's rows with the same right to the same, find the one that it wants first."""
        assert row.key is not None
        assert row.want is not None
        level, offers = row.key[:3], row.want.offers
        equals = [
            other
            for other in self._line.rows_of(row.team)
            if other.want is not None
            and other.key is not None
            and (other.key[:3] == level or self._is_pinned(other, level))
            and other.want.misfit is None
            and not offers.isdisjoint(other.want.offers)
        ]
        if len(equals) < 2:
            return row
        return min(equals, key=lambda each: self.order.in_team(self._line.first(each)))

    def _is_pinned(self, row: Row, level: tuple[int, int, int]) -> bool:
        """Say whether a row is to have its team's turn by the lead's word.

        Not that of what is urgent or passes everyone, and not by a right that it hasn't.
        """
        assert row.key is not None
        passes, borrowed, _ = level
        return passes >= 2 and row.key.borrowed <= borrowed and self._line.first(row).pinned

    def _start(self, row: Row) -> Iterator[Action]:
        want = row.want
        team = self._scene.teams.named(row.team)
        assert want is not None
        assert row.key is not None
        assert team is not None
        item = self._line.first(row)
        if tuple(self._caps(item, team).eligible) != want.open:
            self._judge(row)
            return
        fit = self._place(item, want.open, row.key)
        if isinstance(fit, Placement):
            yield self._release(item, team, fit)
            return
        want.misfit = fit
        if fit.reason != want.told:
            want.told = fit.reason
            self._slate.teams.update(each.team for each in want.rows)
        self._look_beyond_room(want)

    def _place(self, item: Waiting, open_: Sequence[int], key: OrderKey) -> Placement | Misfit:
        """Find room now, minding the nodes that are kept for those who go before."""
        lifted = [
            kept
            for kept in self._slate.kept.values()
            if key < kept.key or kept.reserve.booking == item.booking.id
        ]
        with self._lifted(lifted):
            fit = self._place_in(self._room.now, item, open_)
        if isinstance(fit, Placement):
            for booking_id, kept in list(self._slate.kept.items()):
                if booking_id == item.booking.id or (
                    key < kept.key and not fit.place.keys().isdisjoint(kept.reserve.place)
                ):
                    self._room.take(kept.needs, kept.option, kept.reserve.place, sign=-1)
                    self._slate.give_up(booking_id)
        return fit

    @contextmanager
    def _lifted(self, lifted: Sequence[Kept]) -> Iterator[None]:
        """Give back for a while what is kept for others."""
        for kept in lifted:
            self._room.take(kept.needs, kept.option, kept.reserve.place, sign=-1)
        try:
            yield
        finally:
            for kept in lifted:
                self._room.take(kept.needs, kept.option, kept.reserve.place)

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
        limits = limits_of(team, booking.work_class, booking.options, self._now)
        is_surge = excess(booking, option, limits, self._tally) is not None
        self._count(replace(booking, surge=is_surge), option)
        # It counts at once; else a burst of one team would all go before the next team's turn.
        added = entry_penalty(option.milli * booking.pods)
        added *= self._scene.share_of_milli.get(option.pool, 0.0) / max(team.weight, 1)
        self._added[team.name] = self._added.get(team.name, 0.0) + added
        self._slate.leave(booking.id)
        self._judge_team(team.name)
        # By the next round it may be over, or never have come to be.
        self._slate.nodes |= fit.place.keys()
        self._slate.rows.update(self._line.rows_of(team.name))
        return Release(booking.id, fit.chosen, fit.place, fit.sets, option if fit.sets else None)

    def _look_at_nodes(self, nodes: Iterable[str]) -> None:
        """Look again at what may fit now that more is free on these nodes."""
        for name in nodes:
            node = self._room.now.get(name)
            if node is None:
                continue
            if self._slate.kept:
                node = self._as_if_nothing_were_kept(node)
            for want in self._line.wanting(node.units):
                if want.misfit is None:
                    continue
                if _may_fit(want, node):
                    want.misfit = None
                    self._look_at(want)
                else:
                    self._slate.worn.add(want)

    def _as_if_nothing_were_kept(self, node: NodeState) -> NodeState:
        free = node.copy()
        for kept in self._slate.kept.values():
            pods = kept.reserve.place.get(node.name, 0)
            if pods:
                free.take(kept.needs, kept.option.offers, -pods)
        return free

    def _look_at_worn(self) -> None:
        """Look again at some that still don't fit, so that the reason given is the present one."""
        for _ in range(min(len(self._slate.worn), _MOST_WORN)):
            want = self._slate.worn.pop()
            want.misfit = None
            self._look_at(want)

    # Claims: those for whom others leave.

    def _take_claims(self, nodes: set[str]) -> None:
        for booking_id, claim in self._slate.claims.items():
            item = self._line.get(booking_id)
            if item is None:
                continue
            if self._thorough or not nodes.isdisjoint(claim.place):
                self._put(self.order.key(item), _Step.CLAIM, booking_id)
            self._claim(item, claim)

    def _serve_claim(self, booking_id: str) -> Iterator[Action]:
        item, claim = self._line.get(booking_id), self._slate.claims[booking_id]
        team = self._scene.teams.named(item.booking.team) if item is not None else None
        if item is None or team is None:
            return
        option = item.booking.options[claim.chosen]
        self._room.take(item.needs, option, claim.place, sign=-1)
        self._count(item.booking, option, sign=-1)
        caps = self._caps(item, team)
        if caps.eligible:
            fit = self._place(item, caps.eligible, self.order.key(item))
            if isinstance(fit, Placement):
                self._slate.claims.pop(booking_id)
                yield self._release(item, team, fit)
                return
            why = messages.waits_for_room(fit.reason)
        else:
            why = caps.closed or "its team is at its limit"
        self._claim(item, claim)
        self._slate.note(item, messages.waits_for_victims(why))
        yield claim

    def _claim(self, item: Waiting, claim: Reserve) -> None:
        """Keep room that is being made: it counts as held, lest its team's limit be given away."""
        option = item.booking.options[claim.chosen]
        self._room.take(item.needs, option, claim.place)
        self._count(item.booking, option)

    # Pushing others out.

    def _look_beyond_room(self, want: Want) -> None:
        """Let those who find no room push others out, or have nodes kept for them."""
        rows = set(want.entitled)
        top = want.top(self._key_of)
        if self._scene.stops and top is not None:
            rows.add(top)  # what is held on a used-up budget goes for anybody
        for row in rows:
            if row.key is not None and (self._thorough or row in self._news):
                self._put(row.key, _Step.PUSH, row)
        if self._thorough and top is not None and self._is_long(want):
            assert top.key is not None
            self._put(top.key, _Step.KEEP, want)

    def _push_for(self, row: Row, key: OrderKey) -> Iterator[Action]:
        team = self._scene.teams.named(row.team)
        if team is None or not row.turns or row.idle:
            return
        if row.want is not None and row.want.misfit is None:
            return  # it may fit, and is looked at for that first
        item = self._line.first(row)
        booking, right = item.booking, self._class(item.booking)
        if right is None or right.preempts is Preempts.NOBODY:
            return
        fresh = self.order.key(item)
        if fresh > key and self._agenda and self._agenda[0][0] < fresh:
            self._put(fresh, _Step.PUSH, row)
            return
        caps = self._caps(item, team)
        contender = Contender(booking, item.needs, team, right, caps.over)
        entitled = [
            index
            for index in caps.eligible or list(caps.over)
            if self._may_push(contender, booking.options[index])
        ]
        if not entitled:
            return
        actions = list(self._push(item, contender, entitled))
        if not actions:
            return
        yield from actions
        self._set_aside(item)
        if row.turns:
            self._news.add(row)
            if row.key is not None or row.own:
                self._put(self.order.key(self._line.first(row)), _Step.PUSH, row)

    def _may_push(self, contender: Contender, option: Option) -> bool:
        """Rule out, before victims are looked for, that anybody would have to go."""
        if contender.work_class.preempts is not Preempts.EVERYONE and not self._scene.stops:
            team, pool = contender.team.name, option.pool
            held = self._tally.pools[team, pool] + option.milli * contender.booking.pods
            if held > self._rights.guaranteed(team, pool):
                return False
            if not self._borrowers.get(pool, set()) - {team}:
                return False
        return self._victims.may_push(contender, option, self._tally)

    @cached_property
    def _borrowers(self) -> Mapping[str, set[str]]:
        """The teams that hold more than their guarantee, by pool."""
        found: dict[str, set[str]] = {}
        for (team, pool), milli in self._scene.tally.pools.items():
            if team and milli > self._rights.guaranteed(team, pool):
                found.setdefault(pool, set()).add(team)
        return found

    @cached_property
    def _victims(self) -> Victims:
        scene = self._scene
        return Victims(
            scene.policy, scene.teams, self._slate.holders, self._tally, self._now, self._rights
        )

    def _push(
        self, item: Waiting, contender: Contender, entitled: Sequence[int]
    ) -> Iterator[Action]:
        right = (item.shape, contender.team.name, contender.work_class.name)
        if right in self._hopeless:
            return
        if self._room.someone_leaves:
            ready = [index for index in entitled if not contender.over.get(index)]
            fit = self._place_in(self._room.after_leaving, item, ready)
            if isinstance(fit, Placement):
                yield self._claimed(item, fit, "others leave already")
                return
        push = self._victims.choose(
            contender, entitled, self._tally, self._room.after_leaving, self._pushed
        )
        if push is None:
            self._hopeless.add(right)
            return
        yield from self._preempt(item.booking, contender, push)
        yield self._claimed(item, push.placement, f"{len(push.victims)} to go")

    def _claimed(self, item: Waiting, fit: Placement, why: str) -> Reserve:
        claim = Reserve(item.booking.id, fit.chosen, fit.place)
        self._slate.claims[item.booking.id] = claim
        self._claim(item, claim)
        self._slate.note(item, messages.waits_for_victims(why))
        return claim

    def _set_aside(self, item: Waiting) -> None:
        """Let work whose room is being made wait beside the line."""
        self._slate.enter(item, self._now)
        self._judge_team(item.booking.team)

    def _preempt(self, booking: Booking, contender: Contender, push: Push) -> Iterator[Preempt]:
        self._room.leave(push.victims)
        for victim in push.victims:
            scavenged = self._rights.has_scavenged(victim.booking)
            rule = _rule(contender, victim.booking, scavenged=scavenged)
            yield self._push_out(victim, booking.id, rule)

    def _push_out(self, victim: Candidate, beneficiary: str, rule: str) -> Preempt:
        booking, option = victim.booking, victim.booking.option
        self._pushed.add(booking.id)
        if option is not None and not booking.surge:
            self._leaving[booking.team, option.pool] += victim.milli
        theirs = self._class(booking)
        return Preempt(
            victim=booking.id,
            beneficiary=beneficiary,
            rule=rule,
            lost_seconds=victim.lost(self._now),
            notice=theirs.notice if theirs is not None else 0,
            grace=theirs.grace if theirs is not None else 30,
        )

    def _cut_down(self) -> Iterator[Preempt]:
        """Push out what teams hold beyond limits that were lowered, where they say so."""
        scene = self._scene
        if not scene.teams.cut_down:
            return
        for victim, rule in over_limit(
            scene.policy, scene.teams, scene.tally, self._victims, self._leaving, self._now
        ):
            self._room.leave([victim])
            yield self._push_out(victim, "", rule)

    # Keeping nodes for those who waited long.

    def _is_long(self, want: Want) -> bool:
        since = self._now - self._scene.policy.reserve_after
        return any(row.turns[0][1] <= since for row in want.rows)

    def _keep_for(self, want: Want) -> Iterator[Reserve]:
        """Choose the nodes on which the first of those who wait for long will be able to start.

        They are those where it fits when everything that may be waited for has ended; best
        without waiting for what never ends by itself.
        """
        row = want.top(self._key_of)
        if row is None or want.misfit is None or len(self._slate.kept) >= _MOST_KEPT:
            return
        assert row.key is not None
        item = self._line.first(row)
        kept = None if item.shape in self._unreservable else self._reservation(item, want.open)
        if kept is None:
            self._unreservable.add(item.shape)
            return
        by = self._expected(item, kept)
        option = item.booking.options[kept.chosen]
        self._slate.kept[item.booking.id] = Kept(kept, row.key, by, item.needs, option)
        self._room.take(item.needs, option, kept.place)
        if by is not None:
            why = messages.waits_for_room(want.misfit.reason)
            when = moment_text(by, self._scene.policy.zone)
            self._slate.note(item, messages.expected_start(why, when))
        yield kept

    def _reservation(self, item: Waiting, open_: Sequence[int]) -> Reserve | None:
        for nodes in (self._room.after_jobs, self._room.after_all):
            fit = self._place_in(nodes, item, open_)
            if isinstance(fit, Placement):
                return Reserve(item.booking.id, fit.chosen, fit.place)
        return None

    def _expected(self, item: Waiting, kept: Reserve) -> float | None:
        """Tell when the nodes kept for work are free at the latest, if that can be known."""

        def fits(nodes: Mapping[str, NodeState]) -> bool:
            return isinstance(self._place_in(nodes, item, [kept.chosen]), Placement)

        now = self._room.now
        nodes = {name: now[name] for name in kept.place if name in now}
        return free_by(nodes, self._slate.holders, fits, self._now)

    # Filling the time until kept nodes are needed.

    def _backfill(self) -> Iterator[Release]:
        """Start what will have ended, by its own word, before nodes are needed that are kept.

        Of each kind, so many of the first are asked (Slurm's bf_max_job_test bounds it alike).
        """
        kept = [each for each in self._slate.kept.values() if each.by is not None]
        offers = {key for each in kept for key in self._offers_on(each.reserve.place)}
        for want in list(self._line.wanting(offers)):
            rows = (row for row in want.rows if row.key is not None)
            first = heapq.nsmallest(_BACKFILL_ROWS, rows, key=lambda row: (row.key, row.team))
            for row in first:
                if want.misfit is not None:
                    yield from self._backfill_from(row, want, kept)

    def _backfill_from(self, row: Row, want: Want, kept: Sequence[Kept]) -> Iterator[Release]:
        team = self._scene.teams.named(row.team)
        turns = [each[2] for each in row.turns[:_BACKFILL_TURNS]]
        for item in map(self._line.get, turns):
            if team is None or item is None or not item.runtime or row.want is not want:
                continue
            end = self._now + item.runtime
            lifted = [each for each in kept if each.by is not None and end <= each.by]
            if not lifted or item.booking.id in self._slate.kept:
                continue
            if tuple(self._caps(item, team).eligible) != want.open:
                return
            with self._lifted(lifted):
                fit = self._place_in(self._room.now, item, want.open)
            if isinstance(fit, Placement):
                yield self._release(item, team, fit)

    def _offers_on(self, nodes: Iterable[str]) -> Iterator[str]:
        for name in nodes:
            node = self._room.now.get(name)
            if node is not None:
                yield from node.units

    # What changes as the round goes on.

    def _count(self, booking: Booking, option: Option, sign: int = 1) -> None:
        self._tally.add(booking, option, sign)
        self._rights.recount()

    def _judge_team(self, team: str) -> None:
        for row in list(self._line.rows_of(team)):
            self._judge(row)

    def _share(self, team: str) -> float:
        return self._scene.shares.get(team, 0.0) + self._added.get(team, 0.0)

    def _class(self, booking: Booking) -> WorkClass | None:
        return self._scene.policy.classes.get(booking.work_class)

    def _key_of(self, row: Row) -> OrderKey:
        return self.order.key(self._line.first(row))

    def _look_at(self, want: Want) -> None:
        top = want.top(self._key_of)
        if top is None or top.key is None:
            return
        known = self._looking_at.get(want)
        if known is None or top.key < known:
            self._looking_at[want] = top.key
            self._put(top.key, _Step.START, want)

    def _put(self, key: OrderKey, step: _Step, thing: Row | Want | str) -> None:
        self._entries += 1
        heapq.heappush(self._agenda, (key, step, self._entries, thing))


def _may_fit(want: Want, node: NodeState) -> bool:
    """Say whether a node could help: it has room for at least one of the pods."""
    if isinstance(want.needs, GangNeeds):
        return True
    return any(fits_on(want.needs, option, node) for option in want.options)


def _rule(contender: Contender, victim: Booking, *, scavenged: bool) -> str:
    work_class = contender.work_class
    if scavenged:
        return messages.rule_scavenger(victim.team)
    if work_class.preempts is Preempts.EVERYONE:
        return messages.rule_class(work_class.name, victim.work_class or "unclassified")
    return messages.rule_borrower(victim.work_class or "unclassified", contender.team.name)
