"""The Kubernetes API as bytes in, bytes out: verbs with time limits, and watch streams.

Callers decode what they read into the fields they need; nothing here builds full models.
"""

import asyncio
import random
import socket
from collections.abc import AsyncGenerator, Mapping
from itertools import count
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import AddrInfoType
from msgspec import json

from fairslice.kube.configuration import Credentials, Endpoint, load_endpoint
from fairslice.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    api_error,
)

__all__ = [
    "APPLY_PATCH",
    "JSON_PATCH",
    "MERGE_PATCH",
    "STRATEGIC_MERGE_PATCH",
    "AlreadyExists",
    "ApiError",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "KubeClient",
    "NotFound",
    "Params",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
]

Params = Mapping[str, str | int]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

DEFAULT_SECONDS = 15.0
_CONNECT_SECONDS = 5.0
_MAX_CALLS = 32
_MAX_ATTEMPTS = 4
# A busy server's 429 came before anything was done, but a POST's 429 may be an eviction's
# answer, which its caller must see. After a 503 only reads and replacements are safe to repeat.
_RETRIED = {
    "GET": frozenset((429, 503)),
    "PUT": frozenset((429, 503)),
    "DELETE": frozenset((429, 503)),
    "PATCH": frozenset((429,)),
}


class KubeClient:
    """One API server, as one user. Verbs share a bounded number of calls; streams don't count.

    `within` is in seconds and covers a call with all its retries. Every method raises
    ApiError or a subclass of it.
    """

    def __init__(self, endpoint: Endpoint, credentials: Credentials | None = None) -> None:
        self._endpoint = endpoint
        self._acts_for_another = credentials is not None
        self._credentials = credentials or endpoint.credentials
        self._session: aiohttp.ClientSession | None = None
        self._calls = asyncio.Semaphore(_MAX_CALLS)

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Make a client from a kubeconfig, the cluster around us, or kubectl's default.

        Raises KubeconfigError. Nothing is sent yet.
        """
        return cls(await load_endpoint(kubeconfig, context))

    def acting_as(self, credentials: Credentials) -> "KubeClient":
        """Make a client with another identity (see ServiceAccountTokens), to be closed apart.

        It sends no client certificate: to the API server that would win over the token.
        """
        return KubeClient(self._endpoint, credentials)

    @property
    def server(self) -> str:
        """The API server's base URL."""
        return self._endpoint.url

    def __repr__(self) -> str:
        return f"KubeClient({self.server})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(
        self, path: str, params: Params | None = None, *, within: float = DEFAULT_SECONDS
    ) -> bytes:
        """Read an object, a list or a non-resource path."""
        return await self._call("GET", path, params=params, within=within)

    async def create(
        self,
        path: str,
        body: object,
        params: Params | None = None,
        *,
        within: float = DEFAULT_SECONDS,
    ) -> bytes:
        """POST to a collection or an action such as `…/eviction`; never retried."""
        return await self._call("POST", path, body, params=params, within=within)

    async def replace(
        self,
        path: str,
        body: object,
        params: Params | None = None,
        *,
        within: float = DEFAULT_SECONDS,
    ) -> bytes:
        """PUT an object; with a resourceVersion in it, only over that version."""
        return await self._call("PUT", path, body, params=params, within=within)

    async def patch(
        self,
        path: str,
        body: object,
        content_type: str = MERGE_PATCH,
        params: Params | None = None,
        *,
        within: float = DEFAULT_SECONDS,
    ) -> bytes:
        """PATCH an object, in one of the four patch types."""
        return await self._call(
            "PATCH", path, body, params=params, within=within, content_type=content_type
        )

    async def delete(
        self,
        path: str,
        body: object | None = None,
        params: Params | None = None,
        *,
        within: float = DEFAULT_SECONDS,
    ) -> bytes:
        """DELETE an object; `body` is DeleteOptions (preconditions, grace, propagation)."""
        return await self._call("DELETE", path, body, params=params, within=within)

    async def stream(
        self, path: str, params: Params | None = None, *, inactivity: float = 90.0
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a stream, of any length, until the server ends it.

        Raises Unreachable after `inactivity` seconds of silence.
        """
        response = await self._open_stream(path, params)
        try:
            pending: list[bytes] = []
            while True:
                chunk = await self._read(response, inactivity)
                if not chunk:
                    break
                first, *rest = chunk.split(b"\n")
                pending.append(first)
                for part in rest:
                    line = b"".join(pending)
                    pending = [part]
                    if line:
                        yield line
            if last := b"".join(pending):
                yield last
        finally:
            response.close()

    async def _open_stream(self, path: str, params: Params | None) -> aiohttp.ClientResponse:
        try:
            async with asyncio.timeout(DEFAULT_SECONDS):
                response = await self._request("GET", path, params=params)
                if response.status >= 400:
                    async with response:
                        raise await _error_of(response)
                return response
        except TimeoutError:
            raise self._unreachable(f"no answer within {DEFAULT_SECONDS:.0f} s") from None
        except aiohttp.ClientError as error:
            raise self._unreachable(_cause(error)) from None

    async def _read(self, response: aiohttp.ClientResponse, inactivity: float) -> bytes:
        try:
            async with asyncio.timeout(inactivity):
                return await response.content.readany()
        except TimeoutError:
            raise self._unreachable(f"stream silent for {inactivity:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(_cause(error)) from None

    async def _call(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        params: Params | None,
        within: float,
        content_type: str = "application/json",
    ) -> bytes:
        data = body if body is None or isinstance(body, bytes) else json.encode(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        try:
            async with asyncio.timeout_at(deadline):
                for attempt in count():
                    try:
                        async with self._calls:
                            return await self._once(method, path, data, params, content_type)
                    except ApiError as error:
                        delay = _retry_delay(method, error, attempt)
                        if delay is None or loop.time() + delay >= deadline:
                            raise
                    await asyncio.sleep(delay)
        except TimeoutError:
            raise self._unreachable(f"no answer within {within:g} s") from None
        raise AssertionError("unreachable")

    async def _once(
        self,
        method: str,
        path: str,
        data: bytes | None,
        params: Params | None,
        content_type: str,
    ) -> bytes:
        try:
            response = await self._request(method, path, data, params, content_type)
            if response.status == 401:
                response.close()
                response = await self._request(
                    method, path, data, params, content_type, rejected=True
                )
            async with response:
                if response.status >= 400:
                    raise await _error_of(response)
                return await response.read()
        except (aiohttp.ClientError, OSError) as error:
            # TimeoutError is an OSError; the caller's own time limit is not ours to rename.
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
                raise
            raise self._unreachable(_cause(error)) from None

    async def _request(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        params: Params | None = None,
        content_type: str = "application/json",
        *,
        rejected: bool = False,
    ) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json", "User-Agent": "fairslice"}
        if data is not None:
            headers["Content-Type"] = content_type
        authorization = await self._credentials.authorization(rejected=rejected)
        if authorization is not None:
            headers["Authorization"] = authorization
        if self._session is None:
            self._session = self._new_session()
        return await self._session.request(
            method,
            self._endpoint.url + path,
            params=params,
            data=data,
            headers=headers,
            proxy=self._endpoint.proxy,
            server_hostname=self._endpoint.server_name,
            allow_redirects=False,
        )

    def _new_session(self) -> aiohttp.ClientSession:
        endpoint = self._endpoint
        tls = endpoint.tls_anonymous if self._acts_for_another else endpoint.tls
        # The number of verbs in flight is bounded above; a limit here would let watches, which
        # hold their connection for minutes, starve them.
        connector = aiohttp.TCPConnector(
            limit=0, ssl=tls if tls is not None else False, socket_factory=_socket
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            trust_env=not endpoint.is_loopback,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    def _unreachable(self, why: str) -> Unreachable:
        return Unreachable(f"can't reach the API server at {self.server}: {why}")


def _socket(address: AddrInfoType) -> socket.socket:
    """Make a socket that notices a peer gone without a word within a minute."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return made


async def _error_of(response: aiohttp.ClientResponse) -> ApiError:
    body = await response.read()
    return api_error(response.status, body, response.headers.get("Retry-After"))


def _retry_delay(method: str, error: ApiError, attempt: int) -> float | None:
    if error.status not in _RETRIED.get(method, frozenset()) or attempt == _MAX_ATTEMPTS - 1:
        return None
    # Spread clients that were all told the same second.
    return (error.retry_after or 0.1 * 2**attempt) * random.uniform(1.0, 1.25)


def _cause(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted ({error.certificate_error})"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name does not resolve"
    os_error = getattr(error, "os_error", error)
    if isinstance(os_error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(os_error, aiohttp.ServerTimeoutError):
        return "no connection in time"
    text = str(os_error) or type(error).__name__
    return " ".join(text.split())
