"""Whom to push out: the cheapest set of holders whose leaving makes the work fit.

Rights (DESIGN §3, Preemption): a class that preempts everyone may push out any preemptible
work of a lower class; one that preempts borrowers may, for work within its team's guarantee,
push out what other teams hold beyond theirs. What a team holds although its budget is used up
may go for any that may push at all. Nobody is pushed out within its minRuntime.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from fairslice.booking import Booking, Option
from fairslice.placement import Misfit, NodeState, Placement, PodNeeds, place
from fairslice.policy import Policy, Team, WorkClass
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.policy import Preempts
from fairslice_queue.rights import Rights
from fairslice_queue.tally import Tally

__all__ = ["Candidate", "Contender", "Push", "Victims", "without"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A holder. `started` is when its present run began (Unix seconds).

    `checkpoint_every` is in seconds, 0 if it declared none, and so is `runtime`, the longest time
    that it said it runs. `leaving` says that it is on its way out already.
    """

    booking: Booking
    needs: PodNeeds
    started: float
    checkpoint_every: float = 0.0
    leaving: bool = False
    runtime: float = 0.0

    @property
    def ends_by(self) -> float:
        """When it will have ended, by its own word; infinite if it gave none."""
        return self.started + self.runtime if self.runtime > 0 else inf

    def lost(self, now: float) -> float:
        """Seconds of work that would be lost."""
        ran = max(0.0, now - self.started)
        return ran % self.checkpoint_every if self.checkpoint_every else ran

    @property
    def milli(self) -> int:
        """What it holds, in milli-GPU."""
        return self.booking.held_milli


@dataclass(frozen=True, slots=True)
class Contender:
    """Work that may push others out. `over` is what its own team must give up, by option."""

    booking: Booking
    needs: PodNeeds
    team: Team
    work_class: WorkClass
    over: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Push:
    """Who leaves, and where the work then goes."""

    victims: tuple[Candidate, ...]
    placement: Placement


def without(leaving: Iterable[Candidate], nodes: Mapping[str, NodeState]) -> dict[str, NodeState]:
    """Tell what would be free if these left. Only the nodes that change are copied."""
    left = dict(nodes)
    for candidate in leaving:
        option = candidate.booking.option
        if option is None:
            continue
        for name, pods in candidate.booking.place.items():
            node = left.get(name)
            if node is not None:
                if node is nodes[name]:
                    node = left[name] = node.copy()
                node.take(candidate.needs, option.offers, -pods)
    return left


@dataclass(frozen=True, slots=True)
class _Able:
    """A candidate who may be pushed out, with what is asked of it again and again."""

    item: Candidate
    id: str
    team: str
    pool: str
    offers: frozenset[str]
    milli: int
    guaranteed: int
    rank: int
    scavenged: bool

    @property
    def counted(self) -> int:
        """What counts towards its team's limit; a rollout's extra pod doesn't."""
        return 0 if self.item.booking.surge else self.milli


