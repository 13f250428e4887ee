"""The queue's decisions: who starts, who is pushed out for whom, what is kept for whom.

`plan` is pure: it decides on a state as it is given. The live queue's states differ little from
one to the next, so it keeps a `Planner`, tells it what changed, and gets the same decisions for
the price of the change.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from fairslice.policy import Policy
from fairslice_queue.actions import Action, Explain, Reserve
from fairslice_queue.order import Order, Waiting
from fairslice_queue.rights import Rights
from fairslice_queue.round import Round
from fairslice_queue.scene import Scene
from fairslice_queue.slate import Slate
from fairslice_queue.victims import Candidate

__all__ = ["PlanState", "Planner", "Scene", "Waiting", "plan"]

# Shares are compared as of one time; doubles hold a thousand half-lives.
_MOST_HALF_LIVES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState(Scene):
    """All that planning reads."""

    waiting: Sequence[Waiting]
    candidates: Sequence[Candidate]


def plan(state: PlanState, now: float) -> list[Action]:
    """Decide what to do now. Every action stands by itself; none is undone by a later one.

    Ends with what everybody who still waits is to be told.
    """
    planner = Planner()
    for holder in state.candidates:
        planner.hold(holder)
    for item in state.waiting:
        planner.wait(item, now)
    actions = planner.decide(state, now, thorough=True)
    for team in planner.teams():
        actions += planner.standing(team)
    return actions


class Planner:
    """Decides again and again on what it is told of.

    A decision that is not `thorough` looks at what changed since the last one. What only time
    brings about (someone has run long enough to be pushed out, or waited long enough to have
    nodes kept) is found by a thorough one, which costs what there are kinds of requests.
    """

    def __init__(self) -> None:
        self._slate = Slate()
        self._scene: Scene | None = None
        self._order: Order | None = None
        self._now = -inf
        self._since = 0.0  # the time as of which shares are compared
        self._touched: set[str] = set()
        self._everything = True
        self._windows: list[tuple[float, str]] = []
        self._watched: dict[str, float] = {}
        self._lendable: dict[str, int] = {}

    # What is new.

    def wait(self, item: Waiting, now: float, *, new: bool = False) -> None:
        """Take in work that waits, or what is new of it.

        `new`: if it wasn't known, the books have just got it.
        """
        slate, booking_id = self._slate, item.booking.id
        if slate.line.get(booking_id) == item:
            return
        if booking_id in slate.kept:
            slate.give_up(booking_id)
        if new:
            slate.assume_open(booking_id)
        slate.enter(item, now)

    def leave(self, booking_id: str, *, waits: bool = False) -> None:
        """Take out work that waits no more, or (`waits`) is not to be looked at for a while."""
        self._slate.leave(booking_id)
        if not waits:
            self._slate.assume_nothing(booking_id)

    def hold(self, holder: Candidate) -> None:
        """Take in a holder, or what is new of it."""
        if self._slate.holders.put(holder) != holder:
            self._touched.add(holder.booking.team)

    def end(self, booking_id: str) -> Candidate | None:
        """Take out a holder that holds nothing any more; return what was known of it."""
        known = self._slate.holders.drop(booking_id)
        if known is not None:
            self.touch(teams=(known.booking.team,), nodes=known.booking.place)
        return known

    def touch(self, *, teams: Iterable[str] = (), nodes: Iterable[str] = ()) -> None:
        """Take note that what teams may do, or what is free on nodes, may have changed."""
        self._touched.update(teams)
        self._slate.nodes.update(nodes)

    def lifted(self) -> set[str]:
        """Name the first of each kind of work that goes before better classes."""
        return {row.first for row in self._slate.lifted if row.turns}

    @property
    def kept(self) -> dict[str, Reserve]:
        """The nodes kept for work that waits, by booking id."""
        slate = self._slate
        return {**{one: kept.reserve for one, kept in slate.kept.items()}, **slate.claims}

    # Decisions.

    def decide(self, scene: Scene, now: float, *, thorough: bool = False) -> list[Action]:
        """Decide what to do now that the scene is this."""
        slate = self._slate
        self._notice(scene, now)
        work = Round(slate, scene, now, self._growth(scene.policy, now), thorough=thorough)
        self._scene, self._order, self._now = scene, work.order, now
        teams, self._touched = self._touched, set()
        if self._everything:
            self._everything, teams = False, set(slate.line.teams)
        for team in teams:
            slate.rows.update(slate.line.rows_of(team))
            self._watch_windows(team, scene, now)
        rows, slate.rows = slate.rows, set()
        nodes, slate.nodes = slate.nodes, set()
        return work.run(rows, nodes)

    # What to tell.

    def capped(self) -> dict[str, bool]:
        """Tell of whom it is new that only their own team's caps hold them up, or no more."""
        return self._slate.take_capped()

    def take_told(self) -> set[str]:
        """Return the teams whose work may stand elsewhere than was told, or for another reason."""
        teams, self._slate.teams = self._slate.teams, set()
        return teams

    def teams(self) -> list[str]:
        """List the teams that have work in line."""
        return sorted(self._slate.line.teams)

    def standing(self, team: str, most: int | None = None) -> list[Explain]:
        """Say where a team's work stands: all of it, or the first so many."""
        line, scene, order = self._slate.line, self._scene, self._order
        if order is None or scene is None or scene.teams.named(team) is None:
            return []
        queued = line.count(team)
        return [
            self._explain(booking_id, position, queued)
            for position, booking_id in enumerate(line.of_team(team, order, most), 1)
        ]

    def _explain(self, booking_id: str, position: int, queued: int) -> Explain:
        slate = self._slate
        item, row = slate.line.get(booking_id), slate.line.row_of(booking_id)
        assert item is not None
        reason = slate.notes.get(booking_id) or row.reason(item)
        return Explain(booking_id, position, queued, reason, slate.is_capped(booking_id))

    # What time and the scene change by themselves.

    def _notice(self, scene: Scene, now: float) -> None:
        before, line = self._scene, self._slate.line
        half_life = scene.policy.half_life
        if (
            before is None
            or before.policy is not scene.policy
            or before.capacity != scene.capacity
            or now < self._now
            or now - self._since > _MOST_HALF_LIVES * half_life > 0
        ):
            self._everything, self._since = True, now
        else:
            if before.teams is not scene.teams:
                for name in line.teams:
                    if before.teams.named(name) is not scene.teams.named(name):
                        self._touched.add(name)
            if before.stops is not scene.stops:
                for name in before.stops.keys() | scene.stops.keys():
                    if before.stops.get(name) != scene.stops.get(name):
                        self._touched.add(name)
        for item in line.due(now):
            self._slate.enter(item, now)
        self._slate.come_of_age(now)
        while self._windows and self._windows[0][0] <= now:
            self._touched.add(heapq.heappop(self._windows)[1])
        self._notice_claims(scene.claims, now)
        self._notice_lending(scene, now)

    def _notice_claims(self, claims: Mapping[str, Reserve], now: float) -> None:
        slate = self._slate
        known = slate.claims
        for booking_id in [
            key for key in claims.keys() | known.keys() if claims.get(key) != known.get(key)
        ]:
            before, after = known.pop(booking_id, None), claims.get(booking_id)
            if before is not None:
                if slate.notes.pop(booking_id, None) is not None and booking_id in slate.line:
                    slate.teams.add(slate.line.row_of(booking_id).team)
                slate.nodes |= before.place.keys()
            item = slate.line.get(booking_id)
            if item is None:
                continue
            self._touched.add(item.booking.team)
            if after is not None and after.place:
                slate.give_up(booking_id)
                known[booking_id] = after
                slate.nodes |= after.place.keys()
            slate.enter(item, now)

    def _notice_lending(self, scene: Scene, now: float) -> None:
        """Look again at who may not borrow, if more may be borrowed than before."""
        rights = Rights(scene.teams, scene.tally, now, scene.stops, scene.capacity)
        for pool, rows in self._slate.unlent.items():
            lendable = rights.lendable(pool)
            if lendable > self._lendable.get(pool, 0):
                self._slate.rows |= rows
            self._lendable[pool] = lendable

    def _watch_windows(self, team: str, scene: Scene, now: float) -> None:
        found = scene.teams.named(team)
        when = found.next_change(now) if found is not None else inf
        if when < inf and self._watched.get(team) != when:
            self._watched[team] = when
            heapq.heappush(self._windows, (when, team))

    def _growth(self, policy: Policy, now: float) -> float:
        half_life = float(policy.half_life)
        return 2.0 ** ((now - self._since) / half_life) if half_life > 0 else 1.0
