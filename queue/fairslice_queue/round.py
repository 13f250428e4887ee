"""One round of decisions: what changed is judged in order, and what it lets happen is done.

Nothing becomes free within a round, so a want that is found not to fit is not looked at again
until something does. What the round gives out is taken off as it goes.
"""

import heapq
from collections.abc import Iterable, Iterator
from enum import IntEnum

from msgspec.structs import replace

from fairslice import messages
from fairslice.booking import Booking, Option
from fairslice.fairshare import OrderKey, entry_penalty
from fairslice.periods import moment_text
from fairslice.placement import GangNeeds, NodeState, Placement, fits_on
from fairslice.policy import WorkClass
from fairslice.team import Team
from fairslice.v1alpha1.policy import Preempts
from fairslice_queue.actions import Action, Release, Reserve
from fairslice_queue.displacing import Displacing
from fairslice_queue.keeping import Keeping
from fairslice_queue.line import Row, Want
from fairslice_queue.nodes_to_come import NodesToCome
from fairslice_queue.openings import Openings
from fairslice_queue.order import Order, Waiting
from fairslice_queue.rights import Rights
from fairslice_queue.room import Room
from fairslice_queue.scene import Scene
from fairslice_queue.slate import Slate
from fairslice_queue.victims import Contender

__all__ = ["Round"]

# Reasons that are looked at anew in one round; rows, and of each row turns, that may fill a wait.
_MOST_WORN = 32
_BACKFILL_ROWS = 50
_BACKFILL_TURNS = 20


