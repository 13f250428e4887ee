"""What a booking becomes, by what the API server shows."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fairslice import stamps
from fairslice.booking import Assignment, Booking, State
from fairslice.kube.objects import ObjectMeta, PodSpec
from fairslice.kube.reflector import Key
from fairslice.placement import PodNeeds
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.reconcile import (
    LINGER_SECONDS,
    End,
    Fix,
    Keep,
    Requeue,
    Settle,
    Step,
    reconcile_pod,
    reconcile_workload,
)

from .plans import booking, option


def work(**fields: Any) -> WorkloadFacts:
    labels = {stamps.STATE: fields.pop("label", "released")}
    base: dict[str, Any] = {
        "kind": "Job",
        "where": Key("cv", "x"),
        "uid": "x",
        "suspended": False,
        "finished": False,
        "failed": False,
        "failure": "",
        "deleting": False,
        "desired": 1,
        "booking": "x",
        "template": ObjectMeta(),
        "assignment": None,
        "spec": PodSpec(),
        "needs": PodNeeds(),
        "created": 0.0,
        "queued_at": 0.0,
        "labels": labels,
        "annotations": {},
    }
    return WorkloadFacts(**{**base, **fields})


def pod(name: str = "p", node: str = "n1", phase: str = "Running", **fields: Any) -> PodFacts:
    base: dict[str, Any] = {
        "where": Key("cv", name),
        "uid": name,
        "node": node,
        "phase": phase,
        "booking": "x",
        "spec": PodSpec(),
        "needs": PodNeeds(),
    }
    return PodFacts(**{**base, **fields})


def held(state: State = State.RUNNING, pods: int = 1, **fields: Any) -> Booking:
    fields.setdefault("place", {"n1": pods} if state.holds else {})
    return booking("x", state=state, pods=pods, **fields)


def test_all_is_well_with_work_that_runs_where_the_books_say() -> None:
    assert reconcile_workload(held(), work(), [pod()]) == Keep()


def test_work_that_finished_or_is_gone_is_over_when_its_pods_have_ended() -> None:
    ended = pod(phase="Succeeded")
    assert reconcile_workload(held(), work(finished=True, desired=0), [ended]) == End()
    assert reconcile_workload(held(), None, []) == End()
    assert reconcile_workload(held(), None, [pod()]) == Keep()
    assert reconcile_workload(held(pods=2), work(deleting=True), [pod()]) == Settle(
        State.RUNNING, 1, {"n1": 1}
    )


def test_a_job_holds_as_many_pods_as_it_may_still_run() -> None:
    running = [pod("a"), pod("b", phase="Succeeded")]
    assert reconcile_workload(held(pods=2), work(desired=1), running) == Settle(
        State.RUNNING, 1, {"n1": 1}
    )


def test_a_pod_that_succeeded_lets_go_before_the_job_controller_counts_it() -> None:
    two = held(pods=2)
    ended, running = pod("a", phase="Succeeded"), pod("b")
    not_counted = work(desired=2, remaining=2, succeeded=0)
    assert reconcile_workload(two, not_counted, [ended, running]) == Settle(
        State.RUNNING, 1, {"n1": 1}
    )
    counted = work(desired=1, remaining=1, succeeded=1)
    assert reconcile_workload(two, counted, [ended, running]) == Settle(State.RUNNING, 1, {"n1": 1})
    # One of three is done: two go on, the third's place is kept for the next.
    more = work(desired=2, remaining=3, succeeded=0)
    assert reconcile_workload(two, more, [ended, running]) == Keep()


def test_more_parallelism_than_was_booked_is_not_booked_here() -> None:
    assert reconcile_workload(held(), work(desired=5), [pod()]) == Keep()


def test_pods_are_counted_where_they_are_and_those_to_come_where_planned() -> None:
    asked = held(State.RELEASED, pods=3, place={"n1": 2, "n2": 1})
    step = reconcile_workload(asked, work(desired=3), [pod(node="n3", phase="Pending")])
    assert step == Settle(State.RELEASED, 3, {"n3": 1, "n1": 2})


def test_a_release_that_did_not_reach_the_job_is_repeated() -> None:
    assert reconcile_workload(held(State.RELEASED), work(suspended=True), []) == Fix("start")


def test_a_queued_job_that_runs_all_the_same_is_suspended_again() -> None:
    assert reconcile_workload(held(State.QUEUED), work(label="queued"), []) == Fix("stop")
    gated = pod(node="", phase="Pending", gated=True)
    assert reconcile_workload(held(State.QUEUED), work(label="queued"), [gated]) == Fix("stop")


def test_a_job_that_was_released_before_the_books_were_made_anew_stays_released() -> None:
    ours = Assignment(booking="x", option=option())
    step = reconcile_workload(held(State.QUEUED), work(assignment=ours), [pod()])
    assert step == Settle(State.RELEASED, 1, {"n1": 1})


def test_a_victim_counts_until_its_last_pod_has_ended() -> None:
    out = held(State.PREEMPTED, pods=2)
    stopped = work(suspended=True, label="preempted", desired=2)
    assert reconcile_workload(out, work(desired=2), [pod()]) == Fix("stop")
    assert reconcile_workload(out, stopped, [pod()]) == Settle(State.PREEMPTED, 1, {"n1": 1})
    assert reconcile_workload(out, stopped, []) == Requeue(State.QUEUED, 2, "")


def test_a_victim_that_its_user_suspends_meanwhile_is_held() -> None:
    stopped = work(suspended=True, label="held")
    assert reconcile_workload(held(State.PREEMPTED), stopped, []) == Requeue(State.HELD, 1, "")


def test_a_victim_that_the_books_forgot_counts_again() -> None:
    stopped = work(suspended=True, label="preempted")
    step = reconcile_workload(held(State.QUEUED), stopped, [pod()])
    assert step == Settle(State.PREEMPTED, 1, {"n1": 1})


def test_a_job_that_its_user_suspends_is_held_once_its_pods_have_ended() -> None:
    stopped = work(suspended=True, label="held")
    assert reconcile_workload(held(), stopped, [pod()]) == Keep()
    assert reconcile_workload(held(), stopped, []) == Requeue(State.HELD, 1, "")
    assert reconcile_workload(held(State.HELD), stopped, []) == Keep()


def test_a_held_job_that_is_resumed_is_in_line_again() -> None:
    back = work(suspended=True, label="queued", desired=3)
    assert reconcile_workload(held(State.HELD), back, []) == Requeue(State.QUEUED, 3, "")


def test_a_queued_job_whose_parallelism_changed_asks_for_that() -> None:
    more = work(suspended=True, label="queued", desired=3)
    assert reconcile_workload(held(State.QUEUED), more, []) == Requeue(State.QUEUED, 3, "")


def test_a_pod_is_over_when_it_ended_or_is_gone() -> None:
    assert reconcile_pod(held(), pod(phase="Failed")) == End()
    assert reconcile_pod(held(), None) == End()


def test_a_stateful_pods_units_wait_for_its_successor_unless_it_was_pushed_out() -> None:
    stateful = {"group": "StatefulSet cv/db", "group_revision": "1"}
    assert reconcile_pod(held(**stateful), None) == End(LINGER_SECONDS)
    assert reconcile_pod(held(State.PREEMPTED, **stateful), None) == End()
    assert reconcile_pod(held(State.QUEUED, **stateful), None) == End()
    assert reconcile_pod(held(**stateful), pod(phase="Failed")) == End()


def test_a_gated_pod_waits_or_is_let_go_as_the_books_say() -> None:
    gated = pod(node="", phase="Pending", gated=True)
    assert reconcile_pod(held(State.QUEUED), gated) == Keep()
    assert reconcile_pod(held(State.RELEASED), gated) == Fix("start")


def test_a_pod_that_someone_let_go_past_the_queue_counts() -> None:
    step = reconcile_pod(held(State.QUEUED), pod())
    assert step == Settle(State.RELEASED, 1, {"n1": 1})


_STATES = st.sampled_from(
    [State.QUEUED, State.HELD, State.RELEASED, State.RUNNING, State.PREEMPTED]
)
_PODS = st.lists(
    st.builds(
        pod,
        name=st.sampled_from("abcd"),
        node=st.sampled_from(["", "n1", "n2"]),
        phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        deleting=st.booleans(),
    ),
    max_size=3,
)
_WORK = st.none() | st.builds(
    work,
    suspended=st.booleans(),
    finished=st.booleans(),
    deleting=st.booleans(),
    desired=st.integers(0, 3),
    label=st.sampled_from(["queued", "held", "released", "preempted"]),
)


def _after(current: Booking, step: Step) -> Booking | None:
    match step:
        case Settle(state, pods, place):
            return booking("x", state=state, pods=pods, place=place)
        case Requeue(state, pods, _):
            return booking("x", state=state, pods=pods)
        case End():
            return None
    return current


@given(_STATES, st.integers(0, 3), _WORK, _PODS)
def test_reconciling_again_changes_nothing_more(
    state: State, pods: int, workload: WorkloadFacts | None, live: list[PodFacts]
) -> None:
    first = reconcile_workload(held(state, pods), workload, live)
    after = _after(held(state, pods), first)
    if after is None:
        return
    second = reconcile_workload(after, workload, live)
    third = _after(after, second)
    assert third is None or _after(third, reconcile_workload(third, workload, live)) == third


@given(_STATES, st.integers(0, 3), _WORK, _PODS)
def test_what_runs_on_nodes_never_drops_out_of_the_books(
    state: State, pods: int, workload: WorkloadFacts | None, live: list[PodFacts]
) -> None:
    current: Booking | None = held(state, pods)
    for _ in range(3):
        assert current is not None
        step = reconcile_workload(current, workload, live)
        if isinstance(step, Fix):
            return  # decided by what the patch brings
        current = _after(current, step)
        if current is None:
            break
    bound = sum(1 for item in live if item.node and not item.ended)
    holds = current.pods if current is not None and current.state.holds else 0
    assert holds >= bound


def large(name: str, size: int, **fields: Any) -> PodFacts:
    """A pod that counts as several of its booking's."""
    given = booking("x").options[0].times(size)
    return pod(name, assignment=Assignment(booking="x", option=given), **fields)


