"""Drift: where the ledger's totals, its bookings and the cluster say different things.

Looked at each minute. What was seen once may be on its way: only what is still so a while later
counts. Bookings are compared with their objects again; totals that don't add up are made anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fairslice_queue.bookkeeping import LedgerUnavailable
from fairslice_queue.newcomers import STRANGER
from fairslice_queue.pacing import paced
from fairslice_queue.reconcile import Keep, reconcile_pod, reconcile_workload
from fairslice_queue.seat import Seat
from fairslice_queue.shared_claims import CLAIM

__all__ = ["Drift", "differences"]

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0
_LOGGED = 20
_AT_ONCE = 200


class Drift:
    """Measures and repairs. `restore` writes the books anew, from the bookings in the mirror."""

    def __init__(self, seat: Seat, restore: Callable[[], Awaitable[None]]) -> None:
        self._seat = seat
        self._restore = restore

    async def run(self) -> None:
        """Look every minute, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                await self.look()
            except LedgerUnavailable as error:
                _log.debug("drift is measured later: %s", error)

    async def look(self) -> list[str]:
        """Measure, tell, and repair what was found. Raises LedgerUnavailable."""
        seat = self._seat
        totals, differing = await self.measure()
        found = totals + [f"{key}: {text}" for key, text in differing.items()]
        seat.metrics.drift.set(len(found))
        for line in found[:_LOGGED]:
            _log.error("the books don't add up: %s", line)
        if totals:
            await self._restore()
        for booking_id in differing:
            seat.calls.forget(booking_id)
            seat.watch.dirty.add(booking_id)
        if found:
            seat.metrics.drift_repaired.inc(len(found))
            seat.watch.changed.set()
        return found

    async def measure(self, patience: float | None = None) -> tuple[list[str], dict[str, str]]:
        """Find totals that don't follow from the bookings, and bookings unlike their objects.

        What differs is looked at twice, so many seconds apart (ten). Raises LedgerUnavailable.
        """
        totals = await self._seat.ledger.audit()
        differing = await differences(self._seat)
        if totals or differing:
            await asyncio.sleep(_PATIENCE_SECONDS if patience is None else patience)
        if totals:
            again = set(await self._seat.ledger.audit())
            totals = [line for line in totals if line in again]
        if differing:
            later = await differences(self._seat)
            differing = {key: text for key, text in differing.items() if later.get(key) == text}
        return totals, differing


async def differences(seat: Seat) -> dict[str, str]:
    """Say of each booking that is unlike its object what is wrong; decisions go on meanwhile."""
    now, watch = seat.clock(), seat.watch
    found: dict[str, str] = {}
    async for key in paced([booking.id for booking in seat.mirror.books], _AT_ONCE):
        booking = seat.mirror.books.get(key)
        if (
            booking is None
            or not booking.bound
            or key in seat.calls.busy
            or booking.ref.kind == CLAIM
        ):
            continue
        pods = list(watch.pods_of(key).values())
        if key.startswith(STRANGER):
            if watch.pods.get(f"{booking.ref.namespace}/{booking.ref.name}") is None:
                found[key] = f"{booking.ref}: in the books, but gone"
            continue
        stuck_since = now - watch.policy.start_timeout
        if booking.ref.kind == "Pod":
            step = reconcile_pod(booking, pods[0] if pods else None, stuck_since)
        else:
            workload = watch.workload_of(key)
            step = reconcile_workload(booking, workload, pods, now, stuck_since)
        if not isinstance(step, Keep):
            found[key] = f"{booking.ref}: {booking.state}, should be {step}"
    async for facts in paced(watch.workloads.values(), _AT_ONCE):
        if facts.booking and facts.booking not in seat.mirror.books and facts.desired:
            found[facts.booking] = f"{facts.key}: not in the books"
    async for pod in paced(watch.pods.values(), _AT_ONCE):
        if pod.booking and pod.booking not in seat.mirror.books and not pod.ended:
            found[pod.booking] = f"Pod {pod.key}: not in the books"
    return found
