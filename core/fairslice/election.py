"""Leader election by a Lease, so that one queue at a time acts.

The rules are client-go's (tools/leaderelection): others' leases are judged by the local
monotonic clock since they were last seen to change, never by comparing wall clocks; whoever
can't renew in time stops before others may start.
"""

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec import Struct, json

from fairslice.kube.client import KubeClient
from fairslice.kube.errors import AlreadyExists, ApiError, NotFound
from fairslice.kube.objects import ObjectMeta

__all__ = ["ElectionTiming", "LeaderElection", "LeadershipOverrun"]

_log = logging.getLogger(__name__)


class LeadershipOverrun(RuntimeError):
    """The leader's work did not stop in time after leadership was lost; the process must."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTiming:
    """Seconds: others may take over after `lease`; a leader that can't renew stops after
    `renew`, and then has `lease - renew` to wind up.

    Half of client-go's times: every write to the ledger is fenced and every patch names a uid, so
    that two leaders do no harm, while a leader that was killed holds up everybody's work.
    """

    lease: int = 8
    renew: float = 5.0
    retry: float = 1.0


class _LeaseSpec(Struct, frozen=True, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _LeaseSpec = _LeaseSpec()


_LEASE = json.Decoder(_Lease)


class LeaderElection:
    """Campaigns for a Lease and runs the leader's work while it is held."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: ElectionTiming | None = None,
    ) -> None:
        self.leading = False
        self._client = client
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._timing = timing or ElectionTiming()
        self._seen = _Lease()
        self._seen_at = -math.inf
        self._renewed_at = -math.inf

    @property
    def holder(self) -> str:
        """Who held the Lease when it was last read; empty if nobody."""
        return self._seen.spec.holder_identity or ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait for leadership, run `lead`, cancel it when leadership is lost, and again.

        Returns when `lead` does; its errors come out. Cancelled, it stops `lead` and gives the
        Lease up. Raises LeadershipOverrun if `lead` doesn't stop in time.
        """
        while True:
            await self._acquire()
            _log.info("leading", extra={"lease": self._name, "identity": self._identity})
            if await self._lead(lead):
                return
            _log.warning("leadership lost", extra={"lease": self._name, "holder": self.holder})

    async def _acquire(self) -> None:
        complained = ""
        while True:
            try:
                if await self._try_hold(self._timing.renew):
                    return
                complained = ""
            except ApiError as error:
                if str(error) != complained:
                    complained = str(error)
                    _log.warning("lease %s: %s", self._name, error)
            await asyncio.sleep(self._timing.retry * random.uniform(1.0, 1.5))

    async def _lead(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Lead until the work is done (True) or the Lease is lost (False)."""
        self.leading = True
        work = asyncio.ensure_future(lead())
        renewal = asyncio.create_task(self._renew())
        try:
            await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.leading = False
            lost = renewal.done()
            renewal.cancel()
            await asyncio.wait((renewal,))
            await self._stop(work)
            if not lost:
                await self._give_up()
        if not renewal.cancelled():
            renewal.result()
        if not work.cancelled():
            work.result()
        return not lost

    async def _stop(self, work: asyncio.Future[None]) -> None:
        work.cancel()
        spare = max(0.1, self._renewed_at + self._timing.lease - time.monotonic())
        _, pending = await asyncio.wait((work,), timeout=spare)
        if pending:
            raise LeadershipOverrun(f"the leader's work did not stop within {spare:.0f} s")

    async def _renew(self) -> None:
        """Renew until that has failed for too long, or somebody else holds the Lease."""
        while True:
            await asyncio.sleep(self._timing.retry)
            spare = self._renewed_at + self._timing.renew - time.monotonic()
            if spare <= 0:
                return
            try:
                if not await self._try_hold(spare):
                    return
            except ApiError as error:
                _log.warning("lease %s: not renewed: %s", self._name, error)

    async def _try_hold(self, within: float) -> bool:
        """Take or renew the Lease; False if another one holds it.

        Raises ApiError, within the seconds given.
        """
        # Others count from when they see the write, which is after this moment.
        begun = time.monotonic()
        deadline = begun + within
        try:
            lease = _LEASE.decode(await self._client.get(self._path, within=within))
        except NotFound:
            lease = None
        if lease is not None:
            self._observe(lease)
            if self.holder not in ("", self._identity) and not self._expired():
                return False
        body = json.encode(self._next(lease))
        within = max(0.05, deadline - time.monotonic())
        try:
            if lease is None:
                answer = await self._client.create(self._collection, body, within=within)
            else:
                answer = await self._client.replace(self._path, body, within=within)
        except AlreadyExists:
            return False
        self._observe(_LEASE.decode(answer))
        self._renewed_at = begun
        return True

    @property
    def _path(self) -> str:
        return f"{self._collection}/{self._name}"

    def _observe(self, lease: _Lease) -> None:
        if lease.metadata.resource_version != self._seen.metadata.resource_version:
            self._seen_at = time.monotonic()
        self._seen = lease

    def _expired(self) -> bool:
        duration = self._seen.spec.lease_duration_seconds or self._timing.lease
        return time.monotonic() > self._seen_at + duration

    def _next(self, lease: _Lease | None, *, release: bool = False) -> dict[str, object]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = lease.spec if lease is not None else _LeaseSpec()
        ours = old.holder_identity == self._identity
        metadata = {"name": self._name, "namespace": self._namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease.metadata.resource_version
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": "" if release else self._identity,
                "leaseDurationSeconds": 1 if release else self._timing.lease,
                "acquireTime": old.acquire_time if ours and old.acquire_time else now,
                "renewTime": now,
                "leaseTransitions": (old.lease_transitions or 0) + (0 if ours or not lease else 1),
            },
        }

    async def _give_up(self) -> None:
        """Let others take over at once; if that fails, they wait for the Lease to expire."""
        if self.holder != self._identity:
            return
        with suppress(ApiError):
            await self._client.replace(self._path, self._next(self._seen, release=True), within=2.0)
