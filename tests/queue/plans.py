"""States for the planner, in few words: whole GPUs of one model unless said otherwise."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import convert, json, structs

from fairslice.booking import Booking, Option, Ref, State
from fairslice.budgets import Stop
from fairslice.placement import NodeState, PodNeeds
from fairslice.policy import Policy, Team
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import TeamSpec
from fairslice_queue.actions import Action, Explain, Preempt, Release, Reserve
from fairslice_queue.books import Books
from fairslice_queue.planner import PlanState, Waiting, plan
from fairslice_queue.victims import Candidate

NOW = 1_700_000_000.0
GPU = "nvidia.com/gpu"
SLICE = "nvidia.com/mig-1g.10gb"
CLASSES = (
    {"name": "production", "preempts": "Everyone", "preemptible": False},
    {"name": "training", "preempts": "Borrowers", "minRuntime": "60s", "grace": "30s"},
    {"name": "experiment", "preempts": "Borrowers", "minRuntime": "0s"},
    {"name": "batch", "preempts": "Nobody"},
)
RANKS = {item["name"]: rank for rank, item in enumerate(CLASSES)}


def policy(**queue: Any) -> Policy:
    spec = {"classes": CLASSES, "queue": {"reserveAfter": "10m", "aging": "0s", **queue}}
    return Policy.compile(convert(spec, SharingPolicySpec))


def team(
    name: str, guaranteed: int = 0, limit: int | None = None, weight: int = 1, **spec: Any
) -> Team:
    pools = []
    for pool in ("a100", "t4"):
        quota = {"pool": pool, "guaranteed": str(guaranteed)}
        if limit is not None:
            quota["limit"] = str(limit)
        pools.append(quota)
    body = {"namespaces": [name], "pools": pools, "weight": weight, **spec}
    return Team.compile(name, name, convert(body, TeamSpec))


def option(gpus: int = 1, *, resource: str = GPU, milli: int = 1000, pool: str = "a100") -> Option:
    return Option(
        pool=pool, product=pool.upper(), mode="whole", milli=milli * gpus, units={resource: gpus}
    )


WHOLES = next(iter(option().offers))
SLICES = next(iter(option(resource=SLICE).offers))


def node(name: str = "n1", gpus: int = 8, slices: int = 0, **fields: Any) -> NodeState:
    units = {WHOLES: gpus}
    if slices:
        units[SLICES] = slices
    base: dict[str, Any] = {"cpu_milli": 640_000, "memory": 2**40, "pods": 110}
    return NodeState(name=name, labels={}, units=units, **{**base, **fields})


def booking(
    name: str,
    team: str = "cv",
    gpus: int = 1,
    *,
    pods: int = 1,
    work_class: str = "training",
    state: State = State.QUEUED,
    at: float = NOW - 100,
    options: Sequence[Option] = (),
    place: Mapping[str, int] | None = None,
    **fields: Any,
) -> Booking:
    given = tuple(options) or (option(gpus),)
    return Booking(
        id=name,
        ref=Ref(kind=fields.pop("kind", "Job"), namespace=team, name=name, uid=name),
        team=team,
        work_class=work_class,
        rank=RANKS.get(work_class, len(CLASSES)),
        user=fields.pop("user", "ada"),
        state=state,
        pods=pods,
        options=given,
        chosen=0 if state.holds else -1,
        place=dict(place or {}),
        queued_at=at,
        since=at,
        bound=True,
        preemptible=fields.pop("preemptible", work_class != "production"),
        **fields,
    )


@dataclass
class Scene:
    """A cluster's state that can be planned on, and acted on as the queue would."""

    teams: list[Team]
    nodes: list[NodeState]
    policy: Policy = field(default_factory=policy)
    waiting: list[Booking] = field(default_factory=list)
    holding: list[Booking] = field(default_factory=list)
    needs: dict[str, PodNeeds] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    claims: dict[str, Reserve] = field(default_factory=dict)
    checkpoints: dict[str, float] = field(default_factory=dict)
    not_before: dict[str, float] = field(default_factory=dict)
    orders: dict[str, int] = field(default_factory=dict)
    pinned: set[str] = field(default_factory=set)
    urgent: set[str] = field(default_factory=set)
    stops: dict[str, tuple[Stop, ...]] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    runtimes: dict[str, float] = field(default_factory=dict)

    def wait(self, *names: str, **fields: Any) -> "Scene":
        for number, name in enumerate(names):
            at = fields.get("at", NOW - 100 + number)
            self.waiting.append(booking(name, **{**fields, "at": at}))
        return self

    def hold(self, name: str, *, where: str = "n1", ran: float = 3600.0, **fields: Any) -> "Scene":
        pods = fields.get("pods", 1)
        place = fields.pop("place", {where: pods})
        fields.setdefault("state", State.RUNNING)
        self.holding.append(booking(name, at=NOW - ran, place=place, **fields))
        return self

    def state(self) -> PlanState:
        books = Books([*self.waiting, *self.holding])
        nodes = {item.name: item.copy() for item in self.nodes}
        for held in self.holding:
            given = held.option
            assert given is not None
            for where, pods in held.place.items():
                if where in nodes:
                    nodes[where].take(self.needs_of(held), given.offers, pods)
        return PlanState(
            policy=self.policy,
            teams=TeamIndex.build(self.teams, {}),
            tally=books.tally,
            waiting=[self._waiting(item) for item in self.waiting],
            candidates=[
                Candidate(
                    held,
                    self.needs_of(held),
                    held.since,
                    self.checkpoints.get(held.id, 0.0),
                    held.state.leaves,
                    self.runtimes.get(held.id, 0.0),
                )
                for held in self.holding
            ],
            nodes=nodes,
            shares=self.shares,
            claims=self.claims,
            share_of_milli={"a100": 1e-9, "t4": 1e-9},
            stops=self.stops,
            capacity=self.capacity,
        )

    def needs_of(self, held: Booking) -> PodNeeds:
        return self.needs.get(held.id, PodNeeds())

    def _waiting(self, item: Booking) -> Waiting:
        needs = self.needs_of(item)
        shape = json.encode((item.pods, [(o.pool, o.units) for o in item.options], needs))
        return Waiting(
            item,
            needs,
            shape,
            runtime=self.runtimes.get(item.id, 0.0),
            not_before=self.not_before.get(item.id, 0.0),
            order=self.orders.get(item.id, 0),
            pinned=item.id in self.pinned,
            urgent=item.id in self.urgent,
        )

    def plan(self, now: float = NOW) -> "Plan":
        return Plan(plan(self.state(), now))

    def act(self, actions: Iterable[Action], now: float = NOW) -> None:
        """Release and push out at once, as if victims left the moment they are told."""
        for action in actions:
            match action:
                case Release(name, chosen, place):
                    item = next(b for b in self.waiting if b.id == name)
                    self.waiting.remove(item)
                    self.claims.pop(name, None)
                    self.holding.append(
                        structs.replace(
                            item,
                            state=State.RUNNING,
                            chosen=chosen,
                            place=dict(place),
                            since=now,
                        )
                    )
                case Preempt(name):
                    item = next(b for b in self.holding if b.id == name)
                    self.holding.remove(item)
                    self.waiting.append(
                        structs.replace(item, state=State.QUEUED, chosen=-1, place={})
                    )
                case Reserve(name):
                    self.claims[name] = action


class Plan(list[Action]):
    """Actions, by kind."""

    @property
    def released(self) -> list[str]:
        return [item.booking for item in self if isinstance(item, Release)]

    @property
    def pushed(self) -> list[str]:
        return [item.victim for item in self if isinstance(item, Preempt)]

    @property
    def kept(self) -> dict[str, Reserve]:
        return {item.booking: item for item in self if isinstance(item, Reserve)}

    def why(self, name: str) -> Explain:
        return next(i for i in self if isinstance(i, Explain) and i.booking == name)

    def place(self, name: str) -> Mapping[str, int]:
        return next(i.place for i in self if isinstance(i, Release) and i.booking == name)


def one_more(state: Scene) -> Scene:
    """Copy a scene, to plan on it again."""
    return replace(state, waiting=list(state.waiting), holding=list(state.holding))