def custom(**fields: Any) -> WorkloadFacts:
    return work(kind="RayCluster", counts_successes=False, **fields)


def test_large_pods_hold_and_lie_as_several() -> None:
    books = held(pods=9, sizes=(1, 4), place={"n1": 5, "n2": 4})
    pods = [large("lead", 1), large("w1", 4), large("w2", 4, node="n2")]
    assert reconcile_workload(books, custom(desired=9, least=9), pods) == Keep()
    done = [*pods[:2], large("w2", 4, node="n2", phase="Succeeded")]
    assert reconcile_workload(books, custom(desired=9, least=9), done) == Settle(
        State.RUNNING, 5, {"n1": 5}
    )


def test_what_an_elastic_workload_gave_up_is_free_once_it_has_settled() -> None:
    books = structs.replace(held(pods=4, place={"n1": 4}), since=1000.0)
    grown = custom(desired=4, least=1)
    assert reconcile_workload(books, grown, [pod("a"), pod("b")], now=1060.0) == Keep()
    assert reconcile_workload(books, grown, [pod("a"), pod("b")], now=1200.0) == Settle(
        State.RUNNING, 2, {"n1": 2}
    )
    fixed = custom(desired=4, least=4)
    assert reconcile_workload(books, fixed, [pod("a"), pod("b")], now=1200.0) == Keep()
