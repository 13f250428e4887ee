"""Who is pushed out: by which right, whom first, and never more than needed."""

import pytest

from fairslice.booking import State
from fairslice.placement import PodNeeds
from fairslice_queue.actions import Preempt

from .plans import NOW, SLICE, Scene, node, option, team


def test_a_guarantee_is_taken_back_from_who_borrows() -> None:
    scene = Scene([team("cv", guaranteed=2), team("nlp", guaranteed=1)], [node(gpus=4)])
    for name in "abcd":
        scene.hold(name, team="nlp")
    scene.wait("owner", team="cv", gpus=2)
    plan = scene.plan()
    assert len(plan.pushed) == 2
    assert plan.kept["owner"].place == {"n1": 1}
    assert "guarantee" in next(i.rule for i in plan if isinstance(i, Preempt))


def test_nobody_is_pushed_out_for_borrowed_work() -> None:
    scene = Scene([team("cv", guaranteed=1), team("nlp")], [node(gpus=2)])
    scene.hold("mine", team="cv")
    scene.hold("theirs", team="nlp")
    scene.wait("more", team="cv")
    assert scene.plan().pushed == []


def test_a_team_is_never_pushed_below_its_guarantee() -> None:
    scene = Scene([team("cv", guaranteed=4), team("nlp", guaranteed=3)], [node(gpus=4)])
    for name in "abcd":
        scene.hold(name, team="nlp")
    scene.wait("gang", team="cv", gpus=2)
    # One of four is borrowed; pushing that one would not make room for two.
    assert scene.plan().pushed == []
    scene.waiting.clear()
    scene.wait("one", team="cv")
    assert len(scene.plan().pushed) == 1


def test_work_that_straddles_its_teams_guarantee_is_borrowed_work_too() -> None:
    scene = Scene([team("cv", guaranteed=1), team("nlp", guaranteed=1)], [node(gpus=2)])
    scene.hold("straddles", team="nlp", gpus=2)
    scene.wait("owner", team="cv")
    assert scene.plan().pushed == ["straddles"]


def test_a_little_borrowed_elsewhere_does_not_cost_a_team_its_guarantee() -> None:
    scene = Scene([team("cv", guaranteed=1), team("nlp", guaranteed=2)], [node(gpus=2, slices=1)])
    scene.hold("owns", team="nlp", gpus=2)
    scene.hold("slice", team="nlp", options=[option(resource=SLICE, milli=125)])
    scene.wait("owner", team="cv")
    assert scene.plan().pushed == []


def test_several_borrowers_give_back_together() -> None:
    teams = [team("cv", guaranteed=2), team("nlp", guaranteed=1), team("hi")]
    scene = Scene(teams, [node(gpus=3)])
    scene.hold("straddles", team="nlp", gpus=2)
    scene.hold("borrowed", team="hi")
    scene.wait("owner", team="cv", gpus=2)
    assert scene.plan().pushed != []


def test_what_is_wholly_borrowed_goes_before_what_straddles() -> None:
    scene = Scene([team("cv", guaranteed=1), team("nlp", guaranteed=1), team("hi")], [node(gpus=3)])
    scene.hold("straddles", team="nlp", gpus=2, ran=100)
    scene.hold("borrowed", team="hi", ran=9000)
    scene.wait("owner", team="cv")
    assert scene.plan().pushed == ["borrowed"]


def test_nothing_is_pushed_out_within_its_min_runtime() -> None:
    scene = Scene([team("cv", guaranteed=1), team("nlp")], [node(gpus=1)])
    scene.hold("young", team="nlp", ran=59)
    scene.wait("owner", team="cv")
    assert scene.plan().pushed == []
    assert scene.plan(NOW + 1).pushed == ["young"]


def test_production_may_push_out_guaranteed_work_but_not_its_equals() -> None:
    scene = Scene([team("cv"), team("nlp", guaranteed=2)], [node(gpus=2)])
    scene.hold("serve", team="nlp", work_class="production", preemptible=True)
    scene.hold("train", team="nlp")
    scene.wait("p1", "p2", team="cv", work_class="production")
    plan = scene.plan()
    assert plan.pushed == ["train"]
    assert list(plan.kept) == ["p1"]


def test_production_at_its_teams_limit_has_its_own_teams_lesser_work_give_way() -> None:
    scene = Scene([team("cv", limit=2), team("nlp")], [node(gpus=4)])
    scene.hold("mine1", team="cv", work_class="experiment", ran=100)
    scene.hold("mine2", team="cv", work_class="training")
    scene.hold("theirs", team="nlp", work_class="experiment")
    scene.wait("serve", team="cv", work_class="production")
    plan = scene.plan()
    assert plan.pushed == ["mine1"]
    scene.act(plan)
    plan = scene.plan()
    assert plan.released == ["serve"]
    assert plan.pushed == []


def test_what_may_not_be_pushed_out_stays() -> None:
    scene = Scene([team("cv"), team("nlp")], [node(gpus=1)])
    scene.hold("shielded", team="nlp", preemptible=False)
    scene.wait("serve", team="cv", work_class="production")
    assert scene.plan().pushed == []


def test_what_belongs_to_no_team_stays() -> None:
    scene = Scene([team("cv")], [node(gpus=1)])
    scene.hold("foreign", team="", work_class="")
    scene.wait("serve", team="cv", work_class="production")
    assert scene.plan().pushed == []


