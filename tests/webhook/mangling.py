"""Spoils reviews: their JSON in many ways, their bytes in more."""

import json
import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

__all__ = ["Mangler"]

_NAMES = (
    *("metadata", "spec", "status", "containers", "initContainers", "ephemeralContainers"),
    *("resources", "limits", "requests", "claims", "env", "volumes", "hostPath", "labels"),
    *("annotations", "ownerReferences", "schedulingGates", "tolerations", "nodeSelector"),
    *("affinity", "suspend", "parallelism", "completions", "template", "name", "namespace"),
    *("nvidia.com/gpu", "fairslice.io/class", "fairslice.io/gpu-memory", "fairslice.io/gpus"),
    *("fairslice.io/pod-group", "fairslice.io/pod-group-size", "fairslice.io/hold"),
    *("system.fairslice.io/booking", "system.fairslice.io/assignment", "fairslice.io/restart"),
    *("system.fairslice.io/state", "system.fairslice.io/managed", "", "a/b~c", "\U0001f600"),
)
_SCRAPS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, -(2**63), 2**64, 10**40, 0.5, -0.0, 1e308),
    *("", "x", "0", "-1", "1", "500m", "1e3", "1.5Gi", "٣", "9" * 400, "x" * 70_000),
    *("\u0000", "\ud800", "\U0001f600", "a\nb\x1b[31m", "../../..", "true", "null", "$(X)"),
    *("Never", "Always", "training", "nvidia.com/mig-1g.10gb", "2026-11-30T12:00:00Z", "10m"),
    *('{"option": []}', '{"pool":', "[]", "b" + "0" * 20),
    *([], {}, [[]], [None], [{}], {"": None}, {"name": "x"}, {"nvidia.com/gpu": "1"}),
)
# API servers take up to 3 MiB, but spoiling that much takes longer than answering it.
_MOST_BYTES = 2**19


class Mangler:
    """Spoils what it is given; the same number spoils it the same way."""

    def __init__(self, number: int) -> None:
        self.chance = random.Random(number)

    def spoil(self, reviews: Sequence[bytes]) -> bytes:
        """Take one of the reviews and spoil it."""
        chosen = self.chance.choice(reviews)
        kind = self.chance.random()
        if kind < 0.1:
            return self._bytes(chosen)
        document = json.loads(chosen)
        for _ in range(self.chance.choice((1, 1, 1, 2, 3, 6))):
            document = self._once(document, reviews)
            if len(json.dumps(document)) > _MOST_BYTES:
                return chosen
        if self.chance.random() < 0.05 and (spots := _spots(document)):
            # Last, since what is so deep can be copied no more.
            holder, key = self.chance.choice(spots)
            holder[key] = self._deep(holder[key])
        body = json.dumps(document, ensure_ascii=self.chance.random() < 0.5)
        encoded = body.encode(errors="surrogatepass")
        return self._bytes(encoded) if kind < 0.15 else encoded

    def _once(self, document: Any, reviews: Sequence[bytes]) -> Any:
        spots = [(holder, key) for holder, key in _spots(document) if key != "uid"]
        if not spots:
            return self._scrap()
        holder, key = self.chance.choice(spots)
        ways: tuple[Callable[[], Any], ...] = (
            self._scrap,
            lambda: self._elsewhere(document),
            lambda: self._elsewhere(json.loads(self.chance.choice(reviews))),
            lambda: self._many(holder[key]),
            lambda: {self.chance.choice(_NAMES): holder[key]},
            lambda: self._nudge(holder[key]),
        )
        if self.chance.random() < 0.15:
            if isinstance(holder, dict):
                holder[self.chance.choice(_NAMES)] = holder.pop(key)
            else:
                holder.insert(key, self._elsewhere(document))
        elif self.chance.random() < 0.15:
            del holder[key]
        else:
            holder[key] = self.chance.choice(ways)()
        return document

    def _scrap(self) -> Any:
        return deepcopy(self.chance.choice(_SCRAPS))

    def _elsewhere(self, document: Any) -> Any:
        spots = list(_spots(document))
        if not spots:
            return self._scrap()
        holder, key = self.chance.choice(spots)
        return deepcopy(holder[key])

    def _many(self, value: Any) -> Any:
        times = self.chance.choice((2, 40, 300))
        return [value] * min(times, _MOST_BYTES // 4 // len(json.dumps(value)))

    def _deep(self, value: Any) -> Any:
        for _ in range(self.chance.choice((3, 60, 500))):
            value = [value] if self.chance.random() < 0.5 else {"a": value}
        return value

    def _nudge(self, value: Any) -> Any:
        """Change a value within its type."""
        if isinstance(value, bool) or value is None:
            return not value
        if isinstance(value, int | float):
            return self.chance.choice((-value, value + 1, value * 10**9))
        if isinstance(value, str):
            at = self.chance.randint(0, len(value))
            return value[:at] + self.chance.choice(("", "/", "-", ".", " ", "é", "0")) + value[at:]
        if isinstance(value, list):
            return list(reversed(value)) + value[:1]
        return {**value, self.chance.choice(_NAMES): self._scrap()}

    def _bytes(self, body: bytes) -> bytes:
        spoilt = bytearray(body)
        for _ in range(self.chance.randint(1, 4)):
            at = self.chance.randrange(len(spoilt) + 1)
            match self.chance.randrange(4):
                case 0:
                    del spoilt[at:]
                case 1:
                    spoilt[at : at + 1] = bytes([self.chance.randrange(256)])
                case 2:
                    spoilt[at:at] = self.chance.choice((b'"', b"{", b"[[", b"\\u", b"\xff", b"\0"))
                case _:
                    spoilt[at:at] = spoilt[: self.chance.randrange(len(spoilt) + 1)]
        return bytes(spoilt)


def _spots(document: Any) -> list[tuple[Any, Any]]:
    """List all holders with a key of theirs."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        holder = waiting.pop()
        items = (
            holder.items()
            if isinstance(holder, dict)
            else enumerate(holder)
            if isinstance(holder, list)
            else ()
        )
        for key, value in items:
            found.append((holder, key))
            waiting.append(value)
    return found
