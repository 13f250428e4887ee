"""Reading request bodies in Kubernetes' protobuf, which typed Go clients send by default.

Answers are always JSON, which these clients accept too.
Source: k8s.io/apimachinery/pkg/runtime/serializer/protobuf; the wire format of protobuf.dev.
"""

import base64
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from .errors import ApiError, bad_request
from .store import Obj

__all__ = ["MEDIA_TYPE", "decode_protobuf"]

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_FIELD = re.compile(r"(?P<name>[^=]+)=(?P<number>\d+)(?P<type>[A-Za-z][\w.]*)(?P<mark>[*@?]?)")
_PACKAGES = {
    "": "core",
    "apps": "apps",
    "batch": "batch",
    "coordination.k8s.io": "coordination",
    "events.k8s.io": "events",
    "policy": "policy",
    "rbac.authorization.k8s.io": "rbac",
    "scheduling.k8s.io": "scheduling",
    "authentication.k8s.io": "authentication",
    "authorization.k8s.io": "authorization",
    "autoscaling": "autoscaling",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message."""

    name: str
    type: str
    mark: str


@cache
def _messages() -> dict[str, dict[int, Field]]:
    text = resources.files(__package__).joinpath("protobuf_fields.txt").read_text()
    messages: dict[str, dict[int, Field]] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        name, *fields = line.split()
        found = [match for field in fields if (match := _FIELD.fullmatch(field))]
        messages[name] = {
            int(match["number"]): Field(match["name"], match["type"], match["mark"])
            for match in found
        }
    return messages


def decode_protobuf(body: bytes) -> Obj:
    """Read an object. Raises ApiError 400 if it is broken, 415 if its kind has no table here."""
    if not body.startswith(_MAGIC):
        raise bad_request("provided data does not appear to be a protobuf message")
    try:
        envelope = dict(_wire(body[4:]))
        about = dict(_wire(envelope.get(1, b"")))
        api_version, kind = about.get(1, b"").decode(), about.get(2, b"").decode()
        group = api_version.rpartition("/")[0]
        name = f"{_PACKAGES.get(group, group)}.{kind}"
        if kind == "DeleteOptions":
            name = "meta.DeleteOptions"
        if name not in _messages():
            raise ApiError(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: "
                "application/json",
            )
        content = _message(envelope.get(2, b""), name)
    except (IndexError, UnicodeDecodeError, struct.error, AttributeError, TypeError) as error:
        raise bad_request(f"unable to decode protobuf: {error}") from error
    return {"kind": kind, "apiVersion": api_version, **content}


def _wire(data: bytes) -> Iterator[tuple[int, Any]]:
    """Go through the fields of a message: number, and an int or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
            case 1:
                yield tag >> 3, data[at : at + 8]
                at += 8
            case 2:
                size, at = _varint(data, at)
                if at + size > len(data):
                    raise IndexError("unexpected end")
                yield tag >> 3, data[at : at + size]
                at += size
            case 5:
                yield tag >> 3, data[at : at + 4]
                at += 4
            case wire:
                raise IndexError(f"wire type {wire}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7


def _message(data: bytes, name: str) -> Obj:
    fields = _messages()[name]
    result: Obj = {}
    for number, raw in _wire(data):
        field = fields.get(number)
        if field is None:
            continue
        if field.mark == "@":
            entry = dict(_wire(raw))
            key = entry.get(1, b"").decode()
            result.setdefault(field.name, {})[key] = _value(entry.get(2, b""), field.type)
            continue
        value = _value(raw, field.type)
        if field.name == "<":
            result |= value
        elif field.mark == "*":
            result.setdefault(field.name, []).append(value)
        elif value is not None and not (field.mark == "?" and value in ("", 0)):
            result[field.name] = value
    return result


def _value(raw: Any, kind: str) -> Any:
    match kind:
        case "s":
            return raw.decode()
        case "i":
            return raw - (1 << 64) if raw >= 1 << 63 else raw
        case "b":
            return bool(raw)
        case "y":
            return base64.b64encode(raw).decode()
        case "d":
            return struct.unpack("<d", raw)[0]
        case "quantity":
            return dict(_wire(raw)).get(1, b"").decode()
        case "time":
            return _time(dict(_wire(raw)))
        case "intstr":
            parts = dict(_wire(raw))
            return parts.get(3, b"").decode() if parts.get(1) else _value(parts.get(2, 0), "i")
        case "raw":
            return msgspec.json.decode(dict(_wire(raw)).get(1) or b"{}")
    if kind.endswith(".ExtraValue"):
        return [item.decode() for _, item in _wire(raw)]
    return _message(raw, kind)


def _time(parts: dict[int, int]) -> str | None:
    if not parts.get(1):
        return None
    moment = datetime.fromtimestamp(parts[1], UTC)
    if nanos := parts.get(2):
        return moment.replace(microsecond=nanos // 1000).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
