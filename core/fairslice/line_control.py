"""What a team's lead does to work in line, with the rights of whoever asks.

Everything is an ordinary write to the work's own object: who may patch it may hold and resume
it. Its order, a pin and urgency count once the queue has seen that the caller may order the
team's line, which it says on the object.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from kubernetes_asyncio.config import ConfigException
from kubernetes_asyncio.config.kube_config import (
    KUBE_CONFIG_DEFAULT_LOCATION,
    list_kube_config_contexts,
)

from fairslice import stamps
from fairslice.booking import Kind, State
from fairslice.kube.client import KubeClient, NotFound
from fairslice.service import ServiceError
from fairslice.settings import Settings
from fairslice.workloads import ADAPTERS, adapter_for

__all__ = [
    "Found",
    "cancel",
    "find",
    "hold",
    "move",
    "pin",
    "resume",
    "unpin",
    "urgent",
    "usual_namespace",
]

_POD = Kind("v1", "Pod", "pods")
_HELD = State.HELD.value.lower()
_IN_LINE = (State.QUEUED.value.lower(), State.PREEMPTED.value.lower())
# The queue answers within a second or two, where it runs.
_ANSWER_SECONDS = 5.0
_LOOK_SECONDS = 0.2

Patch = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Found:
    """An object in line: its kind, its API path, and itself."""

    kind: Kind
    path: str
    obj: Mapping[str, Any]

    def __str__(self) -> str:
        meta = self.obj["metadata"]
        return f"{self.kind.kind} {meta['namespace']}/{meta['name']}"


async def find(client: KubeClient, namespace: str, name: str) -> Found:
    """Find work by its name: `train`, or `pod/nb` with the kind as kubectl takes it.

    Without a kind, Jobs go before pods. Raises ServiceError where there is none.
    """
    kinds, short = _kinds(name)
    for kind in kinds:
        root = "/apis/" if kind.group else "/api/"
        path = (
            f"{root}{kind.api_version}/namespaces/{quote(namespace)}/{kind.plural}/{quote(short)}"
        )
        try:
            raw = await client.get(path)
        except NotFound:
            continue
        return Found(kind, path, msgspec.json.decode(raw, type=dict[str, Any]))
    words = " or ".join(kind.kind for kind in kinds)
    raise ServiceError(f"there is no {words} {short} in namespace {namespace}")


async def hold(client: KubeClient, found: Found) -> str:
    """Keep work from being released; it keeps its time in line."""
    await _annotate(client, found, {stamps.HOLD: "true"})
    return f"{found}: held; what runs already goes on"


async def resume(client: KubeClient, found: Found) -> str:
    """Let held work go on, also what its user suspended."""
    meta = found.obj["metadata"]
    patch: dict[str, Any] = {"metadata": {"annotations": {stamps.HOLD: None}}}
    adapter = adapter_for(found.kind.api_version, found.kind.kind)
    if adapter is not None and (meta.get("labels") or {}).get(stamps.STATE) == _HELD:
        patch |= adapter.suspend_body(suspend=False)
    await _patch(client, found, patch)
    return f"{found}: resumed; it starts when it is its turn"


async def move(client: KubeClient, found: Found, order: int) -> str:
    """Give work its place among its team's equals: smaller goes first."""
    told = await _mark(client, found, stamps.ORDER, str(order) if order else None)
    return f"{found}: order {order} among its team's work of the same class{told}"


async def pin(client: KubeClient, found: Found) -> str:
    """Put work first of its team's line until it is unpinned."""
    told = await _mark(client, found, stamps.PIN, "true")
    return f"{found}: pinned, first of its team's line{told}"


async def unpin(client: KubeClient, found: Found) -> str:
    """Give work back the place in its team's line that it had."""
    await _annotate(client, found, {stamps.PIN: None})
    return f"{found}: no longer pinned"


async def urgent(client: KubeClient, found: Found) -> str:
    """Put work before all but production, for one of its team's tokens."""
    told = await _mark(client, found, stamps.URGENT, "true")
    return f"{found}: marked as urgent{told}"


async def cancel(client: KubeClient, found: Found) -> str:
    """Delete work, whether it waits or runs."""
    uid = found.obj["metadata"]["uid"]
    body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
    await client.delete(found.path, body)
    return f"{found}: cancelled"


def usual_namespace(settings: Settings) -> str:
    """Return the namespace of the kubeconfig's context, as kubectl takes it."""
    try:
        file = Path(settings.kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION).expanduser()
        contexts, current = list_kube_config_contexts(str(file))
    except (ConfigException, OSError, TypeError):
        return "default"
    wanted = settings.context or (current or {}).get("name")
    for context in contexts or ():
        if context.get("name") == wanted:
            return str((context.get("context") or {}).get("namespace") or "default")
    return "default"


async def _mark(client: KubeClient, found: Found, key: str, value: str | None) -> str:
    """Write a mark that only counts from a lead, and wait a while for the queue's answer."""
    notes = found.obj["metadata"].get("annotations") or {}
    before = notes.get(stamps.MARKS_TOLD, "")
    await _annotate(client, found, {key: value})
    if value is None:
        return ""
    if (found.obj["metadata"].get("labels") or {}).get(stamps.STATE) not in _IN_LINE:
        return "; it is not in line, and this counts when it is"
    if notes.get(key) == value:
        return f" ({before})" if before else ""
    loop = asyncio.get_running_loop()
    ends = loop.time() + _ANSWER_SECONDS
    while loop.time() < ends:
        obj = msgspec.json.decode(await client.get(found.path), type=dict[str, Any])
        told = (obj["metadata"].get("annotations") or {}).get(stamps.MARKS_TOLD, "")
        if told and told != before:
            return f" ({told})"
        await asyncio.sleep(_LOOK_SECONDS)
    return "; the queue has not said yet whether that counts: see kubectl describe"


async def _annotate(
    client: KubeClient, found: Found, annotations: Mapping[str, str | None]
) -> None:
    await _patch(client, found, {"metadata": {"annotations": annotations}})


async def _patch(client: KubeClient, found: Found, patch: Patch) -> None:
    # The uid keeps it from hitting a successor of the same name.
    meta = {**patch["metadata"], "uid": found.obj["metadata"]["uid"]}
    await client.patch(found.path, {**patch, "metadata": meta})


def _kinds(name: str) -> tuple[tuple[Kind, ...], str]:
    before, slash, after = name.partition("/")
    known = [_POD, *(adapter.kind for adapter in ADAPTERS)]
    if not slash:
        return tuple(kind for kind in known if kind.plural in ("jobs", "pods"))[::-1], name
    asked = before.lower()
    found = tuple(kind for kind in known if asked in _names(kind))
    if not found:
        raise ServiceError(f"{before!r} is none of the kinds that are queued")
    return found, after


def _names(kind: Kind) -> Iterator[str]:
    yield kind.kind.lower()
    yield kind.plural
    yield f"{kind.plural}.{kind.group}"
