"""What the queue keeps of the objects it watches: the few facts that decisions rest on."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from fairslice import stamps
from fairslice.booking import Assignment
from fairslice.gangs import Member, read_members
from fairslice.kube.objects import (
    Job,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    PodTemplateSpec,
)
from fairslice.placement import PodNeeds, SetNeeds, gang_needs, pod_needs
from fairslice.pod_groups import PodGroup, PodGroupError, pod_group
from fairslice.quantity import QuantityError
from fairslice.requests import AskError
from fairslice.workloads import Adapter, WorkloadError

__all__ = [
    "CustomObject",
    "PodFacts",
    "WorkloadFacts",
    "job_facts",
    "pod_facts",
    "timestamp",
    "workload_facts",
]

_NO_LABELS: Mapping[str, str] = {}
_ASSIGNMENT = msgspec.json.Decoder(Assignment)

# Why a pod was pushed out, as the DisruptionTarget condition says it (KEP-3329).
DISRUPTION = "DisruptionTarget"


def timestamp(text: str | None) -> float:
    """Unix seconds of an RFC 3339 time; 0 for none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def assignment_of(meta: ObjectMeta) -> Assignment | None:
    """Read the assignment stamp; None where it is absent or not ours to read."""
    text = (meta.annotations or _NO_LABELS).get(stamps.ASSIGNMENT)
    if not text:
        return None
    try:
        return _ASSIGNMENT.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return None


def _needs(spec: PodSpec) -> PodNeeds:
    try:
        return pod_needs(spec)
    except QuantityError:  # the API server lets none of these pass
        return PodNeeds()


@dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod. `booking` is its stamp, `disruption` the reason it is being pushed out.

    `stamp` is its own id among the pods of its workload's booking. `group` is the pod group
    that it is of, as the books name it.
    """

    metadata: ObjectMeta
    node: str
    nominated_node: str
    phase: str
    deleting: bool
    gated: bool
    booking: str
    stamp: str
    assignment: Assignment | None
    controller: OwnerReference | None
    disruption: str
    unschedulable: str
    unschedulable_since: float
    created: float
    started: float
    spec: PodSpec
    needs: PodNeeds
    group: str = ""
    group_size: int = 0

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def namespace(self) -> str:
        """The namespace."""
        return self.metadata.namespace

    @property
    def name(self) -> str:
        """The name."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """The uid."""
        return self.metadata.uid

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        return self.metadata.labels or _NO_LABELS

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""
        return self.metadata.annotations or _NO_LABELS

    @property
    def ended(self) -> bool:
        """Say whether all its containers have ended: it holds nothing any more."""
        return self.phase in ("Succeeded", "Failed")

    def is_stuck(self, since: float) -> bool:
        """Say whether the kube-scheduler has found no node for it since then (Unix seconds)."""
        return bool(self.unschedulable) and not self.node and self.unschedulable_since < since


def pod_facts(pod: Pod) -> PodFacts:
    """Reduce a pod to its facts."""
    meta, spec, status = pod.metadata, pod.spec, pod.status
    annotations = meta.annotations or _NO_LABELS
    disruption, unschedulable, since = "", "", 0.0
    for condition in status.conditions or ():
        if condition.type == DISRUPTION and condition.status == "True":
            disruption = condition.reason
        elif (
            condition.type == "PodScheduled"
            and condition.status == "False"
            and condition.reason == "Unschedulable"
        ):
            unschedulable, since = condition.message, timestamp(condition.last_transition_time)
    group = _group(meta)
    return PodFacts(
        metadata=meta,
        node=spec.node_name,
        nominated_node=status.nominated_node_name,
        phase=status.phase,
        deleting=meta.deletion_timestamp is not None,
        gated=any(gate.name == stamps.GATE for gate in spec.scheduling_gates or ()),
        booking=annotations.get(stamps.BOOKING, ""),
        stamp=annotations.get(stamps.POD_STAMP, ""),
        assignment=assignment_of(meta),
        controller=next((ref for ref in meta.owner_references or () if ref.controller), None),
        disruption=disruption,
        unschedulable=unschedulable,
        unschedulable_since=since,
        created=timestamp(meta.creation_timestamp),
        started=timestamp(status.start_time),
        spec=spec,
        needs=_needs(spec),
        group=group.key if group is not None else "",
        group_size=group.size if group is not None else 0,
    )


def _group(meta: ObjectMeta) -> PodGroup | None:
    try:
        return pod_group(meta)
    except PodGroupError:  # older than the install: it starts by itself
        return None


@dataclass(frozen=True, slots=True)
class WorkloadFacts:
    """A suspendable workload. `desired` is how many pods it should now have running.

    Pods are counted as bookings count them: a large one as several. `least` is below `desired`
    for a kind that changes the number by itself. `members` are its pod sets with GPUs, where it
    may have several; template, spec and assignment are the first's. `counts_successes` says
    that pods which have succeeded are off `desired` already: `succeeded` of them, which leaves
    `remaining` to succeed (None: it has no such number). `starts_whole` says that its pods are
    of use together only.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    version: str
    suspended: bool
    finished: bool
    failed: bool
    failure: str
    deleting: bool
    desired: int
    booking: str
    metadata: ObjectMeta
    template: ObjectMeta
    assignment: Assignment | None
    spec: PodSpec
    needs: PodNeeds
    created: float
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    least: int = 0
    members: tuple[Member, ...] = ()
    counts_successes: bool = True
    succeeded: int = 0
    remaining: int | None = None
    starts_whole: bool = False

    @property
    def key(self) -> str:
        """Kind, namespace and name."""
        return f"{self.kind}/{self.namespace}/{self.name}"


