"""What the queue does to objects. Each patch is the smallest possible, and safe to repeat.

A uid in every patch keeps it from hitting a successor of the same name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import json

from fairslice import stamps
from fairslice.booking import Assignment, Booking, Option, State
from fairslice.kube.client import (
    JSON_PATCH,
    MERGE_PATCH,
    Conflict,
    Invalid,
    KubeClient,
    NotFound,
    TooManyRequests,
)
from fairslice.workloads import Adapter, adapter_of_kind
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.object_paths import ObjectPaths
from fairslice_queue.release_patch import release_patch

__all__ = ["Actor"]

# An object that changes between being read and being patched is read again.
_TRIES = 5


@dataclass(frozen=True, slots=True)
class Actor:
    """Acts on objects as the queue's own identity. Methods raise ApiError."""

    client: KubeClient
    paths: ObjectPaths = field(default_factory=ObjectPaths)

    async def start_workload(self, facts: WorkloadFacts, booking: Booking, option: Option) -> None:
        """Un-suspend a workload and hand its assignment to its templates, in one patch."""
        adapter = adapter_of_kind(facts.kind)
        if adapter is not None and facts.kind != "Job":
            await self._start_custom(adapter, facts, booking, option)
            return
        assignment = json.encode(Assignment(booking=booking.id, option=option)).decode()
        stamped = {stamps.ASSIGNMENT: assignment}
        body = {
            "metadata": {
                "uid": facts.uid,
                "labels": {stamps.STATE: State.RELEASED.value.lower()},
                "annotations": {stamps.STATUS: "Released", stamps.PREEMPTION: None},
            },
            "spec": {
                "suspend": False,
                "template": {"metadata": {"annotations": stamped}},
            },
        }
        path = self.paths.of(facts.kind, facts.namespace, facts.name)
        try:
            await self.client.patch(path, body, MERGE_PATCH)
        except Invalid:
            # Before 1.36 a Job's template is fixed from its first start on, until startTime is
            # cleared while it is suspended (Kueue does the same).
            cleared = {"metadata": {"uid": facts.uid}, "status": {"startTime": None}}
            await self.client.patch(path + "/status", cleared, MERGE_PATCH)
            await self.client.patch(path, body, MERGE_PATCH)

    async def free_workload(self, facts: WorkloadFacts) -> None:
        """Let a workload start as if fairslice had never held it: un-suspended, unstamped."""
        adapter = adapter_of_kind(facts.kind)
        assert adapter is not None
        body = {
            "metadata": {
                "uid": facts.uid,
                "labels": {stamps.STATE: None, stamps.LABEL_MANAGED: None},
                "annotations": {
                    stamps.BOOKING: None,
                    stamps.QUEUED_AT: None,
                    stamps.STATUS: None,
                },
            },
            **adapter.suspend_body(suspend=False),
        }
        await self.client.patch(
            self.paths.of(facts.kind, facts.namespace, facts.name), body, MERGE_PATCH
        )

    async def stop_workload(
        self, facts: WorkloadFacts, state: State, annotations: Mapping[str, str | None]
    ) -> None:
        """Suspend a workload and say why."""
        adapter = adapter_of_kind(facts.kind)
        assert adapter is not None
        body = {
            "metadata": {
                "uid": facts.uid,
                "labels": {stamps.STATE: state.value.lower()},
                "annotations": dict(annotations),
            },
            **adapter.suspend_body(suspend=True),
        }
        path = self.paths.of(facts.kind, facts.namespace, facts.name)
        await self.client.patch(path, body, MERGE_PATCH)

    async def _start_custom(
        self, adapter: Adapter, facts: WorkloadFacts, booking: Booking, option: Option
    ) -> None:
        path = self.paths.of(facts.kind, facts.namespace, facts.name)
        for left in reversed(range(_TRIES)):
            obj = json.decode(await self.client.get(path))
            if obj["metadata"]["uid"] != facts.uid:
                return
            try:
                patch = release_patch(adapter, obj, booking.id, option)
                await self.client.patch(path, patch, JSON_PATCH)
                return
            except (Conflict, Invalid):
                if not left:
                    raise

    async def ungate(
        self, pod: PodFacts, booking: Booking, option: Option, pod_stamp: str = ""
    ) -> None:
        """Take our gate off a pod; `pod_stamp` makes it one of a workload's booked pods."""
        gates = pod.spec.scheduling_gates or ()
        index = next((n for n, gate in enumerate(gates) if gate.name == stamps.GATE), None)
        if index is None:
            return
        assignment = json.encode(Assignment(booking=booking.id, option=option)).decode()
        stamped = {stamps.ASSIGNMENT: assignment, stamps.STATUS: "Released"}
        if pod_stamp:
            stamped |= {stamps.BOOKING: booking.id, stamps.POD_STAMP: pod_stamp}
        gate = f"/spec/schedulingGates/{index}"
        patch: list[dict[str, object]] = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            {"op": "test", "path": f"{gate}/name", "value": stamps.GATE},
            {"op": "remove", "path": gate},
            {
                "op": "add",
                "path": f"/metadata/labels/{_escape(stamps.STATE)}",
                "value": State.RELEASED.value.lower(),
            },
        ]
        patch += [
            {"op": "add", "path": f"/metadata/annotations/{_escape(key)}", "value": value}
            for key, value in stamped.items()
        ]
        await self.client.patch(self.paths.of("Pod", pod.namespace, pod.name), patch, JSON_PATCH)

    async def annotate(
        self,
        kind: str,
        namespace: str,
        name: str,
        uid: str,
        annotations: Mapping[str, str | None],
    ) -> None:
        """Write annotations."""
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self.client.patch(self.paths.of(kind, namespace, name), body, MERGE_PATCH)

    async def label_state(
        self, kind: str, namespace: str, name: str, uid: str, state: State
    ) -> None:
        """Write the state label."""
        body = {"metadata": {"uid": uid, "labels": {stamps.STATE: state.value.lower()}}}
        await self.client.patch(self.paths.of(kind, namespace, name), body, MERGE_PATCH)

    async def evict(self, pod: PodFacts, grace: int) -> bool:
        """Evict a pod through the eviction API. False: a disruption budget forbids it now."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {
                "gracePeriodSeconds": grace,
                "preconditions": {"uid": pod.uid},
            },
        }
        try:
            await self.client.create(
                self.paths.of("Pod", pod.namespace, pod.name) + "/eviction", body
            )
        except TooManyRequests:
            return False
        except (NotFound, Conflict):
            return True
        return True

    async def delete(
        self, kind: str, namespace: str, name: str, uid: str, grace: int | None
    ) -> None:
        """Delete an object of this uid; it being gone already is fine."""
        body: dict[str, object] = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self.client.delete(self.paths.of(kind, namespace, name), body)
        except (NotFound, Conflict):
            return


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
