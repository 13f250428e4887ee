"""What decisions are taken from: one frozen snapshot of the cluster, and what a call brings."""

from dataclasses import dataclass

from fairslice.inventory import Inventory
from fairslice.policy import Modes, Policy, Team
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.scalars import Mode

__all__ = ["Call", "View"]


@dataclass(frozen=True, slots=True)
class Call:
    """What differs from call to call: the time (Unix seconds) and ids that nobody has yet."""

    now: float
    booking: str
    pod: str


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as the webhook last saw it; replaced as a whole, never changed.

    `own_users` are the names under which fairslice's own services write. `queued_kinds` are
    the kinds that the queue suspends and releases; others are decided at their pods.
    """

    policy: Policy
    teams: TeamIndex
    inventory: Inventory
    own_users: frozenset[str]
    priority_classes: frozenset[str]
    queued_kinds: frozenset[str] = frozenset({"Job"})

    def modes(self, team: Team | None) -> Modes:
        """Return how far each feature goes for a team's objects."""
        return self.policy.modes_for(team)

    def enforces_anything(self, team: Team | None) -> bool:
        """Say whether objects may be changed at all, stamps included."""
        modes = self.modes(team)
        features = (modes.hide, modes.guards, modes.rewrite, modes.quota, modes.queue)
        return Mode.ENFORCE in features
