"""Objects as resources show them, and what a control plane adds when one is written."""

import uuid
from collections.abc import Callable

from .clock import Clock, timestamp
from .crds import CRDS, CustomKinds, established
from .deletion import is_finished
from .errors import not_found
from .registry import Registry
from .selectors import field_matcher, label_matcher
from .store import Obj, Resource, Store, clone
from .strategy import Strategy
from .subresources import require, scale_of
from .views import from_storage, to_storage

__all__ = ["Storage"]

_CA_MAP = "kube-root-ca.crt"


class Storage:
    """Reads and writes of single objects, below admission."""

    def __init__(self, store: Store, clock: Clock, quota_status: Callable[[Obj], Obj]) -> None:
        self.store = store
        self.clock = clock
        self.registry = Registry()
        self.kinds = CustomKinds(self.registry)
        self.strategy = Strategy(self.kinds)
        self.ca = ""
        """The CA that pods are to trust, in PEM, once a server has one."""
        self._quota_status = quota_status
        for crd in store.list(CRDS):
            self.kinds.serve(crd)

    def now(self) -> str:
        """Give the time as objects carry it."""
        return timestamp(self.clock.now())

    def read(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> Obj:
        """Read one object, or its scale, as a version of its resource shows it.

        Raises ApiError 404.
        """
        require(resource, subresource)
        stored = self.store.get(resource.stored_as, namespace, name)
        if stored is None:
            raise not_found(resource.key, name)
        if subresource == "scale":
            return self.scale(resource, stored)
        return self.shown(resource, stored)

    def scale(self, resource: Resource, obj: Obj) -> Obj:
        """Give the Scale of an object."""
        return scale_of(obj, self.kinds.find(resource))

    def shown(self, resource: Resource, stored: Obj) -> Obj:
        """Give a stored object as the resource shows it."""
        if resource.key == "resourcequotas":
            return {**stored, "status": self._quota_status(stored)}
        return from_storage(resource, stored)

    def list(
        self, resource: Resource, namespace: str | None, label_selector: str, field_selector: str
    ) -> list[Obj]:
        """List objects, of all namespaces if None. Raises ApiError 400 for a bad selector."""
        of_labels = label_matcher(label_selector)
        of_fields = field_matcher(resource.stored_as, field_selector)
        tests = [test for test in (of_labels, of_fields) if test is not None]
        return [
            self.shown(resource, obj)
            for obj in self.store.list(resource.stored_as, namespace)
            if all(test(obj) for test in tests)
        ]

    def exists(self, resource: Resource, namespace: str, name: str) -> bool:
        """Say whether the object is there."""
        return self.store.get(resource.stored_as, namespace, name) is not None

    def add(self, resource: Resource, obj: Obj) -> Obj:
        """Write a new object. Raises ApiError 409."""
        stored = self.store.put(resource.stored_as, to_storage(resource, obj), "")
        self._written(resource, stored)
        return self.shown(resource, stored)

    def replace(self, resource: Resource, current: Obj, new: Obj) -> Obj:
        """Write over an object, which ends if nothing holds it any longer. Raises ApiError 409."""
        if resource.key == CRDS and new["spec"] != current["spec"]:
            new = {**new, "status": established(new, self.now())}
        expected = current["metadata"]["resourceVersion"]
        stored = self.store.put(resource.stored_as, to_storage(resource, new), expected)
        if is_finished(resource, stored):
            return self.remove(resource, stored)
        self._written(resource, stored)
        return self.shown(resource, stored)

    def remove(self, resource: Resource, current: Obj) -> Obj:
        """End an object; a CRD takes its custom resources along."""
        meta = current["metadata"]
        removed = self.store.remove(resource.stored_as, meta.get("namespace", ""), meta["name"])
        if resource.key == CRDS:
            for obj in self.store.list(meta["name"]):
                below = obj["metadata"]
                self.store.remove(meta["name"], below.get("namespace", ""), below["name"])
            self.kinds.drop(removed)
        return self.shown(resource, removed)

    def complete(self, resource: Resource, obj: Obj) -> None:
        """Set in a new object what other parts of a control plane would set at once."""
        if resource.key == CRDS:
            obj["status"] = established(obj, self.now())
        elif resource.key == "services" and obj["spec"].get("type") != "ExternalName":
            number = uuid.UUID(obj["metadata"]["uid"]).int
            address = f"10.96.{number >> 8 & 255}.{number & 255}"
            obj["spec"].setdefault("clusterIP", address)
            obj["spec"].setdefault("clusterIPs", [obj["spec"]["clusterIP"]])

    def install(self, key: str, obj: Obj) -> None:
        """Write an object of the control plane's own, if it isn't there."""
        resource = self.registry.find(key)
        meta = obj["metadata"]
        if self.exists(resource, meta.get("namespace", ""), meta["name"]):
            return
        new = self.strategy.read(resource, clone(obj), "Ignore", [])
        new["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=self.now())
        self.strategy.prepare_create(resource, new)
        self.add(resource, new)

    def trust(self, pem: str) -> None:
        """Publish the CA, in PEM, that pods are to trust, in every namespace."""
        self.ca = pem
        for namespace in self.store.list("namespaces"):
            found = self.store.get("configmaps", namespace["metadata"]["name"], _CA_MAP)
            if found is not None:
                self.store.put("configmaps", {**found, "data": {"ca.crt": pem}})

    def _written(self, resource: Resource, stored: Obj) -> None:
        if resource.key == CRDS:
            self.kinds.serve(stored)
        elif resource.key == "namespaces" and not stored["metadata"].get("deletionTimestamp"):
            self._furnish(stored["metadata"]["name"])

    def _furnish(self, namespace: str) -> None:
        """Put into a namespace what two controllers would: its ServiceAccount and the CA."""
        meta = {"name": "default", "namespace": namespace}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
        self.install("serviceaccounts", account)
        data = {"data": {"ca.crt": self.ca}} if self.ca else {}
        meta = {"name": _CA_MAP, "namespace": namespace}
        self.install(
            "configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **data}
        )
