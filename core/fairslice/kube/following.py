"""How a collection of the API is followed: list, then watch, and list again where that fails.

The method is client-go's (tools/cache/reflector.go): list in pages, watch from the list's
version with bookmarks, list again when that version is too old, and then tell subscribers the
difference, so that a deletion missed in the gap is a deletion all the same.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Never, Protocol, TypeVar

from msgspec import DecodeError, Raw, Struct, ValidationError, field, json

from fairslice.backoff import Backoff
from fairslice.kube.client import KubeClient
from fairslice.kube.errors import ApiError, Gone, NotFound, Unreachable, api_error
from fairslice.kube.objects import ObjectMeta

__all__ = ["Change", "Following", "HasMetadata", "Key", "Timing", "key_of"]

_log = logging.getLogger(__name__)
_PAGE = 500
# After so many expired continue tokens in a row, pages are too slow: ask for all at once.
_MAX_EXPIRED_PAGES = 3


class Key(Struct, frozen=True, order=True, gc=False):
    """What names an object in its collection; cluster-scoped ones have no namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class HasMetadata(Protocol):
    """An object, as far as a reflector must know it."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T")
Change = Callable[[T | None, T | None], None]
"""Called with (old, new): None for old is an addition, None for new a deletion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How a reflector paces itself, in seconds.

    A watch is asked to end after `watch` (up to 1.5 times that), and given up for dead after
    a silence `grace` longer. `absent` is the pace of looking for a kind that isn't installed.
    A watch that ends before `shortest_watch` counts as a failure, lest a broken server be
    hammered.
    """

    watch: float = 60.0
    grace: float = 10.0
    absent: float = 30.0
    first_backoff: float = 0.2
    longest_backoff: float = 30.0
    shortest_watch: float = 1.0


class _ListMeta(Struct, frozen=True):
    resource_version: str = field(name="resourceVersion", default="")
    continue_: str = field(name="continue", default="")


class _Page(Struct, Generic[T], frozen=True):
    metadata: _ListMeta
    items: list[T] | None = None


class _RawPage(Struct, frozen=True):
    metadata: _ListMeta
    items: list[Raw] | None = None


class _Event(Struct, Generic[T], frozen=True):
    type: str
    object: T


class _RawEvent(Struct, frozen=True):
    type: str
    object: Raw


class _Named(Struct, frozen=True):
    metadata: ObjectMeta


_RAW_PAGE = json.Decoder(_RawPage)
_RAW_EVENT = json.Decoder(_RawEvent)
_NAMED = json.Decoder(_Named)


class Following(Generic[T]):
    """Keeps `store` equal to what the API server has; run it as a task.

    `kind` is what objects are decoded into: a msgspec struct of the wanted fields with a
    `metadata`, all optional. An object that doesn't decode into it keeps its last good state (or
    stays out) and is in `invalid`. `synced` is set after the first list, or once it is sure that
    the kind isn't installed; `missing` is what is logged then, for a kind that should be.

    What of an object is kept, and what counts as a change, is for subclasses to say.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        kind: type[Any],
        *,
        label_selector: str = "",
        field_selector: str = "",
        missing: str = "",
        timing: Timing | None = None,
    ) -> None:
        self.synced = asyncio.Event()
        self.absent = False
        self.last_error = ""
        self.relists = 0
        self.invalid: dict[Key, str] = {}
        self._client = client
        self._path = path
        self._missing = missing
        self._timing = timing or Timing()
        self._selectors: dict[str, str | int] = {}
        if label_selector:
            self._selectors["labelSelector"] = label_selector
        if field_selector:
            self._selectors["fieldSelector"] = field_selector
        # mypy takes a class held in a variable for no type; msgspec needs just that.
        self._item: json.Decoder[HasMetadata] = json.Decoder(kind)
        self._page = json.Decoder(_Page[kind])  # type: ignore[valid-type]
        self._event = json.Decoder(_Event[kind])  # type: ignore[valid-type]
        self._objects: dict[Key, T] = {}
        self._subscribers: list[Change[T]] = []
        self._contact = -math.inf
        self._version = ""
        self._outdated = False

    def _kept(self, item: Any) -> T:
        """Return what is kept of an object."""
        raise NotImplementedError

    def _key(self, kept: T) -> Key:
        """Name what is kept."""
        raise NotImplementedError

    def _replaces(self, old: T, new: T) -> bool:
        """Say whether it is another object of the same name."""
        raise NotImplementedError

    def _unchanged(self, old: T, new: T) -> bool:
        """Say whether nobody need hear of it."""
        raise NotImplementedError

    @property
    def store(self) -> Mapping[Key, T]:
        """The objects, as a live view. Don't iterate over it across an await."""
        return MappingProxyType(self._objects)

    @property
    def last_sync(self) -> float:
        """Seconds since the API server was last heard from; infinite before the first time."""
        return time.monotonic() - self._contact

    def get(self, name: str, namespace: str = "") -> T | None:
        """Return an object by name."""
        return self._objects.get(Key(namespace, name))

    def subscribe(self, on_change: Change[T]) -> None:
        """Call back on every change, in order; what is already there comes at once."""
        self._subscribers.append(on_change)
        for item in list(self._objects.values()):
            on_change(None, item)

    def look_again(self) -> None:
        """List anew when the server is next heard from, or the watch ends."""
        self._outdated = True

    async def run(self) -> Never:
        """List and watch for ever. Only an error in a subscriber gets out."""
        timing = self._timing
        backoff = Backoff(timing.first_backoff, timing.longest_backoff)
        while True:
            started = time.monotonic()
            delay: float | None = None
            try:
                if not self._version or self._outdated:
                    await self._list()
                await self._watch()
                self.last_error = ""
            except Gone:
                self._version = ""
            except NotFound:
                self._forget_all()
                delay = timing.absent * random.uniform(0.75, 1.25)
            except ApiError as error:
                delay = max(backoff.next(), error.retry_after or 0.0)
                self._complain(error, delay)
            if delay is None:
                if time.monotonic() - started >= timing.shortest_watch:
                    backoff.reset()
                    continue
                delay = backoff.next()
            await asyncio.sleep(delay)

    def _complain(self, error: ApiError, delay: float) -> None:
        text = str(error)
        level = logging.DEBUG if text == self.last_error else logging.WARNING
        _log.log(level, "%s: %s; again in %.1f s", self._path, text, delay)
        self.last_error = text

    async def _list(self) -> None:
        expired, self._outdated = 0, False
        while True:
            try:
                objects, invalid, version = await self._pages(
                    _PAGE if expired < _MAX_EXPIRED_PAGES else 0
                )
                break
            except Gone:
                expired += 1
                if expired > _MAX_EXPIRED_PAGES:
                    raise
        self.relists += 1
        self.invalid = invalid
        for key in [key for key in self._objects if key not in objects and key not in invalid]:
            self._remove(key)
        for key, item in objects.items():
            self._put(key, item)
        self._version = version
        self.absent = False
        self.synced.set()

    async def _pages(self, limit: int) -> tuple[dict[Key, T], dict[Key, str], str]:
        objects: dict[Key, T] = {}
        invalid: dict[Key, str] = {}
        params: dict[str, str | int] = dict(self._selectors)
        if limit:
            params["limit"] = limit
        while True:
            body = await self._client.get(self._path, params, within=60.0)
            self._contact = time.monotonic()
            meta = self._decode_page(body, objects, invalid)
            if not meta.continue_:
                return objects, invalid, meta.resource_version
            params["continue"] = meta.continue_

    def _decode_page(
        self, body: bytes, objects: dict[Key, T], invalid: dict[Key, str]
    ) -> _ListMeta:
        try:
            page: _Page[HasMetadata] = self._page.decode(body)
        except ValidationError:
            return self._decode_items(body, objects, invalid)
        except DecodeError:
            raise Unreachable(f"{self._path}: the list is not JSON") from None
        for item in page.items or ():
            kept = self._kept(item)
            objects[self._key(kept)] = kept
        return page.metadata

    def _decode_items(
        self, body: bytes, objects: dict[Key, T], invalid: dict[Key, str]
    ) -> _ListMeta:
        """Decode one by one, since at least one object is not as expected."""
        try:
            page = _RAW_PAGE.decode(body)
        except DecodeError:
            raise Unreachable(f"{self._path}: the answer is not a list") from None
        for raw in page.items or ():
            try:
                item = self._item.decode(raw)
                kept = self._kept(item)
                objects[self._key(kept)] = kept
            except ValidationError as error:
                key = self._reject(raw, error)
                invalid[key] = str(error)
        return page.metadata

    def _reject(self, raw: Raw, error: ValidationError) -> Key:
        key = key_of(_NAMED.decode(raw).metadata)
        if self.invalid.get(key) != str(error):
            _log.warning(
                "%s: %s can't be read and keeps its last good state: %s",
                self._path,
                key,
                error,
            )
        return key

    async def _watch(self) -> None:
        seconds = self._timing.watch * random.uniform(1.0, 1.5)
        params: dict[str, str | int] = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": max(1, round(seconds)),
        }
        lines = self._client.stream(self._path, params, inactivity=seconds + self._timing.grace)
        async with aclosing(lines):
            async for line in lines:
                self._contact = time.monotonic()
                self._take(line)
                if self._outdated:
                    break
        self._contact = time.monotonic()

    def _take(self, line: bytes) -> None:
        try:
            event: _Event[HasMetadata] = self._event.decode(line)
        except ValidationError as error:
            self._take_odd(line, error)
            return
        except DecodeError:
            raise Unreachable(f"{self._path}: a watch event is cut short") from None
        meta = event.object.metadata
        match event.type:
            case "ADDED" | "MODIFIED":
                kept = self._kept(event.object)
                key = self._key(kept)
                self.invalid.pop(key, None)
                self._put(key, kept)
            case "DELETED":
                self.invalid.pop(key_of(meta), None)
                self._remove(key_of(meta))
            case "ERROR":
                self._take_odd(line, None)
            case _:
                pass  # BOOKMARK: only the version matters.
        self._version = meta.resource_version or self._version

    def _take_odd(self, line: bytes, error: ValidationError | None) -> None:
        """Take an event that carries no object of the kind: a Status, or a broken object."""
        try:
            event = _RAW_EVENT.decode(line)
            if event.type == "ERROR":
                raise api_error(0, bytes(event.object))
            meta = _NAMED.decode(event.object).metadata
        except DecodeError:
            raise Unreachable(f"{self._path}: not a watch event") from None
        if event.type == "DELETED":
            self.invalid.pop(key_of(meta), None)
            self._remove(key_of(meta))
        elif event.type != "BOOKMARK" and error is not None:
            self.invalid[self._reject(event.object, error)] = str(error)
        self._version = meta.resource_version or self._version

    def _put(self, key: Key, item: T) -> None:
        old = self._objects.get(key)
        if old is not None and self._replaces(old, item):
            self._remove(key)
            old = None
        if old is not None and self._unchanged(old, item):
            return
        self._objects[key] = item
        for on_change in self._subscribers:
            on_change(old, item)

    def _remove(self, key: Key) -> None:
        old = self._objects.pop(key, None)
        if old is not None:
            for on_change in self._subscribers:
                on_change(old, None)

    def _forget_all(self) -> None:
        """Take note that the kind isn't installed (any more)."""
        if self._missing and not self.absent:
            _log.warning("%s: %s", self._path, self._missing)
        self._contact = time.monotonic()
        self._version = ""
        self.absent = True
        self.last_error = ""
        self.invalid = {}
        for key in list(self._objects):
            self._remove(key)
        self.synced.set()


def key_of(meta: ObjectMeta) -> Key:
    """Name an object in its collection."""
    return Key(meta.namespace, meta.name)
