"""Taking fairslice out of a cluster, and letting go what waits."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec import Raw, Struct, json

from fairslice import stamps
from fairslice.booking import State
from fairslice.kube.client import JSON_PATCH, KubeClient
from fairslice.kube.connection import QUEUE_ACCOUNT, QUEUE_LEASE, WEBHOOK_ACCOUNT
from fairslice.kube.ensure import MANAGED_BY
from fairslice.kube.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from fairslice.kube.objects import ObjectMeta, Pod
from fairslice.registration import withdraw
from fairslice.v1alpha1 import GROUP
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import TeamSpec
from fairslice.workloads import ADAPTERS, Adapter

__all__ = ["QueueRunning", "UninstallReport", "uninstall"]

_GONE_SECONDS = 60.0
_HELD = State.HELD.lower()
_WAITING = f"{stamps.STATE} in ({State.QUEUED.lower()},{State.PREEMPTED.lower()},{_HELD})"
_OURS = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"


class QueueRunning(RuntimeError):
    """A queue still acts on the cluster and would take back what is let go."""


@dataclass(slots=True)
class UninstallReport:
    """What was let go and removed, and what stayed behind, as `Kind namespace/name`."""

    released: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class _Item(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _ListMeta(Struct, frozen=True, rename={"next": "continue"}):
    next: str = ""


class _RawList(Struct, frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: tuple[Raw, ...] | None = None


async def uninstall(
    client: KubeClient, *, namespace: str = "fairslice-system", force: bool = False
) -> UninstallReport:
    """Remove fairslice: the webhooks first, then let queued work go, then all the rest.

    Raises QueueRunning unless `force`, and ApiError.
    """
    if not force:
        await _refuse_while_led(client, namespace)
    report = UninstallReport()
    report.removed += await withdraw(client)
    # A queue in the cluster must be gone before its work is let go.
    await _remove(client, f"/apis/apps/v1/namespaces/{namespace}/deployments", report, _OURS)
    for adapter in ADAPTERS:
        if adapter.suspend:
            await _resume(client, adapter, report)
    await _open_gates(client, report)
    for plural in (TeamSpec.plural, SharingPolicySpec.plural):
        await _remove(client, f"{_DEFINITIONS}/{plural}.{GROUP}", report)
        await _wait_gone(client, f"{_DEFINITIONS}/{plural}.{GROUP}", report)
    await _remove(client, _PRIORITIES, report, _OURS)
    for account in (WEBHOOK_ACCOUNT, QUEUE_ACCOUNT):
        await _remove(client, f"{_RBAC}/clusterrolebindings/{account}", report)
        await _remove(client, f"{_RBAC}/clusterroles/{account}", report)
    home = f"/api/v1/namespaces/{namespace}"
    await _remove(client, home, report)
    await _wait_gone(client, home, report)
    return report


async def _refuse_while_led(client: KubeClient, namespace: str) -> None:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{QUEUE_LEASE}"
    try:
        spec = json.decode(await client.get(path), type=_Lease).spec
    except NotFound:
        return
    if not spec.holder or spec.renewed is None:
        return
    age = (datetime.now(UTC) - spec.renewed).total_seconds()
    if age < spec.seconds:
        raise QueueRunning(
            f"a queue is running ({spec.holder}): stop it first, or pass --force to go ahead"
        )


class _LeaseSpec(
    Struct,
    frozen=True,
    rename={
        "holder": "holderIdentity",
        "renewed": "renewTime",
        "seconds": "leaseDurationSeconds",
    },
):
    holder: str | None = None
    renewed: datetime | None = None
    seconds: int = 15


class _Lease(Struct, frozen=True):
    spec: _LeaseSpec = _LeaseSpec()


async def _resume(client: KubeClient, adapter: Adapter, report: UninstallReport) -> None:
    kind = adapter.kind
    async for raw in _list(client, f"/apis/{kind.api_version}/{kind.plural}", _WAITING):
        meta = json.decode(raw, type=_Item).metadata
        name = f"{kind.kind} {meta.namespace}/{meta.name}"
        held = (meta.labels or {}).get(stamps.STATE) == _HELD
        if held and stamps.HOLD not in (meta.annotations or {}):
            report.left.append(f"{name}: suspended by its owner")
            continue
        path = f"/apis/{kind.api_version}/namespaces/{meta.namespace}/{kind.plural}/{meta.name}"
        resume = {"op": "add", "path": adapter.suspend, "value": False}
        await _let_go(client, path, [resume, *_unstamp(meta)], name, report)


async def _open_gates(client: KubeClient, report: UninstallReport) -> None:
    async for raw in _list(client, "/api/v1/pods", _WAITING):
        pod = json.decode(raw, type=Pod)
        meta = pod.metadata
        gates = [gate.name for gate in pod.spec.scheduling_gates or ()]
        if stamps.GATE not in gates:
            continue
        place = f"/spec/schedulingGates/{gates.index(stamps.GATE)}"
        open_gate: list[dict[str, object]] = [
            {"op": "test", "path": f"{place}/name", "value": stamps.GATE},
            {"op": "remove", "path": place},
        ]
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}"
        name = f"Pod {meta.namespace}/{meta.name}"
        await _let_go(client, path, [*open_gate, *_unstamp(meta)], name, report)


def _unstamp(meta: ObjectMeta) -> list[dict[str, object]]:
    return [
        {"op": "remove", "path": f"/metadata/{group}/{key.replace('~', '~0').replace('/', '~1')}"}
        for group, keys in (("labels", meta.labels), ("annotations", meta.annotations))
        for key in keys or ()
        if key.startswith(stamps.SYSTEM)
    ]


async def _let_go(
    client: KubeClient,
    path: str,
    operations: list[dict[str, object]],
    name: str,
    report: UninstallReport,
) -> None:
    try:
        await client.patch(path, operations, JSON_PATCH)
    except NotFound:
        return
    except (Conflict, Invalid, Forbidden) as error:
        report.left.append(f"{name}: {error}")
    else:
        report.released.append(name)


async def _list(client: KubeClient, path: str, selector: str) -> AsyncIterator[Raw]:
    params: dict[str, str | int] = {"labelSelector": selector, "limit": 500}
    while True:
        try:
            page = json.decode(await client.get(path, params, within=60.0), type=_RawList)
        except NotFound:
            return  # The kind isn't installed.
        for raw in page.items or ():
            yield raw
        if not page.metadata.next:
            return
        params["continue"] = page.metadata.next


async def _remove(
    client: KubeClient, path: str, report: UninstallReport, selector: str = ""
) -> None:
    """Delete an object, or all of a collection that a selector matches."""
    params = {"labelSelector": selector} if selector else None
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    try:
        answer = await client.delete(path, body, params)
    except NotFound:
        return
    shown = path.rpartition("/v1/")[2]
    if not selector:
        report.removed.append(shown)
        return
    for raw in json.decode(answer, type=_RawList).items or ():
        report.removed.append(f"{shown}/{json.decode(raw, type=_Item).metadata.name}")


async def _wait_gone(client: KubeClient, path: str, report: UninstallReport) -> None:
    try:
        async with asyncio.timeout(_GONE_SECONDS):
            while True:
                await client.get(path)
                await asyncio.sleep(0.5)
    except NotFound:
        return
    except TimeoutError:
        report.left.append(f"{path}: still terminating")
    except ApiError as error:
        report.left.append(f"{path}: {error}")
