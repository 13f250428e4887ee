"""What clients send along: objects, options, and arguments of the query."""

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from .errors import ApiError, bad_request
from .patching import decode_body
from .protobuf import MEDIA_TYPE, decode_protobuf
from .store import Obj
from .targets import options_of

__all__ = ["delete_arguments", "flag", "manager", "number", "read_object"]

_MAX_BODY = 3 * 1024 * 1024


def flag(query: Mapping[str, str], name: str) -> bool:
    """Read a truth value, as Go spells them."""
    return query.get(name, "").lower() in ("1", "t", "true")


def number(query: Mapping[str, str], name: str) -> int | None:
    """Read a natural number. Raises ApiError 400."""
    value = query.get(name)
    if not value:
        return None
    if not value.isdigit():
        raise bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax ({name})')
    return int(value)


def _decoded(request: web.Request, body: bytes) -> Any:
    return decode_protobuf(body) if request.content_type == MEDIA_TYPE else decode_body(body)


async def read_object(request: web.Request) -> Obj:
    """Read the object in a body: JSON, YAML or protobuf. Raises ApiError 400, 413, 415."""
    body = await request.read()
    if len(body) > _MAX_BODY:
        limit = f"limit is {_MAX_BODY}"
        raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: {limit}")
    obj = _decoded(request, body)
    if not isinstance(obj, dict):
        raise bad_request("the body of the request is not an object")
    return obj


def manager(request: web.Request) -> str:
    """Give the field manager: what the query says, else the client's name."""
    agent = request.headers.get("User-Agent", "unknown").partition("/")[0]
    return request.query.get("fieldManager") or agent


async def delete_arguments(request: web.Request) -> dict[str, Any]:
    """Read DeleteOptions, of body or query, as arguments of Api.delete. Raises ApiError 400."""
    body = await request.read()
    options: Obj = (_decoded(request, body) if body else None) or {}
    query = request.query
    if not isinstance(options, dict):
        raise bad_request("the body of the request is not DeleteOptions")
    grace = options.get("gracePeriodSeconds", number(query, "gracePeriodSeconds"))
    orphan = options.get("orphanDependents")
    propagation = options.get("propagationPolicy") or query.get("propagationPolicy")
    if propagation is None and orphan is not None:
        propagation = "Orphan" if orphan else "Background"
    if propagation not in (None, "Orphan", "Foreground", "Background"):
        raise bad_request(f'propagationPolicy: Unsupported value: "{propagation}"')
    shown = options_of("Delete", {**query, **({"dryRun": "All"} if options.get("dryRun") else {})})
    return {
        "grace_seconds": grace if isinstance(grace, int) else None,
        "propagation": propagation,
        "preconditions": options.get("preconditions"),
        "dry_run": "dryRun" in shown,
        "options": shown,
    }
