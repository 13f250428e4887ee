"""Waiting between attempts: exponential, jittered, bounded."""

import random

__all__ = ["Backoff"]


class Backoff:
    """Delays in seconds that double from `first` up to `longest`, each less up to half of it."""

    def __init__(self, first: float = 0.2, longest: float = 30.0) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def next(self) -> float:
        """Return the next delay."""
        delay = min(self._longest, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return delay * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start anew after a success."""
        self._failures = 0
