"""Reducing objects to facts. What many objects have alike they then share."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct, convert, json
from msgspec.structs import replace

from fairslice import stamps
from fairslice.booking import Assignment
from fairslice.classify import owner_kinds
from fairslice.gangs import Member, read_members
from fairslice.kube.objects import (
    Affinity,
    Container,
    ObjectMeta,
    OwnerReference,
    PodSpec,
    PodTemplateSpec,
    Resources,
)
from fairslice.kube.reflector import Key
from fairslice.placement import PodNeeds, SetNeeds, gang_needs, pod_needs
from fairslice.pod_groups import PodGroup, PodGroupError, group_of, pod_group
from fairslice.quantity import QuantityError
from fairslice.requests import AskError
from fairslice.resource_names import ResourceNameError, parse_resource
from fairslice.workloads import Adapter, WorkloadError
from fairslice_queue.facts import PodFacts, WorkloadFacts, assignment_of, timestamp
from fairslice_queue.lean_objects import CustomObject, LeanContainer, LeanJob, LeanPod, LeanSpec
from fairslice_queue.sharing import Shared

__all__ = ["FactReader"]

# Why a pod was pushed out, as the DisruptionTarget condition says it (KEP-3329).
DISRUPTION = "DisruptionTarget"

_OURS = (stamps.USER_PREFIX, stamps.SYSTEM)
# Facts of their own, or nothing that is read here: kept among the others they would keep equal
# annotations from being one object.
_APART = frozenset(
    (
        stamps.BOOKING,
        stamps.POD_STAMP,
        stamps.ASSIGNMENT,
        stamps.QUEUED_AT,
        stamps.GROUPS,
        stamps.MANIFEST,
        stamps.LABEL_MANAGED,
    )
)
# Whoever made pods with one of these labels or annotations makes new ones by itself.
_RECREATED_BY_OTHERS = (
    "hub.jupyter.org/username",
    "hub.jupyter.org/servername",
    "dag_id",
    "airflow_version",
    "job.runner.gitlab.com/pod",
    "workflows.argoproj.io/workflow",
    "tekton.dev/pipelineRun",
    "tekton.dev/taskRun",
    "dask.org/cluster-name",
    "spark-app-selector",
)
_KUBESPAWNER = ("component", "singleuser-server")

_Strings = Mapping[str, str]
_NONE: _Strings = {}
_encode = json.Encoder().encode


class _Template(Struct, frozen=True, gc=False):
    """What a spec comes to."""

    spec: PodSpec
    needs: PodNeeds
    asks_gpus: bool


class FactReader:
    """Reads objects. `label_keys` are labels that are kept beside our own."""

    def __init__(self) -> None:
        self.label_keys: frozenset[str] = frozenset()
        self._templates = Shared[_Template]()
        self._needs = Shared[PodNeeds]()
        self._members = Shared[tuple[Member, ...]](512)
        self._metadata = Shared[ObjectMeta]()
        self._strings = Shared[_Strings]()
        self._assignments = Shared[Assignment](1024)
        self._owners = Shared[OwnerReference](1024)
        self._kinds = Shared[tuple[str, ...]]()
        self._words = Shared[str](16_384)

    def pod(self, pod: LeanPod) -> PodFacts:
        """Reduce a pod to its facts; of one without GPUs, to what it takes of its node."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        notes = meta.annotations or _NONE
        template = self._template(spec)
        if not (template.asks_gpus or spec.resource_claims or stamps.BOOKING in notes):
            return PodFacts(
                where=self._key(meta),
                uid=meta.uid,
                node=self._word(spec.node_name),
                phase=self._word(status.phase),
                spec=template.spec,
                needs=template.needs,
                labels=_NONE,
                annotations=_NONE,
            )
        created = timestamp(meta.creation_timestamp)
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
        owners = meta.owner_references or ()
        controller = next((ref for ref in owners if ref.controller), None)
        return PodFacts(
            where=self._key(meta),
            uid=meta.uid,
            node=self._word(spec.node_name),
            nominated_node=self._word(status.nominated_node_name),
            phase=self._word(status.phase),
            deleting=meta.deletion_timestamp is not None,
            gated=any(gate.name == stamps.GATE for gate in spec.scheduling_gates or ()),
            booking=notes.get(stamps.BOOKING, ""),
            stamp=notes.get(stamps.POD_STAMP, ""),
            assignment=self._assignment(meta),
            controller=self._owners.same(controller) if controller is not None else None,
            disruption=self._word(disruption),
            unschedulable=self._word(unschedulable),
            unschedulable_since=since,
            created=created,
            started=timestamp(status.start_time),
            spec=template.spec,
            needs=template.needs,
            asks_gpus=template.asks_gpus,
            labels=self._labels(meta.labels),
            annotations=self._annotations(notes),
            queued_at=_queued_at(notes, created),
            kinds=self._kinds.same(owner_kinds(meta)),
            owned=bool(owners),
            recreated=_is_recreated(meta.labels or _NONE, notes),
            group=self._word(group.key) if group is not None else "",
            group_size=group.size if group is not None else 0,
            booked_group=self._group_of(meta),
        )

    def job(self, job: LeanJob) -> WorkloadFacts:
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
        notes = meta.annotations or _NONE
        created = timestamp(meta.creation_timestamp)
        template = self._template(spec.template.spec)
        return WorkloadFacts(
            kind="Job",
            where=self._key(meta),
            uid=meta.uid,
            suspended=bool(spec.suspend),
            finished=finished,
            failed=failed,
            failure=self._word(failure),
            deleting=meta.deletion_timestamp is not None,
            desired=desired,
            least=desired,
            booking=notes.get(stamps.BOOKING, ""),
            template=self._template_metadata(spec.template.metadata),
            assignment=self._assignment(spec.template.metadata),
            spec=template.spec,
            needs=template.needs,
            created=created,
            queued_at=_queued_at(notes, created),
            kinds=self._kinds.same(owner_kinds(meta)),
            labels=self._labels(meta.labels),
            annotations=self._annotations(notes),
            succeeded=status.succeeded,
            remaining=remaining,
            # Ranks of one run; the pods of others work one by one.
            starts_whole=spec.completion_mode == "Indexed" and spec.completions == parallelism > 1,
        )

    def workload(self, adapter: Adapter, obj: CustomObject) -> WorkloadFacts:
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
        needs = gang_needs([self._set_needs(item) for item in members]) if members else PodNeeds()
        notes = meta.annotations or _NONE
        created = timestamp(meta.creation_timestamp)
        return WorkloadFacts(
            kind=adapter.kind.kind,
            where=self._key(meta),
            uid=meta.uid,
            suspended=adapter.is_suspended(plain),
            finished=end.finished,
            failed=end.failed,
            failure=self._word(end.reason),
            deleting=meta.deletion_timestamp is not None,
            desired=desired,
            least=min(fewest, desired),
            booking=notes.get(stamps.BOOKING, ""),
            template=self._template_metadata(template.metadata),
            assignment=self._assignment(template.metadata),
            spec=self._template(_lean(template.spec)).spec,
            needs=self._needs.of(_encode(needs), lambda: needs),
            created=created,
            queued_at=_queued_at(notes, created),
            kinds=self._kinds.same(owner_kinds(meta)),
            labels=self._labels(meta.labels),
            annotations=self._annotations(notes),
            members=self._shared_members(members),
            counts_successes=False,
            starts_whole=fewest >= desired,
        )

    def _set_needs(self, member: Member) -> SetNeeds:
        pod_set = member.pod_set
        needs = self._template(_lean(pod_set.template.spec)).needs
        return SetNeeds(count=pod_set.count, size=member.size, needs=needs)

    def _shared_members(self, members: Sequence[Member]) -> tuple[Member, ...]:
        found = tuple(
            replace(
                member,
                pod_set=replace(
                    member.pod_set,
                    template=PodTemplateSpec(
                        metadata=self._template_metadata(member.pod_set.template.metadata),
                        spec=self._template(_lean(member.pod_set.template.spec)).spec,
                    ),
                    held=ObjectMeta(),
                    scaffold=(),
                ),
            )
            for member in members
        )
        return self._members.of(_encode(found), lambda: found)

    def _template(self, spec: LeanSpec) -> _Template:
        key = _encode(
            (
                spec.containers,
                spec.init_containers,
                spec.node_selector,
                spec.affinity,
                spec.tolerations,
                spec.scheduling_gates,
                spec.service_account_name,
                spec.priority_class_name,
                spec.resource_claims,
                spec.overhead,
            )
        )
        return self._templates.of(key, lambda: self._read_template(spec))

    def _read_template(self, lean: LeanSpec) -> _Template:
        spec = PodSpec(
            containers=tuple(_container(item) for item in lean.containers),
            init_containers=(
                tuple(_container(item) for item in lean.init_containers)
                if lean.init_containers is not None
                else None
            ),
            node_selector=lean.node_selector,
            affinity=(
                Affinity(node_affinity=lean.affinity.node_affinity)
                if lean.affinity is not None
                else None
            ),
            tolerations=lean.tolerations,
            scheduling_gates=lean.scheduling_gates,
            service_account_name=lean.service_account_name,
            priority_class_name=lean.priority_class_name,
            resource_claims=lean.resource_claims,
            overhead=lean.overhead,
        )
        try:
            needs = pod_needs(spec)
        except QuantityError:  # the API server lets none of these pass
            needs = PodNeeds()
        needs = self._needs.of(_encode(needs), lambda: needs)
        return _Template(spec, needs, _asks_gpus((*(spec.init_containers or ()), *spec.containers)))

    def _template_metadata(self, meta: ObjectMeta) -> ObjectMeta:
        """Keep of a template's metadata what says how its pods are classed and what they ask."""
        kept = ObjectMeta(
            labels=dict(self._labels(meta.labels)),
            annotations=dict(self._annotations(meta.annotations or _NONE)),
        )
        return self._metadata.of(_encode(kept), lambda: kept)

    def _assignment(self, meta: ObjectMeta) -> Assignment | None:
        text = (meta.annotations or _NONE).get(stamps.ASSIGNMENT, "")
        known = self._assignments.get(text)
        found = assignment_of(meta) if text and known is None else known
        return self._assignments.of(text, lambda: found) if found is not None else None

    def _key(self, meta: ObjectMeta) -> Key:
        return Key(self._word(meta.namespace), meta.name)

    def _word(self, text: str) -> str:
        return self._words.same(text) if text else ""

    def _labels(self, labels: _Strings | None) -> _Strings:
        keys = self.label_keys
        kept = {
            key: text
            for key, text in (labels or _NONE).items()
            if key in keys or (key.startswith(_OURS) and key not in _APART)
        }
        return self._shared(kept)

    def _annotations(self, notes: _Strings) -> _Strings:
        kept = {
            key: text for key, text in notes.items() if key.startswith(_OURS) and key not in _APART
        }
        return self._shared(kept)

    def _shared(self, kept: _Strings) -> _Strings:
        return self._strings.of(tuple(kept.items()), lambda: kept) if kept else _NONE

    def _group_of(self, meta: ObjectMeta) -> tuple[str, str]:
        group, revision = group_of(meta)
        return (self._word(group), self._word(revision))


