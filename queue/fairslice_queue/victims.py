"""Whom to push out: the cheapest set of holders whose leaving makes the work fit.

Rights (DESIGN §3, Preemption): a class that preempts everyone may push out any preemptible
work of a lower class; one that preempts borrowers may, for work within its team's guarantee,
push out what other teams hold beyond theirs. Nobody is pushed out within its minRuntime.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairslice.booking import Booking, Option
from fairslice.placement import Misfit, NodeState, Placement, PodNeeds, place
from fairslice.policy import Team, WorkClass
from fairslice.v1alpha1.policy import Preempts
from fairslice_queue.tally import Tally

if TYPE_CHECKING:
    from fairslice_queue.planner import PlanState

__all__ = ["Candidate", "Push", "choose_victims"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A holder. `started` is when its present run began (Unix seconds).

    `checkpoint_every` is in seconds, 0 if it declared none. `leaving` says that it is on its way
    out already; `returns` that someone brings it back.
    """

    booking: Booking
    needs: PodNeeds
    started: float
    checkpoint_every: float = 0.0
    leaving: bool = False

    def lost(self, now: float) -> float:
        """Seconds of work that would be lost."""
        ran = max(0.0, now - self.started)
        return ran % self.checkpoint_every if self.checkpoint_every else ran


@dataclass(frozen=True, slots=True)
class Push:
    """Who leaves, and where the work then goes."""

    victims: tuple[Candidate, ...]
    placement: Placement


def choose_victims(
    booking: Booking,
    needs: PodNeeds,
    eligible: Sequence[int],
    *,
    work_class: WorkClass,
    team: Team,
    state: "PlanState",
    tally: Tally,
    nodes: Mapping[str, NodeState],
    passed_over: Collection[str],
    now: float,
) -> Push | None:
    """Find victims for the first option that a push makes fit; None if no right suffices."""
    for index in eligible:
        option = booking.options[index]
        found = _for_option(
            booking, needs, option, work_class, team, state, tally, nodes, passed_over, now
        )
        if found is not None:
            victims, where = found
            return Push(victims, Placement(chosen=index, place=where))
    return None


def _for_option(
    booking: Booking,
    needs: PodNeeds,
    option: Option,
    work_class: WorkClass,
    team: Team,
    state: "PlanState",
    tally: Tally,
    nodes: Mapping[str, NodeState],
    passed_over: Collection[str],
    now: float,
) -> tuple[tuple[Candidate, ...], dict[str, int]] | None:
    guaranteed = team.quota(option.pool).guaranteed
    own = tally.pools[team.name, option.pool] + option.milli * booking.pods <= guaranteed
    pass_all = work_class.preempts is Preempts.EVERYONE
    if not pass_all and not (work_class.preempts is Preempts.BORROWERS and own):
        return None
    wanted = option.offers.keys()
    possible = [
        candidate
        for candidate in state.candidates
        if not candidate.leaving
        and candidate.booking.id not in passed_over
        and candidate.booking.team
        and candidate.booking.preemptible
        and candidate.booking.option is not None
        and not wanted.isdisjoint(candidate.booking.option.offers)
        and _ran_long_enough(candidate, state, now)
    ]
    simulated = {name: node.copy() for name, node in nodes.items()}
    count = booking.pods
    chosen: list[Candidate] = []
    held = tally.copy()
    for candidate in sorted(possible, key=lambda item: _cost(item, state, tally, now)):
        if not _may_push(candidate, booking, team, state, held, pass_all=pass_all):
            continue
        _leave(candidate, simulated, held)
        chosen.append(candidate)
        fit = place(count, needs, [option], simulated.values())
        if isinstance(fit, Placement):
            return _spare(chosen, count, needs, option, nodes)
    return None


def _ran_long_enough(candidate: Candidate, state: "PlanState", now: float) -> bool:
    work_class = state.policy.classes.get(candidate.booking.work_class)
    least = work_class.min_runtime if work_class is not None else 0
    return now - candidate.started >= least


def _borrows(candidate: Candidate, state: "PlanState", held: Tally) -> bool:
    """Say whether its team keeps its guarantee when it leaves."""
    booking, option = candidate.booking, candidate.booking.option
    theirs = state.teams.named(booking.team)
    assert option is not None
    guaranteed = theirs.quota(option.pool).guaranteed if theirs is not None else 0
    return held.pools[booking.team, option.pool] - option.milli * booking.pods >= guaranteed


def _may_push(
    candidate: Candidate,
    booking: Booking,
    team: Team,
    state: "PlanState",
    held: Tally,
    *,
    pass_all: bool,
) -> bool:
    if pass_all:
        return candidate.booking.rank > booking.rank
    return candidate.booking.team != team.name and _borrows(candidate, state, held)


def _cost(
    candidate: Candidate, state: "PlanState", tally: Tally, now: float
) -> tuple[int, bool, float, float]:
    """Cheapest first: lowest class, borrowers, least work lost, youngest."""
    return (
        -candidate.booking.rank,
        not _borrows(candidate, state, tally),
        candidate.lost(now),
        -candidate.started,
    )


def _leave(candidate: Candidate, nodes: Mapping[str, NodeState], held: Tally | None) -> None:
    booking, option = candidate.booking, candidate.booking.option
    assert option is not None
    for name, pods in booking.place.items():
        node = nodes.get(name)
        if node is not None:
            node.take(candidate.needs, option.offers, -pods)
    if held is not None:
        held.add(booking, option, -1)


def _spare(
    chosen: list[Candidate],
    count: int,
    needs: PodNeeds,
    option: Option,
    nodes: Mapping[str, NodeState],
) -> tuple[tuple[Candidate, ...], dict[str, int]] | None:
    """Let go of every victim that turns out not to be needed, the dearest first."""
    needed = list(chosen)
    for candidate in reversed(chosen):
        rest = [item for item in needed if item is not candidate]
        if not isinstance(_fit_without(rest, count, needs, option, nodes), Misfit):
            needed = rest
    fit = _fit_without(needed, count, needs, option, nodes)
    return (tuple(needed), fit.place) if isinstance(fit, Placement) else None


def _fit_without(
    leaving: Sequence[Candidate],
    count: int,
    needs: PodNeeds,
    option: Option,
    nodes: Mapping[str, NodeState],
) -> Placement | Misfit:
    simulated = {name: node.copy() for name, node in nodes.items()}
    for candidate in leaving:
        _leave(candidate, simulated, None)
    return place(count, needs, [option], simulated.values())
