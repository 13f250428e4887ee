"""Keeping the bill while leading: taken up where it was left, written down each minute."""

import asyncio
import logging
from collections.abc import Callable

from fairslice.kube.client import ApiError
from fairslice_queue.bill_store import BillStore
from fairslice_queue.billing import Bills
from fairslice_queue.books import Books
from fairslice_queue.watching import Watch

__all__ = ["keep_bills"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
_WRITE_SECONDS = 60.0


async def keep_bills(
    store: BillStore,
    watch: Watch,
    bills: Bills,
    books: Callable[[], Books],
    clock: Callable[[], float],
) -> None:
    """Take the bill up where it was left, follow hardware and prices, write it down; leading."""
    bills.is_kept, written, level = False, 0.0, logging.WARNING
    while True:
        now = clock()
        bills.use_policy(watch.policy, now)
        bills.see(watch.inventory, now)
        try:
            if not bills.is_kept:
                record = await store.latest()
                tally = books().tally
                for team, pool in {*tally.pools, *tally.surge}:
                    held = tally.pools[team, pool] + tally.surge[team, pool]
                    bills.hold(team, pool, held, clock())
                if record is not None:
                    bills.go_on(record, clock())
                bills.is_kept = True
            while bills.closed:
                await store.save(bills.closed[0])
                del bills.closed[0]
            if now - written >= _WRITE_SECONDS:
                await store.save(bills.record(now))
                written = now
        except ApiError as error:
            _log.log(level, "the bill is not written down: %s", error)
            level = logging.DEBUG  # said once; it is tried all the time
        else:
            level = logging.WARNING
        await asyncio.sleep(_LOOK_SECONDS)
