"""Bills: whom a pool's hardware is charged to, so that charges sum to its price exactly.

Costs are integrated between changes, never sampled. What one milli-GPU costs from the bill's
beginning up to now is kept per pool, so that a change touches its own holder alone. Times are
integer microseconds since 1970.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo

from msgspec import Struct

from fairslice.money import COST_UNIT, MICRO, Prices, apportion
from fairslice.periods import Span, period_at
from fairslice.v1alpha1.team import Period

__all__ = [
    "IDLE",
    "NO_RECORD",
    "UNASSIGNED",
    "UNRECORDED",
    "BillRecord",
    "BillRow",
    "Charge",
    "PoolBill",
    "PoolRecord",
    "bill_rows",
    "month_at",
    "month_span",
]

IDLE = "__idle__"
"""The account of what nobody held."""

UNASSIGNED = "__unassigned__"
"""The account of what is held outside teams: work of exempt namespaces, or of none."""

UNRECORDED = "__unrecorded__"
"""The account of times in which no queue ran, so that nobody knows who held what."""

# Where holders split a pool, what each owes an instant is no whole number of COST_UNIT-ths.
_FINER = MICRO
_GPU_HOUR = 1000 * 3600 * MICRO


class HolderRecord(Struct, frozen=True, kw_only=True):
    """What one held: milli-GPU-microseconds, and the cost in millionths of a COST_UNIT-th.

    Texts, being larger than JSON numbers are safe to be.
    """

    gpu: str
    cost: str


class PoolRecord(Struct, frozen=True, kw_only=True):
    """A pool's bill up to a moment: its hardware, what of it was idle, who held the rest."""

    gpu: str
    cost: str
    idle: str
    currency: str = ""
    holders: dict[str, HolderRecord] = {}


NO_RECORD = PoolRecord(gpu="0", cost="0", idle="0")
"""The bill of a pool of which nothing is known yet."""


class BillRecord(Struct, frozen=True, kw_only=True):
    """A month's bill as it is kept: from `start` up to `at`, in Unix microseconds."""

    month: str
    start: int
    at: int
    final: bool = False
    pools: dict[str, PoolRecord] = {}


class BillRow(Struct, frozen=True, kw_only=True):
    """What one account owes for one pool in a month. Amounts are exact, to the millionth."""

    month: str
    pool: str
    team: str
    gpu_hours: str
    amount: str
    currency: str
    start: str
    end: str
    final: bool


class Charge(Struct, frozen=True):
    """What one owes: micro-units; milli-GPU-microseconds held."""

    micro: int
    gpu: int


@dataclass(slots=True)
class _Holder:
    """`unit` and `at` are the pool's when it was last settled."""

    milli: int = 0
    unit: int = 0
    at: int = 0
    gpu: int = 0
    cost: int = 0


