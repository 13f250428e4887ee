"""What a booking must become, given what the API server shows. Pure; safe to repeat."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from fairslice import stamps
from fairslice.booking import Booking, State
from fairslice.gangs import size_in
from fairslice_queue.facts import PodFacts, WorkloadFacts

__all__ = [
    "LINGER_SECONDS",
    "NOWHERE",
    "End",
    "Fix",
    "Keep",
    "Requeue",
    "Settle",
    "held_by",
    "reconcile_pod",
    "reconcile_workload",
]

# A StatefulSet's pod, or one of a Deployment with strategy Recreate, is deleted before its
# successor is made; its units are kept this long for it.
LINGER_SECONDS = 60.0

# Where pods are that count, but for which no room is to be set aside.
NOWHERE = ""

# An elastic workload that runs for so long has as many pods as it wants.
_SETTLING_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Keep:
    """All is as the books say."""


@dataclass(frozen=True, slots=True)
class Settle:
    """The booking holds this much, there; even if the books say that it waits."""

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


def held_by(booking: Booking, pods: Iterable[PodFacts]) -> int:
    """Count pods as their booking counts them: a large one as several."""
    return sum(_size(booking, pod) for pod in pods) if booking.sizes else len(list(pods))


def _size(booking: Booking, pod: PodFacts) -> int:
    if not booking.sizes or pod.assignment is None:
        return 1
    given = pod.assignment.option
    return max((size_in(option, given) for option in booking.options), default=1) or 1


def _place(
    booking: Booking,
    planned: Mapping[str, int],
    live: Sequence[PodFacts],
    held: int,
    stuck_since: float = -inf,
) -> dict[str, int]:
    """Where the held pods are: actual nodes first, planned ones for pods yet to be bound.

    Pods that nobody has found a node for since `stuck_since` are NOWHERE.
    """
    actual: Counter[str] = Counter()
    for pod in live:
        if pod.node:
            actual[pod.node] += _size(booking, pod)
    open_plan = Counter(planned) - actual
    missing = held - actual.total()
    stuck = sum(_size(booking, pod) for pod in live if pod.is_stuck(stuck_since))
    stuck = max(0, min(stuck, missing))
    missing -= stuck
    if stuck:
        actual[NOWHERE] = stuck
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
    booking: Booking,
    workload: WorkloadFacts | None,
    pods: Sequence[PodFacts],
    now: float = 0.0,
    stuck_since: float = -inf,
) -> Step:
    """Compare a suspendable workload with its booking.

    Pods that nobody has found a node for since `stuck_since` hold no room.
    """
    live = [pod for pod in pods if not pod.ended]
    bound = [pod for pod in live if pod.node]
    if workload is None or workload.finished or workload.deleting:
        if booking.state.holds:
            return _as_live(booking, booking.state, live) if live else End()
        return _as_live(booking, State.PREEMPTED, bound) if bound else End()
    if not booking.state.holds:
        return _waiting_workload(booking, workload, live, bound)
    if booking.state is State.PREEMPTED:
        if not workload.suspended:
            return Fix("stop")
        if not live:
            return Requeue(_wish(workload), workload.desired, booking.reason)
        return _as_live(booking, State.PREEMPTED, live)
    if workload.suspended:
        if _wish(workload) is not State.HELD:
            return Fix("start")
        # Its user suspended it: what it held is free as soon as its pods are gone.
        if not live:
            return Requeue(State.HELD, workload.desired, "")
        return _as_live(booking, booking.state, live)
    # Pods beyond what was booked have bookings of their own.
    present = held_by(booking, live)
    held = max(min(_wanted(booking, workload, pods, present, now), booking.pods), present)
    running = any(pod.phase == "Running" for pod in live)
    state = State.RUNNING if running else booking.state
    return _settle(booking, state, held, _place(booking, booking.place, live, held, stuck_since))


def _wanted(
    booking: Booking,
    workload: WorkloadFacts,
    pods: Sequence[PodFacts],
    present: int,
    now: float,
) -> int:
    """Count the pods that a released workload is to have from now on."""
    done = held_by(booking, [pod for pod in pods if pod.phase == "Succeeded"])
    if workload.counts_successes:
        if workload.remaining is None:
            return workload.desired
        # The Job controller counts up to a second late; its pods let go when they end.
        uncounted = max(0, done - workload.succeeded)
        return min(workload.desired, max(0, workload.remaining - uncounted))
    wanted = max(workload.desired - done, 0)
    running = booking.state is State.RUNNING and now - booking.since > _SETTLING_SECONDS
    if running and workload.least < workload.desired:
        # What its own autoscaler has taken away it books anew, pod by pod, if it wants it back.
        wanted = min(wanted, max(present, workload.least))
    return wanted


def _waiting_workload(
    booking: Booking,
    workload: WorkloadFacts,
    live: Sequence[PodFacts],
    bound: Sequence[PodFacts],
) -> Step:
    if not workload.suspended:
        given = workload.assignment
        ours = given is not None and given.booking == booking.id
        if ours and workload.labels.get(stamps.STATE) == State.RELEASED.value.lower():
            # It was released; the books were made anew from an older view of it.
            held = max(workload.desired, held_by(booking, live))
            return Settle(State.RELEASED, held, _place(booking, {}, live, held))
        return Fix("stop")
    if bound:
        # The books were made anew while it was on its way out.
        return _as_live(booking, State.PREEMPTED, bound)
    wanted = _wish(workload)
    if wanted is not booking.state or workload.desired != booking.pods:
        return Requeue(wanted, workload.desired, booking.reason)
    return Keep()


def _as_live(booking: Booking, state: State, live: Sequence[PodFacts]) -> Step:
    """Hold just what the pods that are still there hold."""
    held = held_by(booking, live)
    return _settle(booking, state, held, _place(booking, {}, live, held))


def _wish(workload: WorkloadFacts) -> State:
    label = workload.labels.get(stamps.STATE, "")
    return State.HELD if label == State.HELD.value.lower() else State.QUEUED


def reconcile_pod(booking: Booking, pod: PodFacts | None, stuck_since: float = -inf) -> Step:
    """Compare a pod that has a booking of its own with it; see `reconcile_workload`."""
    if pod is None:
        # What was pushed out leaves its units to whom it was pushed out for.
        stays = booking.state in (State.RELEASED, State.RUNNING)
        lingers = stays and booking.group.startswith("StatefulSet ")
        return End(LINGER_SECONDS if lingers else 0.0)
    if pod.ended:
        return End()
    if not booking.state.holds:
        if pod.gated:
            return Keep()
        # Someone let it go past us; what the API server shows is what holds.
        return Settle(State.RELEASED, 1, {pod.node: 1} if pod.node else {})
    if booking.state is State.PREEMPTED:
        return _settle(booking, State.PREEMPTED, 1, _place(booking, booking.place, [pod], 1))
    if pod.gated:
        return Fix("start")
    state = State.RUNNING if pod.phase == "Running" else booking.state
    return _settle(booking, state, 1, _place(booking, booking.place, [pod], 1, stuck_since))
