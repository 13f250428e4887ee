"""Entering the webhook at the API server, and taking it out again.

What is registered depends on the server: from Kubernetes 1.36 on it can hide GPUs by itself.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, json

from fairslice.hiding_policy import HIDING_POLICY, hiding_binding, hiding_policy
from fairslice.kube.client import KubeClient
from fairslice.kube.ensure import Done, ensure, object_path
from fairslice.kube.errors import ApiError, Forbidden, Invalid, NotFound
from fairslice.policy import Policy, Team
from fairslice.v1alpha1.scalars import Mode
from fairslice.webhook_configuration import (
    NAME,
    PlainPods,
    Target,
    mutating_configuration,
    validating_configuration,
)

__all__ = ["hides_everywhere", "is_registered", "register", "withdraw"]

_log = logging.getLogger(__name__)

_ROOT = "/apis/admissionregistration.k8s.io/v1"
_CONFIGURATIONS = (
    f"mutatingwebhookconfigurations/{NAME}",
    f"validatingwebhookconfigurations/{NAME}",
)
_HIDING = (
    f"mutatingadmissionpolicybindings/{HIDING_POLICY}",
    f"mutatingadmissionpolicies/{HIDING_POLICY}",
)
_ROLLBACK_SECONDS = 10.0
# API servers look for new policies once a second.
_IN_FORCE_SECONDS = 2.5
_HIDES_SINCE = (1, 36)


def hides_everywhere(policy: Policy, teams: Iterable[Team]) -> bool:
    """Say whether pods of all namespaces are hidden alike, so that one policy can do it."""
    everyone: tuple[Team | None, ...] = (None, *teams)
    return all(policy.modes_for(team).hide is Mode.ENFORCE for team in everyone)


async def register(
    client: KubeClient, target: Target, hidden_by: Policy | None = None
) -> PlainPods:
    """Tell the API server about a webhook that already answers; say who hides plain pods.

    `hidden_by` is the policy by which all pods are to be hidden, None where they aren't alike.
    Raises ApiError; what this call created is then taken back.
    """
    made: list[Mapping[str, Any]] = []
    try:
        plain_pods = PlainPods.SENT
        if hidden_by is not None and await _can_hide(client):
            plain_pods = await _hide_in_process(client, target, hidden_by, made)
        for configuration in (
            mutating_configuration(target, plain_pods),
            validating_configuration(target, plain_pods),
        ):
            await _put(client, configuration, made)
        if plain_pods is PlainPods.SENT:
            # Not before the webhook's own entry is there.
            await _delete(client, _HIDING)
    except BaseException:
        await asyncio.shield(_take_back(client, made))
        raise
    return plain_pods


async def is_registered(client: KubeClient) -> bool:
    """Say whether the API server sends anything to the webhook. Raises ApiError."""
    for path in _CONFIGURATIONS:
        try:
            await client.get(f"{_ROOT}/{path}")
        except NotFound:
            return False
    return True


async def withdraw(client: KubeClient, *, within: float = 10.0) -> list[str]:
    """Take fairslice out of the admission path; return what was removed, as `plural/name`.

    What can deny goes first. `within` is in seconds, for each of four calls. Raises ApiError,
    after having tried all.
    """
    return await _delete(client, (*_CONFIGURATIONS, *_HIDING), within)


async def _can_hide(client: KubeClient) -> bool:
    found = json.decode(await client.get("/version"), type=_Version)
    # A minor version may carry a vendor's "+".
    numbers = [re.match(r"\d+", part) for part in (found.major, found.minor)]
    return tuple(int(number[0]) if number else 0 for number in numbers) >= _HIDES_SINCE


class _Version(Struct, frozen=True):
    major: str = ""
    minor: str = ""


async def _hide_in_process(
    client: KubeClient, target: Target, policy: Policy, made: list[Mapping[str, Any]]
) -> PlainPods:
    """Have the API server hide; where it won't, all pods are sent, as on older ones."""
    try:
        new = await _put(client, hiding_policy(target, policy), made)
        new |= await _put(client, hiding_binding(), made)
    except (NotFound, Invalid, Forbidden) as error:
        _log.warning("pods without GPUs are sent to the webhook: %s", error)
        return PlainPods.SENT
    if new and await is_registered(client):
        await asyncio.sleep(_IN_FORCE_SECONDS)
    return PlainPods.IN_PROCESS


async def _put(client: KubeClient, obj: Mapping[str, Any], made: list[Mapping[str, Any]]) -> bool:
    done = await ensure(client, obj)
    if done is Done.CREATED:
        made.append(obj)
    return done is Done.CREATED


async def _delete(client: KubeClient, paths: Iterable[str], within: float = 10.0) -> list[str]:
    removed: list[str] = []
    failure: ApiError | None = None
    for path in paths:
        try:
            await client.delete(f"{_ROOT}/{path}", within=within)
        except NotFound:
            continue  # or a kind that this server doesn't know
        except ApiError as error:
            failure = failure or error
        else:
            removed.append(path)
    if failure is not None:
        raise failure
    return removed


async def _take_back(client: KubeClient, made: list[Mapping[str, Any]]) -> None:
    for obj in reversed(made):
        try:
            await client.delete(object_path(obj), within=_ROLLBACK_SECONDS)
        except NotFound:
            pass
        except ApiError as error:
            _log.warning("left behind: %s %s: %s", obj["kind"], obj["metadata"]["name"], error)
