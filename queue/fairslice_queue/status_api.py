"""The status endpoint: queue, teams and single workloads as JSON, a page, metrics, health."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from msgspec import json
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fairslice.booking import Booking
from fairslice.settings import Address
from fairslice_queue.bookkeeping import LedgerUnavailable
from fairslice_queue.explaining import Explanation, explain
from fairslice_queue.gauges import clear_gauges, set_gauges
from fairslice_queue.leads import Leads
from fairslice_queue.ledger import Ledger
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.mirror import Mirror
from fairslice_queue.outlook import Outlook, pool_weights, team_shares, team_use
from fairslice_queue.rights import Rights
from fairslice_queue.standing import Standing
from fairslice_queue.status_page import render_page
from fairslice_queue.status_views import (
    QueueRow,
    TeamPool,
    TeamRow,
    other_rows,
    queue_rows,
    workload_view,
)
from fairslice_queue.team_status import team_statuses, tokens_on_record
from fairslice_queue.usage import Meter
from fairslice_queue.watching import Watch

__all__ = ["StatusApi"]

_log = logging.getLogger(__name__)
_MAX_ROWS = 10_000
_SECURITY = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StatusApi:
    """Answers from memory; only `/audit` asks Redis. `more` are routes of others."""

    def __init__(
        self,
        watch: Watch,
        mirror: Mirror,
        meter: Meter,
        standing: Standing,
        metrics: QueueMetrics,
        registry: CollectorRegistry,
        ledger: Ledger,
        *,
        leads: Callable[[], bool],
        notice: Callable[[], str] = str,
        more: Iterable[web.RouteDef] = (),
        marks: Leads | None = None,
    ) -> None:
        self._watch = watch
        self._mirror = mirror
        self._meter = meter
        self._standing = standing
        self._metrics = metrics
        self._registry = registry
        self._ledger = ledger
        self._leads = leads
        self._outlook = Outlook(watch, meter, marks)
        self._notice = notice
        self._more = more
        self._scraping = asyncio.Lock()

    @asynccontextmanager
    async def serving(self, address: Address) -> AsyncIterator[None]:
        """Serve while the context lasts. Raises OSError where the address can't be had."""
        app = web.Application(middlewares=[_harden])
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/queue", self._queue),
                web.get("/teams", self._teams),
                web.get("/workloads/{namespace}/{name}", self._workload),
                web.get("/explain/{namespace}/{name}", self._explain),
                web.get("/audit", self._audit),
                web.get("/metrics", self._scrape),
                web.get("/livez", self._live),
                web.get("/readyz", self._ready),
                *self._more,
            ]
        )
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, address.host, address.port).start()
            _log.info("status on http://%s", address)
            yield
        finally:
            await runner.cleanup()

    async def _queue(self, request: web.Request) -> web.Response:
        rows, total = await self._rows(request.query.get("team", ""))
        return _json({"items": rows, "total": total})

    async def _rows(self, team: str = "") -> tuple[list[QueueRow], int]:
        """List the first rows of one team's or of everybody's work, and how much there is in all.

        Whatever else this process does goes on between teams.
        """
        rows: list[QueueRow] = []
        told: set[str] = set()
        now = time.time()
        for name in (team,) if team else self._standing.teams():
            lines = self._standing.of_team(name)
            rows += queue_rows(lines, now)
            told.update(line.booking.id for line in lines)
            if len(rows) >= _MAX_ROWS:
                break
            await asyncio.sleep(0)
        rest = [
            booking
            for booking in self._mirror.books
            if booking.team and team in ("", booking.team) and booking.id not in told
        ]
        total = len(told) + len(rest)
        if len(rows) < _MAX_ROWS:
            rows += other_rows(rest, now)
        return rows[:_MAX_ROWS], total

    async def _teams(self, _: web.Request) -> web.Response:
        return _json({"items": self._team_rows()})

    def _team_rows(self) -> list[TeamRow]:
        now = time.time()
        shares = team_shares(self._watch, self._meter, now)
        teams = self._watch.teams.teams
        statuses = team_statuses(
            teams,
            self._watch.policy,
            self._mirror.books,
            self._meter,
            now,
            tokens_on_record(self._watch),
        )
        rows = []
        for team in teams:
            status = statuses[team.name]
            rows.append(
                TeamRow(
                    team=team.name,
                    used=status.used,
                    guaranteed=status.guaranteed,
                    limit=status.limit,
                    queued=status.queued,
                    running=status.running,
                    gpu_hours=status.gpu_hours,
                    share=round(shares.get(team.name, 0.0), 6),
                    weight=team.weight,
                    namespaces=self._watch.teams.namespaces_of(team.name),
                    budgets=status.budgets,
                    urgent_left=status.urgent_left,
                    urgent_per_week=team.urgent_per_week,
                    urgent=status.urgent,
                    pools=tuple(
                        TeamPool(
                            pool=item.pool,
                            used=item.used,
                            guaranteed=item.guaranteed,
                            limit=item.limit,
                            until=item.until,
                        )
                        for item in status.pools
                    ),
                )
            )
        return rows

    async def _workload(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = [
            workload_view(booking, self._standing.line(booking), time.time())
            for booking in self._mirror.books
            if booking.ref.namespace == namespace and booking.ref.name == name
        ]
        if not found:
            message = f"no workload {namespace}/{name} in the books: finished, or without GPUs"
            return _json({"error": message}, status=404)
        return _json({"items": found})

    async def _explain(self, request: web.Request) -> web.Response:
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        found = [
            booking
            for booking in self._mirror.books
            if booking.ref.namespace == namespace and booking.ref.name == name
        ]
        for booking in found:
            told = self._explained(booking)
            if told is not None:
                return _json({"items": told.terms, "explanation": told})
        if not found:
            message = f"no workload {namespace}/{name} in the books: finished, or without GPUs"
            return _json({"error": message}, status=404)
        return _json({"error": f"{found[0].ref} is {found[0].state}, not in line"}, status=409)

    def _explained(self, booking: Booking) -> Explanation | None:
        watch, books, now = self._watch, self._mirror.books, time.time()
        team, item = watch.teams.named(booking.team), self._outlook.waiting(booking)
        if team is None or item is None or not booking.state.waits:
            return None
        fresh = [self._outlook.holding(held) for held in books.holding() if held.team == team.name]
        weights = pool_weights(watch)
        capacity = {pool: weight.capacity for pool, weight in weights.items()}
        rights = Rights(watch.teams, books.tally, now, self._outlook.budgets_gone(now), capacity)
        lines = self._standing.of_team(team.name)
        places = [line.booking.id for line in lines]
        place = places.index(booking.id) if booking.id in places else None
        line = lines[place] if place is not None else None
        return explain(
            item,
            team,
            watch.policy,
            books.tally,
            rights,
            team_use(self._meter, weights, now, fresh=fresh).get(team.name, {}),
            weights,
            now,
            position=line.position if line is not None else 0,
            queued=line.queued if line is not None else 0,
            reason=line.reason if line is not None else "",
            before=self._outlook.waiting(lines[place - 1].booking) if place else None,
        )

    async def _audit(self, _: web.Request) -> web.Response:
        try:
            entries = await self._ledger.audit_entries()
        except LedgerUnavailable as error:
            return _json({"error": str(error)}, status=503)
        body = b'{"items":[' + b",".join(entries) + b"]}"
        return web.Response(body=body, content_type="application/json")

    async def _page(self, _: web.Request) -> web.Response:
        rows = (await self._rows())[0]
        text = render_page(self._team_rows(), rows, notice=self._notice())
        return web.Response(text=text, content_type="text/html")

    async def _scrape(self, _: web.Request) -> web.Response:
        # One after the other; and only the leader's figures are current.
        async with self._scraping:
            if self._leads():
                await set_gauges(
                    self._metrics, self._mirror.books, self._watch, self._meter, time.time()
                )
            else:
                clear_gauges(self._metrics)
            body = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _live(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        if self._watch.is_synced:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not synced with the API server yet\n")


@web.middleware
async def _harden(request: web.Request, handler: Handler) -> web.StreamResponse:
    response = await handler(request)
    response.headers.update(_SECURITY)
    return response


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(body), content_type="application/json", status=status)
