"""The API server as one control-plane component uses it, under that component's identity."""

from typing import TYPE_CHECKING

import msgspec

from fairslice_sandbox.clock import Clock
from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.model.objects import Key, Obj, key_of, rfc3339
from fairslice_sandbox.users import UserInfo

if TYPE_CHECKING:
    from fairslice_sandbox.api import Api

__all__ = ["ApiError", "Client", "Clock"]

_STRATEGIC = "application/strategic-merge-patch+json"
_MERGE = "application/merge-patch+json"
_CONFLICT_RETRIES = 5
# Custom resources know no strategic merge; of the built-in ones we patch only these.
_BUILT_IN = frozenset({"pods", "nodes", "jobs.batch"})


class Client:
    """Reads and writes objects as one user. Writes raise ApiError."""

    def __init__(self, api: "Api", clock: Clock, user: UserInfo, component: str) -> None:
        """Name the component as its events should."""
        self.clock = clock
        self._api = api
        self._user = user
        self._component = component

    def list(self, resource: str, namespace: str | None = None) -> list[Obj]:
        """List stored objects, which must not be changed."""
        return list(self._api.store.list(resource, namespace))

    def get(self, resource: str, key: Key) -> Obj | None:
        """Read a stored object, which must not be changed."""
        return self._api.store.get(resource, key.namespace, key.name)

    async def create(self, resource: str, namespace: str, obj: Obj) -> Obj:
        """Create an object."""
        return await self._api.create(resource, namespace, obj, user=self._user)

    async def update(self, resource: str, obj: Obj, subresource: str = "") -> Obj:
        """Replace an object; a Conflict if it changed since it was read."""
        meta = obj["metadata"]
        return await self._api.update(
            resource,
            meta.get("namespace", ""),
            meta["name"],
            obj,
            user=self._user,
            subresource=subresource,
        )

    async def write_status(self, resource: str, obj: Obj, status: Obj) -> None:
        """Replace the status of an object as it was read; a Conflict if it changed since."""
        await self.update(resource, {**obj, "status": status}, "status")

    async def patch(self, resource: str, key: Key, patch: Obj, subresource: str = "") -> Obj:
        """Patch an object: strategic merge for built-in kinds with merge keys, else merge."""
        return await self._api.patch(
            resource,
            key.namespace,
            key.name,
            msgspec.json.encode(patch),
            _STRATEGIC if resource in _BUILT_IN else _MERGE,
            user=self._user,
            subresource=subresource,
        )

    async def drop_finalizer(self, resource: str, obj: Obj, finalizer: str) -> None:
        """Remove one finalizer; nothing if it, or the object, is gone."""
        key, uid = key_of(obj), obj["metadata"]["uid"]
        for attempt in range(_CONFLICT_RETRIES):
            found = self.get(resource, key)
            meta = found["metadata"] if found else {}
            present = meta.get("finalizers") or ()
            if meta.get("uid") != uid or finalizer not in present:
                return
            patch = {
                "metadata": {
                    "resourceVersion": meta["resourceVersion"],
                    "finalizers": [item for item in present if item != finalizer],
                }
            }
            try:
                await self._api.patch(
                    resource, *key, msgspec.json.encode(patch), _MERGE, user=self._user
                )
            except ApiError as error:
                if error.code == 409 and attempt + 1 < _CONFLICT_RETRIES:
                    continue
                if error.code != 404:
                    raise
            return

    async def delete(
        self,
        resource: str,
        key: Key,
        *,
        uid: str = "",
        grace_seconds: int | None = None,
        propagation: str | None = None,
    ) -> None:
        """Delete an object, if it still has this uid; nothing if it is gone already."""
        try:
            await self._api.delete(
                resource,
                key.namespace,
                key.name,
                user=self._user,
                grace_seconds=grace_seconds,
                propagation=propagation,
                preconditions={"uid": uid} if uid else None,
            )
        except ApiError as error:
            found = self.get(resource, key)
            if found is not None and (not uid or found["metadata"]["uid"] == uid):
                raise error

    async def bind(self, key: Key, uid: str, node: str) -> None:
        """Put a pod on a node through pods/binding."""
        binding: Obj = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": uid},
            "target": {"kind": "Node", "name": node},
        }
        await self._api.create_subresource(
            "pods", key.namespace, key.name, "binding", binding, user=self._user
        )

    async def event(
        self,
        api_version: str,
        kind: str,
        key: Key,
        uid: str,
        type_: str,
        reason: str,
        message: str,
    ) -> None:
        """Tell people about an object. An event that can't be written is dropped, as upstream."""
        now = rfc3339(self.clock.now())
        namespace = key.namespace or "default"
        body: Obj = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{key.name}.", "namespace": namespace},
            "involvedObject": {
                "apiVersion": api_version,
                "kind": kind,
                "namespace": key.namespace,
                "name": key.name,
                "uid": uid,
            },
            "type": type_,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self.create("events", namespace, body)
        except ApiError:
            return
