"""The view, kept up to date from watches and swapped as a whole."""

import asyncio
import logging
from typing import TypeVar

from msgspec import Struct

from fairslice.device_watch import DeviceWatch
from fairslice.inventory import Inventory
from fairslice.kube.client import KubeClient
from fairslice.kube.objects import Namespace, Node, ObjectMeta
from fairslice.kube.reflector import Key, Reflector
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
from fairslice_webhook.view import Priority, View

__all__ = ["ViewKeeper"]

_log = logging.getLogger(__name__)
T = TypeVar("T")


class _PriorityClass(Struct, frozen=True, rename="camel"):
    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    preemption_policy: str = "PreemptLowerPriority"


class ViewKeeper:
    """Follows what decisions rest on. `view` is None until everything was listed once.

    A policy or team that contradicts itself leaves the last good one in force.
    """

    def __init__(self, client: KubeClient, own_users: frozenset[str]) -> None:
        self.view: View | None = None
        self._own_users = own_users
        self._policies = Reflector(client, POLICIES, SharingPolicyResource, missing=MISSING)
        self._teams = Reflector(client, TEAMS, TeamResource, missing=MISSING)
        self._namespaces = Reflector(client, "/api/v1/namespaces", Namespace)
        self._nodes = Reflector(client, "/api/v1/nodes", Node)
        self._classes = Reflector(
            client, "/apis/scheduling.k8s.io/v1/priorityclasses", _PriorityClass
        )
        self._devices = DeviceWatch(client, lambda: self._mark("devices"))
        self._policy = Policy.compile(SharingPolicySpec())
        self._inventory = Inventory.build((), self._policy)
        self._compiled: dict[str, Team] = {}
        self._index = TeamIndex.build((), {})
        self._stale = {"policy", "teams"}
        self._changed_nodes: dict[str, Node | None] = {}
        self._scheduled = False

    async def run(self) -> None:
        """Follow, forever."""
        async with asyncio.TaskGroup() as tasks:
            followed = (self._policies, self._teams, self._namespaces, self._nodes, self._classes)
            for reflector in followed:
                tasks.create_task(reflector.run())
            tasks.create_task(self._devices.run())
            for reflector in followed:
                await reflector.synced.wait()
            await self._devices.synced.wait()
            self._policies.subscribe(lambda old, new: self._mark("policy"))
            self._teams.subscribe(self._team_changed)
            self._namespaces.subscribe(self._namespace_changed)
            self._nodes.subscribe(self._node_changed)
            self._classes.subscribe(lambda old, new: self._mark("classes"))
            self._rebuild()

    def _mark(self, what: str) -> None:
        self._stale.add(what)
        self._schedule()

    def _team_changed(self, old: TeamResource | None, new: TeamResource | None) -> None:
        # The queue writes their status every few seconds.
        same = (
            old is not None
            and new is not None
            and old.spec == new.spec
            and old.metadata.uid == new.metadata.uid
        )
        self._mark("statuses" if same else "teams")

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        # Labels say which team a namespace belongs to; annotations and phases change more often.
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._mark("teams")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        item = new or old
        assert item is not None
        self._changed_nodes[item.metadata.name] = new
        self._schedule()

    def _schedule(self) -> None:
        """Rebuild once for all that changes in one turn of the event loop."""
        if not self._scheduled and self.view is not None:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._rebuild)

    def _rebuild(self) -> None:
        self._scheduled = False
        stale, self._stale = self._stale, set()
        zone = self._policy.zone
        changed, self._changed_nodes = self._changed_nodes, {}
        if "policy" in stale and self._read_policy():
            nodes = self._nodes.store.values()
            self._inventory = Inventory.build(nodes, self._policy, before=self._inventory)
        else:
            for name, node in changed.items():
                self._inventory = (
                    self._inventory.without_node(name)
                    if node is None
                    else self._inventory.with_node(node)
                )
        if "teams" in stale or self._policy.zone != zone:
            self._read_teams()
        view = View(
            policy=self._policy,
            teams=self._index,
            inventory=self._inventory,
            own_users=self._own_users,
            priority_classes={
                key.name: Priority(item.value, item.preemption_policy)
                for key, item in self._classes.store.items()
            },
            devices=self._devices.devices,
            statuses={key.name: item.status for key, item in self._teams.store.items()},
        )
        # Nodes tell of themselves all the time; as long as nothing of note changed, what was
        # worked out on a view still holds.
        if view != self.view:
            self.view = view

    def _read_policy(self) -> bool:
        resource = self._policies.store.get(Key("", POLICY_NAME))
        spec = resource.spec if resource is not None else SharingPolicySpec()
        try:
            self._policy = Policy.compile(spec)
        except PolicyError as error:
            _log.warning("SharingPolicy %s keeps its last good state: %s", POLICY_NAME, error)
            return self.view is None
        return True

    def _read_teams(self) -> None:
        compiled: dict[str, Team] = {}
        for key, resource in self._teams.store.items():
            try:
                compiled[key.name] = Team.compile(
                    key.name, resource.metadata.uid, resource.spec, self._policy.zone
                )
            except PolicyError as error:
                _log.warning("Team %s keeps its last good state: %s", key.name, error)
                if key.name in self._compiled:
                    compiled[key.name] = self._compiled[key.name]
        self._compiled = compiled
        namespaces = {
            key.name: item.metadata.labels or {} for key, item in self._namespaces.store.items()
        }
        self._index = TeamIndex.build(compiled.values(), namespaces)
        for conflict in self._index.conflicts:
            _log.warning(
                "namespace %s belongs to team %s; also claimed by %s",
                conflict.namespace,
                conflict.team,
                ", ".join(conflict.others),
            )
