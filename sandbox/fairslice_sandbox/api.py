"""The verbs of the API with everything that surrounds them.

Controllers call it in-process; the HTTP front calls it for everybody else. Results are
stored objects: change a `store.clone` of them, never themselves.
"""

from collections.abc import Sequence
from typing import Any

from .clock import Clock
from .store import Obj, Store, Subscription
from .users import UserInfo

__all__ = ["Api"]


class Api:
    """The Kubernetes verbs over a store.

    `resource` is the plural, with its group where it has one: "pods", "jobs.batch",
    "teams.fairslice.io". `namespace` is "" for cluster-scoped objects. Failures raise ApiError.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock

    def get(self, resource: str, namespace: str, name: str) -> Obj:
        """Read one object. Raises ApiError 404."""
        raise NotImplementedError

    def list(
        self,
        resource: str,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> list[Obj]:
        """List objects, of all namespaces if None."""
        raise NotImplementedError

    def subscribe(self, resource: str | None, since_rv: int | None = None) -> Subscription:
        """Receive changes; None for those of every resource. Raises ApiError 410."""
        return self.store.subscribe(resource, since_rv)

    async def create(
        self,
        resource: str,
        namespace: str,
        obj: Obj,
        *,
        user: UserInfo,
        dry_run: bool = False,
        field_manager: str = "",
        field_validation: str = "",
        warnings: list[str] | None = None,
    ) -> Obj:
        """Create an object: defaults, admission, validation. `obj` is not changed."""
        raise NotImplementedError

    async def create_subresource(
        self,
        resource: str,
        namespace: str,
        name: str,
        subresource: str,
        obj: Obj,
        *,
        user: UserInfo,
        dry_run: bool = False,
    ) -> Obj:
        """POST to pods/binding ({"target": {"name": node}}), pods/eviction, serviceaccounts/token.

        An eviction that a PodDisruptionBudget forbids raises ApiError 429.
        """
        raise NotImplementedError

    async def update(
        self,
        resource: str,
        namespace: str,
        name: str,
        obj: Obj,
        *,
        user: UserInfo,
        subresource: str = "",
        dry_run: bool = False,
        field_manager: str = "",
        field_validation: str = "",
        warnings: list[str] | None = None,
    ) -> Obj:
        """Replace an object (or its status, scale, …). A resourceVersion in it must be current."""
        raise NotImplementedError

    async def patch(
        self,
        resource: str,
        namespace: str,
        name: str,
        patch: bytes,
        content_type: str,
        *,
        user: UserInfo,
        subresource: str = "",
        dry_run: bool = False,
        field_manager: str = "",
        field_validation: str = "",
        force: bool = False,
        warnings: list[str] | None = None,
    ) -> Obj:
        """Patch an object: application/json-patch+json, merge-, strategic-merge-, apply-patch."""
        raise NotImplementedError

    async def delete(
        self,
        resource: str,
        namespace: str,
        name: str,
        *,
        user: UserInfo,
        grace_seconds: int | None = None,
        propagation: str | None = None,
        preconditions: dict[str, str] | None = None,
        dry_run: bool = False,
        warnings: list[str] | None = None,
    ) -> Obj:
        """Delete an object: at once, or by a deletionTimestamp that kubelet or finalizers end.

        A kubelet confirms the end of its pod with grace_seconds=0.
        """
        raise NotImplementedError


_ = (Sequence, Any)
