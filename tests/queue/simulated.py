"""Hours of planning in virtual time: work that arrives, runs, ends and is pushed out."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from fairslice.booking import Booking, State
from fairslice.fairshare import PoolWeight, dominant_share
from fairslice.placement import NodeState
from fairslice.policy import Policy, Team
from fairslice_queue.actions import Preempt, Release, Reserve

from .plans import NOW, Plan, Scene, booking
from .test_planner_memory import Remembering

POOL = "a100"


@dataclass
class Simulated:
    """A cluster whose clock is turned by hand. Times in seconds; use in milli-GPU-seconds.

    `use` fades with the half-life, as the meter's does; `held` is what each team had in all.
    Victims take `grace` seconds to leave.
    """

    teams: list[Team]
    nodes: list[NodeState]
    policy: Policy
    half_life: float = 0.0
    grace: float = 0.0
    now: float = NOW
    use: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    held: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    started: dict[str, float] = field(default_factory=dict)
    pushes: int = 0
    _planner: Remembering = field(default_factory=Remembering)
    _runs: dict[str, float] = field(default_factory=dict)
    _leaves: dict[str, float] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        self.scene = Scene(self.teams, self.nodes, policy=self.policy)
        gpus = sum(amount for item in self.nodes for amount in item.units.values())
        self.weights = {POOL: PoolWeight(capacity=gpus * 1000)}

    def submit(self, team: str, runs: float, *, declared: bool = False, **fields: Any) -> str:
        """Let a team submit work that runs so long."""
        self._number += 1
        name = f"{team}{self._number}"
        self.scene.waiting.append(booking(name, team, at=self.now, **fields))
        self._runs[name] = runs
        if declared:
            self.scene.runtimes[name] = runs
        return name

    def waiting(self, team: str) -> list[Booking]:
        return [item for item in self.scene.waiting if item.team == team]

    def gpus_of(self, team: str) -> int:
        return sum(item.held_milli for item in self.scene.holding if item.team == team) // 1000

    @property
    def free(self) -> int:
        given = sum(item.held_milli for item in self.scene.holding)
        return (self.weights[POOL].capacity - given) // 1000

    def share_of_milli(self) -> float:
        return dominant_share({POOL: 1.0}, self.weights, 1, self.half_life)

    def step(self, seconds: float, arrive: Callable[["Simulated"], None]) -> Plan:
        """Let time pass, then work arrive, then plan and act."""
        self._pass(seconds)
        arrive(self)
        half_life = self.half_life
        self.scene.shares = {
            team.name: dominant_share(
                {POOL: self.use[team.name]}, self.weights, team.weight, half_life
            )
            for team in self.teams
        }
        state = replace(self.scene.state(), share_of_milli={POOL: self.share_of_milli()})
        decided = Plan(self._planner.decide(state, self.now, thorough=True))
        for action in decided:
            match action:
                case Release():
                    self.started.setdefault(action.booking, self.now)
                    self.scene.act([action], self.now)
                case Preempt():
                    self._push(action)
                case Reserve() if any(
                    item.beneficiary == action.booking
                    for item in decided
                    if isinstance(item, Preempt)
                ):
                    self.scene.claims[action.booking] = action
        if not self._leaves:
            self.scene.claims.clear()
        return decided

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        fade = 0.5 ** (seconds / self.half_life) if self.half_life else 1.0
        for team in self.teams:
            self.use[team.name] *= fade
        for item in self.scene.holding:
            self.use[item.team] += item.held_milli * seconds
            self.held[item.team] += item.held_milli * seconds
        for item in list(self.scene.holding):
            leaves = self._leaves.get(item.id)
            if leaves is not None and self.now >= leaves:
                del self._leaves[item.id]
                self.scene.holding.remove(item)
                back = structs.replace(item, state=State.QUEUED, chosen=-1, place={})
                self.scene.waiting.append(back)
            elif leaves is None and self.now >= item.since + self._runs[item.id]:
                self.scene.holding.remove(item)

    def _push(self, action: Preempt) -> None:
        self.pushes += 1
        self._leaves[action.victim] = self.now + action.notice + self.grace
        self.scene.holding = [
            structs.replace(item, state=State.PREEMPTED) if item.id == action.victim else item
            for item in self.scene.holding
        ]
