"""Room that is kept: for whom others leave, and for the large that waited long."""

from fairslice.booking import State
from fairslice_queue.actions import Reserve

from .plans import NOW, Scene, node, option, policy, team


def test_what_is_claimed_is_not_given_to_others() -> None:
    scene = Scene([team("cv", guaranteed=2), team("nlp")], [node(gpus=2)])
    scene.hold("victim", team="nlp", gpus=1, state=State.PREEMPTED)
    scene.wait("owner", team="cv", gpus=2)
    scene.wait("small", team="nlp", work_class="experiment")
    scene.claims["owner"] = Reserve("owner", 0, {"n1": 1})
    plan = scene.plan()
    assert plan.released == []
    assert plan.kept["owner"].place == {"n1": 1}
    assert "pushed out" in plan.why("owner").reason
    scene.holding.clear()
    assert scene.plan().released == ["owner"]


def test_a_claim_counts_towards_its_teams_limit() -> None:
    scene = Scene([team("cv", guaranteed=1, limit=1), team("nlp")], [node("n1", 1), node("n2", 1)])
    scene.hold("victim", team="nlp", where="n1", state=State.PREEMPTED)
    scene.wait("owner", team="cv", options=[option()])
    scene.wait("second", team="cv", work_class="experiment")
    scene.claims["owner"] = Reserve("owner", 0, {"n1": 1})
    plan = scene.plan()
    # Its claim is for n1, but n2 is free now: that serves it as well.
    assert plan.released == ["owner"]
    assert plan.why("second").capped


def test_a_large_workload_that_waited_long_gets_its_nodes_kept() -> None:
    scene = Scene([team("cv"), team("nlp")], [node("n1", 4), node("n2", 4)])
    scene.hold("a", team="nlp", gpus=2, where="n1", ran=30)
    scene.hold("b", team="nlp", gpus=3, where="n2", ran=30)
    scene.wait("gang", team="cv", gpus=4, at=NOW - 601)
    scene.wait("s1", "s2", "s3", team="nlp", at=NOW - 5)
    plan = scene.plan()
    kept = plan.kept["gang"].place
    assert len(kept) == 1
    free_elsewhere = {"n1": 1, "n2": 2}[next(iter(kept))]
    assert len(plan.released) == free_elsewhere
    assert all(not set(plan.place(name)) & set(kept) for name in plan.released)


def test_before_that_smaller_work_may_pass() -> None:
    scene = Scene([team("cv"), team("nlp")], [node("n1", 4)])
    scene.hold("a", team="nlp", gpus=2, ran=30)
    scene.wait("gang", team="cv", gpus=4, at=NOW - 599)
    scene.wait("s1", "s2", "s3", team="nlp", at=NOW - 5)
    assert scene.plan().released == ["s1", "s2"]


def test_nodes_whose_work_never_ends_are_kept_last() -> None:
    scene = Scene([team("cv"), team("nlp")], [node("n1", 4), node("n2", 4)])
    scene.hold("serve", team="nlp", work_class="production", kind="Pod", where="n1")
    scene.hold("job", team="nlp", gpus=1, where="n2", ran=30)
    scene.wait("gang", team="cv", gpus=4, at=NOW - 700)
    assert scene.plan().kept["gang"].place == {"n2": 1}


def test_small_work_streaming_in_does_not_starve_a_gang() -> None:
    scene = Scene([team("cv"), team("nlp")], [node("n1", 4)], policy=policy(reserveAfter="60s"))
    scene.wait("gang", team="cv", gpus=4, at=NOW)
    started, now, number = 0.0, NOW, 0
    while now < NOW + 600 and not started:
        scene.holding = [held for held in scene.holding if now - held.since < 30]
        while sum(b.team == "nlp" for b in scene.waiting) < 3:
            number += 1
            scene.wait(f"small{number}", team="nlp", at=now)
        plan = scene.plan(now)
        if "gang" in plan.released:
            started = now
        scene.claims.clear()
        scene.act([item for item in plan if not isinstance(item, Reserve)], now)
        now += 5
    assert 0 < started <= NOW + 60 + 30 + 5


def test_a_reservation_pushes_nobody_out() -> None:
    scene = Scene([team("cv"), team("nlp")], [node("n1", 4)])
    scene.hold("a", team="nlp", gpus=2)
    scene.wait("gang", team="cv", gpus=4, work_class="batch", at=NOW - 6000)
    plan = scene.plan()
    assert plan.pushed == []
    assert "gang" in plan.kept


def _half_taken() -> Scene:
    """A gang that waited long will have its node in 500 seconds; half of the node is free."""
    scene = Scene([team("cv"), team("nlp")], [node("n1", 4)], runtimes={"a": 3600.0})
    scene.hold("a", team="nlp", gpus=2, ran=3100)
    scene.wait("gang", team="cv", gpus=4, at=NOW - 6000)
    return scene


def test_work_that_says_it_ends_in_time_fills_the_wait_for_kept_nodes() -> None:
    scene = _half_taken()
    scene.runtimes |= {"quick": 499.0, "slow": 501.0}
    scene.wait("slow", "silent", "quick", team="nlp", at=NOW - 5)
    plan = scene.plan()
    assert plan.kept["gang"].place == {"n1": 1}
    assert plan.released == ["quick"]


def test_no_more_fills_kept_nodes_than_there_is_room_for() -> None:
    scene = _half_taken()
    names = [f"quick{n}" for n in range(5)]
    scene.runtimes |= dict.fromkeys(names, 60.0)
    scene.wait(*names, team="nlp", at=NOW - 5)
    assert scene.plan().released == ["quick0", "quick1"]


def test_nothing_fills_nodes_of_which_nobody_knows_when_they_are_free() -> None:
    scene = _half_taken()
    scene.runtimes = {"quick": 60.0}
    scene.wait("quick", team="nlp", at=NOW - 5)
    assert scene.plan().released == []
    scene.runtimes["a"] = 3000.0  # it has run longer than it said, and may go on
    assert scene.plan().released == []


def test_small_work_that_keeps_its_word_does_not_starve_a_gang() -> None:
    """It starts within reserveAfter plus the longest declared run time, whatever comes behind."""
    longest, after = 90.0, 60.0
    scene = Scene([team("cv"), team("nlp")], [node("n1", 4)], policy=policy(reserveAfter="60s"))
    scene.wait("gang", team="cv", gpus=4, at=NOW)
    started, now, number = 0.0, NOW, 0
    while now < NOW + 1000 and not started:
        scene.holding = [
            held for held in scene.holding if now - held.since < scene.runtimes[held.id]
        ]
        while sum(b.team == "nlp" for b in scene.waiting) < 6:
            number += 1
            name = f"small{number}"
            scene.runtimes[name] = (10.0, 30.0, longest)[number % 3]
            scene.wait(name, team="nlp", at=now)
        plan = scene.plan(now)
        if "gang" in plan.released:
            started = now
        scene.claims.clear()
        scene.act([item for item in plan if not isinstance(item, Reserve)], now)
        now += 1
    assert 0 < started <= NOW + after + longest + 1
