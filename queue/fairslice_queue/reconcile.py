"""What a booking must become, given what the API server shows. Pure; safe to repeat."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairslice import stamps
from fairslice.booking import Booking, State
from fairslice_queue.facts import PodFacts, WorkloadFacts

__all__ = [
    "LINGER_SECONDS",
    "End",
    "Fix",
    "Keep",
    "Requeue",
    "Settle",
    "reconcile_pod",
    "reconcile_workload",
]

# A StatefulSet's pod, or one of a Deployment with strategy Recreate, is deleted before its
# successor is made; its units are kept this long for it.
LINGER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Keep:
    """All is as the books say."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The booking holds this much, there."""

    state: State
    pods: int
    place: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Requeue:
    """The booking holds nothing any more and is in line again, or held by a person."""

    state: State
    pods: int
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The booking is over."""

    linger_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Fix:
    """The object lags behind the books: repeat the patch that should have been made.

    `what` is `start` (release again), `stop` (suspend again).
    """

    what: str


Step = Keep | Settle | Requeue | End | Fix


def _place(planned: Mapping[str, int], live: Sequence[PodFacts], held: int) -> dict[str, int]:
    """Where the held pods are: actual nodes first, planned ones for pods yet to be bound."""
    actual = Counter(pod.node for pod in live if pod.node)
    open_plan = Counter(planned) - actual
    missing = held - actual.total()
    for node, count in open_plan.items():
        take = min(count, missing)
        if take > 0:
            actual[node] += take
            missing -= take
    return dict(actual)


def _settle(booking: Booking, state: State, pods: int, place: Mapping[str, int]) -> Step:
    if (state, pods, place) == (booking.state, booking.pods, booking.place):
        return Keep()
    return Settle(state, pods, place)


def reconcile_workload(
    booking: Booking, workload: WorkloadFacts | None, pods: Sequence[PodFacts]
) -> Step:
    """Compare a suspendable workload with its booking."""
    live = [pod for pod in pods if not pod.ended]
    over = workload is None or workload.finished or workload.deleting
    if booking.state in (State.QUEUED, State.HELD) and not live:
        if over:
            return End()
        assert workload is not None
        if not workload.suspended:
            return Fix("stop")
        wanted = _wish(workload)
        if wanted is not booking.state or workload.desired != booking.pods:
            return Requeue(wanted, workload.desired, booking.reason)
        return Keep()
    if workload is None or over:
        if not live:
            return End()
        return _settle(booking, booking.state, len(live), _place({}, live, len(live)))
    if booking.state is State.PREEMPTED:
        if not workload.suspended:
            return Fix("stop")
        if not live:
            return Requeue(State.QUEUED, workload.desired, booking.reason)
        return _settle(booking, State.PREEMPTED, len(live), _place({}, live, len(live)))
    if workload.suspended:
        wish = _wish(workload)
        if wish is State.HELD or booking.state is State.HELD:
            # Its user suspended it: what it held is free as soon as its pods are gone.
            if not live:
                return Requeue(wish, workload.desired, "")
            return _settle(booking, booking.state, len(live), _place({}, live, len(live)))
        return Fix("start")
    held = max(workload.desired, len(live))
    running = any(pod.phase == "Running" for pod in live)
    state = State.RUNNING if running else _not_running(booking.state)
    return _settle(booking, state, held, _place(booking.place, live, held))


def _wish(workload: WorkloadFacts) -> State:
    label = workload.labels.get(stamps.STATE, "")
    return State.HELD if label == State.HELD.value.lower() else State.QUEUED


def _not_running(state: State) -> State:
    # Between two pods of one workload nothing runs for a moment; it is no new release.
    return state if state.holds else State.RELEASED


def reconcile_pod(booking: Booking, pod: PodFacts | None) -> Step:
    """Compare a pod that has a booking of its own with it."""
    if pod is None:
        lingers = booking.state.holds and booking.group.startswith("StatefulSet ")
        return End(LINGER_SECONDS if lingers else 0.0)
    if pod.ended:
        return End()
    if booking.state.waits or booking.state is State.HELD:
        if pod.gated:
            return Keep()
        # Someone let it go past us; what the API server shows is what holds.
        return Settle(State.RELEASED, 1, {pod.node: 1} if pod.node else {})
    if booking.state is State.PREEMPTED:
        return _settle(booking, State.PREEMPTED, 1, _place(booking.place, [pod], 1))
    if pod.gated:
        return Fix("start")
    state = State.RUNNING if pod.phase == "Running" else _not_running(booking.state)
    return _settle(booking, state, 1, _place(booking.place, [pod], 1))
