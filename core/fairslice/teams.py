"""Which team a namespace belongs to."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairslice.team import Team
from fairslice.v1alpha1.team import QuotaCut

__all__ = ["TeamConflict", "TeamIndex"]


@dataclass(frozen=True, slots=True)
class TeamConflict:
    """A namespace that several teams claim: who has it, and who doesn't."""

    namespace: str
    team: str
    others: tuple[str, ...]


class TeamIndex:
    """Teams by namespace; rebuilt whole whenever a team or a namespace's labels change.

    `cut_down` are the teams whose work is pushed out when their quota is cut, `budgeted` those
    that have budgets.
    """

    __slots__ = (
        "_by_namespace",
        "_guaranteed",
        "_keepers",
        "_teams",
        "budgeted",
        "conflicts",
        "cut_down",
    )

    def __init__(
        self,
        teams: Mapping[str, Team],
        by_namespace: Mapping[str, Team],
        conflicts: tuple[TeamConflict, ...],
    ) -> None:
        self._teams = teams
        self._by_namespace = by_namespace
        self.conflicts = conflicts
        keepers: defaultdict[str, list[Team]] = defaultdict(list)
        guaranteed: defaultdict[str, list[Team]] = defaultdict(list)
        for team in teams.values():
            for pool, quota in team.quotas.items():
                if any(each.kept for each in quota.quotas()):
                    keepers[pool].append(team)
                if any(each.guaranteed for each in quota.quotas()):
                    guaranteed[pool].append(team)
        self._guaranteed: Mapping[str, Sequence[Team]] = dict(guaranteed)
        self._keepers: Mapping[str, Sequence[Team]] = dict(keepers)
        self.budgeted = tuple(team for team in teams.values() if team.budgets)
        self.cut_down = tuple(
            team for team in teams.values() if team.on_quota_cut is QuotaCut.EVICT
        )

    @classmethod
    def build(
        cls, teams: Iterable[Team], namespaces: Mapping[str, Mapping[str, str]]
    ) -> "TeamIndex":
        """Index teams over namespaces and their labels.

        A team may name namespaces that don't exist yet. Where two teams claim one namespace,
        the first by name has it, and the conflict is kept for reporting.
        """
        ordered = sorted(teams, key=lambda team: team.name)
        claims: dict[str, list[Team]] = {}
        for team in ordered:
            claimed = set(team.namespaces)
            selector = team.namespace_selector
            # An empty selector would select everything; here it selects nothing.
            if selector:
                claimed.update(
                    name
                    for name, labels in namespaces.items()
                    if all(labels.get(key) == value for key, value in selector.items())
                )
            for name in claimed:
                claims.setdefault(name, []).append(team)
        conflicts = tuple(
            TeamConflict(name, found[0].name, tuple(team.name for team in found[1:]))
            for name, found in sorted(claims.items())
            if len(found) > 1
        )
        return cls(
            {team.name: team for team in ordered},
            {name: found[0] for name, found in claims.items()},
            conflicts,
        )

    def kept(self, pool: str, now: float) -> Sequence[tuple[str, int]]:
        """List the teams that don't lend all of their guarantee at a time, and what they keep.

        In milli-GPU; Unix seconds.
        """
        return [
            (team.name, kept)
            for team in self._keepers.get(pool, ())
            if (kept := team.quota(pool, now).kept)
        ]

    def others_have_rights(self, team: str, pool: str, now: float) -> bool:
        """Say whether any other team has a guarantee in a pool at a time (Unix seconds)."""
        return any(
            other.name != team and other.quota(pool, now).guaranteed
            for other in self._guaranteed.get(pool, ())
        )

    def of(self, namespace: str) -> Team | None:
        """Find the team of a namespace."""
        return self._by_namespace.get(namespace)

    def named(self, name: str) -> Team | None:
        """Find a team by its name."""
        return self._teams.get(name)

    @property
    def teams(self) -> tuple[Team, ...]:
        """All teams, by name."""
        return tuple(self._teams.values())

    def namespaces_of(self, team: str) -> tuple[str, ...]:
        """List the namespaces that a team has, by name."""
        return tuple(sorted(ns for ns, owner in self._by_namespace.items() if owner.name == team))