class Victims:
    """Those who may have to go in one round, cheapest first."""

    def __init__(
        self,
        policy: Policy,
        teams: TeamIndex,
        candidates: Iterable[Candidate],
        tally: Tally,
        now: float,
        rights: Rights | None = None,
    ) -> None:
        self._policy = policy
        self._rights = rights or Rights(teams, tally, now)
        self._now = now
        able = [found for item in candidates if (found := self._able(item)) is not None]
        self._ordered = sorted(able, key=lambda item: self._cost(item, tally))
        self._someone_scavenges = any(item.scavenged for item in able)

    def may_push(self, contender: Contender, option: Option, tally: Tally) -> bool:
        """Say whether the work has any right to push others out."""
        preempts = contender.work_class.preempts
        if preempts is Preempts.NOBODY or self._rights.scavenges(contender.booking):
            return False
        return self._someone_scavenges or self._has_claim(contender, option, tally)

    def of_team(self, team: str, pool: str) -> Iterator[Candidate]:
        """Yield a team's own, cheapest first."""
        for able in self._ordered:
            if able.team == team and able.pool == pool:
                yield able.item

    def _has_claim(self, contender: Contender, option: Option, tally: Tally) -> bool:
        """Say whether its class, or its team's guarantee, lets it push out ordinary work."""
        if contender.work_class.preempts is Preempts.EVERYONE:
            return True
        team, pool = contender.team.name, option.pool
        held = tally.pools[team, pool] + option.milli * contender.booking.pods
        return held <= self._rights.guaranteed(team, pool)

    def choose(
        self,
        contender: Contender,
        options: Sequence[int],
        tally: Tally,
        nodes: Mapping[str, NodeState],
        gone: Container[str],
    ) -> Push | None:
        """Find victims for the first option that a push makes fit; None if no right suffices.

        `gone` are those who have been chosen already.
        """
        for index in options:
            option = contender.booking.options[index]
            if not self.may_push(contender, option, tally):
                continue
            found = self._for_option(contender, index, option, tally, nodes, gone)
            if found is not None:
                return found
        return None

    def _for_option(
        self,
        contender: Contender,
        index: int,
        option: Option,
        tally: Tally,
        nodes: Mapping[str, NodeState],
        gone: Container[str],
    ) -> Push | None:
        over = contender.over.get(index, 0)
        must, may = self._permitted(contender, option, tally, gone, over)
        if sum(item.milli for item in must) < over:
            return None
        count, needs = contender.booking.pods, contender.needs

        def fit(leaving: Iterable[Candidate]) -> Placement | Misfit:
            return place(count, needs, [option], without(leaving, nodes).values())

        found = fit([*must, *may])
        if isinstance(found, Misfit):
            return None
        # The more leave, the more fits: the shortest list, cheapest first, by bisection.
        low, high = 0, len(may)
        while low < high:
            middle = (low + high) // 2
            tried = fit([*must, *may[:middle]])
            if isinstance(tried, Misfit):
                low = middle + 1
            else:
                high, found = middle, tried
        # What leaves nodes that the work doesn't go to need not leave.
        needed = must + [item for item in may[:high] if not found.place.keys().isdisjoint(
            item.booking.place)]  # fmt: skip
        for item in reversed(list(needed)):
            rest = [other for other in needed if other is not item]
            own = sum(o.milli for o in rest if o.booking.team == contender.team.name)
            if own < over:
                continue
            tried = fit(rest)
            if isinstance(tried, Placement):
                needed, found = rest, tried
        return Push(tuple(needed), Placement(chosen=index, place=found.place))

    def _permitted(
        self,
        contender: Contender,
        option: Option,
        tally: Tally,
        gone: Container[str],
        over: int,
    ) -> tuple[list[Candidate], list[Candidate]]:
        """List who must go for the sake of the team's own limit, and who may go for room."""
        must: list[Candidate] = []
        may: list[Candidate] = []
        offers, left = option.offers.keys(), dict[tuple[str, str], int]()
        has_claim = self._has_claim(contender, option, tally)
        owed: int | None = None
        for able in self._ordered:
            own = able.team == contender.team.name
            is_must = over > 0 and own and able.pool == option.pool and able.counted > 0
            if able.id in gone or not (is_must or not able.offers.isdisjoint(offers)):
                continue
            key = (able.team, able.pool)
            held = left.get(key, tally.pools[key])
            if not (able.scavenged and not own):
                if not has_claim:
                    continue
                borrowed = held - able.guaranteed
                if 0 < borrowed < able.milli and owed is None:
                    owed = self._owed(contender, option, tally, gone)
                if not self._has_right(contender, able, borrowed, owed or 0):
                    continue
            (must if is_must else may).append(able.item)
            if is_must:
                over -= able.milli
            left[key] = held - able.counted
        return must, may

    def _owed(
        self, contender: Contender, option: Option, tally: Tally, gone: Container[str]
    ) -> int:
        """Count what is still wanted once all that is wholly borrowed has left; in milli-GPU.

        It is one share at least: whoever borrows less owes nothing that would help.
        """
        wanted = option.milli * contender.booking.pods
        offers, left = option.offers.keys(), dict[tuple[str, str], int]()
        for able in self._ordered:
            if able.id in gone or able.offers.isdisjoint(offers):
                continue
            key = (able.team, able.pool)
            rest = left.get(key, tally.pools[key]) - able.milli
            if able.team != contender.team.name and rest >= able.guaranteed:
                left[key] = rest
                wanted -= able.milli
        return max(wanted, option.milli // sum(option.units.values()))

    def _has_right(self, contender: Contender, able: _Able, borrowed: int, owed: int) -> bool:
        if contender.work_class.preempts is Preempts.EVERYONE:
            return able.rank > contender.booking.rank
        if able.team == contender.team.name or borrowed <= 0:
            return False
        # Work that straddles its team's guarantee goes if the borrowed part is worth it.
        return borrowed >= able.milli or borrowed >= owed

    def _able(self, item: Candidate) -> _Able | None:
        booking, option = item.booking, item.booking.option
        if item.leaving or not booking.team or not booking.preemptible or option is None:
            return None
        work_class = self._policy.classes.get(booking.work_class)
        least = work_class.min_runtime if work_class is not None else 0
        if self._now - item.started < least:
            return None
        return _Able(
            item=item,
            id=booking.id,
            team=booking.team,
            pool=option.pool,
            offers=frozenset(option.offers),
            milli=item.milli,
            guaranteed=self._rights.guaranteed(booking.team, option.pool),
            rank=booking.rank,
            scavenged=self._rights.has_scavenged(booking),
        )

    def _cost(self, able: _Able, tally: Tally) -> tuple[bool, int, bool, float, float, str]:
        """Cheapest first: what scavenges, lowest class, borrowers, least work lost, youngest."""
        left = tally.pools[able.team, able.pool] - able.milli
        return (
            not able.scavenged,
            -able.rank,
            left < able.guaranteed,
            able.item.lost(self._now),
            -able.item.started,
            able.id,
        )