@dataclass(slots=True)
class PoolBill:
    """One pool's bill: its `capacity` in milli-GPU is charged to who held it, and to `IDLE`.

    Where more is held than there is (shares that overlap, a node that was lost), holders split
    the price by what they hold. The charges always sum to price × hardware × time.
    """

    prices: Prices
    at: int
    capacity: int = 0
    _held: int = 0
    _unit: int = 0
    _gpu: int = 0
    _cost: int = 0
    _idle: int = 0
    _holders: dict[str, _Holder] = field(default_factory=dict)

    @property
    def held(self) -> Mapping[str, int]:
        """What each holds, in milli-GPU."""
        return {name: holder.milli for name, holder in self._holders.items() if holder.milli}

    def change(
        self,
        now: int,
        *,
        capacity: int | None = None,
        held: Mapping[str, int] | None = None,
        prices: Prices | None = None,
    ) -> None:
        """Record what is there, what it costs, or what some hold (milli-GPU), from now on."""
        self.advance(now)
        self.capacity = self.capacity if capacity is None else capacity
        self.prices = prices or self.prices
        for name, milli in (held or {}).items():
            holder = self._holders.get(name)
            if holder is None:
                if milli <= 0:
                    continue
                holder = self._holders[name] = _Holder(unit=self._unit, at=self.at)
            self._settle(holder)
            self._held += max(0, milli) - holder.milli
            holder.milli = max(0, milli)

    def advance(self, now: int) -> None:
        """Go on to a moment."""
        elapsed = now - self.at
        if elapsed <= 0:  # a clock set back charges nothing
            return
        price = self.prices.cost(1, self.at, now) * _FINER
        held, capacity = self._held, self.capacity
        self._unit += price * capacity // held if held > capacity else price
        self._cost += price * capacity
        self._gpu += capacity * elapsed
        self._idle += max(0, capacity - held) * elapsed
        self.at = now

    def charges(self, now: int) -> dict[str, Charge]:
        """Return the charges up to now, by holder."""
        self.advance(now)
        return charges_of(self.record())

    def record(self) -> PoolRecord:
        """Write the bill down as it stands."""
        for holder in self._holders.values():
            self._settle(holder)
        return PoolRecord(
            gpu=str(self._gpu),
            cost=str(self._cost),
            idle=str(self._idle),
            currency=self.prices.currency,
            holders={
                name: HolderRecord(gpu=str(holder.gpu), cost=str(holder.cost))
                for name, holder in self._holders.items()
                if holder.gpu or holder.cost
            },
        )

    def go_on(self, record: PoolRecord, at: int) -> None:
        """Go on from what was written down then; what is held and there now was so since."""
        self.at, self._unit = at, 0
        self._gpu, self._cost, self._idle = int(record.gpu), int(record.cost), int(record.idle)
        for name in {*self._holders, *record.holders}:
            known, written = self._holders.get(name, _Holder()), record.holders.get(name)
            gpu, cost = (int(written.gpu), int(written.cost)) if written is not None else (0, 0)
            self._holders[name] = _Holder(known.milli, 0, at, gpu, cost)

    def begin_anew(self) -> None:
        """Begin another bill where this one ends; what is held goes on."""
        self._unit = self._gpu = self._cost = self._idle = 0
        self._holders = {
            name: _Holder(holder.milli, 0, self.at)
            for name, holder in self._holders.items()
            if holder.milli
        }

    def _settle(self, holder: _Holder) -> None:
        holder.cost += holder.milli * (self._unit - holder.unit)
        holder.gpu += holder.milli * (self.at - holder.at)
        holder.unit, holder.at = self._unit, self.at


def charges_of(record: PoolRecord) -> dict[str, Charge]:
    """Work out who owes what of a pool's bill: whole micro-units that sum to its price."""
    costs = {name: int(holder.cost) for name, holder in record.holders.items()}
    costs[IDLE] = int(record.cost) - sum(costs.values())
    unit = COST_UNIT * _FINER
    micros = apportion((int(record.cost) + unit // 2) // unit, costs)
    idle = int(record.idle)
    found = {name: Charge(micros[name], int(holder.gpu)) for name, holder in record.holders.items()}
    if idle or micros[IDLE]:
        found[IDLE] = Charge(micros[IDLE], idle)
    return found


def bill_rows(record: BillRecord, zone: tzinfo, team: str = "") -> Iterator[BillRow]:
    """List what accounts owe, by pool and account; only one team's if it is named."""
    for pool, bill in sorted(record.pools.items()):
        for name, charge in sorted(charges_of(bill).items()):
            if team in ("", name):
                yield BillRow(
                    month=record.month,
                    pool=pool,
                    team=name,
                    gpu_hours=_decimal(charge.gpu * MICRO // _GPU_HOUR),
                    amount=_decimal(charge.micro),
                    currency=bill.currency,
                    start=_rfc3339(record.start, zone),
                    end=_rfc3339(record.at, zone),
                    final=record.final,
                )


def month_at(moment: float, zone: tzinfo) -> str:
    """Name the month that a moment lies in: `2026-11`. Unix seconds."""
    return f"{datetime.fromtimestamp(moment, zone):%Y-%m}"


def month_span(moment: float, zone: tzinfo) -> Span:
    """Return the month that a moment lies in, in Unix seconds."""
    return period_at(Period.MONTHLY, moment, zone)


def _decimal(millionths: int) -> str:
    return f"{millionths // MICRO}.{millionths % MICRO:06d}"


def _rfc3339(micros: int, zone: tzinfo) -> str:
    return datetime.fromtimestamp(micros / MICRO, zone).isoformat(timespec="seconds")
