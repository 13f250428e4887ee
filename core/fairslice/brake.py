"""The brake: fairslice out of the admission path in seconds, and back, with its books intact.

It is a ConfigMap in fairslice's own namespace, there while the brake is on, and the webhook's
registration gone. A webhook that sees the ConfigMap withdraws and doesn't register; only one
that is ready registers again. So nothing but the API server is needed to brake, and no release
puts entries back that nobody answers.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec import Struct

from fairslice.kube.client import KubeClient
from fairslice.kube.ensure import MANAGED_BY
from fairslice.kube.errors import AlreadyExists, ApiError, NotFound, Unreachable
from fairslice.kube.objects import ObjectMeta
from fairslice.kube.reflector import Reflector
from fairslice.registration import is_registered, withdraw

__all__ = ["BRAKE", "Brake", "BrakeReport", "brake", "release"]

BRAKE = "fairslice-brake"
"""Name of the ConfigMap whose presence is the brake."""

_CALL_SECONDS = 5.0
_POLL_SECONDS = 0.25


@dataclass(slots=True)
class BrakeReport:
    """What braking or releasing did. `problems` keep it from being complete, one line each."""

    brake: str
    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


async def brake(
    client: KubeClient, *, namespace: str = "fairslice-system", reason: str = ""
) -> BrakeReport:
    """Put the brake on: nothing is sent to the webhook or hidden until it is released.

    Every step is tried, whatever became of the one before. Raises Unreachable.
    """
    report = BrakeReport("on")
    # First, or a webhook that starts now would register behind our back.
    try:
        await client.create(_collection(namespace), _flag(namespace, reason), within=_CALL_SECONDS)
        report.done.append(f"configmaps/{BRAKE}: created")
    except AlreadyExists:
        report.done.append(f"configmaps/{BRAKE}: there already")
    except Unreachable:
        raise
    except ApiError as error:
        report.problems.append(
            f"configmap {namespace}/{BRAKE} not created, webhooks may register again: {error}"
        )
    try:
        removed = await withdraw(client, within=_CALL_SECONDS)
        report.done += [f"{name}: removed" for name in removed]
        if not removed:
            report.done.append("nothing was registered")
    except ApiError as error:
        report.problems.append(f"not everything was taken out of the admission path: {error}")
    return report


async def release(
    client: KubeClient, *, namespace: str = "fairslice-system", wait: float = 30.0
) -> BrakeReport:
    """Take the brake off and wait, in seconds, for a webhook to register again.

    Raises ApiError where the brake can't be taken off.
    """
    report = BrakeReport("off")
    try:
        await client.delete(f"{_collection(namespace)}/{BRAKE}", within=_CALL_SECONDS)
        report.done.append(f"configmaps/{BRAKE}: removed")
    except NotFound:
        report.done.append("the brake was off")
    if wait > 0:
        if await _registered_within(client, wait):
            report.done.append("the webhook is registered")
        else:
            report.problems.append(
                f"no webhook has registered within {wait:g} s: nothing is admitted by fairslice "
                f"until one is ready; see `kubectl get pods -n {namespace}`"
            )
    return report


async def _registered_within(client: KubeClient, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            # Nobody but the API server can be asked, and it tells of no event.
            while not await is_registered(client):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        return False
    return True


def _collection(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def _flag(namespace: str, reason: str) -> dict[str, object]:
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": BRAKE, "namespace": namespace, "labels": MANAGED_BY},
        "data": {"since": since, "reason": reason},
    }


class _Flag(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


class Brake:
    """Follows the brake; run it as a task. `synced` is set once it is known."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._flags = Reflector(
            client, _collection(namespace), _Flag, field_selector=f"metadata.name={BRAKE}"
        )
        self.synced = self._flags.synced

    async def run(self) -> None:
        """Follow, forever."""
        await self._flags.run()

    @property
    def on(self) -> bool:
        """Say whether the brake is on."""
        return self._flag is not None

    @property
    def text(self) -> str:
        """Since when, and why; empty while the brake is off."""
        flag = self._flag
        if flag is None:
            return ""
        data = flag.data or {}
        since = data.get("since") or flag.metadata.creation_timestamp or "an unknown time"
        reason = data.get("reason", "")
        return f"the brake is on since {since}" + (f": {reason}" if reason else "")

    @property
    def _flag(self) -> _Flag | None:
        return next((x for key, x in self._flags.store.items() if key.name == BRAKE), None)
