"""The verbs over HTTP: reads a request, calls the Api, writes the answer."""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from .api import APPLY, Api
from .bodies import delete_arguments, flag, manager, number, read_object
from .errors import ApiError, bad_request, method_not_allowed
from .pages import Pages
from .rbac import Access, Authorizer
from .reviews import REVIEWS, answer
from .selectors import field_matcher, label_matcher
from .store import Obj
from .tables import partial, table
from .targets import Target, form_of, options_of
from .users import UserInfo
from .watch import WatchRequest, watch

__all__ = ["Handlers", "json_response"]

_encode = msgspec.json.Encoder().encode
_COLLECTION_VERBS = {"POST": "create", "DELETE": "deletecollection"}
_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_VERB_OF_LIST = "list"


def json_response(body: Any, status: int = 200, warnings: list[str] | None = None) -> web.Response:
    """Answer in JSON, with Warning headers."""
    response = web.Response(body=_encode(body), status=status, content_type="application/json")
    for text in warnings or ():
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{quoted}"')
    return response


class Handlers:
    """Serves the paths of resources."""

    def __init__(self, api: Api, authorizer: Authorizer) -> None:
        self._api = api
        self._authorizer = authorizer
        self._pages = Pages(api.store)

    async def handle(
        self, request: web.Request, target: Target, user: UserInfo
    ) -> web.StreamResponse:
        """Answer a request. Raises ApiError."""
        watching = flag(request.query, "watch")
        self._authorize(request.method, target, user, watching=watching)
        if target.resource.plural in REVIEWS and target.resource.group.startswith("auth"):
            return await self._review(request, target, user)
        if target.name:
            named = {
                "GET": self._get,
                "PUT": self._put,
                "PATCH": self._patch,
                "DELETE": self._delete,
                "POST": self._post_subresource,
            }.get(request.method)
            if named is None:
                raise method_not_allowed(target.resource.plural)
            return await named(request, target, user)
        if request.method == "GET":
            if watching:
                return await self._watch(request, target)
            return self._list(request, target)
        if request.method == "POST":
            return await self._create(request, target, user)
        if request.method == "DELETE":
            return await self._delete_collection(request, target, user)
        raise method_not_allowed(target.resource.plural)

    def _authorize(self, method: str, target: Target, user: UserInfo, *, watching: bool) -> None:
        if target.name:
            verb = _VERBS.get(method, "get")
        elif method == "GET":
            verb = "watch" if watching else _VERB_OF_LIST
        else:
            verb = _COLLECTION_VERBS.get(method, "update")
        self._authorizer.require(user, self._access(target, verb))

    def _access(self, target: Target, verb: str) -> Access:
        resource = target.resource
        return Access(
            verb=verb,
            group=resource.group,
            resource=resource.plural,
            subresource=target.subresource,
            namespace=target.namespace or (target.name if resource.key == "namespaces" else ""),
            name=target.name,
        )

    # Reading.

    async def _get(self, request: web.Request, target: Target, user: UserInfo) -> web.Response:
        if target.subresource == "log":
            pod = self._api.storage.read(target.resource, target.namespace or "", target.name)
            return web.Response(text=_log_of(pod))
        if target.subresource not in ("", "status", "scale", "ephemeralcontainers", "resize"):
            raise method_not_allowed(target.resource.plural)
        found = self._api.storage.read(
            target.resource, target.namespace or "", target.name, target.subresource
        )
        return json_response(self._shower(request, target)(found))

    def _list(self, request: web.Request, target: Target) -> web.Response:
        query, resource = request.query, target.resource
        limit = number(query, "limit") or 0
        if token := query.get("continue"):
            objects, meta = self._pages.resume(token, limit)
        else:
            found = self._api.storage.list(
                resource,
                target.namespace or None,
                query.get("labelSelector", ""),
                query.get("fieldSelector", ""),
            )
            # The order of etcd's keys.
            found.sort(key=lambda obj: (obj["metadata"].get("namespace", ""),
                                        obj["metadata"]["name"]))  # fmt: skip
            objects, meta = self._pages.start(found, limit)
            if query.get("labelSelector") or query.get("fieldSelector"):
                meta.pop("remainingItemCount", None)
        form = form_of(request.headers.get("Accept", ""))
        if form == "table":
            body = self._table(request, target, objects)
            body["metadata"] = meta
            return json_response(body)
        if form == "partial":
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
            objects = [partial(obj) for obj in objects]
        else:
            kind, version = f"{resource.kind}List", resource.api_version
        return json_response(
            {"kind": kind, "apiVersion": version, "metadata": meta, "items": objects}
        )

    def _table(self, request: web.Request, target: Target, objects: list[Obj]) -> Obj:
        return table(
            target.resource,
            self._api.kinds.find(target.resource),
            objects,
            self._api.clock.now(),
            version=str(self._api.store.version),
            include=request.query.get("includeObject", "Metadata"),
        )

    def _shower(self, request: web.Request, target: Target) -> Callable[[Obj], Obj]:
        """Give what turns an object into the form that the client prefers."""
        form = form_of(request.headers.get("Accept", ""))
        if form == "table" and not target.subresource:

            def as_table(obj: Obj) -> Obj:
                bookmark = "name" not in obj["metadata"]
                shown = self._table(request, target, [] if bookmark else [obj])
                shown["metadata"]["resourceVersion"] = obj["metadata"].get("resourceVersion", "")
                return shown

            return as_table
        return partial if form == "partial" else lambda obj: obj

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        query = request.query
        tests = (
            label_matcher(query.get("labelSelector", "")),
            field_matcher(target.resource.stored_as, query.get("fieldSelector", "")),
        )
        version = query.get("resourceVersion", "")
        if version and not version.isdigit():
            raise bad_request(f'resourceVersion: Invalid value: "{version}"')
        asked = WatchRequest(
            resource=target.resource,
            namespace=target.namespace,
            tests=tuple(test for test in tests if test is not None),
            version=version,
            bookmarks=flag(query, "allowWatchBookmarks"),
            initial_events=flag(query, "sendInitialEvents"),
            timeout_seconds=number(query, "timeoutSeconds"),
        )
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        events = watch(self._api, asked, self._shower(request, target))
        try:
            async for event in events:
                await response.write(_encode(event) + b"\n")
            await response.write_eof()
        except ConnectionResetError:
            pass  # The client went away, as watchers do.
        finally:
            await events.aclose()  # type: ignore[attr-defined]
        return response

    # Writing.

    async def _create(self, request: web.Request, target: Target, user: UserInfo) -> web.Response:
        warnings: list[str] = []
        query = request.query
        if target.resource.namespaced and target.namespace is None:
            raise method_not_allowed(target.resource.plural)
        created = await self._api.create(
            target.resource,
            target.namespace or "",
            await read_object(request),
            user=user,
            dry_run=query.get("dryRun") == "All",
            field_manager=manager(request),
            field_validation=query.get("fieldValidation", ""),
            options=options_of("Create", query),
            warnings=warnings,
        )
        return json_response(self._shower(request, target)(created), 201, warnings)

    async def _post_subresource(
        self, request: web.Request, target: Target, user: UserInfo
    ) -> web.Response:
        if not target.subresource:
            raise method_not_allowed(target.resource.plural)
        warnings: list[str] = []
        result = await self._api.create_subresource(
            target.resource,
            target.namespace or "",
            target.name,
            target.subresource,
            await read_object(request),
            user=user,
            dry_run=request.query.get("dryRun") == "All",
            options=options_of("Create", request.query),
            warnings=warnings,
        )
        return json_response(result, 201, warnings)

    async def _put(self, request: web.Request, target: Target, user: UserInfo) -> web.Response:
        warnings: list[str] = []
        query = request.query
        updated = await self._api.update(
            target.resource,
            target.namespace or "",
            target.name,
            await read_object(request),
            user=user,
            subresource=target.subresource,
            dry_run=query.get("dryRun") == "All",
            field_manager=manager(request),
            field_validation=query.get("fieldValidation", ""),
            options=options_of("Update", query),
            warnings=warnings,
        )
        shown = self._answered(target, updated)
        return json_response(self._shower(request, target)(shown), 200, warnings)

    async def _patch(self, request: web.Request, target: Target, user: UserInfo) -> web.Response:
        warnings: list[str] = []
        query, namespace = request.query, target.namespace or ""
        stored = self._api.store.get(target.resource.stored_as, namespace, target.name)
        creates = stored is None and request.content_type in APPLY
        if creates:
            self._authorizer.require(user, self._access(target, "create"))
        patched = await self._api.patch(
            target.resource,
            namespace,
            target.name,
            await request.read(),
            request.content_type,
            user=user,
            subresource=target.subresource,
            dry_run=query.get("dryRun") == "All",
            field_manager=query.get("fieldManager", "")
            if request.content_type in APPLY
            else manager(request),
            field_validation=query.get("fieldValidation", ""),
            force=flag(query, "force"),
            options=options_of("Create" if creates else "Update", query),
            warnings=warnings,
        )
        shown = self._shower(request, target)(self._answered(target, patched))
        return json_response(shown, 201 if creates else 200, warnings)

    def _answered(self, target: Target, written: Obj) -> Obj:
        """Give what a write to a subresource answers."""
        return self._api.storage.scale(target.resource, written) if (
            target.subresource == "scale") else written  # fmt: skip

    async def _delete(self, request: web.Request, target: Target, user: UserInfo) -> web.Response:
        if target.subresource:
            raise method_not_allowed(target.resource.plural)
        warnings: list[str] = []
        asked = await delete_arguments(request)
        namespace = target.namespace or ""
        deleted = await self._api.delete(
            target.resource, namespace, target.name, user=user, warnings=warnings, **asked
        )
        left = self._api.store.get(target.resource.stored_as, namespace, target.name)
        if target.resource.key == "pods" or asked["dry_run"] or left is not None:
            return json_response(self._shower(request, target)(deleted), 200, warnings)
        details = {
            "name": target.name,
            "group": target.resource.group,
            "kind": target.resource.plural,
            "uid": deleted["metadata"]["uid"],
        }
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return json_response(status | {"details": details}, 200, warnings)

    async def _delete_collection(
        self, request: web.Request, target: Target, user: UserInfo
    ) -> web.Response:
        asked = await delete_arguments(request)
        query = request.query
        found = self._api.storage.list(
            target.resource,
            target.namespace or None,
            query.get("labelSelector", ""),
            query.get("fieldSelector", ""),
        )
        for obj in found:
            meta = obj["metadata"]
            try:
                await self._api.delete(
                    target.resource, meta.get("namespace", ""), meta["name"], user=user, **asked
                )
            except ApiError as error:
                if error.code != 404:
                    raise
        return json_response(
            {
                "kind": f"{target.resource.kind}List",
                "apiVersion": target.resource.api_version,
                "metadata": {"resourceVersion": str(self._api.store.version)},
                "items": found,
            }
        )

    async def _review(self, request: web.Request, target: Target, user: UserInfo) -> web.Response:
        if request.method != "POST" or target.name:
            raise method_not_allowed(target.resource.plural)
        review = answer(
            target.resource.plural,
            target.namespace or "",
            await read_object(request),
            user,
            self._authorizer,
            self._api.tokens,
        )
        return json_response(review, 201)


def _log_of(pod: Obj) -> str:
    """Give the log of a pod, which a box without processes can only make up."""
    meta, status = pod["metadata"], pod.get("status") or {}
    if not pod["spec"].get("nodeName"):
        raise bad_request(f"pod {meta['name']} does not have a host assigned")
    annotated = (meta.get("annotations") or {}).get("sandbox.fairslice.io/log")
    lines = [annotated] if annotated else [
        f"pod {meta['namespace']}/{meta['name']} on {pod['spec']['nodeName']}",
        f"phase {status.get('phase', 'Unknown')}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
