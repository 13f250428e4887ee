"""The Kubernetes API as a user of it sees it: verbs, warnings, refusals."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import aiohttp
from msgspec import json

from fairslice.kube.configuration import Endpoint, load_endpoint

from .kinds import KINDS, Obj, collection, item

__all__ = ["APPLY", "MERGE", "STRATEGIC", "Answer", "Api", "Refused", "Seen", "User"]

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
_SECONDS = 30.0
_GOODBYE_SECONDS = 0.25


class User(NamedTuple):
    """Somebody to impersonate."""

    name: str
    groups: tuple[str, ...] = ()


class Answer(NamedTuple):
    """What the API server returned, with its `Warning` headers' texts."""

    obj: Obj
    warnings: tuple[str, ...]


class Seen(NamedTuple):
    """A watch event and the monotonic time at which it arrived."""

    type: str
    obj: Obj
    at: float


class Refused(Exception):
    """The API server said no."""

    def __init__(self, status: int, body: Obj, warnings: tuple[str, ...] = ()) -> None:
        super().__init__(f"{status} {body.get('reason', '')}: {body.get('message', body)}")
        self.status = status
        self.reason = str(body.get("reason", ""))
        self.message = str(body.get("message", ""))
        self.warnings = warnings


@dataclass(frozen=True)
class Api:
    """One API server, as one user."""

    endpoint: Endpoint
    session: aiohttp.ClientSession
    user: User | None = None

    @classmethod
    async def connect(cls, kubeconfig: str) -> Self:
        """Open the API of a kubeconfig, as its own user."""
        endpoint = await load_endpoint(kubeconfig)
        connector = aiohttp.TCPConnector(limit=0, ssl=endpoint.tls or False)
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
            trust_env=not endpoint.is_loopback,
        )
        return cls(endpoint, session)

    async def close(self) -> None:
        """Close the connections that all users of this API share."""
        await self.session.close()
        # TLS says goodbye first; a loop that ends before that leaves sockets open.
        await asyncio.sleep(_GOODBYE_SECONDS)

    def acting_as(self, user: User) -> "Api":
        """See the API as somebody else does."""
        return Api(self.endpoint, self.session, user)

    async def create(
        self, obj: Obj, *, dry_run: bool = False, subresource: str = "", strict: bool = False
    ) -> Answer:
        """Create an object, in the namespace that it names."""
        kind, meta = obj["kind"], obj["metadata"]
        params = {"dryRun": "All"} if dry_run else {}
        if strict:
            params["fieldValidation"] = "Strict"
        path = collection(kind, meta.get("namespace", ""))
        if subresource:
            path = f"{path}/{meta['name']}/{subresource}"
        return await self.call("POST", path, obj, params=params)

    async def get(self, kind: str, name: str, namespace: str = "") -> Obj:
        """Read an object."""
        return (await self.call("GET", item(kind, name, namespace))).obj

    async def find(self, kind: str, name: str, namespace: str = "") -> Obj | None:
        """Read an object that may not be there."""
        try:
            return await self.get(kind, name, namespace)
        except Refused as refusal:
            if refusal.status == 404:
                return None
            raise

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Obj]:
        """Read all objects of a kind (in a namespace) that a label selector fits."""
        params = {"labelSelector": labels} if labels else {}
        answer = await self.call("GET", collection(kind, namespace), params=params)
        api_version = KINDS[kind].api_version
        return [
            {"apiVersion": api_version, "kind": kind, **found}
            for found in answer.obj.get("items") or ()
        ]

    async def patch(
        self,
        kind: str,
        name: str,
        body: Any,
        namespace: str = "",
        *,
        subresource: str = "",
        content_type: str = MERGE,
    ) -> Answer:
        """Change part of an object."""
        path = item(kind, name, namespace, subresource)
        return await self.call("PATCH", path, body, content_type=content_type)

    async def apply(self, obj: Obj) -> Answer:
        """Apply on the server's side, as the suite's own field manager, with force."""
        meta = obj["metadata"]
        return await self.call(
            "PATCH",
            item(obj["kind"], meta["name"], meta.get("namespace", "")),
            obj,
            params={"fieldManager": "cluster-suite", "force": "true"},
            content_type=APPLY,
        )

    async def replace(self, obj: Obj) -> Answer:
        """Write a whole object, over the version that was read."""
        meta = obj["metadata"]
        path = item(obj["kind"], meta["name"], meta.get("namespace", ""))
        return await self.call("PUT", path, obj)

    async def delete(
        self,
        kind: str,
        name: str,
        namespace: str = "",
        *,
        grace: int | None = None,
        propagation: str = "Background",
        uid: str = "",
    ) -> None:
        """Delete an object; one that has gone (or is another by now) is well."""
        options: Obj = {"kind": "DeleteOptions", "apiVersion": "v1"}
        options["propagationPolicy"] = propagation
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self.call("DELETE", item(kind, name, namespace), options)
        except Refused as refusal:
            if refusal.status not in (404, 409):
                raise

    async def delete_all(self, kind: str, namespace: str) -> None:
        """Delete all objects of a kind in a namespace, with what they own."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        await self.call("DELETE", collection(kind, namespace), options)

    async def watch(self, kind: str, version: str) -> AsyncGenerator[Seen, None]:
        """Follow all objects of a kind from a resourceVersion on, until the stream ends."""
        params = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        response = await self._send("GET", collection(kind), None, params, "")
        async with response:
            pending = b""
            async for chunk in response.content.iter_any():
                at = time.monotonic()
                *lines, pending = (pending + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = json.decode(line)
                    yield Seen(event["type"], event["object"], at)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        """Send a request. Raises Refused."""
        async with asyncio.timeout(_SECONDS):
            response = await self._send(method, path, body, params, content_type)
            async with response:
                raw = await response.read()
                warnings = tuple(map(_warning_text, response.headers.getall("Warning", ())))
        try:
            decoded = json.decode(raw) if raw else {}
        except ValueError:
            decoded = {"message": raw.decode(errors="replace")}
        if response.status >= 400:
            raise Refused(response.status, decoded, warnings)
        return Answer(decoded, warnings)

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        params: Mapping[str, str] | None,
        content_type: str,
    ) -> aiohttp.ClientResponse:
        headers = [("Accept", "application/json"), ("User-Agent", "cluster-suite")]
        if body is not None:
            headers.append(("Content-Type", content_type))
        authorization = await self.endpoint.credentials.authorization()
        if authorization is not None:
            headers.append(("Authorization", authorization))
        if self.user is not None:
            headers.append(("Impersonate-User", self.user.name))
            headers.extend(("Impersonate-Group", group) for group in self.user.groups)
        return await self.session.request(
            method,
            self.endpoint.url + path,
            params=params,
            data=None if body is None else json.encode(body),
            headers=headers,
            proxy=self.endpoint.proxy,
            server_hostname=self.endpoint.server_name,
        )


def _warning_text(header: str) -> str:
    """Read `299 - "text"`, with its quoted pairs undone."""
    _, _, quoted = header.partition('"')
    return quoted.rpartition('"')[0].replace('\\"', '"').replace("\\\\", "\\")