def test_nobody_is_pushed_out_where_that_would_not_make_it_fit() -> None:
    scene = Scene(
        [team("cv", guaranteed=8), team("nlp")],
        [node("n1", 2), node("n2", 2, cpu_milli=1000)],
        needs={"owner": PodNeeds(cpu_milli=4000)},
    )
    scene.hold("a", team="nlp", where="n2", gpus=2)
    scene.hold("fixed", team="nlp", where="n1", gpus=2, preemptible=False)
    scene.wait("owner", team="cv", gpus=2)
    assert scene.plan().pushed == []


def test_work_on_other_shares_is_not_pushed_out() -> None:
    scene = Scene([team("cv", guaranteed=4), team("nlp")], [node(gpus=0, slices=2)])
    scene.hold("slice", team="nlp", options=[option(resource=SLICE, milli=125)])
    scene.wait("whole", team="cv")
    assert scene.plan().pushed == []


def test_lowest_class_then_borrowers_then_least_lost_then_youngest() -> None:
    scene = Scene([team("cv"), team("nlp", guaranteed=1)], [node(gpus=4)])
    scene.hold("try", team="nlp", work_class="experiment", ran=50_000)
    scene.hold("old", team="cv", ran=9000)
    scene.hold("saved", team="cv", ran=9001)
    scene.hold("new", team="cv", ran=400)
    scene.checkpoints["saved"] = 300.0
    scene.wait("p", team="nlp", work_class="production")
    order = []
    for _ in range(4):
        plan = scene.plan()
        order += plan.pushed
        scene.holding = [held for held in scene.holding if held.id not in plan.pushed]
        scene.hold(f"filler{len(order)}", team="nlp", work_class="production")
    assert order == ["try", "saved", "new", "old"]


def test_gangs_leave_whole_and_no_more_leave_than_needed() -> None:
    scene = Scene([team("cv", guaranteed=4), team("nlp")], [node("n1", 4), node("n2", 4)])
    scene.hold("gang", team="nlp", pods=4, place={"n1": 2, "n2": 2}, ran=100)
    for number in range(2):
        scene.hold(f"a{number}", team="nlp", where="n1", ran=5000)
        scene.hold(f"b{number}", team="nlp", where="n2", ran=5000)
    scene.wait("owner", team="cv", gpus=4)
    plan = scene.plan()
    # The gang is cheapest and goes; beside it only those on the one node that is emptied.
    assert plan.pushed[0] == "gang" or "gang" in plan.pushed
    assert len(plan.pushed) == 3
    assert {name[0] for name in plan.pushed if name != "gang"} in ({"a"}, {"b"})


def test_a_victim_that_turns_out_unneeded_is_spared() -> None:
    scene = Scene([team("cv", guaranteed=4), team("nlp")], [node("n1", 1), node("n2", 4)])
    scene.hold("cheap", team="nlp", where="n1", ran=100)
    scene.hold("dear", team="nlp", where="n2", gpus=4, ran=5000)
    scene.wait("owner", team="cv", gpus=4)
    assert scene.plan().pushed == ["dear"]


def test_those_on_their_way_out_count_before_anyone_else_is_pushed() -> None:
    scene = Scene([team("cv", guaranteed=1), team("nlp")], [node(gpus=2)])
    scene.hold("leaving", team="nlp", state=State.PREEMPTED)
    scene.hold("staying", team="nlp")
    scene.wait("owner", team="cv")
    plan = scene.plan()
    assert plan.pushed == []
    assert "owner" in plan.kept


def test_two_owners_push_out_just_enough_for_both() -> None:
    scene = Scene([team("cv", guaranteed=1), team("hi", guaranteed=1), team("nlp")], [node(gpus=4)])
    scene.hold("wide", team="nlp", gpus=4)
    scene.wait("o1", team="cv")
    scene.wait("o2", team="hi")
    plan = scene.plan()
    assert plan.pushed == ["wide"]
    assert set(plan.kept) == {"o1", "o2"}


@pytest.mark.parametrize("rounds", [12])
def test_quotas_of_150_150_and_nothing_come_to_rest(rounds: int) -> None:
    # Kueue #3779: A1 borrows 100, BE runs 50 on what is left; then A asks for 50 more.
    teams = [team("a", guaranteed=150), team("b", guaranteed=150), team("be")]
    scene = Scene(teams, [node(f"n{number}", 10) for number in range(30)])
    places = [f"n{number}" for number in range(30)]
    scene.hold("a1", team="a", pods=250, place=dict.fromkeys(places[:25], 10))
    scene.hold("be1", team="be", pods=50, place=dict.fromkeys(places[25:], 10))
    scene.wait("a2", team="a", pods=50)
    history, now = [], NOW
    for _ in range(rounds):
        plan = scene.plan(now)
        history.append((plan.released, plan.pushed))
        scene.act(plan, now)
        now += 3600
    assert history[-6:] == [([], [])] * 6
    # B takes its guarantee back once, and it stays so.
    scene.wait("b1", team="b", pods=150, at=now)
    pushes = 0
    for _ in range(rounds):
        plan = scene.plan(now)
        pushes += len(plan.pushed)
        scene.act(plan, now)
        now += 3600
    assert "b1" in {held.id for held in scene.holding}
    assert pushes <= 2
