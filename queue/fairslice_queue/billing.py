"""The month's bill of all pools: whom their hardware is charged to, one month after another."""

from collections.abc import Mapping
from datetime import UTC, tzinfo

from fairslice.bills import (
    NO_RECORD,
    UNASSIGNED,
    UNRECORDED,
    BillRecord,
    PoolBill,
    month_at,
    month_span,
)
from fairslice.inventory import Inventory
from fairslice.money import MICRO, NO_PRICES, Prices
from fairslice.policy import Policy
from fairslice.pool_capacity import pool_hardware

__all__ = ["Bills"]

# Over a change of leaders, what was held before is known well enough by what is held after.
_LONGEST_GAP = 3600.0


class Bills:
    """The present month's bill of all pools. Times are Unix seconds.

    `closed` are bills of months that are over and not written down yet; `is_kept` says that
    this one goes on from what was written down before.
    """

    def __init__(self) -> None:
        self.closed: list[BillRecord] = []
        self.is_kept = False
        self._pools: dict[str, PoolBill] = {}
        self._policy: Policy | None = None
        self._inventory: Inventory | None = None
        self._prices: Mapping[str, Prices] = {}
        self._zone: tzinfo = UTC
        self._start = 0
        self._end = 0.0
        self._month = ""

    def use_policy(self, policy: Policy, now: float) -> None:
        """Go by a policy's time zone and prices from now on; what was charged stays."""
        if policy is self._policy:
            return
        self._turn(now)
        self._policy = policy
        self._prices = {pool.name: pool.prices for pool in policy.pools}
        if policy.zone != self._zone:
            self._zone = policy.zone
            self._move_end(now)
        for name, bill in self._pools.items():
            bill.change(_micros(now), prices=self._prices.get(name, NO_PRICES))

    def hold(self, team: str, pool: str, milli: int, now: float) -> None:
        """Record that from now on a team (empty: nobody's) holds this much."""
        self._turn(now)
        self._of(pool, now).change(_micros(now), held={team or UNASSIGNED: milli})

    def hardware(self, milli: Mapping[str, int], now: float) -> None:
        """Record what there is of each pool from now on."""
        self._turn(now)
        for pool in {*self._pools, *milli}:
            bill, have = self._of(pool, now), milli.get(pool, 0)
            if bill.capacity != have:
                bill.change(_micros(now), capacity=have)

    def see(self, inventory: Inventory, now: float) -> None:
        """Record what nodes there are from now on."""
        if inventory is not self._inventory:
            self._inventory = inventory
            self.hardware(pool_hardware(inventory), now)

    def record(self, now: float) -> BillRecord:
        """Write the present month's bill down, up to now."""
        self._turn(now)
        return self._record(_micros(now), final=False)

    def go_on(self, record: BillRecord, now: float) -> None:
        """Go on from what was written down; what is held and there now was so since.

        After a longer while without a queue nobody knows who held what: `UNRECORDED`.
        """
        self.closed = []
        at = record.at / MICRO
        if record.final:  # nothing of the next one was written down yet
            self._begin(at)
        else:
            self._month, self._start = record.month, record.start
            began = record.start / MICRO
            if month_at(began, self._zone) != self._month:
                began += 86_400.0  # by other clocks than it began by
            self._end = self._month_end(began)
        for pool in {*self._pools, *record.pools}:
            written = None if record.final else record.pools.get(pool)
            self._of(pool, at).go_on(written or NO_RECORD, record.at)
        if now - at <= _LONGEST_GAP:
            self._turn(now)
            return
        held = {pool: bill.held for pool, bill in self._pools.items()}
        for bill in self._pools.values():
            nobody = dict.fromkeys(bill.held, 0)
            bill.change(record.at, held={**nobody, UNRECORDED: bill.capacity})
        self._turn(now)
        for pool, bill in self._pools.items():
            bill.change(_micros(now), held={**held[pool], UNRECORDED: 0})

    def _of(self, pool: str, now: float) -> PoolBill:
        bill = self._pools.get(pool)
        if bill is None:
            bill = PoolBill(self._prices.get(pool, NO_PRICES), _micros(now))
            self._pools[pool] = bill
        return bill

    def _turn(self, now: float) -> None:
        """Begin the month, or close it where it is over, and those that went by since."""
        if not self._month:
            self._begin(now)
        while now >= self._end:
            over = _micros(self._end)
            self.closed.append(self._record(over, final=True))
            for bill in self._pools.values():
                bill.begin_anew()
            self._begin(self._end)

    def _begin(self, now: float) -> None:
        self._month = month_at(now, self._zone)
        self._start, self._end = _micros(now), self._month_end(now)

    def _move_end(self, now: float) -> None:
        """See when the month ends by other clocks, by which it may be another one just now."""
        there = month_at(now, self._zone)
        if there < self._month:  # a month that has begun doesn't end and begin again
            self._end = self._month_end(self._end)
        else:
            self._end = self._month_end(now) if there == self._month else now
        self._turn(now)

    def _month_end(self, moment: float) -> float:
        return month_span(moment, self._zone).end

    def _record(self, at: int, *, final: bool) -> BillRecord:
        for bill in self._pools.values():
            bill.advance(at)
        return BillRecord(
            month=self._month,
            start=self._start,
            at=max([at, *(bill.at for bill in self._pools.values())]),
            final=final,
            pools={name: bill.record() for name, bill in self._pools.items()},
        )


def _micros(seconds: float) -> int:
    return round(seconds * MICRO)
