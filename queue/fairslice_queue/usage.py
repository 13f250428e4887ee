"""GPU time by team: exact integrals for budgets, decayed ones for fair shares.

Held milli-GPU are integrated between events, never sampled: what is added is the product of
what was held and how long. Decay is `0.5^(Δ/half-life)` (HTCondor's shape, independent of how
often it is evaluated).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import log

from fairslice.booking import Booking
from fairslice_queue.billing import Bills
from fairslice_queue.spending import Spending
from fairslice_queue.tally import Tally

__all__ = ["Meter", "Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A team's use of a pool at a time: milli-GPU-seconds, whole and decayed."""

    total: float
    decayed: float
    at: float


@dataclass(slots=True)
class _Account:
    """`held` is None from a checkpoint on until it is known what is held."""

    total: float
    decayed: float
    at: float
    held: int | None = 0

    def at_time(self, now: float, half_life: float) -> Reading:
        elapsed = now - self.at
        if elapsed <= 0:  # a clock set back adds nothing and takes nothing away
            return Reading(self.total, self.decayed, self.at)
        held = self.held or 0
        total = self.total + held * elapsed
        if half_life <= 0:  # nothing fades
            return Reading(total, self.decayed + held * elapsed, now)
        keep = 0.5 ** (elapsed / half_life)
        # ∫ held · 0.5^((now−t)/half_life) dt
        gained = held * (1.0 - keep) * half_life / log(2)
        return Reading(total, self.decayed * keep + gained, now)


@dataclass(slots=True)
class Meter:
    """Integrates what teams hold. Keys are (team, pool); times are Unix seconds.

    `half_life` is in seconds; 0: use never fades. `spending` counts the same by periods, `bills`
    what it costs, beside what nobody held.
    """

    half_life: float
    spending: Spending = field(default_factory=Spending)
    bills: Bills = field(default_factory=Bills)
    _accounts: dict[tuple[str, str], _Account] = field(default_factory=dict)

    def use_half_life(self, half_life: float, now: float) -> None:
        """Let use fade by this half-life from now on."""
        if half_life == self.half_life:
            return
        for account in self._accounts.values():
            self._advance(account, now)
        self.half_life = half_life

    def restore(self, team: str, pool: str, reading: Reading) -> None:
        """Start from a checkpoint; use since then is added when what is held is known."""
        known = self._accounts.get((team, pool))
        held = known.held if known is not None else None
        self._accounts[team, pool] = _Account(reading.total, reading.decayed, reading.at, held)

    def hold(self, team: str, pool: str, milli: int, now: float) -> None:
        """Record that from now on the team holds this much.

        The first after a checkpoint counts since the checkpoint: nothing nearer is known.
        """
        account = self._accounts.get((team, pool))
        if account is None:
            account = self._accounts[team, pool] = _Account(0.0, 0.0, now)
        elif account.held is None:
            account.held = milli
        self._advance(account, now)
        account.held = milli
        self.spending.hold(team, pool, milli, now)
        self.bills.hold(team, pool, milli, now)

    def follow(self, tally: Tally, bookings: Iterable[Booking | None], now: float) -> None:
        """Record what the teams of these bookings hold, now that the tally has changed."""
        for booking in bookings:
            if booking is None:
                continue
            for option in booking.options:
                key = (booking.team, option.pool)
                held = tally.pools[key] + tally.surge[key]
                if booking.team:
                    self.hold(*key, held, now)
                else:
                    self.bills.hold(*key, held, now)

    def read(self, team: str, pool: str, now: float) -> Reading:
        """Return a team's use up to now."""
        account = self._accounts.get((team, pool))
        if account is None:
            return Reading(0.0, 0.0, now)
        return account.at_time(now, self.half_life)

    def known(self) -> Collection[tuple[str, str]]:
        """Return the (team, pool) pairs that have ever held anything."""
        return self._accounts.keys()

    def readings(self, now: float) -> Mapping[tuple[str, str], Reading]:
        """Return all use up to now."""
        return {(team, pool): self.read(team, pool, now) for team, pool in self._accounts}

    def _advance(self, account: _Account, now: float) -> None:
        reading = account.at_time(now, self.half_life)
        account.total, account.decayed, account.at = reading.total, reading.decayed, reading.at
