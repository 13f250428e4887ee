"""What a decision reads beside the line and the holders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairslice.budgets import Stop
from fairslice.placement import NodeState
from fairslice.policy import Policy
from fairslice.teams import TeamIndex
from fairslice_queue.actions import Reserve
from fairslice_queue.tally import Tally

__all__ = ["Scene"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The rest of the state. Nothing in it is changed.

    `nodes` is what is free now; `shares` are weighted dominant shares by team; `claims` are
    placements kept for work whose victims are on their way out; `share_of_milli` is what one
    milli-GPU held for a second adds to a share of weight 1, by pool. `stops` are the budgets
    that are gone, by team; `capacity` is milli-GPU by pool.
    """

    policy: Policy
    teams: TeamIndex
    tally: Tally
    nodes: Mapping[str, NodeState]
    shares: Mapping[str, float] = field(default_factory=dict)
    claims: Mapping[str, Reserve] = field(default_factory=dict)
    share_of_milli: Mapping[str, float] = field(default_factory=dict)
    stops: Mapping[str, Sequence[Stop]] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
