"""Who goes first: guarantees, classes, shares, arrival; and how limits and shapes block."""

from fairslice.placement import PodNeeds

from .plans import GPU, NOW, SLICE, Scene, node, option, policy, team


def test_work_within_its_teams_guarantee_goes_before_borrowed_work_of_a_better_class() -> None:
    scene = Scene([team("cv"), team("nlp", guaranteed=1)], [node(gpus=1)])
    scene.wait("borrows", team="cv", work_class="training", at=NOW - 500)
    scene.wait("owns", team="nlp", work_class="experiment", at=NOW - 5)
    assert scene.plan().released == ["owns"]


def test_of_two_that_borrow_the_better_class_goes_first() -> None:
    scene = Scene([team("cv"), team("nlp")], [node(gpus=1)])
    scene.wait("try", team="cv", work_class="experiment", at=NOW - 500)
    scene.wait("train", team="nlp", work_class="training", at=NOW - 5)
    assert scene.plan().released == ["train"]


def test_of_one_class_the_team_that_used_less_goes_first() -> None:
    scene = Scene([team("cv"), team("nlp")], [node(gpus=1)], shares={"cv": 0.4, "nlp": 0.1})
    scene.wait("greedy", team="cv", at=NOW - 500)
    scene.wait("modest", team="nlp", at=NOW - 5)
    assert scene.plan().released == ["modest"]


def test_of_equals_who_came_first_goes_first_and_then_the_name_decides() -> None:
    scene = Scene([team("cv")], [node(gpus=2)])
    scene.wait("later", at=NOW - 5)
    scene.wait("b", at=NOW - 50)
    scene.wait("a", at=NOW - 50)
    assert scene.plan().released == ["a", "b"]


def test_a_class_that_passes_everyone_goes_before_guarantees_up_to_its_teams_limit() -> None:
    scene = Scene([team("cv", limit=1), team("nlp", guaranteed=2)], [node(gpus=2)])
    scene.wait("owns", team="nlp", at=NOW - 500)
    scene.wait("serve1", "serve2", team="cv", work_class="production", at=NOW - 5)
    plan = scene.plan()
    assert plan.released == ["serve1", "owns"]
    assert plan.why("serve2").capped


def test_what_waited_too_long_goes_before_guarantees_even_behind_its_own_team() -> None:
    scene = Scene(
        [team("cv"), team("nlp", guaranteed=4)], [node(gpus=1)], policy=policy(aging="1h")
    )
    scene.wait("train", team="cv", work_class="training", at=NOW - 60)
    scene.wait("old", team="cv", work_class="experiment", at=NOW - 3601)
    scene.wait("owns", team="nlp", at=NOW - 60)
    assert scene.plan().released == ["old"]


def test_the_leads_order_comes_before_arrival_but_after_class() -> None:
    scene = Scene([team("cv")], [node(gpus=2)], orders={"moved": -1, "try": -2})
    scene.wait("first", at=NOW - 500)
    scene.wait("moved", at=NOW - 5)
    scene.wait("try", work_class="experiment", at=NOW - 900)
    assert scene.plan().released == ["moved", "first"]


def test_urgent_work_goes_before_all_but_what_passes_everyone() -> None:
    teams = [team("cv"), team("nlp", guaranteed=4)]
    scene = Scene(teams, [node(gpus=2)], policy=policy(aging="1h"), urgent={"now"})
    scene.wait("now", team="cv", work_class="experiment", at=NOW - 5)
    scene.wait("owns", team="nlp", work_class="training", at=NOW - 500)
    scene.wait("old", team="nlp", work_class="training", at=NOW - 3700)
    scene.wait("serve", team="nlp", work_class="production", at=NOW - 1)
    assert scene.plan().released == ["serve", "now"]
    assert scene.plan().why("old").position == 1


def test_pinned_work_is_first_of_its_own_team_whatever_its_class_and_order() -> None:
    scene = Scene([team("cv")], [node(gpus=2)], orders={"moved": -5}, pinned={"pin"})
    scene.wait("moved", "first", team="cv", at=NOW - 500)
    scene.wait("pin", team="cv", work_class="experiment", at=NOW - 5)
    scene.wait("serve", team="cv", work_class="production", at=NOW - 5)
    plan = scene.plan()
    assert plan.released == ["serve", "pin"]
    assert [plan.why(name).position for name in ("moved", "first")] == [1, 2]
    scene.pinned.clear()
    assert scene.plan().released == ["serve", "moved"]


def test_pinned_work_has_its_teams_turn_also_that_of_older_work_but_not_an_urgent_ones() -> None:
    rules = policy(aging="1h")
    scene = Scene([team("cv")], [node(gpus=2)], policy=rules, pinned={"pin"}, urgent={"now"})
    scene.wait("old", "older", team="cv", at=NOW - 4000)
    scene.wait("pin", team="cv", work_class="experiment", at=NOW - 5)
    scene.wait("now", team="cv", work_class="experiment", at=NOW - 5)
    plan = scene.plan()
    assert plan.released == ["now", "pin"]
    assert [plan.why(name).position for name in ("old", "older")] == [1, 2]


