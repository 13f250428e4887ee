"""Reducing objects to facts. What many objects have alike they then share."""

from collections.abc import Collection
from contextlib import suppress
from typing import Any

from fairslice import stamps
from fairslice.booking import Assignment
from fairslice.classify import owner_kinds
from fairslice.gangs import Member, read_members
from fairslice.kube.objects import ObjectMeta, OwnerReference, PodTemplateSpec
from fairslice.kube.reflector import Key
from fairslice.pod_groups import PodGroup, PodGroupError, group_of, pod_group
from fairslice.requests import AskError
from fairslice.workloads import Adapter, WorkloadError
from fairslice_queue.facts import PodFacts, WorkloadFacts, assignment_of, timestamp
from fairslice_queue.kept_strings import NONE, KeptStrings, Strings
from fairslice_queue.lean_objects import CustomObject, LeanJob, LeanPod
from fairslice_queue.sharing import Shared
from fairslice_queue.template_reading import TemplateReader

__all__ = ["FactReader"]

# Why a pod was pushed out, as the DisruptionTarget condition says it (KEP-3329).
DISRUPTION = "DisruptionTarget"

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


class FactReader:
    """Reads objects."""

    def __init__(self) -> None:
        self._strings = KeptStrings()
        self._templates = TemplateReader(self._strings)
        self._assignments = Shared[Assignment](1024)
        self._owners = Shared[OwnerReference](1024)
        self._kinds = Shared[tuple[str, ...]]()

    @property
    def label_keys(self) -> frozenset[str]:
        """Labels that are kept beside our own."""
        return self._strings.label_keys

    def keep_labels(self, keys: Collection[str]) -> None:
        """Keep more labels, of what is read from now on."""
        self._strings.label_keys |= frozenset(keys)

    def pod(self, pod: LeanPod) -> PodFacts:
        """Reduce a pod to its facts; of one without GPUs, to what it takes of its node."""
        meta, spec, status = pod.metadata, pod.spec, pod.status
        notes = meta.annotations or NONE
        template = self._templates.read(spec)
        if not (template.asks_gpus or spec.resource_claims or stamps.BOOKING in notes):
            return PodFacts(
                where=self._key(meta),
                uid=meta.uid,
                node=self._strings.word(spec.node_name),
                phase=self._strings.word(status.phase),
                spec=template.spec,
                needs=template.needs,
                labels=NONE,
                annotations=NONE,
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
            node=self._strings.word(spec.node_name),
            nominated_node=self._strings.word(status.nominated_node_name),
            phase=self._strings.word(status.phase),
            deleting=meta.deletion_timestamp is not None,
            gated=any(gate.name == stamps.GATE for gate in spec.scheduling_gates or ()),
            booking=notes.get(stamps.BOOKING, ""),
            stamp=notes.get(stamps.POD_STAMP, ""),
            assignment=self._assignment(meta),
            controller=self._owners.same(controller) if controller is not None else None,
            disruption=self._strings.word(disruption),
            unschedulable=self._strings.word(unschedulable),
            unschedulable_since=since,
            created=created,
            started=timestamp(status.start_time),
            spec=template.spec,
            needs=template.needs,
            asks_gpus=template.asks_gpus,
            labels=self._strings.labels(meta.labels),
            annotations=self._strings.annotations(notes),
            queued_at=_queued_at(notes, created),
            kinds=self._kinds.same(owner_kinds(meta)),
            owned=bool(owners),
            recreated=_is_recreated(meta.labels or NONE, notes),
            group=self._strings.word(group.key) if group is not None else "",
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
        notes = meta.annotations or NONE
        created = timestamp(meta.creation_timestamp)
        template = self._templates.read(spec.template.spec)
        return WorkloadFacts(
            kind="Job",
            where=self._key(meta),
            uid=meta.uid,
            suspended=bool(spec.suspend),
            finished=finished,
            failed=failed,
            failure=self._strings.word(failure),
            deleting=meta.deletion_timestamp is not None,
            desired=desired,
            least=desired,
            booking=notes.get(stamps.BOOKING, ""),
            template=self._templates.metadata(spec.template.metadata),
            assignment=self._assignment(spec.template.metadata),
            spec=template.spec,
            needs=template.needs,
            created=created,
            queued_at=_queued_at(notes, created),
            kinds=self._kinds.same(owner_kinds(meta)),
            labels=self._strings.labels(meta.labels),
            annotations=self._strings.annotations(notes),
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
        notes = meta.annotations or NONE
        created = timestamp(meta.creation_timestamp)
        return WorkloadFacts(
            kind=adapter.kind.kind,
            where=self._key(meta),
            uid=meta.uid,
            suspended=adapter.is_suspended(plain),
            finished=end.finished,
            failed=end.failed,
            failure=self._strings.word(end.reason),
            deleting=meta.deletion_timestamp is not None,
            desired=desired,
            least=min(fewest, desired),
            booking=notes.get(stamps.BOOKING, ""),
            template=self._templates.metadata(template.metadata),
            assignment=self._assignment(template.metadata),
            spec=self._templates.read_whole(template.spec).spec,
            needs=self._templates.needs(members),
            created=created,
            queued_at=_queued_at(notes, created),
            kinds=self._kinds.same(owner_kinds(meta)),
            labels=self._strings.labels(meta.labels),
            annotations=self._strings.annotations(notes),
            members=self._templates.members(members),
            counts_successes=False,
            starts_whole=fewest >= desired,
        )

    def _assignment(self, meta: ObjectMeta) -> Assignment | None:
        text = (meta.annotations or NONE).get(stamps.ASSIGNMENT, "")
        known = self._assignments.get(text)
        found = assignment_of(meta) if text and known is None else known
        return self._assignments.of(text, lambda: found) if found is not None else None

    def _key(self, meta: ObjectMeta) -> Key:
        return Key(self._strings.word(meta.namespace), meta.name)

    def _group_of(self, meta: ObjectMeta) -> tuple[str, str]:
        group, revision = group_of(meta)
        return (self._strings.word(group), self._strings.word(revision))


def _group(meta: ObjectMeta) -> PodGroup | None:
    try:
        return pod_group(meta)
    except PodGroupError:  # older than the install: it starts by itself
        return None


def _is_recreated(labels: Strings, notes: Strings) -> bool:
    if labels.get(_KUBESPAWNER[0]) == _KUBESPAWNER[1]:
        return True
    return any(key in labels or key in notes for key in _RECREATED_BY_OTHERS)


def _queued_at(notes: Strings, created: float) -> float:
    """Read since when it is in line; since it was made, if that can't be read."""
    try:
        found = timestamp(notes.get(stamps.QUEUED_AT))
    except ValueError:
        return created
    return found if found and found != created else created
