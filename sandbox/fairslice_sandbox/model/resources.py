"""What a pod asks of a node, in the scheduler's units."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache

from fairslice.quantity import parse_quantity
from fairslice_sandbox.model.objects import Obj

__all__ = ["add", "amounts", "container_requests", "is_sidecar", "pod_requests"]

Amounts = dict[str, int]


@lru_cache(maxsize=4096)
def _units(resource: str, quantity: str) -> int:
    value = parse_quantity(quantity)
    return math.ceil(value * 1000 if resource == "cpu" else value)


def amounts(quantities: Mapping[str, str | int] | None) -> Amounts:
    """Read a resource list: milli-cores for cpu, else bytes or counts, rounded up.

    Raises QuantityError for text that is no quantity.
    """
    return {name: _units(name, str(value)) for name, value in (quantities or {}).items()}


def add(total: Amounts, more: Mapping[str, int]) -> None:
    """Add amounts in place."""
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def container_requests(container: Obj) -> Amounts:
    """Give a container's requests, defaulted from its limits."""
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def is_sidecar(container: Obj) -> bool:
    """Say whether an init container keeps running beside the main ones."""
    return bool(container.get("restartPolicy") == "Always")


def _sum(containers: Iterable[Obj]) -> Amounts:
    total: Amounts = {}
    for container in containers:
        add(total, container_requests(container))
    return total


def pod_requests(spec: Obj) -> Amounts:
    """Give what a pod needs at its peak, its own slot in `pods` included (KEP-753).

    An init container runs beside the sidecars declared before it; the main containers run
    beside all sidecars.
    """
    peak: Amounts = {}
    sidecars: Amounts = {}
    for init in spec.get("initContainers") or ():
        moment = dict(sidecars)
        add(moment, container_requests(init))
        if is_sidecar(init):
            sidecars = dict(moment)
        for name, value in moment.items():
            peak[name] = max(peak.get(name, 0), value)
    steady = _sum(spec.get("containers") or ())
    add(steady, sidecars)
    for name, value in steady.items():
        peak[name] = max(peak.get(name, 0), value)
    add(peak, amounts(spec.get("overhead")))
    peak["pods"] = 1
    return {name: value for name, value in peak.items() if value}