class _Step(IntEnum):
    """What is looked at next, of those who are equal in line."""

    CLAIM = 0
    KEPT = 1
    LONG = 2
    START = 3
    PUSH = 4


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
        self._keeping = Keeping(slate, self._room, now)
        self._to_come = NodesToCome(scene, slate.holders)
        self._displacing = Displacing(slate, scene, self._room, self._tally, self._rights, now)
        self._openings = Openings(
            self.order, self._rights, self._tally, slate.holders, self._displacing.leaving, now
        )

    def run(self, rows: Iterable[Row], nodes: Iterable[str]) -> list[Action]:
        """Judge these rows anew, and what free room on these nodes may let start."""
        return list(self._run(rows, set(nodes)))

    def _run(self, rows: Iterable[Row], nodes: set[str]) -> Iterator[Action]:
        if self._thorough:
            yield from self._displacing.cut_down()
        self._take_claims(nodes)
        self._take_kept(nodes)
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
                if want.misfit is not None and self._to_come.may_serve(want.sample.booking.options):
                    want.misfit = None
                    self._look_at(want)
                elif want.misfit is not None:
                    self._look_beyond_room(want)
                self._see_if_long(want)
        while self._agenda:
            key, step, _, thing = heapq.heappop(self._agenda)
            match thing:
                case str() if step is _Step.CLAIM:
                    yield from self._serve_claim(thing)
                case str():
                    yield from self._serve_kept(thing)
                case Row():
                    yield from self._push_for(thing, key)
                case Want() if step is _Step.LONG:
                    yield from self._serve_long(thing)
                case Want():
                    yield from self._serve(thing, key)
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
        if self.order.lifts(item):
            self._slate.lifted.add(row)
        if row.idle or team is None:
            self._line.place(row, (), None, entitled=False)
        else:
            self._judge_open(row, item, team)
        if row.capped != was_capped:
            self._slate.flipped(row)

    def _judge_open(self, row: Row, item: Waiting, team: Team) -> None:
        opening = self._openings.of(item.booking, team)
        for pool in opening.unlent:
            self._slate.unlent[pool].add(row)
        row.own, row.capped, row.waits = opening.over, opening.capped, ""
        if not opening.open:
            row.waits = opening.waits
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
        want = self._line.place(row, opening.open, key, entitled=entitled)
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
        if self._openings.of(item.booking, team).open != want.open:
            self._judge(row)
            return
        fit = self._keeping.place(item, want.open, row.key)
        if not isinstance(fit, Placement):
            fit = self._to_come.fit(item, want.open) or fit
        if isinstance(fit, Placement):
            yield self._release(item, team, fit)
            return
        want.misfit = fit
        if fit.reason != want.told:
            want.told = fit.reason
            self._slate.teams.update(each.team for each in want.rows)
        self._look_beyond_room(want)

    def _release(self, item: Waiting, team: Team, fit: Placement) -> Release:
        booking = item.booking
        option = booking.options[fit.chosen]
        self._room.take(item.needs, option, fit.place)
        is_surge = self._openings.is_surge(booking, option, team)
        self._count(replace(booking, surge=is_surge), option)
        # It counts at once; else a burst of one team would all go before the next team's turn.
        added = entry_penalty(option.milli * booking.pods)
        added *= self._scene.share_of_milli.get(option.pool, 0.0) / max(team.weight, 1)
        self._added[team.name] = self._added.get(team.name, 0.0) + added
        want = self._line.row_of(booking.id).want
        if want is not None:
            want.started = self._now
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
            most = self._keeping.without(node)
            for want in self._line.wanting(node.units):
                if want.misfit is None:
                    continue
                if _may_fit(want, most):
                    want.misfit = None
                    self._look_at(want)
                else:
                    self._slate.worn.add(want)

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
        opening = self._openings.of(item.booking, team)
        if opening.open:
            fit = self._keeping.place(item, opening.open, self.order.key(item))
            if isinstance(fit, Placement):
                self._slate.claims.pop(booking_id)
                yield self._release(item, team, fit)
                return
            why = messages.waits_for_room(fit.reason)
        else:
            why = opening.closed or "its team is at its limit"
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
        opening = self._openings.of(booking, team)
        contender = Contender(booking, item.needs, team, right, opening.over)
        entitled = self._displacing.entitled(contender, opening.open or list(opening.over))
        push = None
        with self._keeping.lifted_for(item, fresh):
            soon = self._displacing.room_soon(item, contender, entitled) if entitled else None
            if soon is None and entitled:
                push = self._displacing.push(item, contender, entitled)
        if soon is not None:
            self._keeping.make_way(item, fresh, soon.place)
            yield self._claimed(item, soon, "others leave already")
        elif push is not None:
            self._keeping.make_way(item, fresh, push.placement.place)
            yield from self._displacing.preempt(booking, contender, push)
            yield self._claimed(item, push.placement, f"{len(push.victims)} to go")
        else:
            return
        self._set_aside(item)
        if row.turns:
            self._news.add(row)
            if row.key is not None or row.own:
                self._put(self.order.key(self._line.first(row)), _Step.PUSH, row)

    def _claimed(self, item: Waiting, fit: Placement, why: str) -> Reserve:
        claim = Reserve(item.booking.id, fit.chosen, fit.place)
        self._slate.claims[item.booking.id] = claim
        self._claim(item, claim)
        self._slate.note(item, messages.waits_for_victims(why))
        return claim

    def _set_aside(self, item: Waiting) -> None:
        """Let work whose room is being made wait beside the line."""
        self._keeping.drop(item.booking.id)
        self._slate.enter(item, self._now)
        self._judge_team(item.booking.team)

    # Keeping nodes for those who waited long.

    def _see_if_long(self, want: Want) -> None:
        """See that a kind of which nothing started for too long is looked at before its equals.

        The largest goes first, which is hardest to make room for. Its kind has had its turn then,
        and the others theirs until it has been passed over for as long again.
        """
        since, top = want.passed_over_since, want.top(self._key_of)
        if top is None or since > self._now - self._scene.policy.reserve_after:
            return
        assert top.key is not None
        first = top.key._replace(rank=-1, share=-float(want.size), queued_at=since)
        self._put(first, _Step.LONG, want)

    def _serve_long(self, want: Want) -> Iterator[Action]:
        """Start the first of a kind that was passed over for long, or have nodes kept for it."""
        row = want.top(self._key_of)
        if row is not None and want.misfit is None:
            yield from self._start(self._first_of_team(row))
            row = want.top(self._key_of)
        if row is None or want.misfit is None:
            return
        assert row.key is not None
        item = self._line.first(row)
        if not self._keeping.has_kind(item):
            yield from self._keep(item, want.open, row.key, want.misfit.reason)

    def _take_kept(self, nodes: set[str]) -> None:
        self._keeping.take()
        for booking_id, kept in self._slate.kept.items():
            item = self._line.get(booking_id)
            if item is not None and (self._thorough or not nodes.isdisjoint(kept.reserve.place)):
                self._put(self.order.key(item), _Step.KEPT, booking_id)

    def _serve_kept(self, booking_id: str) -> Iterator[Action]:
        """Start work for which nodes are kept, or see that they are still the right ones."""
        item = self._line.get(booking_id)
        team = self._scene.teams.named(item.booking.team) if item is not None else None
        if item is None or booking_id not in self._slate.kept:
            return
        is_idle = self._line.row_of(booking_id).idle
        opening = self._openings.of(item.booking, team) if team is not None else None
        if opening is None or not opening.open or is_idle:
            self._keeping.drop(booking_id)
            return
        assert team is not None
        key = self.order.key(item)
        fit = self._keeping.place(item, opening.open, key)
        if isinstance(fit, Placement):
            yield self._release(item, team, fit)
        elif self._thorough:
            yield from self._keep(item, opening.open, key, fit.reason)

    def _keep(
        self, item: Waiting, open_: tuple[int, ...], key: OrderKey, reason: str
    ) -> Iterator[Reserve]:
        kept = self._keeping.keep(item, open_, key)
        if kept is None:
            return
        if kept.by is not None:
            why = messages.waits_for_room(reason)
            when = moment_text(kept.by, self._scene.policy.zone)
            self._slate.note(item, messages.expected_start(why, when))
        yield kept.reserve

    # Filling the time until kept nodes are needed.

    def _backfill(self) -> Iterator[Release]:
        """Start what will have ended, by its own word, before nodes are needed that are kept.

        Of each kind, so many of the first are asked (Slurm's bf_max_job_test bounds it alike).
        """
        for want in list(self._line.wanting(self._keeping.fillable())):
            rows = (row for row in want.rows if row.key is not None)
            first = heapq.nsmallest(_BACKFILL_ROWS, rows, key=lambda row: (row.key, row.team))
            for row in first:
                if want.misfit is not None:
                    yield from self._backfill_from(row, want)

    def _backfill_from(self, row: Row, want: Want) -> Iterator[Release]:
        team = self._scene.teams.named(row.team)
        turns = [each[2] for each in row.turns[:_BACKFILL_TURNS]]
        for item in map(self._line.get, turns):
            if team is None or item is None or not item.runtime or row.want is not want:
                continue
            if self._openings.of(item.booking, team).open != want.open:
                return
            fit = self._keeping.fill(item, want.open)
            if fit is not None:
                yield self._release(item, team, fit)

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
