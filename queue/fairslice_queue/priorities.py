"""Keeping the PriorityClasses that the policy's classes name, as the policy changes."""

import asyncio
import logging

from fairslice.install import ensure_priority_classes
from fairslice.kube.client import ApiError, KubeClient
from fairslice_queue.watching import Watch

__all__ = ["keep_priority_classes"]

_log = logging.getLogger(__name__)

_PERIOD_SECONDS = 2.0


async def keep_priority_classes(client: KubeClient, watch: Watch) -> None:
    """Make what is missing; while leading. A missing PriorityClass has pods refused."""
    kept: list[tuple[str, int]] | None = None
    while True:
        policy = watch.policy
        wanted = [(item.priority_class, item.priority) for item in policy.classes.values()]
        if wanted != kept:
            try:
                await ensure_priority_classes(client, policy)
                kept = wanted
            except ApiError as error:
                _log.warning("PriorityClasses of the policy's classes: %s", error)
        await asyncio.sleep(_PERIOD_SECONDS)
