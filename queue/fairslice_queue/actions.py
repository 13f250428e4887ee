"""What the planner asks the dispatcher to do. Each is safe to do twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairslice.booking import Option

__all__ = ["Action", "Explain", "Preempt", "Release", "Reserve"]


@dataclass(frozen=True, slots=True)
class Release:
    """Let a waiting workload start on these nodes (node → pods).

    For a gang of unlike pods, `sets` are the nodes of each set, and `option` is the one chosen.
    """

    booking: str
    chosen: int
    place: Mapping[str, int]
    sets: Sequence[Mapping[str, int]] = ()
    option: Option | None = None


@dataclass(frozen=True, slots=True)
class Preempt:
    """Push out a holding workload, so that `beneficiary` (empty: nobody) can start.

    `rule` names the right by which it happens, `lost_seconds` the work since the victim's last
    declared checkpoint. `notice` seconds pass between the warning and the eviction.
    """

    victim: str
    beneficiary: str
    rule: str
    lost_seconds: float
    notice: int
    grace: int


@dataclass(frozen=True, slots=True)
class Reserve:
    """Keep these nodes' freed shares for a waiting workload that is next on them."""

    booking: str
    chosen: int
    place: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Explain:
    """Tell a waiting workload where it stands. Position counts from 1 within its team."""

    booking: str
    position: int
    queued: int
    reason: str
    capped: bool


Action = Release | Preempt | Reserve | Explain
