"""What the books hold: options a workload could be given, the one chosen, who holds what.

These types travel: through the ledger (JSON in Redis), on objects (the assignment
annotation), over the status API. All amounts are integer milli-GPU of a pool, or units of
an extended resource.
"""

from enum import StrEnum

from msgspec import Struct, structs

__all__ = [
    "Assignment",
    "Booking",
    "Kind",
    "NodeRequirement",
    "Option",
    "Ref",
    "State",
    "offer_key",
]


def offer_key(pool: str, product: str, resource: str) -> str:
    """Name one kind of share; the key of free capacity in ledger and planner."""
    return f"{pool}|{product}|{resource}"


class State(StrEnum):
    """Where a workload stands; the one list used everywhere."""

    QUEUED = "Queued"
    HELD = "Held"
    RELEASED = "Released"
    RUNNING = "Running"
    PREEMPTED = "Preempted"
    FINISHED = "Finished"
    REJECTED = "Rejected"

    @property
    def holds(self) -> bool:
        """Say whether a booking in this state counts against quota and capacity."""
        return self in (State.RELEASED, State.RUNNING, State.PREEMPTED)

    @property
    def leaves(self) -> bool:
        """Say whether a booking in this state is being pushed out."""
        return self is State.PREEMPTED

    @property
    def waits(self) -> bool:
        """Say whether a booking in this state is in line."""
        return self is State.QUEUED


class NodeRequirement(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A node-affinity expression: the label's value must be one of these."""

    key: str
    values: tuple[str, ...]


class Option(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One way to serve a pod: of one pool, on one GPU model, in one mode.

    `rename` maps each asked resource to the one given; `units` is what one pod then takes of
    each given resource (kubelet's maths), `milli` its weight in milli-GPU of the pool.
    `devices` are GPUs that come through DRA claims, by what each weighs as: part of the weight,
    but of no node's extended resources.
    """

    pool: str
    product: str
    mode: str
    milli: int
    units: dict[str, int]
    rename: dict[str, str] = {}
    requirements: tuple[NodeRequirement, ...] = ()
    isolated: bool = True
    memory_mib: int = 0
    devices: dict[str, int] = {}

    @property
    def offers(self) -> dict[str, int]:
        """Units that one pod takes, by offer key."""
        return {offer_key(self.pool, self.product, name): n for name, n in self.units.items()}

    def times(self, size: int) -> "Option":
        """Return what a pod takes that is as large as so many of this option's."""
        if size == 1:
            return self
        units = {name: amount * size for name, amount in self.units.items()}
        devices = {name: amount * size for name, amount in self.devices.items()}
        return structs.replace(self, units=units, milli=self.milli * size, devices=devices)


class Assignment(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The option given to a workload, as stamped on its pod template and pods."""

    booking: str
    option: Option


class Kind(Struct, frozen=True):
    """An API kind: `batch/v1`, `Job`, `jobs`."""

    api_version: str
    kind: str
    plural: str

    @property
    def group(self) -> str:
        """The API group, empty for the core one."""
        return self.api_version.rpartition("/")[0]


class Ref(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An object: what and where. `uid` is empty until the object exists."""

    kind: str
    namespace: str
    name: str = ""
    generate_name: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name or self.generate_name + '*'}"


class Booking(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A workload in the books.

    `pods` is how many pods it holds or waits for, `chosen` the index into `options` of what
    it was given (-1: nothing yet), `place` the pods per node, planned or actual. Times are
    Unix seconds. `bound` says that the object exists (seen by the validating call or watch).
    `surge` marks a rollout's extra pod, which counts outside the team's limit. `sizes` are those
    of its pods where some are larger than others; each then counts as so many of `pods`.
    """

    id: str
    ref: Ref
    team: str
    work_class: str
    rank: int
    user: str
    state: State
    pods: int
    options: tuple[Option, ...]
    chosen: int = -1
    place: dict[str, int] = {}
    queued_at: float = 0.0
    since: float = 0.0
    bound: bool = False
    tentative_until: float = 0.0
    group: str = ""
    group_revision: str = ""
    surge: bool = False
    gang: bool = True
    preemptible: bool = True
    restarts: int = 0
    reason: str = ""
    sizes: tuple[int, ...] = ()

    @property
    def option(self) -> Option | None:
        """The option given, if any."""
        return self.options[self.chosen] if self.chosen >= 0 else None

    @property
    def held_milli(self) -> int:
        """What counts against quota now, in milli-GPU of the chosen option's pool."""
        option = self.option
        return option.milli * self.pods if option is not None and self.state.holds else 0
