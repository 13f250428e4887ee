"""The API server over HTTPS: who calls, what for, and the answer, errors included."""

import asyncio
import base64
import os
from pathlib import Path

import yaml
from aiohttp import web

from .api import Api
from .discovery import VERSION, discover, openapi_v3
from .errors import ApiError, unknown_path
from .handlers import Handlers, json_response
from .pki import Authority, new_authority
from .rbac import Access, Authorizer
from .store import Store
from .targets import form_of, parse_path
from .users import ANONYMOUS, UserInfo

__all__ = ["ApiServer"]

_HEALTH = ("/healthz", "/livez", "/readyz")
# How long open requests, watches above all, may take at the end.
_DRAIN_SECONDS = 0.2
_MAX_REQUEST = 8 * 1024 * 1024


class ApiServer:
    """Serves an Api to kubectl and every other client."""

    def __init__(self, store: Store, api: Api, authority: Authority | None = None) -> None:
        self.store = store
        self.api = api
        self.authority = authority or new_authority()
        self.authorizer = Authorizer(store)
        self.url = ""
        self._handlers = Handlers(api, self.authorizer)
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; gives the URL. Raises OSError if the port is taken."""
        app = web.Application(client_max_size=_MAX_REQUEST)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_DRAIN_SECONDS)
        await self._runner.setup()
        certificate = await asyncio.to_thread(
            self.authority.issue, host, "127.0.0.1", "localhost", "kubernetes.default.svc"
        )
        site = web.TCPSite(self._runner, host, port, ssl_context=certificate.context())
        try:
            await site.start()
        except OSError:
            await self.stop()
            raise
        bound = self._runner.addresses[0]
        self.url = f"https://{host}:{bound[1]}"
        self.api.storage.trust(self.authority.pem.decode())
        return self.url

    async def stop(self) -> None:
        """Stop listening; open watches end."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await self.api.close()

    def kubeconfig(self, user: UserInfo, namespace: str = "default") -> str:
        """Give a kubeconfig, in YAML, with which a client is this user."""
        data = base64.b64encode(self.authority.pem).decode()
        cluster = {"server": self.url, "certificate-authority-data": data}
        context = {"cluster": "sandbox", "user": user.username, "namespace": namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "sandbox",
            "clusters": [{"name": "sandbox", "cluster": cluster}],
            "contexts": [{"name": "sandbox", "context": context}],
            "users": [{"name": user.username, "user": {"token": self.api.tokens.of_user(user)}}],
        }
        return yaml.safe_dump(document, sort_keys=False)

    def write_kubeconfig(
        self, path: str | Path, user: UserInfo, namespace: str = "default"
    ) -> None:
        """Write a user's kubeconfig, readable by its owner only."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(self.kubeconfig(user, namespace))

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            user = self._authenticate(request)
            target = parse_path(self.api.registry, request.path)
            if target is not None:
                return await self._handlers.handle(request, target, user)
            return self._other(request, user)
        except ApiError as error:
            response = json_response(error.status(), error.code)
            if error.code == 429:
                response.headers["Retry-After"] = "10"
            return response

    def _authenticate(self, request: web.Request) -> UserInfo:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if not token:
            return ANONYMOUS
        user = self.api.tokens.authenticate(token) if scheme.lower() == "bearer" else None
        if user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        name = request.headers.get("Impersonate-User")
        if name is None:
            return user
        groups = tuple(request.headers.getall("Impersonate-Group", ()))
        for resource, wanted in [("users", name), *(("groups", group) for group in groups)]:
            self.authorizer.require(user, Access("impersonate", resource=resource, name=wanted))
        return UserInfo(name, (*groups, "system:authenticated"))

    def _other(self, request: web.Request, user: UserInfo) -> web.Response:
        path = request.path
        if path.startswith(_HEALTH):
            return web.Response(text="ok")
        if path.rstrip("/") == "/version":
            return json_response(VERSION)
        if request.method != "GET":
            raise unknown_path()
        self.authorizer.require(user, Access("get", path=path))
        parts = [part for part in path.split("/") if part]
        accept = request.headers.get("Accept", "")
        match parts:
            case ["openapi", "v2"]:
                return _openapi_v2(accept)
            case ["openapi", "v3", *below]:
                return json_response(openapi_v3(self.api.registry, below))
            case [] | ["apis" | "api", *_]:
                if not parts:
                    return json_response({"paths": ["/api", "/apis", "/openapi/v3", "/version"]})
                aggregated = form_of(accept) == "discovery"
                body = discover(self.api.registry, parts, aggregated=aggregated)
                response = json_response(body)
                if aggregated:
                    kind = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                    response.headers["Content-Type"] = f"application/json;{kind}"
                return response
        raise unknown_path()


def _openapi_v2(accept: str) -> web.Response:
    """Answer with an empty document, upon which kubectl turns to the types it knows itself."""
    if "protobuf" in accept:
        kind = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
        return web.Response(body=b"", content_type=kind)
    info = {"title": "fairslice sandbox", "version": VERSION["gitVersion"]}
    return json_response({"swagger": "2.0", "info": info, "paths": {}, "definitions": {}})
