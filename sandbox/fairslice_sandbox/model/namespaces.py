"""The namespace controller: empties a namespace that is being deleted, then lets it go."""

from collections.abc import Callable, Iterable

from fairslice_sandbox.model.client import Client
from fairslice_sandbox.model.controller import Backoff, WorkQueue
from fairslice_sandbox.model.objects import Obj, is_deleting, key_of, uid

__all__ = ["NamespaceController"]


class NamespaceController:
    """Deletes what is in terminating namespaces."""

    def __init__(
        self, client: Client, resources: Callable[[], Iterable[str]], retry: Backoff
    ) -> None:
        """`resources` names all resources."""
        self._client = client
        self._resources = resources
        self.queue: WorkQueue[str] = WorkQueue(self._reconcile, client.clock, retry)

    def on_namespace(self, namespace: Obj) -> None:
        """Look at a namespace that changed."""
        if is_deleting(namespace):
            self.queue.add(key_of(namespace).name)

    def on_removal(self, obj: Obj) -> None:
        """Look again at the namespace of an object that went."""
        if key_of(obj).namespace:
            self.queue.add(key_of(obj).namespace)

    async def _reconcile(self, name: str) -> float | None:
        found = [n for n in self._client.list("namespaces") if key_of(n).name == name]
        if not found or not is_deleting(found[0]):
            return None
        left = [(r, obj) for r in self._resources() for obj in self._client.list(r, name)]
        for resource, obj in left:
            if not is_deleting(obj):
                await self._client.delete(
                    resource, key_of(obj), uid=uid(obj), propagation="Background"
                )
        if not any(list(self._client.list(resource, name)) for resource in self._resources()):
            released = {**found[0], "spec": {**(found[0].get("spec") or {}), "finalizers": []}}
            await self._client.update("namespaces", released, "finalize")
        return None
