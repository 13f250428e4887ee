"""Whom to push out where a team holds more than it still may: by its limit, by its budget."""

from collections.abc import Iterator, Mapping, Sequence

from fairslice import messages
from fairslice.budgets import Stop
from fairslice.policy import Policy
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.scalars import Mode
from fairslice.v1alpha1.team import Running
from fairslice_queue.tally import Tally
from fairslice_queue.victims import Candidate, Victims

__all__ = ["over_limit"]


def over_limit(
    policy: Policy,
    teams: TeamIndex,
    tally: Tally,
    victims: Victims,
    leaving: Mapping[tuple[str, str], int],
    now: float,
    stops: Mapping[str, Sequence[Stop]],
) -> Iterator[tuple[Candidate, str]]:
    """Choose whom to push out, and say why, for teams that want it so.

    Of those who may be pushed out at all, the cheapest go first. `leaving` is what is on its
    way out already, in milli-GPU by team and pool; `stops` are the budgets that are gone.
    """
    over: dict[tuple[str, str], tuple[int, str]] = {}
    ending = {
        (name, stop.pool)
        for name, gone in stops.items()
        for stop in gone
        if stop.running is Running.STOP and stop.until > now
    }
    for name, pool in tally.pools if ending else ():
        if not ending.isdisjoint(((name, pool), (name, ""))):
            held = tally.pools[name, pool] - leaving.get((name, pool), 0)
            over[name, pool] = (held, messages.rule_budget_gone(name))
    for team in teams.cut_down:
        if policy.modes_for(team).quota is not Mode.ENFORCE:
            continue
        for pool in {pool for name, pool in tally.pools if name == team.name}:
            key = (team.name, pool)
            held, limit = tally.pools[key] - leaving.get(key, 0), team.limit(pool, now)
            if limit is not None and held > limit and key not in over:
                rule = messages.rule_quota_cut(team.name, pool, held, limit)
                over[key] = (held - limit, rule)
    for key, (excess, rule) in over.items():
        chosen: list[Candidate] = []
        for item in victims.of_team(*key):
            if excess <= 0:
                break
            chosen.append(item)
            excess -= item.milli
        # Whoever turns out not to be needed stays.
        for item in list(chosen):
            if excess + item.milli <= 0:
                chosen.remove(item)
                excess += item.milli
        for item in chosen:
            yield item, rule
