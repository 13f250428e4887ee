"""GPU time by team: exact integrals for budgets, decayed ones for fair shares.

Held milli-GPU are integrated between events, never sampled: what is added is the product of
what was held and how long. Decay is `0.5^(Δ/half-life)` (HTCondor's shape, independent of how
often it is evaluated).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import log

__all__ = ["Meter", "Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """A team's use of a pool at a time: milli-GPU-seconds, whole and decayed."""

    total: float
    decayed: float
    at: float


@dataclass(slots=True)
class _Account:
    total: float
    decayed: float
    at: float
    held: int = 0


@dataclass(slots=True)
class Meter:
    """Integrates what teams hold. Keys are (team, pool); times are Unix seconds."""

    half_life: float
    _accounts: dict[tuple[str, str], _Account] = field(default_factory=dict)

    def restore(self, team: str, pool: str, reading: Reading) -> None:
        """Start from a checkpoint; use since then is added when what is held is known."""
        self._accounts[team, pool] = _Account(reading.total, reading.decayed, reading.at)

    def hold(self, team: str, pool: str, milli: int, now: float) -> None:
        """Record that from now on the team holds this much."""
        account = self._accounts.get((team, pool))
        if account is None:
            account = self._accounts[team, pool] = _Account(0.0, 0.0, now)
        self._advance(account, now)
        account.held = milli

    def read(self, team: str, pool: str, now: float) -> Reading:
        """Return a team's use up to now."""
        account = self._accounts.get((team, pool))
        if account is None:
            return Reading(0.0, 0.0, now)
        self._advance(account, now)
        return Reading(account.total, account.decayed, account.at)

    def known(self) -> Collection[tuple[str, str]]:
        """Return the (team, pool) pairs that have ever held anything."""
        return self._accounts.keys()

    def readings(self, now: float) -> Mapping[tuple[str, str], Reading]:
        """Return all use up to now."""
        return {(team, pool): self.read(team, pool, now) for team, pool in self._accounts}

    def _advance(self, account: _Account, now: float) -> None:
        elapsed = now - account.at
        if elapsed <= 0:  # a clock set back adds nothing and takes nothing away
            return
        keep = 0.5 ** (elapsed / self.half_life)
        # ∫ held · 0.5^((now−t)/half_life) dt
        gained = account.held * (1.0 - keep) * self.half_life / log(2)
        account.decayed = account.decayed * keep + gained
        account.total += account.held * elapsed
        account.at = now
