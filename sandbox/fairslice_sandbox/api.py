"""The verbs of the API with everything that surrounds them.

Controllers call it in-process; the HTTP front calls it for everybody else. Results are
stored objects: change a `store.clone` of them, never themselves.
Source: k8s.io/apiserver/pkg/registry/generic/registry/store.go, pkg/endpoints/handlers.
"""

import uuid
from collections.abc import Callable
from typing import Any

from .admission import Admission
from .attributes import Attributes, Call, Operation
from .builtin import initial_objects
from .clock import Clock, timestamp
from .crds import CRDS, CustomKinds, established
from .deletion import JOB_WARNING, decide, effective_grace, is_finished
from .errors import ApiError, already_exists, bad_request, conflict, not_found
from .names import generate_name
from .ownership import apply_configuration, record_update
from .patching import apply_patch, decode_body
from .registry import Registry
from .selectors import field_matcher, label_matcher
from .store import Obj, Resource, Store, Subscription, clone
from .strategy import Strategy
from .subresources import (
    SCALE,
    bind,
    blocking_budget,
    require,
    scale_of,
    with_disruption,
    with_scale,
)
from .tokens import Tokens
from .users import UserInfo
from .views import from_storage, to_storage
from .webhooks import WebhookCaller

__all__ = ["APPLY", "Api"]

Objects = list[Obj]
Warnings = list[str]

APPLY = ("application/apply-patch+yaml", "application/apply-patch+cbor")
_CA_MAP = "kube-root-ca.crt"
_NAME_ATTEMPTS = 8
_UPDATE_ATTEMPTS = 6


