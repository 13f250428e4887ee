"""The cluster as the queue sees it: reflectors, and the indices that reconciliation reads."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from fairslice import stamps
from fairslice.inventory import Inventory
from fairslice.kube.client import KubeClient
from fairslice.kube.objects import Job, Namespace, Node, Pod
from fairslice.kube.reflector import Reflector
from fairslice.placement import NodeState, PodNeeds
from fairslice.policy import Policy, PolicyError, Team
from fairslice.resource_names import ResourceNameError, parse_resource
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.resources import (
    MISSING,
    POLICIES,
    POLICY_NAME,
    TEAMS,
    SharingPolicyResource,
    TeamResource,
)
from fairslice.workloads import Adapter
from fairslice_queue.books import Books
from fairslice_queue.changes import Changes, Pending
from fairslice_queue.custom_kinds import CustomKinds
from fairslice_queue.facts import (
    CustomObject,
    PodFacts,
    WorkloadFacts,
    job_facts,
    pod_facts,
    workload_facts,
)
from fairslice_queue.free_nodes import FreeNodes
from fairslice_queue.object_paths import ObjectPaths
from fairslice_queue.restarts import StoredManifest
from fairslice_queue.shared_claims import SharedClaims

__all__ = ["Watch"]

_log = logging.getLogger(__name__)
T = TypeVar("T")

_REMEMBERED = 10_000
# Where nobody plans, nobody asks what changed.
_MOST_TOUCHED = 100_000


class Watch:
    """Follows nodes, pods, workloads, teams and the policy.

    What an event may have changed is collected in `dirty` (booking ids) and `strangers` (uid and
    key of pods with GPUs that carry no stamp), and `changed` is set. `disrupted` has why pods of
    a booking were pushed out, `disrupted_pods` the same by pod key, also of those gone since.
    """

    def __init__(self, client: KubeClient) -> None:
        self.changed = asyncio.Event()
        self.dirty: set[str] = set()
        self.policy = Policy.compile(SharingPolicySpec())
        self._index = TeamIndex.build((), {})
        self._teams_changed = False
        self.inventory = Inventory.build((), self.policy)
        self.capacity_changed = True
        self.pods: dict[str, PodFacts] = {}
        self.workloads: dict[str, WorkloadFacts] = {}
        self.disrupted: dict[str, str] = {}
        self.disrupted_pods: dict[str, str] = {}
        self.detached: set[tuple[str, str]] = set()
        self.strangers: dict[str, str] = {}
        self._pods_of: defaultdict[str, dict[str, PodFacts]] = defaultdict(dict)
        self._workload_of: dict[str, WorkloadFacts] = {}
        self._free = FreeNodes(self.needs_of, self.pods_of)
        self._pending = Pending()
        self._touched: set[str] = set()
        self._unbooked: set[str] = set()
        self._gone: dict[str, None] = {}
        self._grouped: defaultdict[str, set[str]] = defaultdict(set)
        self.paths = ObjectPaths()
        self._custom = CustomKinds(client, self.paths, self._on_custom)
        self.claims = SharedClaims(client, self._touch, self.look_at_strangers)
        self._nodes = Reflector(client, "/api/v1/nodes", Node)
        self._pods = Reflector(client, "/api/v1/pods", Pod)
        self._jobs = Reflector(
            client, "/apis/batch/v1/jobs", Job, label_selector=f"{stamps.LABEL_MANAGED}=true"
        )
        self._namespaces = Reflector(client, "/api/v1/namespaces", Namespace)
        self._teams = Reflector(client, TEAMS, TeamResource, missing=MISSING)
        self._policies = Reflector(client, POLICIES, SharingPolicyResource, missing=MISSING)
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
        tasks.create_task(self._custom.run())
        tasks.create_task(self.claims.run())

    async def synced(self) -> None:
        """Wait until everything has been listed once."""
        for reflector in self._reflectors:
            await reflector.synced.wait()
        await self._custom.synced()
        await self.claims.synced.wait()

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
    def has_policy(self) -> bool:
        """Say whether there is a policy; without one, all that it could say has its default."""
        return self._policies.get(POLICY_NAME) is not None

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

    def annotations_of(self, booking_id: str) -> Mapping[str, str]:
        """Read the annotations of a booking's object."""
        workload = self._workload_of.get(booking_id)
        if workload is not None:
            return workload.annotations
        return next((pod.annotations for pod in self.pods_of(booking_id).values()), {})

    def group_members(self, group: str) -> tuple[PodFacts, ...]:
        """List the pods of a pod group, ended ones too."""
        return tuple(self.pods[key] for key in self._grouped.get(group, ()))

    def is_gone(self, uid: str) -> bool:
        """Say whether an object was seen, and then seen to be deleted."""
        return uid in self._gone

    def forget_gone(self, uid: str) -> None:
        """Stop remembering a deleted object."""
        self._gone.pop(uid, None)

    def stranger(self, uid: str, key: str) -> PodFacts | None:
        """Find a pod with GPUs that carries no stamp: older than the install, or exempt."""
        pod = self.pods.get(key) if key in self._unbooked else None
        return pod if pod is not None and pod.uid == uid else None

    @property
    def strange_pods(self) -> Iterator[PodFacts]:
        """Yield all pods with GPUs that carry no stamp."""
        return (self.pods[key] for key in tuple(self._unbooked))

    def look_at_strangers(self) -> None:
        """Mark all pods with GPUs that carry no stamp to be looked at (again)."""
        for pod in self.strange_pods:
            self.strangers[pod.uid] = pod.key

    def free_nodes(self, books: Books) -> Mapping[str, NodeState]:
        """What is free now: allocatable less what pods and bookings hold.

        The same dictionary each time, brought up to date by what changed since the last call. A
        node on which anything changed is a new object there, and none is ever changed in place.
        """
        self._follow(books)
        return self._free.nodes

    def take_changes(self, books: Books) -> Changes:
        """Tell what changed since this was last called; once a round, by whoever plans."""
        self._follow(books)
        return self._pending.take()

    def _follow(self, books: Books) -> None:
        """Take up what changed in the books, and what that leaves free."""
        changed, touched, pending = books.take_changed(), self._touched, self._pending
        self._touched = set()
        if changed is None or len(touched) > _MOST_TOUCHED:
            stale = {*self._free.counted, *(booking.id for booking in books.holding())}
            pending.everything = True
            pending.bookings.clear()
        else:
            stale = changed | touched
        if not pending.everything:
            pending.bookings |= stale
        bookings = ((booking_id, books.get(booking_id)) for booking_id in stale)
        pending.nodes |= self._free.update(self.inventory.nodes, bookings)

    def needs_of(self, booking_id: str) -> PodNeeds | None:
        """Read what a booking's pods need of a node; None while its object isn't seen."""
        workload = self._workload_of.get(booking_id)
        if workload is not None:
            return workload.needs
        return next((pod.needs for pod in self.pods_of(booking_id).values()), None)

    def _touch(self, booking_id: str) -> None:
        if booking_id:
            self.dirty.add(booking_id)
            # Beyond that, it is "all".
            if len(self._touched) <= _MOST_TOUCHED:
                self._touched.add(booking_id)
        self.changed.set()

    def _on_node_change(self, old: Node | None, new: Node | None) -> None:
        before = self.inventory
        name = ""
        if new is not None:
            name, self.inventory = new.metadata.name, before.with_node(new)
        elif old is not None:
            name, self.inventory = old.metadata.name, before.without_node(old.metadata.name)
        if self.inventory is not before:
            self._free.node_changed(name)
            self._pending.capacity = True
            self.capacity_changed = True
            self.look_at_strangers()
            self.changed.set()

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        before = None
        if old is not None:
            before = self.pods.get(f"{old.metadata.namespace}/{old.metadata.name}")
            self._drop_pod(f"{old.metadata.namespace}/{old.metadata.name}", deleted=new is None)
        if new is None:
            return
        facts = pod_facts(new)
        key = facts.key
        self.pods[key] = facts
        if not facts.disruption:
            self.disrupted_pods.pop(key, None)
        if facts.node and not facts.ended:
            self._free.pod_came(facts.node, facts.needs)
        if facts.booking:
            self._pods_of[facts.booking][key] = facts
            if facts.disruption:
                _remember(self.disrupted_pods, key, facts.disruption)
                # News only: the remains of an earlier run must not push the next one out.
                if not facts.ended if before is None else not before.disruption:
                    self.disrupted[facts.booking] = facts.disruption
            self._touch(facts.booking)
        elif not facts.ended and (_holds_gpus(facts) or self._claims_devices(facts)):
            self._unbooked.add(key)
            self.strangers[facts.uid] = key
            self._touch("")
        elif facts.ended:
            self.changed.set()
        if facts.group:
            self._grouped[facts.group].add(key)
            self._pending.groups.add(facts.group)
        if facts.stamp and facts.ended:
            self.detached.add((facts.booking, facts.stamp))

    def _claims_devices(self, facts: PodFacts) -> bool:
        return bool(facts.spec.resource_claims) and self.claims.devices.known

    def _drop_pod(self, key: str, *, deleted: bool) -> None:
        facts = self.pods.pop(key, None)
        if facts is None:
            return
        if key in self._unbooked:
            self._unbooked.discard(key)
            self.strangers[facts.uid] = key
        if facts.node and not facts.ended:
            self._free.pod_left(facts.node, facts.needs)
        if facts.group:
            self._pending.groups.add(facts.group)
            members = self._grouped[facts.group]
            members.discard(key)
            if not members:
                del self._grouped[facts.group]
        if deleted:
            _remember(self._gone, facts.uid, None)
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
        self._on_workload("Job", old, job_facts(new) if new is not None else None)

    def _on_custom(
        self, adapter: Adapter, old: CustomObject | None, new: CustomObject | None
    ) -> None:
        facts = workload_facts(adapter, new) if new is not None else None
        self._on_workload(adapter.kind.kind, old, facts)

    def _on_workload(
        self, kind: str, old: Job | CustomObject | None, facts: WorkloadFacts | None
    ) -> None:
        if old is not None:
            key = f"{kind}/{old.metadata.namespace}/{old.metadata.name}"
            before = self.workloads.pop(key, None)
            if before is not None:
                self._workload_of.pop(before.booking, None)
                if facts is None:
                    _remember(self._gone, before.uid, None)
                self._touch(before.booking)
        if facts is not None:
            self.workloads[facts.key] = facts
            if facts.booking:
                self._workload_of[facts.booking] = facts
            self._touch(facts.booking)

    @property
    def teams(self) -> TeamIndex:
        """The teams, indexed anew when first asked for after a change.

        A thousand teams and namespaces are listed one by one; indexing at each would take longer
        than all the rest of a start.
        """
        if self._teams_changed:
            self._teams_changed = False
            self._index = self._index_teams()
        return self._index

    def _index_teams(self) -> TeamIndex:
        teams: list[Team] = []
        for item in self._teams.store.values():
            try:
                teams.append(self._compiled(item))
            except PolicyError as error:
                # Admission refuses such a team; one that got past it has no rights.
                _log.error("team %s is left out: %s", item.metadata.name, error)
        labels = {
            item.metadata.name: item.metadata.labels or {}
            for item in self._namespaces.store.values()
        }
        return TeamIndex.build(teams, labels)

    def _on_team_change(self, old: object, new: object) -> None:
        if _means_the_same(old, new):
            return
        self._pending.teams = True
        if not self._teams_changed:
            self._teams_changed = True
            self.look_at_strangers()
        self.changed.set()

    def _compiled(self, item: TeamResource) -> Team:
        meta = item.metadata
        return Team.compile(meta.name, meta.uid, item.spec, self.policy.zone)

    def _on_policy(self, _old: object, _new: object) -> None:
        resource = self._policies.get(POLICY_NAME)
        spec = resource.spec if resource is not None else SharingPolicySpec()
        zone = self.policy.zone
        try:
            self.policy = Policy.compile(spec)
        except PolicyError as error:
            _log.error("the policy is left as it was: %s", error)
            return
        if self.policy.zone != zone:
            self._on_team_change(None, None)  # loans end at midnight there
        self.inventory = Inventory.build(
            self._nodes.store.values(), self.policy, before=self.inventory
        )
        for name in self.inventory.nodes:
            self._free.node_changed(name)
        self._pending.policy = self._pending.capacity = True
        self.capacity_changed = True
        self.look_at_strangers()
        self.changed.set()


def _means_the_same(old: object, new: object) -> bool:
    """Say whether a team or namespace changed in nothing that says who belongs to which team.

    Teams' status is our own writing; namespaces change otherwise often.
    """
    if isinstance(old, TeamResource) and isinstance(new, TeamResource):
        return old.spec == new.spec and old.metadata.uid == new.metadata.uid
    if isinstance(old, Namespace) and isinstance(new, Namespace):
        return old.metadata.labels == new.metadata.labels
    return False


def _remember(memory: dict[str, T], key: str, value: T) -> None:
    """Keep the newest; what is forgotten here the API server is asked about later."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]


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
