"""What decisions are taken from: one frozen snapshot of the cluster, and what a call brings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from fairslice.device_claims import Devices
from fairslice.inventory import Inventory
from fairslice.policy import Modes, Policy, Team
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.scalars import Mode
from fairslice.v1alpha1.team import TeamStatus
from fairslice.workloads import ADAPTERS

__all__ = ["Call", "Priority", "View"]


class Call(Struct, frozen=True):
    """What differs from call to call: the time (Unix seconds) and ids that nobody has yet."""

    now: float
    booking: str
    pod: str


class Priority(NamedTuple):
    """What the API server writes into a pod of a PriorityClass."""

    value: int
    preemption_policy: str


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as the webhook last saw it; replaced as a whole, never changed.

    `own_users` are the names under which fairslice's own services write. `queued_kinds` are
    the kinds that the queue suspends and releases; others are decided at their pods.
    `statuses` is how teams stood a moment ago, as the queue tells it.
    """

    policy: Policy
    teams: TeamIndex
    inventory: Inventory
    own_users: frozenset[str]
    priority_classes: Mapping[str, Priority]
    queued_kinds: frozenset[str] = frozenset(adapter.kind.kind for adapter in ADAPTERS)
    devices: Devices = field(default_factory=Devices)
    statuses: Mapping[str, TeamStatus] = field(default_factory=dict)

    @property
    def given_by_claims(self) -> Mapping[str, str]:
        """Resource names that stand for device classes, and that no device plugin offers."""
        names = self.devices.names
        if not names:
            return names
        offers = self.inventory.advertises
        return {name: unit for name, unit in names.items() if not offers(name)}

    def modes(self, team: Team | None) -> Modes:
        """Return how far each feature goes for a team's objects."""
        return self.policy.modes_for(team)

    def enforces_anything(self, team: Team | None) -> bool:
        """Say whether objects may be changed at all, stamps included."""
        modes = self.modes(team)
        features = (modes.hide, modes.guards, modes.rewrite, modes.quota, modes.queue)
        return Mode.ENFORCE in features
