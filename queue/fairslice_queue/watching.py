"""The cluster as the queue sees it: what is followed, and what of it is kept."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from fairslice import stamps
from fairslice.inventory import Inventory
from fairslice.kube.client import KubeClient
from fairslice.kube.following import Following
from fairslice.kube.objects import Namespace, Node, NodeStatus, ObjectMeta
from fairslice.kube.reflector import FactReflector, Key, Reflector
from fairslice.node_offers import NodeFacts
from fairslice.placement import NodeState
from fairslice.policy import Policy, PolicyError, Team
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
from fairslice_queue.books import Books
from fairslice_queue.by_name import PodsByName, WorkloadsByName
from fairslice_queue.changes import Changes
from fairslice_queue.custom_kinds import CustomKinds
from fairslice_queue.fact_reading import FactReader
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.lean_objects import LeanJob, LeanPod
from fairslice_queue.object_paths import ObjectPaths
from fairslice_queue.restarts import StoredManifest, StoredTemplate, read_stored
from fairslice_queue.shared_claims import SharedClaims
from fairslice_queue.sightings import Sightings

__all__ = ["Watch"]

_log = logging.getLogger(__name__)


class _SeenNode(Struct, frozen=True):
    """A node without what changes all the time and says nothing."""

    where: Key
    uid: str
    node: Node


class _SeenNamespace(Struct, frozen=True):
    """Labels say which team a namespace belongs to; annotations and phases change more often."""

    where: Key
    uid: str
    labels: Mapping[str, str]


class Watch(Sightings):
    """Follows nodes, pods, workloads, teams and the policy; see Sightings for what it collects."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__()
        self.policy = Policy.compile(SharingPolicySpec())
        self._team_index = TeamIndex.build((), {})
        self._teams_changed = False
        self.inventory = Inventory.build((), self.policy)
        self.capacity_changed = True
        self.paths = ObjectPaths()
        self._reader = FactReader()
        self._custom = CustomKinds(client, self.paths, self._reader, self.see_workload)
        self._gives_devices = False
        self.claims = SharedClaims(client, self._touch, self._on_devices)
        managed = f"{stamps.LABEL_MANAGED}=true"
        self._nodes = FactReflector(client, "/api/v1/nodes", Node, _seen_node)
        self._pods = FactReflector(client, "/api/v1/pods", LeanPod, self._reader.pod)
        self._jobs = FactReflector(
            client, "/apis/batch/v1/jobs", LeanJob, self._reader.job, label_selector=managed
        )
        self._namespaces = FactReflector(client, "/api/v1/namespaces", Namespace, _seen_namespace)
        self._teams = Reflector(client, TEAMS, TeamResource, missing=MISSING)
        self._policies = Reflector(client, POLICIES, SharingPolicyResource, missing=MISSING)
        self._stored = FactReflector(
            client, "/api/v1/podtemplates", StoredTemplate, read_stored, label_selector=managed
        )
        self._nodes.subscribe(self._on_node)
        self._pods.subscribe(self.see_pod)
        self._jobs.subscribe(self.see_workload)
        self._namespaces.subscribe(lambda old, new: self._on_membership())
        self._teams.subscribe(self._on_team)
        self._policies.subscribe(self._on_policy)

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Start all reflectors in a task group."""
        for reflector in (
            self._policies,
            self._teams,
            self._namespaces,
            self._nodes,
            self._stored,
        ):
            tasks.create_task(reflector.run())
        # The policy says which labels are read.
        for run in (self._jobs.run, self._pods.run, self._custom.run):
            tasks.create_task(self._after_policy(run))
        tasks.create_task(self.claims.run())

    async def _after_policy(self, run: Callable[[], Awaitable[None]]) -> None:
        await self._policies.synced.wait()
        await run()

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
    def _reflectors(self) -> tuple[Following[Any], ...]:
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
    def pods(self) -> Mapping[str, PodFacts]:
        """All pods, by `namespace/name`."""
        return PodsByName(self._pods.store)

    @property
    def workloads(self) -> Mapping[str, WorkloadFacts]:
        """All workloads in the books, by `kind/namespace/name`."""
        return WorkloadsByName({"Job": self._jobs.store, **self._custom.stores})

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

    def free_nodes(self, books: Books) -> Mapping[str, NodeState]:
        """What is free now, on nodes that may have GPUs: allocatable less what is held.

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
        if changed is None or touched is None:
            stale = {*self._free.counted, *(booking.id for booking in books.holding())}
            pending.everything = True
            pending.bookings.clear()
        else:
            stale = changed | touched
        if not pending.everything:
            pending.bookings |= stale
        bookings = ((booking_id, books.get(booking_id)) for booking_id in stale)
        pending.nodes |= self._free.update(self.inventory.nodes, bookings)

    def _serves(self, node: NodeFacts) -> bool:
        # What DRA gives out no node advertises.
        return bool(node.shares) or self._gives_devices

    def _on_devices(self) -> None:
        if self.claims.gives_gpus is not self._gives_devices:
            self._gives_devices = not self._gives_devices
            self._look_at_nodes()
            self.changed.set()
        self.look_at_strangers()

    def _look_at_nodes(self) -> None:
        for name in self.inventory.nodes:
            self._free.node_changed(name)

    def _claims_devices(self, pod: PodFacts) -> bool:
        return bool(pod.spec.resource_claims) and self.claims.devices.known

    def _on_node(self, old: _SeenNode | None, new: _SeenNode | None) -> None:
        before = self.inventory
        name = ""
        if new is not None:
            name, self.inventory = new.where.name, before.with_node(new.node)
        elif old is not None:
            name, self.inventory = old.where.name, before.without_node(old.where.name)
        if self.inventory is not before:
            self._free.node_changed(name)
            self._pending.capacity = True
            self.capacity_changed = True
            self.look_at_strangers()
            self.changed.set()

    @property
    def teams(self) -> TeamIndex:
        """The teams, indexed anew when first asked for after a change.

        A thousand teams and namespaces are listed one by one; indexing at each would take longer
        than all the rest of a start.
        """
        if self._teams_changed:
            self._teams_changed = False
            self._team_index = self._index_teams()
        return self._team_index

    def _index_teams(self) -> TeamIndex:
        teams: list[Team] = []
        for item in self._teams.store.values():
            meta = item.metadata
            try:
                teams.append(Team.compile(meta.name, meta.uid, item.spec, self.policy.zone))
            except PolicyError as error:
                # Admission refuses such a team; one that got past it has no rights.
                _log.error("team %s is left out: %s", meta.name, error)
        labels = {item.where.name: item.labels for item in self._namespaces.store.values()}
        return TeamIndex.build(teams, labels)

    def _on_team(self, old: TeamResource | None, new: TeamResource | None) -> None:
        # A team's status is our own writing.
        if old is None or new is None or old.spec != new.spec:
            self._on_membership()

    def _on_membership(self) -> None:
        """Take note that who belongs to which team, or what a team may have, has changed."""
        self._pending.teams = True
        if not self._teams_changed:
            self._teams_changed = True
            self.look_at_strangers()
        self.changed.set()

    def _on_policy(
        self, old: SharingPolicyResource | None, new: SharingPolicyResource | None
    ) -> None:
        if old is not None and new is not None and old.spec == new.spec:
            return
        resource = self._policies.get(POLICY_NAME)
        spec = resource.spec if resource is not None else SharingPolicySpec()
        zone = self.policy.zone
        try:
            self.policy = Policy.compile(spec)
        except PolicyError as error:
            _log.error("the policy is left as it was: %s", error)
            return
        self._read_labels()
        if self.policy.zone != zone:
            self._on_membership()  # loans end at midnight there
        nodes = [seen.node for seen in self._nodes.store.values()]
        self.inventory = Inventory.build(nodes, self.policy, before=self.inventory)
        self._look_at_nodes()
        self._pending.policy = self._pending.capacity = True
        self.capacity_changed = True
        self.look_at_strangers()
        self.changed.set()

    def _read_labels(self) -> None:
        """Keep the labels that the policy's rules go by; list anew if more are wanted."""
        classes = self.policy.classes.values()
        wanted = {key for item in classes for rule in item.match for key in rule.pod_labels}
        if not wanted <= self._reader.label_keys:
            self._reader.keep_labels(wanted)
            self._jobs.look_again()
            self._pods.look_again()
            self._custom.look_again()


def _seen_node(node: Node) -> _SeenNode:
    meta, status = node.metadata, node.status
    return _SeenNode(
        where=Key("", meta.name),
        uid=meta.uid,
        node=Node(
            metadata=ObjectMeta(
                name=meta.name,
                labels=meta.labels,
                deletion_timestamp=meta.deletion_timestamp,
            ),
            spec=node.spec,
            status=NodeStatus(
                allocatable=status.allocatable,
                conditions=tuple(item for item in status.conditions or () if item.type == "Ready"),
            ),
        ),
    )


def _seen_namespace(namespace: Namespace) -> _SeenNamespace:
    meta = namespace.metadata
    return _SeenNamespace(where=Key("", meta.name), uid=meta.uid, labels=meta.labels or {})
