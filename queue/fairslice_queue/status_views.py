"""What the status API says, as typed views."""

from collections.abc import Iterable

from msgspec import Struct

from fairslice.booking import Booking
from fairslice.quantity import format_milli
from fairslice.v1alpha1.team import BudgetStatus, UrgentStatus
from fairslice_queue.standing import StandingLine

__all__ = [
    "QueueRow",
    "TeamPool",
    "TeamRow",
    "WorkloadView",
    "other_rows",
    "queue_rows",
    "workload_view",
]


class QueueRow(Struct, frozen=True, kw_only=True):
    """A workload in the books. Position counts from 1 in its team, 0 if it doesn't wait."""

    team: str
    position: int
    state: str
    kind: str
    namespace: str
    name: str
    work_class: str
    user: str
    pods: int
    gpus: str
    pool: str
    waiting_seconds: int
    reason: str


class TeamPool(Struct, frozen=True, kw_only=True):
    """A team's standing in one pool, in GPUs; no limit is an empty text.

    `until` is when guarantee and limit change next: RFC 3339, empty if never.
    """

    pool: str
    used: str
    guaranteed: str
    limit: str
    until: str = ""


class TeamRow(Struct, frozen=True, kw_only=True):
    """A team's standing."""

    team: str
    used: str
    guaranteed: str
    limit: str
    queued: int
    running: int
    gpu_hours: str
    share: float
    weight: int
    namespaces: tuple[str, ...]
    pools: tuple[TeamPool, ...]
    budgets: tuple[BudgetStatus, ...] = ()
    urgent_left: int = 0
    urgent_per_week: int = 0
    urgent: tuple[UrgentStatus, ...] = ()


class WorkloadView(Struct, frozen=True, kw_only=True):
    """Everything about one workload."""

    row: QueueRow
    booking: str
    queued_at: float
    since: float
    given: str
    place: dict[str, int]
    restarts: int
    options: tuple[str, ...]


def queue_rows(lines: Iterable[StandingLine], now: float) -> list[QueueRow]:
    """List what is in line, as it stands."""
    return [_row(line.booking, line, now) for line in lines]


def other_rows(bookings: Iterable[Booking], now: float) -> list[QueueRow]:
    """List what has no place in line, by team and name."""
    rows = [_row(booking, None, now) for booking in bookings]
    return sorted(rows, key=lambda row: (row.team, row.name))


def workload_view(booking: Booking, line: StandingLine | None, now: float) -> WorkloadView:
    """Show one workload."""
    option = booking.option
    return WorkloadView(
        row=_row(booking, line, now),
        booking=booking.id,
        queued_at=booking.queued_at,
        since=booking.since,
        given=_worded(option.units) if option is not None else "",
        place=booking.place,
        restarts=booking.restarts,
        options=tuple(f"{item.pool}: {_worded(item.units)}" for item in booking.options),
    )


def _row(booking: Booking, line: StandingLine | None, now: float) -> QueueRow:
    option = booking.option or (booking.options[0] if booking.options else None)
    waits = booking.state.waits
    return QueueRow(
        team=booking.team,
        position=line.position if line is not None and waits else 0,
        state=booking.state.value,
        kind=booking.ref.kind,
        namespace=booking.ref.namespace,
        name=booking.ref.name or booking.ref.generate_name + "*",
        work_class=booking.work_class or "unclassified",
        user=booking.user,
        pods=booking.pods,
        gpus=format_milli(option.milli * booking.pods) if option is not None else "",
        pool=option.pool if option is not None else "",
        waiting_seconds=max(0, int(now - booking.queued_at)) if waits else 0,
        reason=line.reason if line is not None and waits else booking.reason,
    )


def _worded(units: dict[str, int]) -> str:
    return ", ".join(f"{count} × {name}" for name, count in units.items())
