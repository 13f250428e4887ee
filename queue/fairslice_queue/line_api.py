"""`POST /workloads/NAMESPACE/NAME/VERB`: what `fairslice queue` does, over HTTP.

Each request goes to the API server with the caller's own bearer token: he may here what he may
with kubectl, and nothing is done under the queue's name.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web
from msgspec import DecodeError, Struct, ValidationError, json

from fairslice.kube.client import ApiError, KubeClient, Unreachable
from fairslice.line_control import Found, cancel, find, hold, move, pin, resume, unpin, urgent
from fairslice.service import ServiceError

__all__ = ["line_routes"]

_VERBS: dict[str, Callable[[KubeClient, Found], Awaitable[str]]] = {
    "hold": hold,
    "resume": resume,
    "pin": pin,
    "unpin": unpin,
    "urgent": urgent,
    "cancel": cancel,
}
_MOST_ORDER = 1_000_000


class _Move(Struct, frozen=True, forbid_unknown_fields=True):
    order: int


class _Token:
    """The caller's own Authorization header, as credentials."""

    def __init__(self, header: str) -> None:
        self._header = header

    async def authorization(self, *, rejected: bool = False) -> str | None:
        """Return the header."""
        return self._header


def line_routes(client: KubeClient) -> Iterable[web.RouteDef]:
    """Make the routes; `client` says where the API server is."""

    async def handle(request: web.Request) -> web.Response:
        header = request.headers.get("Authorization", "")
        if not header.startswith("Bearer "):
            answer = _error(401, "send your Kubernetes token: Authorization: Bearer …")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        try:
            done = await _do(request, client.acting_as(_Token(header)))
        except ServiceError as error:
            return _error(404, str(error))
        except Unreachable as error:
            return _error(502, str(error))
        except ApiError as error:
            return _error(error.status, str(error))
        except (DecodeError, ValidationError) as error:
            return _error(400, f'write {{"order": -1}}: {error}')
        return _json({"message": done})

    return [web.post("/workloads/{namespace}/{name}/{verb}", handle)]


async def _do(request: web.Request, client: KubeClient) -> str:
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    verb, kind = request.match_info["verb"], request.query.get("kind", "")
    change: Callable[[KubeClient, Found], Awaitable[str]]
    if verb == "move":
        order = json.decode(await request.read(), type=_Move).order
        if abs(order) > _MOST_ORDER:
            raise ValidationError(f"order is not between -{_MOST_ORDER} and {_MOST_ORDER}")

        async def change(client: KubeClient, found: Found) -> str:
            return await move(client, found, order)
    elif verb in _VERBS:
        change = _VERBS[verb]
    else:
        raise ServiceError(f"{verb!r} is none of {', '.join((*_VERBS, 'move'))}")
    async with client:
        return await change(
            client, await find(client, namespace, f"{kind}/{name}" if kind else name)
        )


def _error(status: int, message: str) -> web.Response:
    return _json({"error": message}, status)


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(body), content_type="application/json", status=status)
