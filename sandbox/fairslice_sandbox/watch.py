"""The watch: events as a stream of JSON lines, with bookmarks, and 410 within the stream.

Source: k8s.io/apiserver/pkg/endpoints/handlers/watch.go, pkg/storage/cacher.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from .api import Api
from .errors import ApiError
from .selectors import Matcher
from .store import Event, Obj, Resource, Subscription

__all__ = ["WatchRequest", "watch"]

# A real server sends a bookmark a minute; here clients should be fresh within a second.
BOOKMARK_SECONDS = 1.0
_INITIAL_END = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True)
class WatchRequest:
    """What a client watches, and how."""

    resource: Resource
    namespace: str | None
    tests: tuple[Matcher, ...]
    version: str
    bookmarks: bool
    initial_events: bool
    timeout_seconds: float | None

    def selects(self, obj: Obj) -> bool:
        """Say whether an object is one of those watched."""
        if self.namespace and obj["metadata"].get("namespace") != self.namespace:
            return False
        return all(test(obj) for test in self.tests)


Show = Callable[[Obj], Obj]


async def watch(api: Api, request: WatchRequest, show: Show) -> AsyncIterator[Obj]:
    """Give the events to send, until the time is up or the client has fallen behind.

    Runs in real time: its clients do.
    """
    store, key = api.store, request.resource.stored_as
    from_now = request.version in ("", "0") or request.initial_events
    try:
        since = None if from_now else int(request.version)
        subscription = store.subscribe(key, since)
    except ApiError as error:
        yield {"type": "ERROR", "object": error.status()}
        return
    with subscription:
        if from_now:
            version = store.version
            for obj in _snapshot(api, request):
                yield {"type": "ADDED", "object": show(obj)}
            if request.initial_events and request.bookmarks:
                yield _bookmark(request.resource, version, _INITIAL_END, show)
        loop = asyncio.get_running_loop()
        # As upstream: between 30 and 60 minutes unless the client says.
        limit = request.timeout_seconds or random.uniform(1800, 3600)
        deadline = loop.time() + limit
        while loop.time() < deadline:
            pause = min(BOOKMARK_SECONDS, deadline - loop.time())
            try:
                for event in await _next(subscription, pause):
                    for kind, obj in _seen(event, request):
                        shown = api.storage.shown(request.resource, obj)
                        yield {"type": kind, "object": show(shown)}
            except ApiError as error:
                yield {"type": "ERROR", "object": error.status()}
                return
            if request.bookmarks and not subscription.waiting:
                yield _bookmark(request.resource, store.version, {}, show)


def _snapshot(api: Api, request: WatchRequest) -> list[Obj]:
    found = api.store.list(request.resource.stored_as, request.namespace or None)
    return [api.storage.shown(request.resource, obj) for obj in found if request.selects(obj)]


async def _next(subscription: Subscription, seconds: float) -> list[Event]:
    """Wait for events: at least one, or none within the time."""
    try:
        async with asyncio.timeout(seconds):
            first = await subscription.get()
    except TimeoutError:
        return []
    return [first, *subscription.drain()]


def _seen(event: Event, request: WatchRequest) -> Iterator[tuple[str, Obj]]:
    """Give what the watcher sees of an event: objects come and go as they match."""
    before = event.previous is not None and request.selects(event.previous)
    after = event.type != "DELETED" and request.selects(event.object)
    if after:
        yield ("MODIFIED" if before else "ADDED"), event.object
    elif before:
        yield "DELETED", event.object


def _bookmark(resource: Resource, version: int, annotations: Obj, show: Show) -> Obj:
    meta: Obj = {"resourceVersion": str(version), "creationTimestamp": None}
    if annotations:
        meta["annotations"] = annotations
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    return {"type": "BOOKMARK", "object": show(obj)}