def _group(meta: ObjectMeta) -> PodGroup | None:
    try:
        return pod_group(meta)
    except PodGroupError:  # older than the install: it starts by itself
        return None


def _lean(spec: PodSpec) -> LeanSpec:
    return convert(spec, LeanSpec, from_attributes=True)


def _container(lean: LeanContainer) -> Container:
    asked = lean.resources
    return Container(
        resources=(
            Resources(limits=asked.limits, requests=asked.requests) if asked is not None else None
        ),
        restart_policy=lean.restart_policy,
    )


def _asks_gpus(containers: Iterable[Container]) -> bool:
    for container in containers:
        if container.resources is None:
            continue
        for name in container.resources.limits or {}:
            try:
                if parse_resource(name) is not None:
                    return True
            except ResourceNameError:
                continue
    return False


def _is_recreated(labels: _Strings, notes: _Strings) -> bool:
    if labels.get(_KUBESPAWNER[0]) == _KUBESPAWNER[1]:
        return True
    return any(key in labels or key in notes for key in _RECREATED_BY_OTHERS)


def _queued_at(notes: _Strings, created: float) -> float:
    """Read since when it is in line; since it was made, if that can't be read."""
    try:
        found = timestamp(notes.get(stamps.QUEUED_AT))
    except ValueError:
        return created
    return found if found and found != created else created
