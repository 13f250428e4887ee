"""An API server's CRUD in memory: enough to install into."""

from typing import Any

import jsonpatch
from aiohttp import web

from .scripted_server import status

Object = dict[str, Any]


class ObjectServer:
    """Objects by path. `denied` resources are not allowed, `failing` paths answer 500."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.writes: list[tuple[str, str]] = []
        self.denied: set[str] = set()
        self.failing: set[str] = set()
        self.version = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path.endswith("selfsubjectaccessreviews"):
            review = await request.json()
            resource = review["spec"]["resourceAttributes"]["resource"]
            return web.json_response(
                {"status": {"allowed": resource not in self.denied}}, status=201
            )
        if request.method != "GET":
            self.writes.append((request.method, path))
        if request.method != "DELETE" and any(part in path for part in self.failing):
            return await status(500, f"{path} is broken")(request)
        match request.method:
            case "GET" if self._is_collection(path):
                return web.json_response({"metadata": {}, "items": self._selected(path, request)})
            case "GET" if path in self.objects:
                return web.json_response(self.objects[path])
            case "POST":
                return await self._create(request)
            case "PUT" | "PATCH" if path in self.objects:
                return await self._change(request)
            case "DELETE" if path in self.objects:
                return web.json_response(self.objects.pop(path))
            case "DELETE" if self._is_collection(path):
                gone = self._selected(path, request)
                self.objects = {
                    key: item
                    for key, item in self.objects.items()
                    if not any(item is each for each in gone)
                }
                return web.json_response({"items": gone})
        return await status(404, f"{path} not found", "NotFound")(request)

    def _is_collection(self, path: str) -> bool:
        below = [key for key in self.objects if key.rpartition("/")[2] and self._kind(key) in path]
        return bool(below) and path not in self.objects and path.rsplit("/", 1)[1].endswith("s")

    @staticmethod
    def _kind(path: str) -> str:
        return "/" + path.split("/")[-2]

    def _selected(self, path: str, request: web.Request) -> list[Object]:
        """Objects of the collection, in all namespaces, that carry every label selected."""
        kind = path.rsplit("/", 1)[1]
        wanted = dict(
            part.split("=")
            for part in request.query.get("labelSelector", "").split(",")
            if "=" in part
        )
        return [
            item
            for key, item in self.objects.items()
            if self._kind(key) == f"/{kind}"
            and wanted.items() <= (item["metadata"].get("labels") or {}).items()
        ]

    async def _create(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        path = f"{request.path}/{body['metadata']['name']}"
        if path in self.objects:
            return await status(409, f"{path} exists", "AlreadyExists")(request)
        self.put(path, body)
        return web.json_response(body, status=201)

    def put(self, path: str, body: Object) -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        if body.get("kind") == "CustomResourceDefinition":
            established = [{"type": "Established", "status": "True"}]
            body["status"] = {"conditions": established}
        self.objects[path] = body

    async def _change(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        live = self.objects[request.path]
        if "json-patch" in request.content_type:
            body = jsonpatch.apply_patch(live, body)
        elif request.method == "PATCH":
            body = _merged(live, body)
        elif body["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
            return await status(409, "changed", "Conflict")(request)
        self.put(request.path, body)
        return web.json_response(body)


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    both = {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return {key: value for key, value in both.items() if value is not None}
