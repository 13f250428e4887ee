"""Creation, update, apply and deletion: the order in which a write is changed and checked.

Source: k8s.io/apiserver/pkg/registry/generic/registry/store.go, pkg/endpoints/handlers.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .admission import Admission
from .attributes import Attributes, Call, Operation
from .deletion import JOB_WARNING, decide, effective_grace
from .errors import ApiError, already_exists, bad_request, conflict, not_found
from .names import generate_name
from .ownership import apply_configuration, record_update
from .patching import decode_body
from .storage import Storage
from .store import Obj, Resource, clone
from .subresources import SCALE, require, scale_of, with_scale
from .webhooks import WebhookCaller

__all__ = ["Place", "Writer"]

_NAME_ATTEMPTS = 8
_UPDATE_ATTEMPTS = 6
_SYSTEM_FIELDS = (
    *("resourceVersion", "uid", "creationTimestamp", "deletionTimestamp", "generation"),
    "deletionGracePeriodSeconds",
)


@dataclass(frozen=True)
class Place:
    """Where a call goes."""

    resource: Resource
    namespace: str
    name: str = ""
    subresource: str = ""


class Writer:
    """Writes objects through admission and validation."""

    def __init__(self, storage: Storage, webhooks: WebhookCaller) -> None:
        self._storage = storage
        self._strategy = storage.strategy
        self.admission = Admission(storage.store, webhooks, self._reread)

    async def create(self, place: Place, obj: Obj, call: Call, options: Obj | None) -> Obj:
        """Create an object. Raises ApiError."""
        new = self._strategy.read(place.resource, obj, call.field_validation, call.warnings)
        new["metadata"].pop("managedFields", None)
        if call.field_manager:
            now = self._storage.now()
            new = record_update(place.resource, None, new, call.field_manager, now, "")
        return await self._create(place, new, call, options)

    async def _create(self, place: Place, new: Obj, call: Call, options: Obj | None) -> Obj:
        resource, namespace = place.resource, place.namespace
        meta = new["metadata"]
        _put_into(resource, meta, namespace)
        if meta.get("resourceVersion") not in (None, "", "0"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        for field in _SYSTEM_FIELDS:
            meta.pop(field, None)
        request = self.request(place, "CREATE", call, new, None, options)
        await self.admission.mutate(request)
        assert request.object is not None
        new = request.object
        base = new["metadata"].get("generateName", "")
        generated = not new["metadata"].get("name") and base
        for attempt in range(_NAME_ATTEMPTS):
            candidate = clone(new)
            meta = candidate["metadata"]
            if generated:
                meta["name"] = generate_name(base)
            _put_into(resource, meta, namespace)
            meta.setdefault("name", "")
            meta.update(uid=str(uuid.uuid4()), creationTimestamp=self._storage.now())
            self._strategy.prepare_create(resource, candidate)
            self._strategy.check_create(resource, candidate)
            self._storage.complete(resource, candidate)
            request.object, request.name = candidate, meta["name"]
            await self.admission.validate(request)
            if not self._storage.exists(resource, namespace, meta["name"]):
                break
            if not generated or attempt == _NAME_ATTEMPTS - 1:
                raise already_exists(resource.key, meta["name"])
        return candidate if call.dry_run else self._storage.add(resource, candidate)

    async def apply(
        self, place: Place, patch: bytes, call: Call, options: Obj | None, *, force: bool
    ) -> Obj:
        """Server-side apply. Raises ApiError."""
        resource = place.resource
        if not call.field_manager:
            raise bad_request(
                "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required "
                "for apply patch"
            )
        configuration = decode_body(patch)
        if not isinstance(configuration, dict):
            raise bad_request("error decoding YAML: not an object")
        configuration.setdefault("metadata", {}).setdefault("name", place.name)
        configuration["metadata"].pop("creationTimestamp", None)
        # Read it once for unknown fields, of which the merged object says nothing.
        self._strategy.read(resource, clone(configuration), call.field_validation, call.warnings)

        def merged(current: Obj | None) -> Obj:
            return apply_configuration(
                resource,
                current,
                configuration,
                call.field_manager,
                self._storage.now(),
                force=force,
                subresource=place.subresource,
            )

        if not self._storage.exists(resource, place.namespace, place.name):
            if place.subresource:
                raise not_found(resource.key, place.name)
            new = self._strategy.read(resource, merged(None), "Ignore", call.warnings)
            return await self._create(place, new, call, options)
        version = configuration["metadata"].get("resourceVersion")
        return await self.update(place, merged, call, options, version, applied=True)

    async def update(
        self,
        place: Place,
        change: Callable[[Obj], Obj],
        call: Call,
        options: Obj | None,
        version: str | None,
        *,
        applied: bool = False,
    ) -> Obj:
        """Change an object; again if another did meanwhile, unless its version was named.

        Raises ApiError.
        """
        resource = place.resource
        require(resource, place.subresource)
        for attempt in range(_UPDATE_ATTEMPTS):
            current = self._storage.read(resource, place.namespace, place.name)
            if version and version != current["metadata"]["resourceVersion"]:
                raise conflict(resource.key, place.name)
            if place.subresource == "scale":
                new = await self._scaled(place, current, change, call, options)
            else:
                new = await self._changed(place, current, change, call, options, applied=applied)
            if _same(current, new):
                return current
            if call.dry_run:
                return new
            try:
                return self._storage.replace(resource, current, new)
            except ApiError as error:
                if error.reason != "Conflict" or version or attempt == _UPDATE_ATTEMPTS - 1:
                    raise
        raise conflict(resource.key, place.name)

    async def _changed(
        self,
        place: Place,
        current: Obj,
        change: Callable[[Obj], Obj],
        call: Call,
        options: Obj | None,
        *,
        applied: bool,
    ) -> Obj:
        resource, subresource, meta = place.resource, place.subresource, current["metadata"]
        new = change(current)
        new = self._strategy.read(resource, new, call.field_validation, call.warnings)
        _check_preconditions(resource, current, {"uid": new["metadata"].get("uid")})
        _put_into(resource, new["metadata"], meta.get("namespace", ""))
        new["metadata"].update(name=meta["name"], resourceVersion=meta["resourceVersion"])
        if "managedFields" in meta:
            new["metadata"].setdefault("managedFields", meta["managedFields"])
        new = self._prepared(place, current, new)
        if call.field_manager and not applied:
            now = self._storage.now()
            new = record_update(resource, current, new, call.field_manager, now, subresource)
        request = self.request(place, "UPDATE", call, new, current, options)
        await self.admission.mutate(request)
        assert request.object is not None
        if request.object is not new:
            new = self._prepared(place, current, clone(request.object))
        else:
            new = {**new, "metadata": dict(new["metadata"])}
        self._strategy.count_generation(current, new)
        self._strategy.check_update(resource, current, new, subresource)
        request.object = new
        await self.admission.validate(request)
        return new

    def _prepared(self, place: Place, current: Obj, new: Obj) -> Obj:
        status = new.get("status")
        new = self._strategy.prepare_update(place.resource, current, new, place.subresource)
        return {**new, "status": status} if place.subresource == "status" and status else new

    async def _scaled(
        self,
        place: Place,
        current: Obj,
        change: Callable[[Obj], Obj],
        call: Call,
        options: Obj | None,
    ) -> Obj:
        resource = place.resource
        custom = self._storage.kinds.find(resource)
        before = scale_of(current, custom)
        request = self.request(place, "UPDATE", call, change(before), before, options)
        request.kind = SCALE
        await self.admission.mutate(request)
        assert request.object is not None
        new = with_scale(current, request.object, custom)
        new = self._strategy.prepare_update(resource, current, new, "scale")
        self._strategy.count_generation(current, new)
        self._strategy.check_update(resource, current, new, "scale")
        await self.admission.validate(request)
        return new

    async def delete(
        self,
        place: Place,
        call: Call,
        options: Obj | None,
        grace_seconds: int | None,
        propagation: str | None,
        preconditions: dict[str, str] | None,
    ) -> Obj:
        """Delete an object, or let its deletion begin. Raises ApiError."""
        resource = place.resource

        def outlook() -> tuple[Obj, int | None, Any]:
            current = self._storage.read(resource, place.namespace, place.name)
            _check_preconditions(resource, current, preconditions)
            grace = effective_grace(resource, current, grace_seconds)
            now = self._storage.clock.now()
            return current, grace, decide(resource, current, grace, propagation, now)

        current, grace, outcome = outlook()
        if outcome.action == "keep":
            return current
        if resource.key == "jobs.batch" and propagation is None:
            call.warnings.append(JOB_WARNING)
        asked = {
            "gracePeriodSeconds": grace,
            "propagationPolicy": propagation,
            "preconditions": preconditions,
        }
        options = {
            **(options or {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}),
            **{name: value for name, value in asked.items() if value is not None},
        }
        request = self.request(place, "DELETE", call, None, current, options)
        await self.admission.mutate(request)
        await self.admission.validate(request)
        current, _, outcome = outlook()
        if outcome.action == "keep" or call.dry_run:
            return current
        if outcome.action == "write":
            return self._storage.replace(resource, current, outcome.object)
        return self._storage.remove(resource, current)

    def request(
        self,
        place: Place,
        operation: Operation,
        call: Call,
        new: Obj | None,
        old: Obj | None,
        options: Obj | None,
    ) -> Attributes:
        """Build what admission sees."""
        meta: Obj = (new or old or {}).get("metadata", {})
        name = str(meta.get("name", "")) or place.name
        # As upstream: the namespace of a Namespace is itself.
        own = name if place.resource.key == "namespaces" else ""
        verb = {"CREATE": "Create", "UPDATE": "Update"}.get(operation, "Delete")
        return Attributes(
            call=call,
            resource=place.resource,
            operation=operation,
            namespace=place.namespace or own,
            name=name,
            object=new,
            old=old,
            options=options or {"kind": f"{verb}Options", "apiVersion": "meta.k8s.io/v1"},
            subresource=place.subresource,
        )

    def _reread(self, request: Attributes, obj: Obj) -> Obj:
        if request.kind is not None:
            return obj
        return self._strategy.read(request.resource, obj, "Ignore", [])


def _put_into(resource: Resource, meta: Obj, namespace: str) -> None:
    """Put an object into the namespace of the request. Raises ApiError 400."""
    if not resource.namespaced:
        meta.pop("namespace", None)
    elif meta.setdefault("namespace", namespace) != namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def _same(old: Obj, new: Obj) -> bool:
    """Compare, but for what a write by itself changes."""
    if any(old.get(part) != new.get(part) for part in {**old, **new} if part != "metadata"):
        return False
    before, after = old["metadata"], new["metadata"]
    ignored = ("managedFields", "resourceVersion")
    return _owned(before) == _owned(after) and all(
        before.get(field) == after.get(field)
        for field in {**before, **after}
        if field not in ignored
    )


def _owned(meta: Obj) -> list[Obj]:
    """Give managedFields without their times."""
    return [{**entry, "time": ""} for entry in meta.get("managedFields") or ()]


def _check_preconditions(
    resource: Resource, obj: Obj, preconditions: dict[str, Any] | None
) -> None:
    for field, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        wanted, found = (preconditions or {}).get(field), obj["metadata"][field]
        if wanted and wanted != found:
            raise conflict(
                resource.key,
                obj["metadata"]["name"],
                f"Precondition failed: {label} in precondition: {wanted}, "
                f"{label} in object meta: {found}",
            )
