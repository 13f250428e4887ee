"""What is lent and what is kept, loans, budgets that are gone, quotas that are cut."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fairslice.budgets import Stop
from fairslice.policy import Team
from fairslice.v1alpha1.team import Running
from fairslice_queue.actions import Preempt

from .plans import NOW, SLICE, Scene, node, option, policy, team

DAY = 86_400.0


def keeper(name: str, guaranteed: str, lendable: str) -> Team:
    return team(name, pools=[{"pool": "a100", "guaranteed": guaranteed, "lendable": lendable}])


def scene(teams: list[Team], gpus: int = 4, **fields: Any) -> Scene:
    return Scene(teams, [node(gpus=gpus)], capacity={"a100": gpus * 1000}, **fields)


def waits(pool: str = "") -> tuple[Stop, ...]:
    return (Stop(pool, False, NOW + DAY, "the budget is gone until tomorrow"),)


def scavenges(pool: str = "") -> tuple[Stop, ...]:
    return (Stop(pool, True, NOW + DAY, "the budget is gone until tomorrow"),)


# Lending.


def test_borrowers_leave_free_what_a_team_does_not_lend() -> None:
    state = scene([team("cv"), keeper("nlp", "3", "1")])
    state.wait("b1", "b2", "b3", team="cv")
    plan = state.plan()
    assert plan.released == ["b1", "b2"]
    why = plan.why("b3")
    assert "2 GPUs of a100 are free, but 2 are kept" in why.reason
    assert why.capped


def test_what_the_keeper_holds_itself_is_not_kept_twice() -> None:
    state = scene([team("cv"), keeper("nlp", "3", "1")])
    state.hold("own", team="nlp", pods=2)
    state.wait("b1", "b2", "b3", team="cv")
    assert state.plan().released == ["b1", "b2"]


def test_the_keeper_itself_and_whoever_is_within_a_guarantee_may_have_it() -> None:
    state = scene([team("cv", guaranteed=1), keeper("nlp", "3", "0")])
    state.wait("owns", team="cv", at=NOW - 50)
    state.wait("borrows", team="cv", at=NOW - 40)
    state.wait("n1", "n2", "n3", team="nlp", at=NOW - 10)
    plan = state.plan()
    assert set(plan.released) == {"owns", "n1", "n2", "n3"}


def test_without_lendable_all_of_an_idle_guarantee_is_lent() -> None:
    state = scene([team("cv"), team("nlp", guaranteed=4)])
    state.wait("b1", "b2", "b3", "b4", team="cv")
    assert len(state.plan().released) == 4


def test_a_class_that_passes_everyone_keeps_its_hands_off_too() -> None:
    state = scene([team("cv"), keeper("nlp", "4", "0")])
    state.wait("serve", team="cv", work_class="production")
    plan = state.plan()
    assert plan.released == []
    assert plan.pushed == []


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 8),
    st.integers(0, 8),
    st.lists(st.tuples(st.sampled_from(["cv", "ads", "nlp"]), st.integers(1, 3)), max_size=10),
)
def test_a_keepers_unlent_guarantee_can_always_start_at_once(
    gpus: int, kept: int, asks: list[tuple[str, int]]
) -> None:
    kept = min(kept, gpus)
    state = scene([team("cv"), team("ads", guaranteed=0), keeper("nlp", str(kept), "0")], gpus)
    for number, (name, pods) in enumerate(asks):
        state.wait(f"{name}{number}", team=name, pods=pods)
    state.act(state.plan())
    held = sum(item.pods for item in state.holding if item.team == "nlp")
    free = gpus - sum(item.pods for item in state.holding)
    assert free >= kept - held or held >= kept
    state.waiting.clear()
    state.wait(*(f"own{n}" for n in range(max(0, kept - held))), team="nlp")
    assert len(state.plan().released) == max(0, kept - held)


# Caps beside the limit.


def test_caps_of_classes_users_and_exact_resources_hold_at_release() -> None:
    owner = team("cv", classLimits={"training": "2"}, userLimit="3", resources={SLICE: 1})
    state = Scene([owner], [node(gpus=8, slices=8)], capacity={"a100": 16_000})
    state.hold("runs", team="cv", user="ada", work_class="training")
    at = iter(range(1, 20))

    def wait(name: str, **fields: Any) -> None:
        state.wait(name, team="cv", at=NOW - 100 + next(at), **fields)

    wait("train1", user="bob", work_class="training")
    wait("train2", user="bob", work_class="training")
    wait("try1", user="ada", work_class="experiment", gpus=2)
    wait("try2", user="ada", work_class="experiment")
    small = [option(resource=SLICE, milli=125)]
    wait("slice1", user="eve", work_class="experiment", options=small)
    wait("slice2", user="eve", work_class="experiment", options=small)
    plan = state.plan()
    assert set(plan.released) == {"train1", "try1", "slice1"}
    assert plan.why("train2").reason == (
        "team cv's class training limit: 2 of 2 GPUs in use, 1 asked"
    )
    assert plan.why("try2").reason == "ada's (in team cv) limit: 3 of 3 GPUs in use, 1 asked"
    assert plan.why("slice2").reason == (f"team cv's {SLICE} limit: 1 of 1 units in use, 1 asked")
    assert all(plan.why(name).capped for name in ("train2", "try2", "slice2"))


# Loans.


def test_a_loan_lifts_the_limit_until_its_day_is_over() -> None:
    lent = team("cv", limit=1, loans=[{"pool": "a100", "gpus": "1", "until": "2023-11-14"}])
    state = scene([lent])
    state.wait("a", "b", "c")
    assert state.plan(NOW).released == ["a", "b"]  # NOW is the evening of that day
    assert state.plan(NOW + DAY).released == ["a"]


# Windows. NOW is 22:13 UTC on a Tuesday.


def test_a_window_lifts_limit_and_guarantee_while_it_is_open() -> None:
    window = {"from": "20:00", "to": "06:00", "limit": "3", "guaranteed": "2"}
    night = team("cv", pools=[{"pool": "a100", "limit": "1", "windows": [window]}])
    state = scene([night, team("nlp")])
    state.wait("a", "b", "c", "d", team="cv", at=NOW - 50)
    state.wait("n", team="nlp", at=NOW - 500)
    # Two are within the guarantee that the night gives; the third borrows, and came later.
    assert state.plan(NOW).released == ["a", "b", "n", "c"]
    assert state.plan(NOW + DAY / 2).released == ["n", "a"]


def test_what_only_a_window_allows_says_when_it_opens() -> None:
    window = {"from": "20:00", "to": "06:00", "limit": "3"}
    pools = [{"pool": "a100", "limit": "1", "windows": [window]}]
    state = scene([team("cv", pools=pools)])
    state.hold("one", team="cv")
    state.wait("big", team="cv", pods=3)
    state.wait("never", team="cv", pods=4)
    state.wait("small", team="cv")
    plan = state.plan(NOW + DAY / 2)
    assert plan.why("big").reason == (
        "asks for 3 a100, of which team cv may hold 1 until 2023-11-15 20:00 UTC, and enough for "
        "it from then on"
    )
    assert plan.why("never").reason == "team cv's a100 limit: 1 of 1 GPUs in use, 4 asked"
    assert plan.why("small").reason == "team cv's a100 limit: 1 of 1 GPUs in use, 1 asked"
    assert all(plan.why(name).capped for name in ("big", "never", "small"))


def test_a_window_that_closes_is_a_cut() -> None:
    window = {"from": "20:00", "to": "06:00", "limit": "3"}
    pools = [{"pool": "a100", "limit": "1", "windows": [window]}]
    for on_cut, pushed in (("Evict", 2), ("Keep", 0)):
        state = scene([team("cv", pools=pools, onQuotaCut=on_cut, mode={"quota": "Enforce"})])
        for name in ("a", "b", "c"):
            state.hold(name, team="cv", work_class="experiment")
        assert state.plan(NOW).pushed == []
        assert len(state.plan(NOW + DAY / 2).pushed) == pushed


def test_what_is_kept_for_a_team_goes_by_its_windows() -> None:
    window = {"from": "08:00", "to": "18:00", "lendable": "0"}
    office = team("nlp", pools=[{"pool": "a100", "guaranteed": "3", "windows": [window]}])
    state = scene([team("cv"), office])
    state.wait("b1", "b2", team="cv")
    assert state.plan(NOW).released == ["b1", "b2"]
    assert state.plan(NOW + DAY / 2).released == ["b1"]


# Budgets.


def test_nothing_new_starts_once_a_budget_is_gone_and_what_runs_goes_on() -> None:
    state = scene([team("cv", guaranteed=4), team("nlp")], stops={"cv": waits()})
    state.hold("runs", team="cv")
    state.wait("new", team="cv", at=NOW - 500)
    state.wait("other", team="nlp")
    plan = state.plan()
    assert plan.released == ["other"]
    assert plan.pushed == []
    assert plan.why("new").reason == "the budget is gone until tomorrow"
    assert plan.why("new").capped


def test_the_period_turning_lets_work_go_again() -> None:
    state = scene([team("cv")], stops={"cv": waits()})
    state.wait("new")
    assert state.plan(NOW + DAY - 1).released == []
    assert state.plan(NOW + DAY).released == ["new"]


def test_a_pools_budget_closes_that_pool_only() -> None:
    state = scene([team("cv")], stops={"cv": waits("a100")})
    state.wait("either", options=[option(pool="a100"), option()])
    state.wait("only")
    plan = state.plan()
    assert plan.released == []
    state.stops = {"cv": waits("t4")}
    assert state.plan().released == ["either", "only"]


def test_scavengers_start_after_everybody_even_production_and_guarantees() -> None:
    state = scene([team("cv", guaranteed=4), team("nlp")], 2, stops={"cv": scavenges()})
    state.wait("serve", team="cv", work_class="production", at=NOW - 900)
    state.wait("late", team="nlp", work_class="batch", at=NOW - 1)
    assert state.plan().released == ["late", "serve"]


def test_scavengers_are_the_first_to_be_pushed_out_even_by_borrowers() -> None:
    state = scene([team("cv", guaranteed=4), team("nlp"), team("ads")], 2)
    state.stops = {"cv": scavenges()}
    state.hold("scavenged", team="cv", work_class="training")
    state.hold("borrowed", team="ads", work_class="batch")
    state.wait("wants", team="nlp", work_class="training")
    plan = state.plan()
    assert plan.pushed == ["scavenged"]
    rule = next(item.rule for item in plan if isinstance(item, Preempt))
    assert "budget is used up" in rule


def test_scavengers_push_nobody_out() -> None:
    state = scene([team("cv", guaranteed=4), team("nlp")], 1, stops={"cv": scavenges()})
    state.hold("borrowed", team="nlp", work_class="experiment")
    state.wait("serve", team="cv", work_class="production")
    assert state.plan().pushed == []


def test_a_borrower_pushes_out_scavengers_only() -> None:
    state = scene([team("cv"), team("nlp"), team("ads")], 2, stops={"cv": scavenges()})
    state.hold("scavenged", team="cv", work_class="training")
    state.hold("borrowed", team="ads", work_class="experiment")
    state.wait("wants", team="nlp", work_class="training", pods=2)
    assert state.plan().pushed == []


def test_what_runs_on_a_budget_that_is_gone_finishes_degrades_or_stops() -> None:
    def gone(running: Running) -> Scene:
        stop = Stop("a100", False, NOW + DAY, "the budget is gone until tomorrow", running)
        teams = [team("cv", guaranteed=2), team("nlp")]
        state = scene(teams, 2, stops={"cv": (stop,)})
        state.hold("runs", team="cv", ran=7200).hold("fresh", team="cv", ran=30)
        state.wait("wants", team="nlp")
        return state

    assert gone(Running.FINISH).plan().pushed == []
    assert gone(Running.DEGRADE).plan().pushed == ["runs"]
    alone = gone(Running.DEGRADE)
    alone.waiting.clear()
    assert alone.plan().pushed == []
    ended = gone(Running.STOP)
    ended.waiting.clear()
    plan = ended.plan()
    assert plan.pushed == ["runs"]  # the other one's minRuntime isn't over yet
    action = next(item for item in plan if isinstance(item, Preempt))
    assert "budget is used up, and what runs on it is to stop" in action.rule
    assert ended.plan(NOW + DAY).pushed == []


def test_a_budget_of_one_pool_stops_nothing_elsewhere() -> None:
    stop = Stop("t4", False, NOW + DAY, "gone", Running.STOP)
    state = scene([team("cv", guaranteed=2)], 2, stops={"cv": (stop,)})
    state.hold("runs", team="cv", ran=7200)
    assert state.plan().pushed == []


# Quota cuts.


def cut(limit: int, **spec: Any) -> Team:
    return team("cv", limit=limit, onQuotaCut="Evict", mode={"quota": "Enforce"}, **spec)


def test_a_cut_pushes_nobody_out_while_quotas_are_only_audited() -> None:
    state = scene([team("cv", limit=1, onQuotaCut="Evict", mode={"quota": "Audit"})])
    state.hold("a").hold("b")
    assert state.plan().pushed == []


def test_work_runs_on_beyond_a_lowered_limit_unless_the_team_says_otherwise() -> None:
    state = scene([team("cv", limit=1)])
    state.hold("a").hold("b")
    assert state.plan().pushed == []


def test_a_cut_pushes_out_no_more_than_it_must_lowest_class_first() -> None:
    state = scene([cut(2)])
    state.hold("train", ran=7200).hold("young", ran=3600)
    state.hold("big", pods=2, work_class="batch", ran=900)
    plan = state.plan()
    assert plan.pushed == ["big"]
    action = next(item for item in plan if isinstance(item, Preempt))
    assert action.beneficiary == ""
    assert "holds 4 a100, its limit is 2 now" in action.rule


def test_a_cut_leaves_those_alone_who_turn_out_not_to_be_needed() -> None:
    state = scene([cut(3)])
    state.hold("small", work_class="batch", ran=60)
    state.hold("large", work_class="batch", pods=4, ran=600)
    assert state.plan().pushed == ["large"]


def test_a_cut_waits_for_min_runtime_and_for_those_who_leave_already() -> None:
    state = scene([cut(1)])
    state.hold("fresh", ran=30).hold("fresher", ran=20)
    assert state.plan().pushed == []
    assert state.plan(NOW + 60).pushed == ["fresher"]


def test_a_loan_that_ends_is_a_cut() -> None:
    lent = cut(1, loans=[{"pool": "a100", "gpus": "1", "until": "2023-11-14T22:13:21Z"}])
    state = scene([lent], policy=policy())
    state.hold("old", ran=7200).hold("young", ran=3600)
    assert state.plan(NOW).pushed == []  # a second before
    assert state.plan(NOW + 1).pushed == ["young"]


# Expected starts.


def test_work_with_room_kept_for_it_is_told_when_it_starts_at_the_latest() -> None:
    state = scene([team("cv")], 4, runtimes={"a": 7200.0, "b": 5400.0})
    state.hold("a", pods=2, ran=3600).hold("b", pods=2, ran=3600)
    state.wait("big", pods=4, at=NOW - 3600)
    state.wait("half", pods=2, at=NOW - 3500)
    # NOW is 22:13:20 UTC; a has an hour to go, b half of one.
    why = state.plan().why("big").reason
    assert why.endswith("expected to start by 2023-11-14 23:13 UTC (declared run times)")
    assert "expected" not in state.plan().why("half").reason


def test_nothing_is_expected_of_those_who_said_nothing_or_are_late() -> None:
    for runtimes in ({"a": 7200.0}, {"a": 7200.0, "b": 60.0}):
        state = scene([team("cv")], 4, runtimes=runtimes)
        state.hold("a", pods=2, ran=3600).hold("b", pods=2, ran=3600)
        state.wait("big", pods=4, at=NOW - 3600)
        assert "expected" not in state.plan().why("big").reason


def test_only_those_in_the_way_are_waited_for() -> None:
    state = scene([team("cv")], 4, runtimes={"b": 5400.0})
    state.hold("a", ran=3600).hold("b", pods=2, ran=3600)
    state.wait("big", pods=3, at=NOW - 3600)
    assert "by 2023-11-14 22:43 UTC" in state.plan().why("big").reason
