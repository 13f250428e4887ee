"""Acting as a ServiceAccount from outside the cluster, by tokens that are asked for."""

import asyncio
import time

from msgspec import Struct, json

from fairslice.kube.client import KubeClient
from fairslice.kube.errors import NotFound

__all__ = ["ServiceAccountTokens"]

_LIFETIME_SECONDS = 3600
# Renewed after this share of the lifetime, as client-go does.
_RENEW_AFTER = 0.8


class _TokenStatus(Struct, frozen=True):
    token: str


class _TokenRequest(Struct, frozen=True):
    status: _TokenStatus


class ServiceAccountTokens:
    """Credentials of a ServiceAccount: a token by TokenRequest, renewed before it expires.

    The client that asks must be allowed to create `serviceaccounts/token` there.
    """

    def __init__(self, client: KubeClient, namespace: str, name: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        self._name = f"system:serviceaccount:{namespace}:{name}"
        self._header = ""
        self._renew_at = 0.0
        self._asked_at = 0.0
        self._lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"ServiceAccountTokens({self._name})"

    async def authorization(self, *, rejected: bool = False) -> str | None:
        """Return the header.

        Raises ApiError where no token is to be had.
        """
        async with self._lock:
            now = time.monotonic()
            if now >= self._renew_at or (rejected and now - self._asked_at > 1):
                self._asked_at = now
                await self._renew(now)
        return self._header

    async def _renew(self, now: float) -> None:
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": _LIFETIME_SECONDS},
        }
        try:
            body = await self._client.create(self._path, request)
        except NotFound as error:
            raise NotFound(
                error.status,
                error.reason,
                f"fairslice is not installed on this cluster ({error}): run `fairslice install`",
            ) from None
        self._header = "Bearer " + json.decode(body, type=_TokenRequest).status.token
        # The server may shorten the lifetime; the monotonic clock can't be compared with its
        # answer, so a token refused early is asked for again on the first 401.
        self._renew_at = now + _LIFETIME_SECONDS * _RENEW_AFTER
