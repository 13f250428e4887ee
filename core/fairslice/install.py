"""Putting fairslice into a cluster: all of it or nothing, and again without harm."""

import asyncio
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, json

from fairslice.kube.client import MERGE_PATCH, KubeClient
from fairslice.kube.ensure import Done, collection_path, ensure, is_ours, object_path
from fairslice.kube.errors import AlreadyExists, ApiError, NotFound
from fairslice.policy import Policy
from fairslice.preflight import check_access
from fairslice.rbac import access_objects
from fairslice.v1alpha1 import API_VERSION
from fairslice.v1alpha1.resources import POLICIES, POLICY_NAME, SharingPolicyResource
from fairslice.v1alpha1.scalars import Mode
from fairslice.v1alpha1.schema import definitions

__all__ = [
    "InstallError",
    "InstallReport",
    "ensure_priority_classes",
    "ensure_secret_path",
    "install",
    "priority_class",
]

_log = logging.getLogger(__name__)
_ESTABLISHED_SECONDS = 30.0
_ROLLBACK_SECONDS = 10.0
_FEATURES = ("hide", "guards", "rewrite", "quota", "queue")
_PATH_SECRET = "fairslice-webhook-path"


class InstallError(RuntimeError):
    """The cluster did not take the installation: what, and why."""


@dataclass(slots=True)
class InstallReport:
    """What an installation did, object by object, as `Kind name`."""

    created: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Installation:
    client: KubeClient
    report: InstallReport = field(default_factory=InstallReport)
    made: list[Mapping[str, Any]] = field(default_factory=list)

    async def put(self, obj: Mapping[str, Any]) -> None:
        done = await ensure(self.client, obj)
        if done is Done.CREATED:
            self.made.append(obj)
        name = f"{obj['kind']} {obj['metadata']['name']}"
        {
            Done.CREATED: self.report.created,
            Done.UPDATED: self.report.updated,
            Done.UNCHANGED: self.report.unchanged,
        }[done].append(name)

    async def roll_back(self) -> None:
        for obj in reversed(self.made):
            try:
                await self.client.delete(object_path(obj), within=_ROLLBACK_SECONDS)
            except NotFound:
                pass
            except ApiError as error:
                _log.warning("left behind: %s %s: %s", obj["kind"], obj["metadata"]["name"], error)


async def install(
    client: KubeClient, *, namespace: str = "fairslice-system", mode: Mode | None = None
) -> InstallReport:
    """Create or update everything but the webhook configurations (see `fairslice.registration`).

    Without a policy on the cluster, one is made: Audit everywhere, or `mode` everywhere. On a
    failure, what this run created is taken away again. Raises InstallError and ApiError.
    """
    await check_access(client, namespace)
    work = _Installation(client)
    try:
        await work.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for definition in definitions():
            await work.put(definition)
        for definition in definitions():
            await _established(client, definition)
        await _policy(work, mode)
        await ensure_priority_classes(client, await _read_policy(client), work.report, work.made)
        for obj in access_objects(namespace):
            await work.put(obj)
    except BaseException:
        # Cancelled or failed, nothing half-installed stays.
        await asyncio.shield(work.roll_back())
        raise
    return work.report


async def ensure_secret_path(client: KubeClient, namespace: str) -> str:
    """Return the random URL path under which the webhook answers; make it if there is none."""
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _PATH_SECRET, "namespace": namespace},
        # Of a path in the Service form, each segment must be a lower-case DNS name.
        "stringData": {"path": secrets.token_hex(24)},
    }
    try:
        answer = await client.get(object_path(body))
    except NotFound:
        try:
            answer = await client.create(collection_path(body), body)
        except AlreadyExists:
            answer = await client.get(object_path(body))
    return json.decode(answer, type=_PathSecret).data.path.decode()


class _PathData(Struct, frozen=True):
    path: bytes


class _PathSecret(Struct, frozen=True):
    data: _PathData


def priority_class(name: str, value: int, description: str) -> dict[str, Any]:
    """Make a PriorityClass. The queue preempts, never the kube-scheduler."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "Never",
        "globalDefault": False,
        "description": description,
    }


async def ensure_priority_classes(
    client: KubeClient,
    policy: Policy,
    report: InstallReport | None = None,
    made: list[Mapping[str, Any]] | None = None,
) -> None:
    """Make the PriorityClasses that the policy's classes name.

    One that somebody else made is left as it is. A value can't be changed: ours is replaced.
    """
    work = _Installation(client, report or InstallReport(), [] if made is None else made)
    for item in policy.classes.values():
        if not item.priority_class:
            continue
        wanted = priority_class(
            item.priority_class, item.priority, f"GPU work of class {item.name}, by fairslice."
        )
        try:
            live: dict[str, Any] = json.decode(await client.get(object_path(wanted)))
        except NotFound:
            await work.put(wanted)
            continue
        if not is_ours(live):
            continue
        if (live["value"], live.get("preemptionPolicy")) != (item.priority, "Never"):
            await client.delete(object_path(wanted))
        await work.put(wanted)


async def _established(client: KubeClient, definition: Mapping[str, Any]) -> None:
    deadline = asyncio.get_running_loop().time() + _ESTABLISHED_SECONDS
    name = definition["metadata"]["name"]
    while True:
        live = json.decode(await client.get(object_path(definition)), type=_Definition)
        conditions = {each.type: each for each in live.status.conditions or ()}
        if "Established" in conditions and conditions["Established"].status == "True":
            return
        names = conditions.get("NamesAccepted")
        if names is not None and names.status == "False":
            raise InstallError(f"CRD {name}: its names are taken: {names.message}")
        if asyncio.get_running_loop().time() > deadline:
            raise InstallError(f"CRD {name} is not established after {_ESTABLISHED_SECONDS:.0f} s")
        await asyncio.sleep(0.1)


class _Condition(Struct, frozen=True):
    type: str
    status: str
    message: str = ""


class _DefinitionStatus(Struct, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _Definition(Struct, frozen=True):
    status: _DefinitionStatus = _DefinitionStatus()


async def _policy(work: _Installation, mode: Mode | None) -> None:
    """Make the policy if there is none; set its modes if that is asked for."""
    modes = dict.fromkeys(_FEATURES, (mode or Mode.AUDIT).value)
    body = {
        "apiVersion": API_VERSION,
        "kind": "SharingPolicy",
        "metadata": {"name": POLICY_NAME},
        "spec": {"mode": modes},
    }
    name = f"SharingPolicy {POLICY_NAME}"
    # A definition is established a moment before its objects are served.
    for attempt in range(50):
        try:
            await work.client.create(POLICIES, body)
        except AlreadyExists:
            if mode is not None:
                await work.client.patch(object_path(body), {"spec": {"mode": modes}}, MERGE_PATCH)
            (work.report.updated if mode is not None else work.report.unchanged).append(name)
            return
        except NotFound:
            if attempt == 49:
                raise
            await asyncio.sleep(0.2)
        else:
            work.made.append(body)
            work.report.created.append(name)
            return


async def _read_policy(client: KubeClient) -> Policy:
    answer = await client.get(f"{POLICIES}/{POLICY_NAME}")
    return Policy.compile(json.decode(answer, type=SharingPolicyResource).spec)
