"""The cluster as the queue sees it: reflectors, and the indices that reconciliation reads."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fairslice import stamps
from fairslice.inventory import Inventory
from fairslice.kube.client import KubeClient
from fairslice.kube.objects import Job, Namespace, Node, Pod
from fairslice.kube.reflector import Reflector
from fairslice.placement import NodeState, PodNeeds, pod_needs
from fairslice.policy import Policy, PolicyError, Team
from fairslice.resource_names import ResourceNameError, parse_resource
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.resources import (
    POLICIES,
    POLICY_NAME,
    TEAMS,
    SharingPolicyResource,
    TeamResource,
)
from fairslice_queue.books import Books
from fairslice_queue.facts import PodFacts, WorkloadFacts, job_facts, pod_facts
from fairslice_queue.restarts import StoredManifest

__all__ = ["Watch"]

_log = logging.getLogger(__name__)


class Watch:
    """Follows nodes, pods, workloads, teams and the policy.

    What an event may have changed is collected in `dirty` (booking ids) and `strangers` (keys of
    objects with GPUs that no booking is known for), and `changed` is set.
    """

    def __init__(self, client: KubeClient) -> None:
        self.changed = asyncio.Event()
        self.dirty: set[str] = set()
        self.policy = Policy.compile(SharingPolicySpec())
        self.teams = TeamIndex.build((), {})
        self.inventory = Inventory.build((), self.policy)
        self.capacity_changed = True
        self.pods: dict[str, PodFacts] = {}
        self.workloads: dict[str, WorkloadFacts] = {}
        self.disrupted: dict[str, str] = {}
        self.detached: set[tuple[str, str]] = set()
        self._pods_of: defaultdict[str, dict[str, PodFacts]] = defaultdict(dict)
        self._workload_of: dict[str, WorkloadFacts] = {}
        self._on_node: defaultdict[str, dict[str, PodNeeds]] = defaultdict(dict)
        self._unbooked: set[str] = set()
        self._gone: set[str] = set()
        self._nodes = Reflector(client, "/api/v1/nodes", Node)
        self._pods = Reflector(client, "/api/v1/pods", Pod)
        self._jobs = Reflector(
            client, "/apis/batch/v1/jobs", Job, label_selector=f"{stamps.LABEL_MANAGED}=true"
        )
        self._namespaces = Reflector(client, "/api/v1/namespaces", Namespace)
        self._teams = Reflector(client, TEAMS, TeamResource)
        self._policies = Reflector(client, POLICIES, SharingPolicyResource)
        self._stored = Reflector(
            client,
            "/api/v1/podtemplates",
            StoredManifest,
            label_selector=f"{stamps.LABEL_MANAGED}=true",
        )
        self._nodes.subscribe(self._on_node_change)
        self._pods.subscribe(self._on_pod)
        self._jobs.subscribe(self._on_job)
        self._namespaces.subscribe(self._on_team_change)
        self._teams.subscribe(self._on_team_change)
        self._policies.subscribe(self._on_policy)

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Start all reflectors in a task group."""
        for reflector in self._reflectors:
            tasks.create_task(reflector.run())

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    @property
    def is_synced(self) -> bool:
        """Say whether everything has been listed once."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    @property
    def _reflectors(self) -> tuple[Reflector[Any], ...]:
        return (
            self._policies,
            self._teams,
            self._namespaces,
            self._nodes,
            self._jobs,
            self._stored,
            self._pods,
        )

    @property
    def team_resources(self) -> Iterator[TeamResource]:
        """Yield the teams as they stand in the API."""
        return iter(tuple(self._teams.store.values()))

    @property
    def stored_manifests(self) -> tuple[StoredManifest, ...]:
        """The manifests of objects that may have to be brought back."""
        return tuple(self._stored.store.values())

    def workload_of(self, booking_id: str) -> WorkloadFacts | None:
        """Find the workload that carries a booking's stamp."""
        return self._workload_of.get(booking_id)

    def pods_of(self, booking_id: str) -> Mapping[str, PodFacts]:
        """Find the pods that carry a booking's stamp, by key."""
        return self._pods_of.get(booking_id, {})

    def is_gone(self, uid: str) -> bool:
        """Say whether an object was seen, and then seen to be deleted."""
        return uid in self._gone

    def forget_gone(self, uid: str) -> None:
        """Stop remembering a deleted object."""
        self._gone.discard(uid)

    def unbooked(self) -> Iterator[PodFacts]:
        """Yield pods with GPUs that carry no stamp: older than the install, or exempt."""
        return (self.pods[key] for key in tuple(self._unbooked))

    def free_nodes(self, books: Books) -> dict[str, NodeState]:
        """Compute what is free now: allocatable less what pods and bookings hold."""
        nodes = self.inventory.node_states()
        for name, node in nodes.items():
            for needs in self._on_node.get(name, {}).values():
                node.take(needs, {}, 1)
        for booking in books.holding():
            option = booking.option
            if option is None:
                continue
            pods = self.pods_of(booking.id).values()
            for name, count in booking.place.items():
                free = nodes.get(name)
                if free is None:
                    continue
                for offer, units in option.offers.items():
                    free.units[offer] = free.units.get(offer, 0) - units * count
                there = sum(1 for pod in pods if pod.node == name and not pod.ended)
                if count > there:
                    free.take(self._needs_of(booking.id), {}, count - there)
        return nodes

    def needs_of(self, booking_id: str) -> PodNeeds | None:
        """Read what a booking's pods need of a node; None while its object isn't seen."""
        workload = self._workload_of.get(booking_id)
        if workload is not None:
            return pod_needs(workload.spec)
        for pod in self.pods_of(booking_id).values():
            return pod_needs(pod.spec)
        return None

    def _needs_of(self, booking_id: str) -> PodNeeds:
        return self.needs_of(booking_id) or PodNeeds()

    def _touch(self, booking_id: str) -> None:
        if booking_id:
            self.dirty.add(booking_id)
        self.changed.set()

    def _on_node_change(self, old: Node | None, new: Node | None) -> None:
        before = self.inventory
        if new is not None:
            self.inventory = before.with_node(new)
        elif old is not None:
            self.inventory = before.without_node(old.metadata.name)
        if self.inventory is not before:
            self.capacity_changed = True
            self.changed.set()

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None:
            self._drop_pod(f"{old.metadata.namespace}/{old.metadata.name}", deleted=new is None)
        if new is None:
            return
        facts = pod_facts(new)
        key = facts.key
        self.pods[key] = facts
        if facts.node and not facts.ended:
            self._on_node[facts.node][key] = pod_needs(facts.spec)
        if facts.booking:
            self._pods_of[facts.booking][key] = facts
            if facts.disruption:
                self.disrupted[facts.booking] = facts.disruption
            self._touch(facts.booking)
        elif not facts.ended and _holds_gpus(facts):
            self._unbooked.add(key)
            self._touch("")
        elif facts.ended:
            self.changed.set()
        if facts.stamp and facts.ended:
            self.detached.add((facts.booking, facts.stamp))

    def _drop_pod(self, key: str, *, deleted: bool) -> None:
        facts = self.pods.pop(key, None)
        if facts is None:
            return
        self._unbooked.discard(key)
        if facts.node:
            self._on_node[facts.node].pop(key, None)
        if deleted:
            self._gone.add(facts.uid)
            if facts.stamp:
                self.detached.add((facts.booking, facts.stamp))
            self.changed.set()
        if facts.booking:
            pods = self._pods_of.get(facts.booking)
            if pods is not None:
                pods.pop(key, None)
                if not pods:
                    del self._pods_of[facts.booking]
            self._touch(facts.booking)

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        if old is not None:
            before = self.workloads.pop(job_facts(old).key, None)
            if before is not None:
                self._workload_of.pop(before.booking, None)
                if new is None:
                    self._gone.add(before.uid)
                self._touch(before.booking)
        if new is not None:
            facts = job_facts(new)
            self.workloads[facts.key] = facts
            if facts.booking:
                self._workload_of[facts.booking] = facts
            self._touch(facts.booking)

    def _on_team_change(self, _old: object, _new: object) -> None:
        teams: list[Team] = []
        for item in self._teams.store.values():
            try:
                teams.append(Team.compile(item.metadata.name, item.metadata.uid, item.spec))
            except PolicyError as error:
                # Admission refuses such a team; one that got past it has no rights.
                _log.error("team %s is left out: %s", item.metadata.name, error)
        labels = {
            item.metadata.name: item.metadata.labels or {}
            for item in self._namespaces.store.values()
        }
        self.teams = TeamIndex.build(teams, labels)
        self.changed.set()

    def _on_policy(self, _old: object, _new: object) -> None:
        resource = self._policies.get(POLICY_NAME)
        spec = resource.spec if resource is not None else SharingPolicySpec()
        try:
            self.policy = Policy.compile(spec)
        except PolicyError as error:
            _log.error("the policy is left as it was: %s", error)
            return
        self.inventory = Inventory.build(
            self._nodes.store.values(), self.policy, before=self.inventory
        )
        self.capacity_changed = True
        self.changed.set()


def _holds_gpus(facts: PodFacts) -> bool:
    containers = (*(facts.spec.init_containers or ()), *facts.spec.containers)
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
