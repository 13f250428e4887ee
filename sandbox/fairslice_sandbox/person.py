"""Somebody who works with the cluster over its API, as kubectl would on their behalf."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from msgspec import json

from .server import ApiServer
from .users import UserInfo

__all__ = ["Answer", "Person", "Refused", "manifests"]

Obj = dict[str, Any]


class Refused(Exception):
    """The API server said no: its code and message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Answer:
    """An object as it was stored, and the warnings that came with it."""

    obj: Obj
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.obj["metadata"]["name"])


def manifests(path: Path) -> Iterator[Obj]:
    """Read the objects of a manifest file."""
    return (obj for obj in yaml.safe_load_all(path.read_text()) if obj)


class Person:
    """A user with a namespace. Methods raise Refused."""

    def __init__(
        self, session: aiohttp.ClientSession, server: ApiServer, user: UserInfo, namespace: str
    ) -> None:
        self.name = user.username
        self.namespace = namespace
        self._session = session
        self._server = server
        self._token = server.api.tokens.of_user(user)

    async def create(self, obj: Mapping[str, Any]) -> Answer:
        """Create an object in the person's namespace."""
        return await self._send("POST", self._path(obj), obj)

    async def patch(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Merge-patch an object by its path."""
        return await self._send("PATCH", path, body, "application/merge-patch+json")

    async def replace_spec(self, path: str, spec: Mapping[str, Any]) -> Answer:
        """Give an existing object another spec, whole."""
        found = (await self.get(path)).obj
        return await self._send("PUT", path, {**found, "spec": spec})

    async def get(self, path: str) -> Answer:
        """Read an object or a list."""
        return await self._send("GET", path)

    async def delete(self, path: str) -> Answer:
        """Delete an object."""
        return await self._send("DELETE", path)

    def _path(self, obj: Mapping[str, Any]) -> str:
        resource = self._server.api.registry.of_kind(obj["apiVersion"], obj["kind"])
        if resource is None:
            raise Refused(404, f"no kind {obj['kind']} in {obj['apiVersion']}")
        root = "/apis/" if resource.group else "/api/"
        place = f"/namespaces/{self.namespace}" if resource.namespaced else ""
        return f"{root}{resource.api_version}{place}/{resource.plural}"

    async def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Answer:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        data = json.encode(body) if body is not None else None
        async with self._session.request(
            method, self._server.url + path, data=data, headers=headers
        ) as response:
            answer = json.decode(await response.read())
            if response.status >= 400:
                raise Refused(response.status, answer.get("message", ""))
            warnings = tuple(_unquoted(item) for item in response.headers.getall("Warning", ()))
            return Answer(answer, warnings)


def _unquoted(header: str) -> str:
    """Read the text of a `299 - "…"` warning."""
    text = header.partition('"')[2].rpartition('"')[0]
    return text.replace('\\"', '"').replace("\\\\", "\\")
