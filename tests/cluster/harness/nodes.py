"""Nodes without machines: API objects kept Ready by the suite, and taken away by it."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import aiohttp

from .client import STRATEGIC, Api, Refused
from .kinds import Obj
from .shapes import Shape
from .waiting import eventually

__all__ = ["RUN_LABEL", "TOLERATION", "Nodes"]

RUN_LABEL = "fairslice-suite/run"
# Keeps what waits elsewhere on the cluster off the suite's nodes. It is named as GPU nodes' own
# taints are: tolerating those is no choice of nodes, so the suite's work still starts at once.
_TAINT = {"key": "nvidia.com/fairslice-suite", "effect": "NoSchedule"}
TOLERATION = {**_TAINT, "operator": "Exists"}
_RENEW_SECONDS = 8.0
_ROOM = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}


class Nodes:
    """The nodes of one run. Their names and labels tell them from all others of the cluster."""

    def __init__(self, api: Api, run: str) -> None:
        self.run_id = run
        self.objects: dict[str, Obj] = {}
        self._api = api
        self._number = 0

    async def add(self, shape: Shape) -> str:
        """Make a node, have it Ready and free of lifecycle taints; return its name."""
        self._number += 1
        name = f"suite-{self.run_id}-{shape.model}-{self._number}"
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            RUN_LABEL: self.run_id,
            **shape.labels,
        }
        node: Obj = {"apiVersion": "v1", "kind": "Node", "spec": {"taints": [dict(_TAINT)]}}
        node["metadata"] = {"name": name, "labels": labels}
        made = (await self._api.create(node)).obj
        room = {**_ROOM, **{resource: str(count) for resource, count in shape.devices.items()}}
        await self._renew(name, made["metadata"]["uid"])
        now = _now()
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kept by the cluster suite",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        await self._api.patch(
            "Node", name, {"status": status}, subresource="status", content_type=STRATEGIC
        )
        self.objects[name] = await eventually(
            f"node {name} is free of lifecycle taints",
            lambda: self._api.get("Node", name),
            lambda node: [taint["key"] for taint in node["spec"]["taints"]] == [_TAINT["key"]],
        )
        return name

    async def remove(self, names: Sequence[str]) -> None:
        """Take nodes away with their Leases."""
        for name in names:
            await self._api.delete("Node", name)
            await self._api.delete("Lease", name, "kube-node-lease")
            self.objects.pop(name, None)

    async def keep_ready(self) -> None:
        """Renew the Leases until cancelled; a node that fell behind is made Ready again."""
        while True:
            started = time.monotonic()
            for name, node in list(self.objects.items()):
                try:
                    await self._renew(name, node["metadata"]["uid"])
                except (Refused, aiohttp.ClientError, TimeoutError, OSError):
                    continue  # The next round comes well before the lease is over.
            await asyncio.sleep(max(0.0, started + _RENEW_SECONDS - time.monotonic()))

    async def _renew(self, name: str, uid: str) -> None:
        lease = await self._api.find("Lease", name, "kube-node-lease")
        spec = {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
        if lease is None:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {
                    "name": name,
                    "namespace": "kube-node-lease",
                    "ownerReferences": [owner],
                },
                "spec": spec,
            }
            await self._api.create(lease)
        else:
            await self._api.patch("Lease", name, {"spec": spec}, "kube-node-lease")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
