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
        able = [item for item in candidates if self._is_able(item)]
        self._scavenged = {
            item.booking.id for item in able if self._rights.has_scavenged(item.booking)
        }
        self._ordered = sorted(able, key=lambda item: self._cost(item, tally))

    def may_push(self, contender: Contender, option: Option, tally: Tally) -> bool:
        """Say whether the work has any right to push others out."""
        preempts = contender.work_class.preempts
        if preempts is Preempts.NOBODY or self._rights.scavenges(contender.booking):
            return False
        return bool(self._scavenged) or self._has_claim(contender, option, tally)

    def of_team(self, team: str, pool: str) -> Iterator[Candidate]:
        """Yield a team's own, cheapest first."""
        for item in self._ordered:
            option = item.booking.option
            if item.booking.team == team and option is not None and option.pool == pool:
                yield item

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
        owed = self._owed(contender, option, tally, gone)
        has_claim = self._has_claim(contender, option, tally)
        for item in self._ordered:
            booking, given = item.booking, item.booking.option
            if booking.id in gone or given is None:
                continue
            key = (booking.team, given.pool)
            held = left.get(key, tally.pools[key])
            scavenged = booking.id in self._scavenged and booking.team != contender.team.name
            claims = has_claim and self._has_right(contender, item, held, owed)
            if not (scavenged or claims):
                continue
            own = booking.team == contender.team.name and given.pool == option.pool
            if over > 0 and own and not booking.surge:
                must.append(item)
                over -= item.milli
            elif offers.isdisjoint(given.offers):
                continue
            else:
                may.append(item)
            left[key] = held - (0 if booking.surge else item.milli)
        return must, may

    def _owed(
        self, contender: Contender, option: Option, tally: Tally, gone: Container[str]
    ) -> int:
        """Count what is still wanted once all that is wholly borrowed has left; in milli-GPU.

        It is one share at least: whoever borrows less owes nothing that would help.
        """
        wanted = option.milli * contender.booking.pods
        offers, left = option.offers.keys(), dict[tuple[str, str], int]()
        for item in self._ordered:
            booking, given = item.booking, item.booking.option
            if booking.id in gone or given is None or offers.isdisjoint(given.offers):
                continue
            key = (booking.team, given.pool)
            rest = left.get(key, tally.pools[key]) - item.milli
            if booking.team != contender.team.name and rest >= self._guaranteed(booking):
                left[key] = rest
                wanted -= item.milli
        return max(wanted, option.milli // sum(option.units.values()))

    def _has_right(self, contender: Contender, item: Candidate, held: int, owed: int) -> bool:
        booking = item.booking
        if contender.work_class.preempts is Preempts.EVERYONE:
            return booking.rank > contender.booking.rank
        if booking.team == contender.team.name:
            return False
        # Work that straddles its team's guarantee goes if the borrowed part is worth it.
        borrowed = held - self._guaranteed(booking)
        return borrowed >= min(item.milli, owed)

    def _is_able(self, item: Candidate) -> bool:
        booking = item.booking
        if item.leaving or not booking.team or not booking.preemptible or booking.option is None:
            return False
        work_class = self._policy.classes.get(booking.work_class)
        least = work_class.min_runtime if work_class is not None else 0
        return self._now - item.started >= least

    def _guaranteed(self, booking: Booking) -> int:
        option = booking.option
        return self._rights.guaranteed(booking.team, option.pool) if option is not None else 0

    def _cost(self, item: Candidate, tally: Tally) -> tuple[bool, int, bool, float, float, str]:
        """Cheapest first: what scavenges, lowest class, borrowers, least work lost, youngest."""
        booking, option = item.booking, item.booking.option
        assert option is not None
        left = tally.pools[booking.team, option.pool] - item.milli
        return (
            booking.id not in self._scavenged,
            -booking.rank,
            left < self._guaranteed(booking),
            item.lost(self._now),
            -item.started,
            booking.id,
        )