def test_a_pin_changes_nothing_between_teams() -> None:
    scene = Scene([team("cv"), team("nlp")], [node(gpus=1)], pinned={"pin"})
    scene.wait("other", team="nlp", work_class="training", at=NOW - 500)
    scene.wait("pin", team="cv", work_class="experiment", at=NOW - 900)
    assert scene.plan().released == ["other"]
    scene = Scene([team("cv"), team("nlp", guaranteed=1)], [node(gpus=1)], pinned={"pin"})
    scene.wait("own", team="nlp", gpus=1, at=NOW - 5)
    scene.wait("pin", team="nlp", work_class="experiment", gpus=2, at=NOW - 900)
    assert scene.plan().released == ["own"]


def test_a_burst_of_one_team_does_not_go_whole_before_the_next_teams_turn() -> None:
    scene = Scene([team("cv"), team("nlp")], [node(gpus=4)])
    scene.wait(*(f"cv{n}" for n in range(4)), team="cv", at=NOW - 500)
    scene.wait(*(f"nlp{n}" for n in range(4)), team="nlp", at=NOW - 5)
    assert sorted(name.rstrip("0123456789") for name in scene.plan().released) == [
        "cv",
        "cv",
        "nlp",
        "nlp",
    ]


def test_a_burst_is_shared_out_by_weight() -> None:
    scene = Scene([team("cv", weight=3), team("nlp")], [node(gpus=8)])
    scene.wait(*(f"cv{n}" for n in range(9)), team="cv")
    scene.wait(*(f"nlp{n}" for n in range(9)), team="nlp")
    released = scene.plan().released
    assert sum(name.startswith("cv") for name in released) == 6


def test_within_a_team_users_can_take_turns() -> None:
    scene = Scene([team("cv")], [node(gpus=3)], policy=policy(withinTeam="FairByUser"))
    scene.hold("running", user="ada")
    scene.wait("a1", "a2", user="ada", at=NOW - 500)
    scene.wait("b1", "b2", user="bob", at=NOW - 5)
    # Bob's first is level with what Ada runs; then it is hers again, who came earlier.
    assert scene.plan().released == ["b1", "a1"]


def test_a_team_at_its_limit_is_told_so_and_others_pass() -> None:
    scene = Scene([team("cv", limit=1), team("nlp")], [node(gpus=8)])
    scene.hold("running", team="cv")
    scene.wait("capped", team="cv", at=NOW - 500)
    scene.wait("free", team="nlp")
    plan = scene.plan()
    assert plan.released == ["free"]
    why = plan.why("capped")
    assert (why.position, why.queued, why.capped) == (1, 1, True)
    assert "cv" in why.reason
    assert "1" in why.reason


def test_a_blocked_shape_does_not_hold_up_another() -> None:
    scene = Scene([team("cv")], [node(gpus=1, slices=3)])
    scene.wait("gang", gpus=4, at=NOW - 500)
    scene.wait("slice", options=[option(resource=SLICE, milli=125)], at=NOW - 5)
    scene.wait("one", at=NOW - 1)
    plan = scene.plan()
    assert plan.released == ["slice", "one"]
    assert "4 nvidia.com/gpu" in plan.why("gang").reason


def test_needs_beside_gpus_block_by_themselves() -> None:
    scene = Scene(
        [team("cv")],
        [node(gpus=4, cpu_milli=8000)],
        needs={"hungry": PodNeeds(cpu_milli=16_000), "modest": PodNeeds(cpu_milli=4000)},
    )
    scene.wait("hungry", "modest")
    plan = scene.plan()
    assert plan.released == ["modest"]
    assert "cpu" in plan.why("hungry").reason


def test_a_gang_starts_whole_or_not_at_all() -> None:
    scene = Scene([team("cv")], [node("n1", 3), node("n2", 3)])
    scene.wait("gang", pods=8)
    plan = scene.plan()
    assert plan.released == []
    assert "6 of 8" in plan.why("gang").reason or "6" in plan.why("gang").reason
    scene.waiting.clear()
    scene.wait("gang", pods=6)
    assert dict(scene.plan().place("gang")) == {"n1": 3, "n2": 3}


def test_of_several_options_the_first_that_fits_is_taken() -> None:
    scene = Scene([team("cv")], [node(gpus=1, slices=0)])
    scene.wait("either", options=[option(resource=SLICE, milli=125), option()])
    plan = scene.plan()
    assert plan.released == ["either"]
    assert plan[0].chosen == 1


def test_what_failed_to_start_is_kept_back_and_nobody_waits_for_it() -> None:
    scene = Scene([team("cv")], [node(gpus=1)], not_before={"ill": NOW + 60})
    scene.wait("ill", "well")
    plan = scene.plan()
    assert plan.released == ["well"]
    assert plan.why("ill").capped
    assert scene.plan(NOW + 61).released == ["ill"]


def test_positions_count_those_who_still_wait() -> None:
    scene = Scene([team("cv"), team("nlp")], [node(gpus=1)])
    scene.wait("a", "b", "c", team="cv")
    scene.wait("other", team="nlp", at=NOW)
    plan = scene.plan()
    assert plan.released == ["a"]
    assert [(plan.why(n).position, plan.why(n).queued) for n in "bc"] == [(1, 2), (2, 2)]


def test_work_of_a_team_that_is_gone_is_left_out() -> None:
    scene = Scene([team("cv")], [node(gpus=1)])
    scene.wait("lost", team="gone")
    scene.wait("here", team="cv")
    assert scene.plan().released == ["here"]


def test_the_reason_names_what_is_lacking() -> None:
    scene = Scene([team("cv")], [node(gpus=0)])
    scene.wait("one")
    assert GPU in scene.plan().why("one").reason
