"""One kind's objects, followed by list and watch, for whoever wants to know."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

import aiohttp

from .client import Api, Refused, Seen
from .kinds import KINDS, Obj, collection

__all__ = ["Stream"]

Listener = Callable[[Seen], None]


class Stream:
    """All objects of a kind as they now are; listeners hear every change.

    After a lost connection what changed meanwhile is told as MODIFIED, ADDED or DELETED.
    """

    def __init__(self, api: Api, kind: str) -> None:
        self.kind = kind
        self.objects: dict[str, Obj] = {}
        self._api = api
        self._listeners: list[Listener] = []
        self.ready = asyncio.Event()

    def listen(self, listener: Listener) -> None:
        """Be told of each change, in order."""
        self._listeners.append(listener)

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                version = await self._relist()
                self.ready.set()
                async with aclosing(self._api.watch(self.kind, version)) as events:
                    async for seen in events:
                        if seen.type == "ERROR":
                            break
                        if seen.type != "BOOKMARK":
                            self._tell(seen)
            except (Refused, aiohttp.ClientError, TimeoutError, OSError):
                await asyncio.sleep(0.2)

    async def _relist(self) -> str:
        answer = await self._api.call("GET", collection(self.kind))
        now = time.monotonic()
        head = {"apiVersion": KINDS[self.kind].api_version, "kind": self.kind}
        found = {obj["metadata"]["uid"]: {**head, **obj} for obj in answer.obj.get("items") or ()}
        for uid in [uid for uid in self.objects if uid not in found]:
            self._tell(Seen("DELETED", self.objects[uid], now))
        for uid, obj in found.items():
            before = self.objects.get(uid)
            if before is None:
                self._tell(Seen("ADDED", obj, now))
            elif before["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
                self._tell(Seen("MODIFIED", obj, now))
        return str(answer.obj["metadata"]["resourceVersion"])

    def _tell(self, seen: Seen) -> None:
        uid = seen.obj["metadata"]["uid"]
        if seen.type == "DELETED":
            self.objects.pop(uid, None)
        else:
            self.objects[uid] = seen.obj
        for listener in self._listeners:
            listener(seen)
