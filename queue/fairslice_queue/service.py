"""The queue as a service: every replica watches and answers, the Lease's holder acts."""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry

from fairslice.booking import Booking
from fairslice.brake import Brake
from fairslice.election import LeaderElection
from fairslice.kube.client import KubeClient
from fairslice.kube.connection import QUEUE_ACCOUNT, QUEUE_LEASE, connect_as
from fairslice.redis_connection import RedisConnection
from fairslice.settings import Settings
from fairslice_queue.bill_api import bill_routes
from fairslice_queue.bill_keeping import keep_bills
from fairslice_queue.bill_store import BillStore
from fairslice_queue.bookkeeping import LedgerUnavailable, StaleEpoch
from fairslice_queue.leads import Leads
from fairslice_queue.ledger import Ledger
from fairslice_queue.line_api import line_routes
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.mirror import Mirror
from fairslice_queue.priorities import keep_priority_classes
from fairslice_queue.reign import Reign
from fairslice_queue.standing import Standing
from fairslice_queue.status_api import StatusApi
from fairslice_queue.team_status import publish_team_status, restore_use
from fairslice_queue.usage import Meter
from fairslice_queue.watching import Watch

__all__ = ["serve"]

_log = logging.getLogger(__name__)


async def serve(settings: Settings) -> None:
    """Run the queue until cancelled.

    Raises ApiError, OSError (address in use) and RedisSettingError, for one clear line.
    """
    if settings.redis_url is None:
        raise ValueError("the queue needs a Redis: set --redis-url")
    async with (
        connect_as(settings, QUEUE_ACCOUNT) as client,
        RedisConnection.parse(settings.redis_url) as redis,
    ):
        await _Queue(settings, client, Ledger(redis)).run()


class _Queue:
    """What one replica holds together."""

    def __init__(self, settings: Settings, client: KubeClient, ledger: Ledger) -> None:
        self._settings = settings
        self._client = client
        self._ledger = ledger
        self._registry = CollectorRegistry()
        self._metrics = QueueMetrics(self._registry)
        self._brake = Brake(client, settings.namespace)
        self._metrics.brake.set_function(lambda: float(self._brake.on))
        self._watch = Watch(client)
        self._meter = Meter(float(self._watch.policy.half_life))
        self._standing = Standing()
        self._mirror = Mirror(ledger, self._on_booking)
        self._identity = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._election = LeaderElection(
            client, namespace=settings.namespace, name=QUEUE_LEASE, identity=self._identity
        )
        self._leads = Leads(client, self._watch, self._standing, lambda: self._mirror.books)
        self._bill_store = BillStore(client, settings.namespace)
        self._api = StatusApi(
            self._watch,
            self._mirror,
            self._meter,
            self._standing,
            self._metrics,
            self._registry,
            ledger,
            leads=lambda: self._election.leading,
            notice=lambda: self._brake.text,
            marks=self._leads,
            more=(*line_routes(client), *self._bill_routes()),
        )

    def _bill_routes(self) -> Iterable[web.RouteDef]:
        return bill_routes(
            self._bill_store,
            lambda: self._watch.policy.zone,
            lambda: self._meter.bills if self._election.leading else None,
        )

    async def run(self) -> None:
        """Serve, watch, and campaign."""
        async with self._api.serving(self._settings.status_listen):
            # Fail at once, and in one line, where the API server can't be asked at all.
            await self._client.get("/version")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._brake.run())
                await self._watch.run(tasks)
                tasks.create_task(self._mirror_while_following())
                tasks.create_task(self._campaign())

    async def _campaign(self) -> None:
        await self._watch.synced()
        while True:
            try:
                await self._election.run(self._lead)
            except* StaleEpoch as stale:
                # Somebody else leads already; what we thought to hold is not ours.
                _log.warning("deposed: %s", stale.exceptions[0])
            await asyncio.sleep(1.0)

    async def _lead(self) -> None:
        restore_use(self._watch, self._meter, time.time())
        reign = Reign(
            self._client,
            self._ledger,
            self._watch,
            self._mirror,
            self._meter,
            self._standing,
            self._metrics,
            new_id=lambda: "b" + secrets.token_hex(10),
            leads=self._leads,
        )
        self._metrics.leader.set(1)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(reign.run())
                tasks.create_task(self._standing.run(self._client, self._watch.paths))
                tasks.create_task(self._leads.run())
                tasks.create_task(keep_priority_classes(self._client, self._watch))
                tasks.create_task(
                    keep_bills(
                        self._bill_store,
                        self._watch,
                        self._meter.bills,
                        lambda: self._mirror.books,
                        time.time,
                    )
                )
                tasks.create_task(
                    publish_team_status(
                        self._client,
                        self._watch,
                        lambda: self._mirror.books,
                        self._meter,
                        time.time,
                    )
                )
        finally:
            self._metrics.leader.set(0)

    async def _mirror_while_following(self) -> None:
        """Keep the books readable on replicas that don't lead."""
        loaded = False
        while True:
            if self._election.leading:
                loaded = True
                await asyncio.sleep(1.0)
                continue
            try:
                if not loaded:
                    await self._mirror.load()
                    loaded = True
                await self._mirror.follow(1.0)
                if not self._election.leading:
                    self._watch.stand_by(self._mirror.books)
            except LedgerUnavailable:
                loaded = False
                await asyncio.sleep(1.0)

    def _on_booking(self, old: Booking | None, new: Booking | None) -> None:
        now = time.time()
        # Nobody holds what isn't there: nodes are counted before what is held on them.
        self._meter.bills.see(self._watch.inventory, now)
        self._meter.follow(self._mirror.books.tally, (old, new), now)
        changed = new or old
        if changed is not None:
            self._watch.dirty.add(changed.id)
