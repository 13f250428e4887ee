"""The verbs of the API with everything that surrounds them.

Controllers call it in-process; the HTTP front calls it for everybody else. Results are
stored objects: change a `store.clone` of them, never themselves.
"""

from .attributes import Call
from .builtin import initial_objects
from .clock import Clock
from .errors import bad_request, method_not_allowed
from .patching import apply_patch, decode_body
from .plugins import Plugins
from .storage import Storage
from .store import Obj, Resource, Store, Subscription, clone
from .subresources import bind, blocking_budget, require, with_disruption
from .tokens import Tokens
from .users import UserInfo
from .webhooks import WebhookCaller
from .writer import Place, Writer

__all__ = ["APPLY", "Api"]

Objects = list[Obj]
Warnings = list[str]

APPLY = ("application/apply-patch+yaml", "application/apply-patch+cbor")
_POSTED = {
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}


class Api:
    """The Kubernetes verbs over a store.

    `resource` is the plural, with its group where it has one: "pods", "jobs.batch",
    "teams.fairslice.io". `namespace` is "" for cluster-scoped objects. Failures raise ApiError.
    `webhooks` calls the registered webhooks; `close` ends its connections.
    """

    def __init__(self, store: Store, clock: Clock, webhooks: WebhookCaller | None = None) -> None:
        self.store = store
        self.clock = clock
        self.webhooks = webhooks or WebhookCaller()
        self.tokens = Tokens(store, clock)
        self.storage = Storage(store, clock, Plugins(store).quota_status)
        self.registry = self.storage.registry
        self.kinds = self.storage.kinds
        self._writer = Writer(self.storage, self.webhooks)
        for key, obj in initial_objects():
            self.storage.install(key, obj)

    async def close(self) -> None:
        """End the connections to webhooks."""
        await self.webhooks.close()

    # Reading.

    def get(self, resource: str, namespace: str, name: str) -> Obj:
        """Read one object. Raises ApiError 404."""
        return self.storage.read(self.registry.find(resource), namespace, name)

    def list(
        self,
        resource: str,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Objects:
        """List objects, of all namespaces if None."""
        found = self.registry.find(resource)
        return self.storage.list(found, namespace, label_selector, field_selector)

    def subscribe(self, resource: str | None, since_rv: int | None = None) -> Subscription:
        """Receive changes; None for those of every resource. Raises ApiError 410."""
        key = None if resource is None else self.registry.find(resource).stored_as
        return self.store.subscribe(key, since_rv)

    # Writing.

    async def create(
        self,
        resource: str | Resource,
        namespace: str,
        obj: Obj,
        *,
        user: UserInfo,
        dry_run: bool = False,
        field_manager: str = "",
        field_validation: str = "",
        options: Obj | None = None,
        warnings: Warnings | None = None,
    ) -> Obj:
        """Create an object: defaults, admission, validation. `obj` is not changed."""
        call = _call(user, dry_run, field_manager, field_validation, warnings)
        place = Place(self._resource(resource), namespace)
        return await self._writer.create(place, clone(obj), call, options)

    async def update(
        self,
        resource: str | Resource,
        namespace: str,
        name: str,
        obj: Obj,
        *,
        user: UserInfo,
        subresource: str = "",
        dry_run: bool = False,
        field_manager: str = "",
        field_validation: str = "",
        options: Obj | None = None,
        warnings: Warnings | None = None,
    ) -> Obj:
        """Replace an object (or its status, scale, …). A resourceVersion in it must be current."""
        call = _call(user, dry_run, field_manager, field_validation, warnings)
        place = Place(self._resource(resource), namespace, name, subresource)
        meta = obj.get("metadata") or {}
        if not isinstance(meta, dict):
            raise bad_request("metadata must be an object")
        if (given := meta.get("name", name)) != name:
            raise bad_request(
                f"the name of the object ({given}) does not match the name on the URL ({name})"
            )
        version = meta.get("resourceVersion")
        return await self._writer.update(place, lambda current: clone(obj), call, options, version)

    async def patch(
        self,
        resource: str | Resource,
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
        options: Obj | None = None,
        warnings: Warnings | None = None,
    ) -> Obj:
        """Patch an object: application/json-patch+json, merge-, strategic-merge-, apply-patch."""
        call = _call(user, dry_run, field_manager, field_validation, warnings)
        found = self._resource(resource)
        place = Place(found, namespace, name, subresource)
        if content_type in APPLY:
            return await self._writer.apply(place, patch, call, options, force=force)
        if "strategic" in content_type and self.kinds.find(found) is not None:
            # Custom resources have no merge keys: the media type is unknown to them.
            content_type = ""
        change = None if "json-patch+json" in content_type else decode_body(patch)
        version = ((change or {}).get("metadata") or {}).get("resourceVersion")
        return await self._writer.update(
            place,
            lambda current: apply_patch(current, patch, content_type),
            call,
            options,
            version,
        )

    async def delete(
        self,
        resource: str | Resource,
        namespace: str,
        name: str,
        *,
        user: UserInfo,
        grace_seconds: int | None = None,
        propagation: str | None = None,
        preconditions: dict[str, str] | None = None,
        dry_run: bool = False,
        options: Obj | None = None,
        warnings: Warnings | None = None,
    ) -> Obj:
        """Delete an object: at once, or by a deletionTimestamp that kubelet or finalizers end.

        A kubelet confirms the end of its pod with grace_seconds=0.
        """
        call = _call(user, dry_run, "", "", warnings)
        place = Place(self._resource(resource), namespace, name)
        return await self._writer.delete(
            place, call, options, grace_seconds, propagation, preconditions
        )

    async def create_subresource(
        self,
        resource: str | Resource,
        namespace: str,
        name: str,
        subresource: str,
        obj: Obj,
        *,
        user: UserInfo,
        dry_run: bool = False,
        options: Obj | None = None,
        warnings: Warnings | None = None,
    ) -> Obj:
        """POST to pods/binding ({"target": {"name": node}}), pods/eviction, serviceaccounts/token.

        An eviction that a PodDisruptionBudget forbids raises ApiError 429.
        """
        call = _call(user, dry_run, "", "", warnings)
        found = self._resource(resource)
        require(found, subresource)
        current = self.storage.read(found, namespace, name)
        if subresource not in _POSTED:
            raise method_not_allowed(found.plural)
        place = Place(found, namespace, name, subresource)
        request = self._writer.request(place, "CREATE", call, clone(obj), None, options)
        request.kind, request.name = _POSTED[subresource], name
        await self._writer.admission.mutate(request)
        await self._writer.admission.validate(request)
        if subresource == "token":
            return self._token(current, obj)
        current = self.storage.read(found, namespace, name)
        if subresource == "eviction":
            await self._evict(found, current, obj, call)
        else:
            bound = bind(current, obj, self.storage.now())
            if not dry_run:
                self.storage.replace(found, current, bound)
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return {**status, "code": 201}

    async def _evict(self, resource: Resource, pod: Obj, eviction: Obj, call: Call) -> None:
        now = self.storage.now()
        budget = blocking_budget(self.store, pod, now)
        if call.dry_run:
            return
        if budget is not None:
            version = budget["metadata"]["resourceVersion"]
            self.store.put("poddisruptionbudgets.policy", budget, version)
        if not pod["metadata"].get("deletionTimestamp"):
            pod = self.storage.replace(resource, pod, with_disruption(pod, now))
        asked, meta = eviction.get("deleteOptions") or {}, pod["metadata"]
        place = Place(resource, meta["namespace"], meta["name"])
        await self._writer.delete(
            place, call, None, asked.get("gracePeriodSeconds"), None, asked.get("preconditions")
        )

    def _token(self, account: Obj, asked: Obj) -> Obj:
        meta = account["metadata"]
        spec = asked.get("spec") or {}
        seconds = int(spec.get("expirationSeconds") or 3600)
        token, expiry = self.tokens.issue(meta["namespace"], meta["name"], meta["uid"], seconds)
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            "spec": {**spec, "expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": expiry},
        }

    def _resource(self, resource: str | Resource) -> Resource:
        return resource if isinstance(resource, Resource) else self.registry.find(resource)


def _call(
    user: UserInfo,
    dry_run: bool,
    field_manager: str,
    field_validation: str,
    warnings: Warnings | None,
) -> Call:
    return Call(
        user, dry_run, field_manager, field_validation, [] if warnings is None else warnings
    )
