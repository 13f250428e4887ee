"""What has been seen of pods and workloads, by booking; and what of it is still to be looked at."""

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from typing import TypeVar

from fairslice.kube.reflector import Key
from fairslice.node_offers import NodeFacts
from fairslice.placement import PodNeeds
from fairslice_queue.changes import Pending
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.free_nodes import FreeNodes

__all__ = ["Sightings"]

T = TypeVar("T")

_REMEMBERED = 10_000
_MOST_TOUCHED = 100_000  # where nobody plans, nobody asks what changed


class Sightings:
    """Indices over pods and workloads, kept up by `see_pod` and `see_workload`.

    What an event may have changed is collected in `dirty` (booking ids) and `strangers` (uid and
    key of pods with GPUs that carry no stamp), and `changed` is set. `disrupted` has why pods of
    a booking were pushed out, `disrupted_pods` the same by pod key, also of those gone since.
    `detached` are pods that ended or went, by booking id and their own stamp.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.dirty: set[str] = set()
        self.disrupted: dict[str, str] = {}
        self.disrupted_pods: dict[str, str] = {}
        self.detached: set[tuple[str, str]] = set()
        self.strangers: dict[str, str] = {}
        self._pods_of: defaultdict[str, dict[Key, PodFacts]] = defaultdict(dict)
        self._workload_of: dict[str, WorkloadFacts] = {}
        self._grouped: defaultdict[str, dict[Key, PodFacts]] = defaultdict(dict)
        self._unbooked: dict[str, PodFacts] = {}
        self._gone: dict[str, None] = {}
        # Bookings whose objects or pods changed since planning looked; None stands for all.
        self._touched: set[str] | None = None
        self._pending = Pending()
        self._free = FreeNodes(
            self.needs_of, lambda name: self.pods_of(name).values(), self._serves
        )

    def workload_of(self, booking_id: str) -> WorkloadFacts | None:
        """Find the workload that carries a booking's stamp."""
        return self._workload_of.get(booking_id)

    def pods_of(self, booking_id: str) -> Mapping[Key, PodFacts]:
        """Find the pods that carry a booking's stamp."""
        return self._pods_of.get(booking_id, {})

    def annotations_of(self, booking_id: str) -> Mapping[str, str]:
        """Read the annotations of a booking's object."""
        workload = self._workload_of.get(booking_id)
        if workload is not None:
            return workload.annotations
        return next((pod.annotations for pod in self.pods_of(booking_id).values()), {})

    def needs_of(self, booking_id: str) -> PodNeeds | None:
        """Read what a booking's pods need of a node; None while its object isn't seen.

        Equal needs are, nearly always, the same object.
        """
        workload = self._workload_of.get(booking_id)
        if workload is not None:
            return workload.needs
        return next((pod.needs for pod in self.pods_of(booking_id).values()), None)

    def group_members(self, group: str) -> tuple[PodFacts, ...]:
        """List the pods of a pod group, ended ones too."""
        return tuple(self._grouped.get(group, {}).values())

    def is_gone(self, uid: str) -> bool:
        """Say whether an object was seen, and then seen to be deleted."""
        return uid in self._gone

    def forget_gone(self, uid: str) -> None:
        """Stop remembering a deleted object."""
        self._gone.pop(uid, None)

    def stranger(self, uid: str, key: str) -> PodFacts | None:
        """Find a pod with GPUs that carries no stamp: older than the install, or exempt."""
        pod = self._unbooked.get(key)
        return pod if pod is not None and pod.uid == uid else None

    @property
    def strange_pods(self) -> Iterator[PodFacts]:
        """Yield all pods with GPUs that carry no stamp."""
        return iter(tuple(self._unbooked.values()))

    def look_at_strangers(self) -> None:
        """Mark all pods with GPUs that carry no stamp to be looked at (again)."""
        for pod in self.strange_pods:
            self.strangers[pod.uid] = pod.key

    def stand_by(self, books: Container[str]) -> None:
        """Drop what only a leader would act on, and who comes to lead looks at all of anyway.

        Replicas that never lead would collect it for as long as they run.
        """
        self.dirty.clear()
        self.strangers.clear()
        self._touched = None
        self._pending = Pending()
        self.detached = {ended for ended in self.detached if ended[0] in books}
        self.disrupted = {key: why for key, why in self.disrupted.items() if key in books}

    def see_workload(self, old: WorkloadFacts | None, new: WorkloadFacts | None) -> None:
        """Take in a workload's change: what was known of it, and what is now."""
        if old is not None and new is not None and old.quietly_became(new):
            if old.booking:
                self._workload_of[old.booking] = new
            return
        if old is not None:
            known = self._workload_of.get(old.booking)
            if known is not None and known.uid == old.uid:
                del self._workload_of[old.booking]
            if new is None:
                _remember(self._gone, old.uid, None)
            self._touch(old.booking)
        if new is not None:
            if new.booking:
                self._workload_of[new.booking] = new
            self._touch(new.booking)

    def see_pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Take in a pod's change: what was known of it, and what is now."""
        if old is not None and new is not None and old.quietly_became(new):
            self._index(old, new)
            return
        self._index(old, new)
        self._count_on_node(old, new)
        if old is not None and new is None:
            self._went(old)
        if new is not None:
            self._came(old, new)

    def _index(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """File a pod under its booking and its group."""
        if old is not None and old.booking and (new is None or new.booking != old.booking):
            _unfile(self._pods_of, old.booking, old.where)
        if old is not None and old.group and (new is None or new.group != old.group):
            _unfile(self._grouped, old.group, old.where)
        if new is not None and new.booking:
            self._pods_of[new.booking][new.where] = new
        if new is not None and new.group:
            self._grouped[new.group][new.where] = new

    def _count_on_node(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Count what a pod takes of its node besides GPUs."""
        before = old if old is not None and old.node and not old.ended else None
        now = new if new is not None and new.node and not new.ended else None
        if (
            before is not None
            and now is not None
            and (before.node, before.needs) == (now.node, now.needs)
        ):
            return
        if now is not None:
            self._free.pod_came(now.node, now.needs)
        if before is not None:
            self._free.pod_left(before.node, before.needs)
            # What becomes free on other nodes serves nobody in line.
            if before.node in self._free.nodes:
                self.changed.set()

    def _serves(self, node: NodeFacts) -> bool:
        """Say whether there may be GPUs on a node."""
        raise NotImplementedError

    def _claims_devices(self, pod: PodFacts) -> bool:
        """Say whether a pod may hold GPUs that come through claims."""
        raise NotImplementedError

    def _went(self, pod: PodFacts) -> None:
        key = pod.key
        if self._unbooked.pop(key, None) is not None:
            self.strangers[pod.uid] = key
            _remember(self._gone, pod.uid, None)
            self.changed.set()
        if pod.stamp:
            self.detached.add((pod.booking, pod.stamp))
            self.changed.set()
        if pod.booking:
            _remember(self._gone, pod.uid, None)
            self._touch(pod.booking)
        if pod.group:
            self._pending.groups.add(pod.group)

    def _came(self, old: PodFacts | None, new: PodFacts) -> None:
        key = new.key
        strange = not new.booking and not new.ended and self._may_hold_gpus(new)
        if strange:
            self._unbooked[key] = new
        if strange or self._unbooked.pop(key, None) is not None:
            self.strangers[new.uid] = key
            self.changed.set()
        if not new.disruption:
            self.disrupted_pods.pop(key, None)
        elif new.booking:
            _remember(self.disrupted_pods, key, new.disruption)
            # News only: the remains of an earlier run must not push the next one out.
            if not new.ended if old is None else not old.disruption:
                self.disrupted[new.booking] = new.disruption
        if new.stamp and new.ended:
            self.detached.add((new.booking, new.stamp))
        for each in (old, new):
            if each is not None and each.booking:
                self._touch(each.booking)
            if each is not None and each.group:
                self._pending.groups.add(each.group)

    def _may_hold_gpus(self, pod: PodFacts) -> bool:
        return pod.asks_gpus or self._claims_devices(pod)

    def _touch(self, booking_id: str) -> None:
        if booking_id:
            self.dirty.add(booking_id)
            if self._touched is not None:
                self._touched.add(booking_id)
                if len(self._touched) > _MOST_TOUCHED:
                    self._touched = None
        self.changed.set()


def _unfile(files: defaultdict[str, dict[Key, PodFacts]], name: str, where: Key) -> None:
    found = files.get(name)
    if found is not None:
        found.pop(where, None)
        if not found:
            del files[name]


def _remember(memory: dict[str, T], key: str, value: T) -> None:
    """Keep the newest; what is forgotten here the API server is asked about later."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]
