"""What the queue keeps of the objects it watches: the few facts that decisions rest on."""

from collections.abc import Mapping
from datetime import datetime

import msgspec
from msgspec import Struct

from fairslice import stamps
from fairslice.booking import Assignment
from fairslice.gangs import Member
from fairslice.kube.objects import ObjectMeta, OwnerReference, PodSpec
from fairslice.kube.reflector import Key
from fairslice.placement import PodNeeds

__all__ = ["PodFacts", "WorkloadFacts", "assignment_of", "timestamp"]

_NONE: Mapping[str, str] = {}
_ASSIGNMENT = msgspec.json.Decoder(Assignment)


def timestamp(text: str | None) -> float:
    """Unix seconds of an RFC 3339 time; 0 for none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def assignment_of(meta: ObjectMeta) -> Assignment | None:
    """Read the assignment stamp; None where it is absent or not ours to read."""
    text = (meta.annotations or _NONE).get(stamps.ASSIGNMENT)
    if not text:
        return None
    try:
        return _ASSIGNMENT.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


class PodFacts(Struct, frozen=True, kw_only=True, gc=False):
    """A pod. `booking` is its stamp, `disruption` the reason it is being pushed out.

    `stamp` is its own id among the pods of its workload's booking. `group` is the pod group
    that it is of, as the books name it; `booked_group` is that or the rollout that it is of, and
    the rollout's revision. `kinds` stand above it. `owned` says that it has an owner, `recreated`
    that whoever made it makes new ones. Of `spec`, labels and annotations there is only what
    decisions read; equal ones are one object. Times are Unix seconds.
    """

    where: Key
    uid: str
    node: str
    phase: str
    spec: PodSpec
    needs: PodNeeds
    nominated_node: str = ""
    deleting: bool = False
    gated: bool = False
    booking: str = ""
    stamp: str = ""
    assignment: Assignment | None = None
    controller: OwnerReference | None = None
    disruption: str = ""
    unschedulable: str = ""
    unschedulable_since: float = 0.0
    created: float = 0.0
    queued_at: float = 0.0
    started: float = 0.0
    labels: Mapping[str, str] = _NONE
    annotations: Mapping[str, str] = _NONE
    kinds: tuple[str, ...] = ()
    owned: bool = False
    recreated: bool = False
    asks_gpus: bool = False
    group: str = ""
    group_size: int = 0
    booked_group: tuple[str, str] = ("", "")

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.where.namespace}/{self.where.name}"

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.where.namespace

    @property
    def name(self) -> str:
        """The name."""
        return self.where.name

    @property
    def ended(self) -> bool:
        """Say whether all its containers have ended: it holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")

    def is_stuck(self, since: float) -> bool:
        """Say whether the kube-scheduler has found no node for it since then (Unix seconds)."""
        return bool(self.unschedulable) and not self.node and self.unschedulable_since < since

    def quietly_became(self, new: "PodFacts") -> bool:
        """Say whether only words differ: our own line on it, the scheduler's reason."""
        if not _same_but_status(self.annotations, new.annotations):
            return False
        if bool(self.unschedulable) is not bool(new.unschedulable):
            return False
        return self == msgspec.structs.replace(
            new, annotations=self.annotations, unschedulable=self.unschedulable
        )


class WorkloadFacts(Struct, frozen=True, kw_only=True, gc=False):
    """A suspendable workload. `desired` is how many pods it should now have running.

    Pods are counted as bookings count them: a large one as several. `least` is below `desired`
    for a kind that changes the number by itself. `members` are its pod sets with GPUs, where it
    may have several; template, spec and assignment are the first's. `counts_successes` says
    that pods which have succeeded are off `desired` already: `succeeded` of them, which leaves
    `remaining` to succeed (None: it has no such number). `starts_whole` says that its pods are
    of use together only. `kinds` stand above it. Of templates, specs, labels and annotations
    there is only what decisions read; equal ones are one object. Times are Unix seconds.
    """

    kind: str
    where: Key
    uid: str
    suspended: bool
    finished: bool
    failed: bool
    failure: str
    deleting: bool
    desired: int
    booking: str
    template: ObjectMeta
    assignment: Assignment | None
    spec: PodSpec
    needs: PodNeeds
    created: float
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    queued_at: float
    kinds: tuple[str, ...] = ()
    least: int = 0
    members: tuple[Member, ...] = ()
    counts_successes: bool = True
    succeeded: int = 0
    remaining: int | None = None
    starts_whole: bool = False

    @property
    def key(self) -> str:
        """Kind, namespace and name."""
        return f"{self.kind}/{self.where.namespace}/{self.where.name}"

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.where.namespace

    @property
    def name(self) -> str:
        """The name."""
        return self.where.name

    def quietly_became(self, new: "WorkloadFacts") -> bool:
        """Say whether only our own line on it differs."""
        if not _same_but_status(self.annotations, new.annotations):
            return False
        return self == msgspec.structs.replace(new, annotations=self.annotations)


def _same_but_status(old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    if old == new:
        return True
    keys = (old.keys() | new.keys()) - {stamps.STATUS}
    return all(old.get(key) == new.get(key) for key in keys)
