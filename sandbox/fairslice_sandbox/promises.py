"""The promises of the day, checked by reading the API."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import json

from .model.devices import DEVICES
from .model.kubelet import VISIBLE

__all__ = ["Promise", "sees_only_its_own", "visible_devices"]

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Promise:
    """What was promised, whether it was kept, and by what one can tell."""

    text: str
    kept: bool
    evidence: str


def visible_devices(pod: Mapping[str, Any]) -> Mapping[str, list[str]]:
    """Read which GPUs each container of a pod sees, as its node recorded it."""
    return _record(pod, VISIBLE)


def sees_only_its_own(pods: Iterable[Mapping[str, Any]]) -> Promise:
    """Check every pod that ran: no container sees a GPU that it does not hold."""
    seen = 0
    wrong: list[str] = []
    for pod in pods:
        held = _record(pod, DEVICES)
        for container, devices in visible_devices(pod).items():
            seen += 1
            own = {_physical(device) for device in held.get(container, [])}
            more = sorted(set(devices) - own)
            if more:
                meta = pod["metadata"]
                wrong.append(f"{meta['namespace']}/{meta['name']}:{container} sees {more[0]}")
    return Promise(
        "No container sees a GPU that it was not given",
        not wrong and seen > 0,
        "; ".join(wrong[:3]) or f"{seen} containers looked at",
    )


def _record(pod: Mapping[str, Any], annotation: str) -> Mapping[str, list[str]]:
    text = (pod["metadata"].get("annotations") or {}).get(annotation)
    return json.decode(text, type=dict[str, list[str]]) if text else {}


def _physical(device: str) -> str:
    """Name the device that a replica is a part of."""
    return device.partition("::")[0]
