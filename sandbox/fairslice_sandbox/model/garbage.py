"""The garbage collector: what goes when its owner goes.

Follows garbagecollector.go: background by default, foreground and orphan by finalizer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairslice_sandbox.model.client import ApiError, Client
from fairslice_sandbox.model.controller import Signal
from fairslice_sandbox.model.objects import Obj, is_deleting, key_of, uid

__all__ = ["Delete", "Disown", "GarbageCollector", "Unblock", "collect"]

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the object; `propagation` as its own dependents need it."""

    resource: str
    obj: Obj
    propagation: str


@dataclass(frozen=True, slots=True)
class Disown:
    """Take these owners out of the object's references."""

    resource: str
    obj: Obj
    owners: frozenset[str]


@dataclass(frozen=True, slots=True)
class Unblock:
    """Remove the finalizer that kept the owner while its dependents were dealt with."""

    resource: str
    obj: Obj
    finalizer: str


Action = Delete | Disown | Unblock


def collect(objects: Iterable[tuple[str, Obj]]) -> list[Action]:
    """Decide over all objects, each with its resource."""
    everything = list(objects)
    by_uid = {uid(obj): (resource, obj) for resource, obj in everything}
    dependents: dict[str, list[tuple[str, Obj]]] = {}
    actions: list[Action] = []
    for resource, obj in everything:
        references = obj["metadata"].get("ownerReferences") or ()
        for ref in references:
            dependents.setdefault(ref["uid"], []).append((resource, obj))
        if not references or is_deleting(obj):
            continue
        owners = [by_uid.get(ref["uid"]) for ref in references]
        # An owner of another namespace, or of a reused uid, does not count as one.
        alive = [
            owner
            for owner in owners
            if owner and owner[1]["metadata"].get("namespace") in (None, key_of(obj).namespace)
        ]
        if any(_waits(owner, ORPHAN) for _, owner in alive):
            continue
        solid = [owner for _, owner in alive if not _waits(owner, FOREGROUND)]
        gone = frozenset(
            ref["uid"] for ref in references if ref["uid"] not in {uid(owner) for owner in solid}
        )
        if not solid:
            foreground = any(_waits(owner, FOREGROUND) for _, owner in alive)
            actions.append(Delete(resource, obj, "Foreground" if foreground else "Background"))
        elif gone:
            actions.append(Disown(resource, obj, gone))
    for resource, obj in everything:
        children = dependents.get(uid(obj), [])
        if _waits(obj, ORPHAN):
            mine = frozenset((uid(obj),))
            actions.extend(Disown(kind, child, mine) for kind, child in children)
            if not children:
                actions.append(Unblock(resource, obj, ORPHAN))
        elif _waits(obj, FOREGROUND) and not any(_blocks(child, obj) for _, child in children):
            actions.append(Unblock(resource, obj, FOREGROUND))
    return actions


def _waits(obj: Obj, finalizer: str) -> bool:
    return is_deleting(obj) and finalizer in (obj["metadata"].get("finalizers") or ())


def _blocks(child: Obj, owner: Obj) -> bool:
    return any(
        ref["uid"] == uid(owner) and ref.get("blockOwnerDeletion")
        for ref in child["metadata"].get("ownerReferences") or ()
    )


class GarbageCollector:
    """Collects whenever something was deleted or a new object names an owner."""

    def __init__(
        self, client: Client, resources: Callable[[], Iterable[str]], pause_seconds: float = 0.02
    ) -> None:
        """`resources` names all resources; changes within the pause share one pass."""
        self._client = client
        self._resources = resources
        self._pause_seconds = pause_seconds
        self.changed = Signal(client.clock)

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            await self.changed.wait()
            await self._client.clock.sleep(self._pause_seconds)
            objects = [
                (resource, obj)
                for resource in self._resources()
                for obj in self._client.list(resource)
            ]
            for action in collect(objects):
                try:
                    await self._carry_out(action)
                except ApiError:
                    # Changed or refused: look again, no faster than a retry should.
                    await self._client.clock.sleep(self._pause_seconds * 10)
                    self.changed.set()

    async def _carry_out(self, action: Action) -> None:
        key = key_of(action.obj)
        match action:
            case Delete(resource, obj, propagation):
                await self._client.delete(resource, key, uid=uid(obj), propagation=propagation)
            case Disown(resource, obj, owners):
                kept = [r for r in obj["metadata"]["ownerReferences"] if r["uid"] not in owners]
                meta = {**obj["metadata"], "ownerReferences": kept}
                await self._client.update(resource, {**obj, "metadata": meta})
            case Unblock(resource, obj, finalizer):
                await self._client.drop_finalizer(resource, obj, finalizer)