class Api:
    """The Kubernetes verbs over a store.

    `resource` is the plural, with its group where it has one: "pods", "jobs.batch",
    "teams.fairslice.io". `namespace` is "" for cluster-scoped objects. Failures raise ApiError.
    `webhooks` calls the registered webhooks; `close` ends its connections.
    """

    def __init__(self, store: Store, clock: Clock, webhooks: WebhookCaller | None = None) -> None:
        self.store = store
        self.clock = clock
        self.registry = Registry()
        self.kinds = CustomKinds(self.registry)
        self.tokens = Tokens(store, clock)
        self.webhooks = webhooks or WebhookCaller()
        self.ca = ""
        """The CA that pods are to trust, in PEM, once a server has one."""
        self._strategy = Strategy(self.kinds)
        self._admission = Admission(store, self.webhooks, self._reread)
        for crd in store.list(CRDS):
            self.kinds.serve(crd)
        for key, obj in initial_objects():
            self._install(key, obj)

    async def close(self) -> None:
        """End the connections to webhooks."""
        await self.webhooks.close()

    # Reading.

    def get(self, resource: str, namespace: str, name: str) -> Obj:
        """Read one object. Raises ApiError 404."""
        return self.read(self.registry.find(resource), namespace, name)

    def read(self, resource: Resource, namespace: str, name: str, subresource: str = "") -> Obj:
        """Read one object, or its scale, as a version of its resource shows it."""
        require(resource, subresource)
        stored = self.store.get(resource.stored_as, namespace, name)
        if stored is None:
            raise not_found(resource.key, name)
        return (
            self.scale(resource, stored)
            if subresource == "scale"
            else (self.shown(resource, stored))
        )

    def scale(self, resource: Resource, obj: Obj) -> Obj:
        """Give the Scale of an object."""
        return scale_of(obj, self.kinds.find(resource))

    def shown(self, resource: Resource, stored: Obj) -> Obj:
        """Give a stored object as the resource shows it."""
        if resource.key == "resourcequotas":
            return {**stored, "status": self._admission.plugins.quota_status(stored)}
        return from_storage(resource, stored)

    def list(
        self,
        resource: str,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Objects:
        """List objects, of all namespaces if None."""
        return self.list_of(self.registry.find(resource), namespace, label_selector, field_selector)

    def list_of(
        self,
        found: Resource,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Objects:
        """List objects as a version of their resource shows them."""
        tests = [
            test
            for test in (
                label_matcher(label_selector),
                field_matcher(found.stored_as, field_selector),
            )
            if test is not None
        ]
        return [
            self.shown(found, obj)
            for obj in self.store.list(found.stored_as, namespace)
            if all(test(obj) for test in tests)
        ]

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
        found = self._resource(resource)
        call = _call(user, dry_run, field_manager, field_validation, warnings)
        new = self._strategy.read(found, clone(obj), field_validation, call.warnings)
        return await self._create(found, namespace, new, call, options)

    async def _create(
        self, resource: Resource, namespace: str, new: Obj, call: Call, options: Obj | None
    ) -> Obj:
        meta = new["metadata"]
        _place(resource, meta, namespace)
        for field in ("resourceVersion", "uid", "creationTimestamp", "deletionTimestamp",
                      "deletionGracePeriodSeconds", "generation"):  # fmt: skip
            if field == "resourceVersion" and meta.get(field) not in (None, "", "0"):
                raise bad_request("resourceVersion should not be set on objects to be created")
            meta.pop(field, None)
        now = timestamp(self.clock.now())
        if call.field_manager:
            meta.pop("managedFields", None) if not options or "force" not in options else None
            if "managedFields" not in meta:
                new = record_update(resource, None, new, call.field_manager, now, "")
        request = self._request(resource, "CREATE", namespace, call, new, None, options)
        await self._admission.mutate(request)
        assert request.object is not None
        new = request.object
        base = new["metadata"].get("generateName", "")
        generated = not new["metadata"].get("name") and base
        for attempt in range(_NAME_ATTEMPTS):
            candidate = clone(new)
            meta = candidate["metadata"]
            if generated:
                meta["name"] = generate_name(base)
            _place(resource, meta, namespace)
            meta["uid"], meta["creationTimestamp"] = str(uuid.uuid4()), now
            self._strategy.prepare_create(resource, candidate)
            self._complete(resource, candidate, now)
            self._strategy.check_create(resource, candidate)
            request.object, request.name = candidate, meta["name"]
            await self._admission.validate(request)
            if self.store.get(resource.stored_as, namespace, meta["name"]) is None:
                break
            if not generated or attempt == _NAME_ATTEMPTS - 1:
                raise already_exists(resource.key, meta["name"])
        if call.dry_run:
            return candidate
        stored = self.store.put(resource.stored_as, to_storage(resource, candidate), "")
        self._after_write(resource, stored)
        return self.shown(resource, stored)

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
        found = self._resource(resource)
        call = _call(user, dry_run, field_manager, field_validation, warnings)
        given = obj.get("metadata", {}).get("name", name)
        if given != name:
            raise bad_request(
                f"the name of the object ({given}) does not match the name on the URL ({name})"
            )
        version = obj.get("metadata", {}).get("resourceVersion")
        return await self._update(
            found, namespace, name, lambda current: clone(obj), call, subresource, options, version
        )

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
        found = self._resource(resource)
        call = _call(user, dry_run, field_manager, field_validation, warnings)
        if content_type in APPLY:
            return await self._apply(
                found, namespace, name, patch, call, subresource, options, force=force
            )
        if "strategic" in content_type and self.kinds.find(found) is not None:
            apply_patch({}, b"{}", "")
        change = None if "json-patch+json" in content_type else decode_body(patch)
        version = ((change or {}).get("metadata") or {}).get("resourceVersion")

        def patched(current: Obj) -> Obj:
            return apply_patch(current, patch, content_type)

        return await self._update(
            found, namespace, name, patched, call, subresource, options, version
        )

    async def _apply(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: bytes,
        call: Call,
        subresource: str,
        options: Obj | None,
        *,
        force: bool,
    ) -> Obj:
        if not call.field_manager:
            raise bad_request("PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: "
                              "is required for apply patch")  # fmt: skip
        configuration = decode_body(patch)
        if not isinstance(configuration, dict):
            raise bad_request("error decoding YAML: not an object")
        configuration.setdefault("metadata", {}).setdefault("name", name)
        configuration["metadata"].pop("creationTimestamp", None)
        # Read it once for unknown fields, of which the merged object says nothing.
        self._strategy.read(resource, clone(configuration), call.field_validation, call.warnings)
        now = timestamp(self.clock.now())

        def merged(current: Obj | None) -> Obj:
            return apply_configuration(
                resource, current, configuration, call.field_manager, now,
                force=force, subresource=subresource,
            )  # fmt: skip

        if self.store.get(resource.stored_as, namespace, name) is None:
            if subresource:
                raise not_found(resource.key, name)
            new = self._strategy.read(resource, merged(None), "Ignore", call.warnings)
            return await self._create(resource, namespace, new, call, options)
        version = configuration["metadata"].get("resourceVersion")
        return await self._update(
            resource, namespace, name, merged, call, subresource, options, version, applied=True
        )

    async def _update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Obj], Obj],
        call: Call,
        subresource: str,
        options: Obj | None,
        version: str | None,
        *,
        applied: bool = False,
    ) -> Obj:
        require(resource, subresource)
        for attempt in range(_UPDATE_ATTEMPTS):
            current = self.read(resource, namespace, name)
            if version and version != current["metadata"]["resourceVersion"]:
                raise conflict(resource.key, name)
            if subresource == "scale":
                new = await self._scaled(resource, current, change, call, options)
            else:
                new = await self._changed(
                    resource, current, change, call, subresource, options, applied=applied
                )
            if call.dry_run or _same(current, new):
                return current if _same(current, new) else new
            try:
                return self._write(resource, current, new)
            except ApiError as error:
                if error.reason != "Conflict" or version or attempt == _UPDATE_ATTEMPTS - 1:
                    raise
        raise conflict(resource.key, name)

    async def _changed(
        self,
        resource: Resource,
        current: Obj,
        change: Callable[[Obj], Obj],
        call: Call,
        subresource: str,
        options: Obj | None,
        *,
        applied: bool,
    ) -> Obj:
        meta = current["metadata"]
        new = change(current)
        new = self._strategy.read(resource, new, call.field_validation, call.warnings)
        if (wanted := new["metadata"].get("uid", meta["uid"])) != meta["uid"]:
            why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: "
            raise conflict(resource.key, meta["name"], why + str(meta["uid"]))
        _place(resource, new["metadata"], meta.get("namespace", ""))
        new["metadata"].update(name=meta["name"], resourceVersion=meta["resourceVersion"])
        new = self._prepared(resource, current, new, subresource)
        if call.field_manager and not applied:
            now = timestamp(self.clock.now())
            new = record_update(resource, current, new, call.field_manager, now, subresource)
        elif not call.field_manager and "managedFields" in meta:
            new["metadata"].setdefault("managedFields", meta["managedFields"])
        request = self._request(
            resource, "UPDATE", meta.get("namespace", ""), call, new, current, options, subresource
        )
        await self._admission.mutate(request)
        assert request.object is not None
        if request.object is not new:
            new = self._prepared(resource, current, clone(request.object), subresource)
        self._strategy.check_update(resource, current, new, subresource)
        request.object = new
        await self._admission.validate(request)
        return new

    def _prepared(self, resource: Resource, current: Obj, new: Obj, subresource: str) -> Obj:
        status = new.get("status")
        new = self._strategy.prepare_update(resource, current, new, subresource)
        return {**new, "status": status} if subresource == "status" and status else new

    async def _scaled(
        self,
        resource: Resource,
        current: Obj,
        change: Callable[[Obj], Obj],
        call: Call,
        options: Obj | None,
    ) -> Obj:
        custom = self.kinds.find(resource)
        before = scale_of(current, custom)
        request = self._request(
            resource, "UPDATE", current["metadata"].get("namespace", ""), call,
            change(before), before, options, "scale",
        )  # fmt: skip
        request.kind = SCALE
        await self._admission.mutate(request)
        assert request.object is not None
        new = with_scale(current, request.object, custom)
        new = self._strategy.prepare_update(resource, current, new, "scale")
        self._strategy.check_update(resource, current, new, "scale")
        await self._admission.validate(request)
        return new

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
        found = self._resource(resource)
        call = _call(user, dry_run, "", "", warnings)
        current = self.read(found, namespace, name)
        _check_preconditions(found, current, preconditions)
        grace = effective_grace(found, current, grace_seconds)
        if options is None:
            options = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
        if grace is not None:
            options = {**options, "gracePeriodSeconds": grace}
        if propagation:
            options = {**options, "propagationPolicy": propagation}
        if preconditions:
            options = {**options, "preconditions": preconditions}
        if decide(found, current, grace, propagation, self.clock.now()).action == "keep":
            return current
        if found.key == "jobs.batch" and propagation is None:
            call.warnings.append(JOB_WARNING)
        request = self._request(found, "DELETE", namespace, call, None, current, options)
        await self._admission.mutate(request)
        await self._admission.validate(request)
        for _ in range(_UPDATE_ATTEMPTS):
            current = self.read(found, namespace, name)
            _check_preconditions(found, current, preconditions)
            grace = effective_grace(found, current, grace_seconds)
            outcome = decide(found, current, grace, propagation, self.clock.now())
            if outcome.action == "keep" or dry_run:
                return outcome.object
            if outcome.action == "write":
                return self._write(found, current, outcome.object)
            return self._remove(found, current)
        raise conflict(found.key, name)

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
        found = self._resource(resource)
        call = _call(user, dry_run, "", "", warnings)
        require(found, subresource)
        current = self.read(found, namespace, name)
        kinds = {
            "binding": ("", "v1", "Binding"),
            "eviction": ("policy", "v1", "Eviction"),
            "token": ("authentication.k8s.io", "v1", "TokenRequest"),
        }
        if subresource not in kinds:
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method")
        request = self._request(found, "CREATE", namespace, call, clone(obj), None, options,
                                subresource)  # fmt: skip
        request.kind, request.name = kinds[subresource], name
        await self._admission.mutate(request)
        await self._admission.validate(request)
        now = timestamp(self.clock.now())
        if subresource == "token":
            return self._token(current, obj)
        current = self.read(found, namespace, name)
        if subresource == "binding":
            bound = bind(current, obj, now)
            if not dry_run:
                self._write(found, current, bound)
        else:
            await self._evict(found, current, obj, user, now, dry_run=dry_run)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "code": 201}  # fmt: skip

    async def _evict(
        self, resource: Resource, pod: Obj, eviction: Obj, user: UserInfo, now: str, *,
        dry_run: bool,
    ) -> None:  # fmt: skip
        budget = blocking_budget(self.store, pod, now)
        if dry_run:
            return
        if budget is not None:
            self.store.put("poddisruptionbudgets.policy", budget,
                           budget["metadata"]["resourceVersion"])  # fmt: skip
        if not pod["metadata"].get("deletionTimestamp"):
            pod = self._write(resource, pod, with_disruption(pod, now))
        asked = eviction.get("deleteOptions") or {}
        meta = pod["metadata"]
        await self.delete(
            resource,
            meta["namespace"],
            meta["name"],
            user=user,
            grace_seconds=asked.get("gracePeriodSeconds"),
            preconditions=asked.get("preconditions"),
        )

    def _token(self, account: Obj, asked: Obj) -> Obj:
        meta = account["metadata"]
        seconds = int(asked.get("spec", {}).get("expirationSeconds") or 3600)
        token, expiry = self.tokens.issue(meta["namespace"], meta["name"], meta["uid"], seconds)
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            "spec": {**asked.get("spec", {}), "expirationSeconds": seconds},
            "status": {"token": token, "expirationTimestamp": expiry},
        }

    # The machinery.

    def _resource(self, resource: str | Resource) -> Resource:
        return resource if isinstance(resource, Resource) else self.registry.find(resource)

    def _request(
        self,
        resource: Resource,
        operation: Operation,
        namespace: str,
        call: Call,
        new: Obj | None,
        old: Obj | None,
        options: Obj | None,
        subresource: str = "",
    ) -> Attributes:
        verb = {"CREATE": "Create", "UPDATE": "Update"}.get(operation, "Delete")
        meta: Obj = (new or old or {}).get("metadata", {})
        return Attributes(
            call=call,
            resource=resource,
            operation=operation,
            namespace=namespace
            or (str(meta.get("name", "")) if resource.key == "namespaces" else ""),
            name=str(meta.get("name", "")),
            object=new,
            old=old,
            options=options or {"kind": f"{verb}Options", "apiVersion": "meta.k8s.io/v1"},
            subresource=subresource,
        )

    def _reread(self, request: Attributes, obj: Obj) -> Obj:
        if request.kind is not None:
            return obj
        return self._strategy.read(request.resource, obj, "Ignore", [])

    def _complete(self, resource: Resource, obj: Obj, now: str) -> None:
        """Set what other parts of a control plane would set at once."""
        if resource.key == CRDS:
            obj["status"] = established(obj, now)
        elif resource.key == "services" and obj["spec"].get("type") != "ExternalName":
            number = uuid.UUID(obj["metadata"]["uid"]).int
            address = f"10.96.{number >> 8 & 255}.{number & 255}"
            obj["spec"].setdefault("clusterIP", address)
            obj["spec"].setdefault("clusterIPs", [obj["spec"]["clusterIP"]])

    def _write(self, resource: Resource, current: Obj, new: Obj) -> Obj:
        if resource.key == CRDS and new["spec"] != current["spec"]:
            new = {**new, "status": established(new, timestamp(self.clock.now()))}
        expected = current["metadata"]["resourceVersion"]
        stored = self.store.put(resource.stored_as, to_storage(resource, new), expected)
        if is_finished(resource, stored):
            return self._remove(resource, stored)
        self._after_write(resource, stored)
        return self.shown(resource, stored)

    def _remove(self, resource: Resource, current: Obj) -> Obj:
        meta = current["metadata"]
        removed = self.store.remove(resource.stored_as, meta.get("namespace", ""), meta["name"])
        if resource.key == CRDS:
            for obj in self.store.list(meta["name"]):
                self.store.remove(
                    meta["name"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
                )
            self.kinds.drop(removed)
        return self.shown(resource, removed)

    def _after_write(self, resource: Resource, stored: Obj) -> None:
        if resource.key == CRDS:
            self.kinds.serve(stored)
        elif resource.key == "namespaces" and not stored["metadata"].get("deletionTimestamp"):
            self._furnish(stored["metadata"]["name"])

    def _furnish(self, namespace: str) -> None:
        """Put into a namespace what two controllers would: its ServiceAccount and the CA."""
        meta = {"name": "default", "namespace": namespace}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
        self._install("serviceaccounts", account)
        if self.store.get("configmaps", namespace, _CA_MAP) is None:
            self.publish_ca(namespace, self.ca)

    def publish_ca(self, namespace: str, pem: str) -> None:
        """Write the ConfigMap from which pods take the CA."""
        found = self.store.get("configmaps", namespace, _CA_MAP)
        if found is not None:
            self.store.put("configmaps", {**found, "data": {"ca.crt": pem}})
            return
        meta = {"name": _CA_MAP, "namespace": namespace}
        data = {"data": {"ca.crt": pem}} if pem else {}
        obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, **data}
        self._install("configmaps", obj)

    def _install(self, key: str, obj: Obj) -> None:
        """Write an object of the control plane's own, if it isn't there."""
        resource = self.registry.find(key)
        meta = obj["metadata"]
        if self.store.get(key, meta.get("namespace", ""), meta["name"]) is not None:
            return
        new = self._strategy.read(resource, clone(obj), "Ignore", [])
        now = timestamp(self.clock.now())
        new["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now)
        self._strategy.prepare_create(resource, new)
        self._after_write(resource, self.store.put(key, new, ""))


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


def _place(resource: Resource, meta: Obj, namespace: str) -> None:
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
    ignored = ("managedFields", "resourceVersion")
    before, after = old["metadata"], new["metadata"]
    return all(before.get(k) == after.get(k) for k in {**before, **after} if k not in ignored)


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
