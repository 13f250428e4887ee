"""The sandbox's etcd and watch cache: versioned JSON objects in memory."""

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from .errors import already_exists, conflict, gone, not_found

__all__ = ["Event", "EventType", "Obj", "Resource", "Store", "Subscription", "clone"]

Obj = dict[str, Any]
EventType = Literal["ADDED", "MODIFIED", "DELETED"]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def clone(obj: Obj) -> Obj:
    """Copy an object deeply, to change it. A JSON round trip is 10 times faster than deepcopy."""
    copied: Obj = _decode(_encode(obj))
    return copied


@dataclass(frozen=True)
class Resource:
    """One kind of object as the API serves it."""

    group: str
    version: str
    plural: str
    kind: str
    singular: str
    namespaced: bool
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    storage: str = ""
    """Key of the resource whose objects this one shows, where it is a view of another."""

    @property
    def key(self) -> str:
        """Plural and group: pods, jobs.batch, teams.fairslice.io."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def stored_as(self) -> str:
        """Key under which the store holds the objects."""
        return self.storage or self.key

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


@dataclass(frozen=True, slots=True)
class Event:
    """One change: the object after it (for DELETED, at its end) and before it."""

    type: EventType
    resource: str
    object: Obj
    previous: Obj | None
    version: int


# Inside Store, `list` is a method.
Events = list[Event]


class Subscription:
    """Events as they come. Iterate with `async for`, or take them with `get` and `drain`."""

    def __init__(self, store: "Store", resource: str | None, backlog: list[Event]) -> None:
        self.resource = resource
        self._store = store
        self._events: deque[Event] = deque(backlog)
        self._ready = asyncio.Event()
        self._lost = False
        if backlog:
            self._ready.set()

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Event:
        return await self.get()

    async def get(self) -> Event:
        """Wait for the next event. Raises ApiError 410 when too many were left waiting."""
        await self._ready.wait()
        return self._take()

    def drain(self) -> list[Event]:
        """Take what waits, without waiting. Raises ApiError 410 as `get` does."""
        return [self._take() for _ in range(len(self._events) + self._lost)]

    @property
    def waiting(self) -> bool:
        """Whether an event can be taken without waiting."""
        return self._ready.is_set()

    def close(self) -> None:
        """Stop receiving."""
        self._store._forget(self)

    def push(self, event: Event) -> None:
        if len(self._events) >= self._store.history:
            self._lost = True
            self._events.clear()
            self.close()
        else:
            self._events.append(event)
        self._ready.set()

    def _take(self) -> Event:
        if self._lost:
            raise gone("too old resource version: the watcher fell behind")
        event = self._events.popleft()
        if not self._events:
            self._ready.clear()
        return event


class Store:
    """Objects by resource, namespace and name, under one global resourceVersion.

    Stored objects are immutable: whoever changes one works on a `clone`. `resource` is the
    key of a Resource ("pods", "jobs.batch"); the namespace of cluster-scoped objects is "".
    """

    def __init__(self, history: int = 20_000) -> None:
        self.history = history
        self.version = 1
        self._objects: dict[str, dict[str, dict[str, Obj]]] = {}
        self._log: deque[Event] = deque(maxlen=history)
        self._compacted = 1
        self._changed: dict[str, int] = {}
        self._subscribers: dict[str | None, set[Subscription]] = {}

    def get(self, resource: str, namespace: str, name: str) -> Obj | None:
        """Find one object."""
        return self._objects.get(resource, {}).get(namespace, {}).get(name)

    def list(self, resource: str, namespace: str | None = None) -> Iterator[Obj]:
        """Go through the objects in order of creation; of all namespaces if None."""
        spaces = self._objects.get(resource, {})
        if namespace is not None:
            return iter(tuple(spaces.get(namespace, {}).values()))
        return iter([obj for space in spaces.values() for obj in space.values()])

    def resources(self) -> tuple[str, ...]:
        """Name the resources that have ever held an object."""
        return tuple(self._objects)

    def changed(self, resource: str) -> int:
        """Give the resourceVersion of the last change to a resource, 0 if there was none."""
        return self._changed.get(resource, 0)

    def put(self, resource: str, obj: Obj, expected: str | None = None) -> Obj:
        """Write an object and give it a new resourceVersion.

        `expected` is the resourceVersion that must be there now, "" for none at all.
        Raises ApiError 409 if another is there, 404 if the object has gone.
        """
        meta = obj["metadata"]
        namespace, name = meta.get("namespace", ""), meta["name"]
        previous = self.get(resource, namespace, name)
        if expected == "" and previous is not None:
            raise already_exists(resource, name)
        if expected:
            if previous is None:
                raise not_found(resource, name)
            if previous["metadata"]["resourceVersion"] != expected:
                raise conflict(resource, name)
        self.version += 1
        stored = {**obj, "metadata": {**meta, "resourceVersion": str(self.version)}}
        self._objects.setdefault(resource, {}).setdefault(namespace, {})[name] = stored
        kind: EventType = "ADDED" if previous is None else "MODIFIED"
        self._publish(Event(kind, resource, stored, previous, self.version))
        return stored

    def remove(self, resource: str, namespace: str, name: str, expected: str | None = None) -> Obj:
        """Delete an object; the result carries the resourceVersion of its end.

        Raises ApiError 404 if it isn't there, 409 if `expected` is not its resourceVersion.
        """
        previous = self.get(resource, namespace, name)
        if previous is None:
            raise not_found(resource, name)
        if expected and previous["metadata"]["resourceVersion"] != expected:
            raise conflict(resource, name)
        del self._objects[resource][namespace][name]
        self.version += 1
        meta = {**previous["metadata"], "resourceVersion": str(self.version)}
        last = {**previous, "metadata": meta}
        self._publish(Event("DELETED", resource, last, previous, self.version))
        return last

    def events_since(self, version: int, resource: str | None = None) -> Events:
        """Give the logged events after a resourceVersion. Raises ApiError 410 if it expired."""
        if version < self._compacted:
            raise gone(f"too old resource version: {version} ({self._compacted})")
        found: Events = []
        for event in reversed(self._log):
            if event.version <= version:
                break
            if resource is None or event.resource == resource:
                found.append(event)
        found.reverse()
        return found

    def subscribe(self, resource: str | None = None, since_rv: int | None = None) -> Subscription:
        """Receive events of a resource (of all if None), from now or after a resourceVersion.

        Raises ApiError 410 if that resourceVersion has expired.
        """
        backlog = [] if since_rv is None else self.events_since(since_rv, resource)
        subscription = Subscription(self, resource, backlog)
        self._subscribers.setdefault(resource, set()).add(subscription)
        return subscription

    def compact(self) -> None:
        """Forget the event log, so that older watches and continue tokens expire."""
        self._log.clear()
        self._compacted = self.version

    @property
    def oldest(self) -> int:
        """The oldest resourceVersion from which a watch can start."""
        return self._compacted

    def _publish(self, event: Event) -> None:
        if len(self._log) == self.history:
            self._compacted = self._log[0].version
        self._log.append(event)
        self._changed[event.resource] = event.version
        for key in (event.resource, None):
            for subscription in tuple(self._subscribers.get(key, ())):
                subscription.push(event)

    def _forget(self, subscription: Subscription) -> None:
        self._subscribers.get(subscription.resource, set()).discard(subscription)
