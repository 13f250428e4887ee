"""Time for the whole sandbox, so that a virtual clock can run the same model."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "RealClock", "timestamp"]


class Clock(Protocol):
    """Where the sandbox gets the time from."""

    def now(self) -> datetime:
        """Wall-clock time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for so many seconds of this clock."""
        ...


class RealClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def timestamp(moment: datetime) -> str:
    """Write a metav1.Time: UTC, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
