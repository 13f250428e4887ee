"""Keeps the webhook's registration in step with the brake, the policy and the teams."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from fairslice.brake import Brake
from fairslice.kube.client import KubeClient
from fairslice.kube.errors import ApiError
from fairslice.match_conditions import names_beyond_prefixes
from fairslice.registration import hides_everywhere, is_registered, register, withdraw
from fairslice.settings import HideBy
from fairslice.webhook_configuration import Target
from fairslice_webhook.view import View

__all__ = ["Registrar"]

_log = logging.getLogger(__name__)

# Until it is registered, what comes to stand for GPUs is not sent where the API server hides.
_PERIOD_SECONDS = 0.1
_RETRY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Shape:
    """All that the registration takes from policy, teams and DeviceClasses.

    `excluded` are the namespaces where every ServiceAccount is exempt: nothing of theirs is sent.
    """

    everywhere: bool
    resources: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    exempt: frozenset[tuple[str, frozenset[str]]] = frozenset()
    extra_env: frozenset[str] = frozenset()

    @classmethod
    def of(cls, view: View) -> "_Shape":
        policy, resources = view.policy, names_beyond_prefixes(view.devices.names)
        excluded = tuple(sorted(name for name, who in policy.exempt.items() if "*" in who))
        if not hides_everywhere(policy, view.teams.teams):
            return cls(False, resources, excluded)
        exempt = frozenset(policy.exempt.items())
        return cls(True, resources, excluded, exempt, frozenset(policy.hiding.extra_env))


class Registrar:
    """Registers this replica's webhook; run it as a task in every replica once it answers.

    `target` and `view` give the newest, `is_ready` says whether an answer could be given,
    `registered` is awaited after each registration, and `hide_by` says who hides plain pods.
    """

    def __init__(
        self,
        client: KubeClient,
        brake: Brake,
        *,
        target: Callable[[], Target],
        view: Callable[[], View | None],
        is_ready: Callable[[], bool],
        registered: Callable[[], Awaitable[None]],
        hide_by: HideBy = HideBy.AUTO,
    ) -> None:
        self._client = client
        self._brake = brake
        self._target = target
        self._view = view
        self._is_ready = is_ready
        self._registered = registered
        self._in_process = hide_by is HideBy.AUTO
        self._in_force: _Shape | None = None
        self._looked_at: View | None = None
        self._withdrawn = False

    async def come_up(self) -> None:
        """Register for the first time, unless the brake is on. Raises ApiError."""
        if self._brake.on:
            await self._withdraw()
        else:
            await self._register()

    async def run(self) -> None:
        """Follow, forever. What the API server refuses is tried again."""
        while True:
            try:
                await self._look()
            except ApiError as error:
                _log.warning("registration: %s; again in %.0f s", error, _RETRY_SECONDS)
                await asyncio.sleep(_RETRY_SECONDS)
            await asyncio.sleep(_PERIOD_SECONDS)

    async def _look(self) -> None:
        if self._brake.on:
            if not self._withdrawn:
                await self._withdraw()
            return
        view = self._view()
        if view is None or not self._is_ready():
            return
        if self._withdrawn:
            await self._register()
        elif view is self._looked_at:
            return  # views are replaced as a whole
        elif _Shape.of(view) != self._in_force:
            # Whoever took it out by hand wants it out.
            if await is_registered(self._client):
                await self._register()
            else:
                self._in_force = _Shape.of(view)
        self._looked_at = view

    async def _withdraw(self) -> None:
        removed = await withdraw(self._client)
        self._withdrawn = True
        _log.warning("%s; removed: %s", self._brake.text, ", ".join(removed) or "nothing")

    async def _register(self) -> None:
        view = self._view()
        assert view is not None
        shape = _Shape.of(view)
        hidden_by = view.policy if shape.everywhere and self._in_process else None
        target = replace(self._target(), resources=shape.resources, excluded=shape.excluded)
        plain_pods = await register(self._client, target, hidden_by)
        self._in_force, self._withdrawn = shape, False
        _log.info("webhook registered; pods without GPUs: %s", plain_pods)
        await self._registered()