def job_facts(job: Job) -> WorkloadFacts:
    """Reduce a Job to its facts.

    A finished or suspended Job wants no pods; its terminating ones are counted from pods.
    """
    meta, spec, status = job.metadata, job.spec, job.status
    finished = failed = False
    failure = ""
    for condition in status.conditions or ():
        if condition.status == "True" and condition.type in ("Complete", "Failed"):
            finished = True
            failed = condition.type == "Failed"
            failure = condition.reason if failed else ""
    parallelism = 1 if spec.parallelism is None else spec.parallelism
    remaining = None
    if spec.completions is not None:
        remaining = max(0, spec.completions - status.succeeded)
    desired = parallelism if remaining is None else min(parallelism, remaining)
    if finished:
        desired = 0
    return WorkloadFacts(
        kind="Job",
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        suspended=bool(spec.suspend),
        finished=finished,
        failed=failed,
        failure=failure,
        deleting=meta.deletion_timestamp is not None,
        desired=desired,
        least=desired,
        booking=(meta.annotations or _NO_LABELS).get(stamps.BOOKING, ""),
        metadata=meta,
        template=spec.template.metadata,
        assignment=assignment_of(spec.template.metadata),
        spec=spec.template.spec,
        needs=_needs(spec.template.spec),
        created=timestamp(meta.creation_timestamp),
        labels=meta.labels or _NO_LABELS,
        annotations=meta.annotations or _NO_LABELS,
        succeeded=status.succeeded,
        remaining=remaining,
        # Ranks of one run; the pods of others work one by one.
        starts_whole=(spec.completion_mode == "Indexed" and spec.completions == parallelism > 1),
    )


class CustomObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a custom kind, read as far as its row in the table needs."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


def workload_facts(adapter: Adapter, obj: CustomObject) -> WorkloadFacts:
    """Reduce an object of a custom kind to its facts."""
    meta = obj.metadata
    plain: dict[str, Any] = {"spec": obj.spec, "status": obj.status}
    members: tuple[Member, ...] = ()
    # Admission lets none of these pass; what such an object held goes with its pods.
    with suppress(WorkloadError, AskError):
        members = read_members(adapter.pod_sets(plain))
    end = adapter.end(plain)
    template = members[0].pod_set.template if members else PodTemplateSpec()
    desired = 0 if end.finished else sum(member.count for member in members)
    fewest = sum(member.pod_set.min_count * member.size for member in members)
    return WorkloadFacts(
        kind=adapter.kind.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        suspended=adapter.is_suspended(plain),
        finished=end.finished,
        failed=end.failed,
        failure=end.reason,
        deleting=meta.deletion_timestamp is not None,
        desired=desired,
        least=min(fewest, desired),
        booking=(meta.annotations or _NO_LABELS).get(stamps.BOOKING, ""),
        metadata=meta,
        template=template.metadata,
        assignment=assignment_of(template.metadata),
        spec=template.spec,
        needs=gang_needs([_set_needs(member) for member in members]) if members else PodNeeds(),
        created=timestamp(meta.creation_timestamp),
        labels=meta.labels or _NO_LABELS,
        annotations=meta.annotations or _NO_LABELS,
        members=members,
        counts_successes=False,
        starts_whole=fewest >= desired,
    )


def _set_needs(member: Member) -> SetNeeds:
    pod_set = member.pod_set
    needs = _needs(pod_set.template.spec)
    return SetNeeds(count=pod_set.count, size=member.size, needs=needs)
