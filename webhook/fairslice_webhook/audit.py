"""Keeping what Enforce would have done, out of the way of admission.

Records wait in memory, at most so many, and a background task writes them to the ledger's
audit log. What doesn't fit is counted and dropped: an audit must never slow an answer.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol

import msgspec

from fairslice_queue.ledger import Ledger, LedgerUnavailable
from fairslice_webhook.decision import AuditRecord

__all__ = ["AuditSink", "LedgerAuditSink", "read_records"]

_MOST_WAITING = 2000
_BATCH = 200
_PAUSE_SECONDS = 1.0

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AuditRecord)


class AuditSink(Protocol):
    """Where audit records go. Never blocks, never fails."""

    def keep(self, records: Sequence[AuditRecord]) -> None:
        """Take records over."""


class LedgerAuditSink:
    """Writes records to the ledger, in batches; run it as a task."""

    def __init__(self, ledger: Ledger) -> None:
        self.dropped = 0
        self._ledger = ledger
        self._waiting: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    def keep(self, records: Sequence[AuditRecord]) -> None:
        """Take records over."""
        for record in records:
            if len(self._waiting) >= _MOST_WAITING:
                self.dropped += 1
                continue
            self._waiting.append(_ENCODER.encode(record))
        if records:
            self._arrived.set()

    async def run(self) -> None:
        """Write what arrives, forever; what can't be written now is tried again."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            # Records come in bursts: one write for many.
            await asyncio.sleep(_PAUSE_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what waits; what the ledger doesn't take stays."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                await self._ledger.record_audit(batch)
            except LedgerUnavailable:
                self._waiting.extendleft(reversed(batch))
                self._arrived.set()
                return


async def read_records(ledger: Ledger, limit: int = 10_000) -> tuple[AuditRecord, ...]:
    """Read what was kept, oldest first; for `fairslice audit report`.

    Raises LedgerUnavailable.
    """
    return tuple(_DECODER.decode(entry) for entry in await ledger.audit_entries(limit))
