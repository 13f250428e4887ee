"""`GET /bill?month=2026-11&team=nlp`: what teams owe, from memory or from what was written down."""

import time
from collections.abc import Callable, Iterable
from datetime import tzinfo
from typing import Any

from aiohttp import web
from msgspec import json

from fairslice.bills import BillRecord, bill_rows, month_at
from fairslice.kube.client import ApiError
from fairslice_queue.bill_store import BillStore
from fairslice_queue.billing import Bills

__all__ = ["bill_routes"]


def bill_routes(
    store: BillStore, zone: Callable[[], tzinfo], present: Callable[[], Bills | None]
) -> Iterable[web.RouteDef]:
    """Make the route; `present` is the leader's bill of this month, None on other replicas."""

    async def handle(request: web.Request) -> web.Response:
        now = time.time()
        month = request.query.get("month", "") or month_at(now, zone())
        record: BillRecord | None = None
        bills = present()
        try:
            if bills is not None and bills.is_kept:
                record = bills.record(now)
            if record is None or record.month != month:
                record = await store.of(month)
            months = await store.months() if record is None else ()
        except ApiError as error:
            return _json({"error": str(error)}, 503)
        if record is None:
            known = ", ".join(months) or "none"
            return _json({"error": f"there is no bill for {month}; there are: {known}"}, 404)
        team = request.query.get("team", "")
        return _json({"items": list(bill_rows(record, zone(), team))})

    return [web.get("/bill", handle)]


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.encode(body), content_type="application/json", status=status)
