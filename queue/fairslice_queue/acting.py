"""What the queue does to objects. Each patch is the smallest possible, and safe to repeat.

A uid in every patch keeps it from hitting a successor of the same name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

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
from fairslice_queue.facts import PodFacts, WorkloadFacts

__all__ = ["Actor", "path_of"]

_COLLECTIONS = {"Pod": "/api/v1/namespaces/{}/pods", "Job": "/apis/batch/v1/namespaces/{}/jobs"}


def path_of(kind: str, namespace: str, name: str) -> str:
    """Build an object's API path."""
    return f"{_COLLECTIONS[kind].format(quote(namespace))}/{quote(name)}"


@dataclass(frozen=True, slots=True)
class Actor:
    """Acts on objects as the queue's own identity. Methods raise ApiError."""

    client: KubeClient

    async def start_workload(self, facts: WorkloadFacts, booking: Booking, option: Option) -> None:
        """Un-suspend a Job and hand its assignment to its template, in one patch."""
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
        path = path_of(facts.kind, facts.namespace, facts.name)
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
            "spec": {"suspend": False},
        }
        await self.client.patch(path_of(facts.kind, facts.namespace, facts.name), body, MERGE_PATCH)

    async def stop_workload(
        self, facts: WorkloadFacts, state: State, annotations: Mapping[str, str | None]
    ) -> None:
        """Suspend a Job and say why."""
        body = {
            "metadata": {
                "uid": facts.uid,
                "labels": {stamps.STATE: state.value.lower()},
                "annotations": dict(annotations),
            },
            "spec": {"suspend": True},
        }
        await self.client.patch(path_of(facts.kind, facts.namespace, facts.name), body, MERGE_PATCH)

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
        await self.client.patch(path_of("Pod", pod.namespace, pod.name), patch, JSON_PATCH)

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
        await self.client.patch(path_of(kind, namespace, name), body, MERGE_PATCH)

    async def label_state(
        self, kind: str, namespace: str, name: str, uid: str, state: State
    ) -> None:
        """Write the state label."""
        body = {"metadata": {"uid": uid, "labels": {stamps.STATE: state.value.lower()}}}
        await self.client.patch(path_of(kind, namespace, name), body, MERGE_PATCH)

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
            await self.client.create(path_of("Pod", pod.namespace, pod.name) + "/eviction", body)
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
            await self.client.delete(path_of(kind, namespace, name), body)
        except (NotFound, Conflict):
            return


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
