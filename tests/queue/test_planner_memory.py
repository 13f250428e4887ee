"""A planner that is told what changed decides as one that sees everything for the first time."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fairslice.booking import State
from fairslice.budgets import Stop
from fairslice.placement import PodNeeds
from fairslice_queue.actions import Action, Explain, Release
from fairslice_queue.planner import Planner, PlanState, plan

from .plans import NOW, SLICE, Scene, booking, node, option, policy, team

_TEAMS = ("cv", "nlp", "hi")
_CLASSES = ("production", "training", "experiment", "batch")
_OPTIONS = (
    (option(1),),
    (option(2),),
    (option(4),),
    (option(resource=SLICE, milli=125),),
    (option(resource=SLICE, milli=125), option(1)),
)


class Remembering:
    """Feeds a planner with the difference between one state and the next."""

    def __init__(self) -> None:
        self.planner = Planner()
        self._before: PlanState | None = None

    def decide(self, state: PlanState, now: float, *, thorough: bool) -> list[Action]:
        before, planner = self._before, self.planner
        waiting = {item.booking.id: item for item in state.waiting}
        holding = {item.booking.id: item for item in state.candidates}
        if before is not None:
            for item in before.waiting:
                if item.booking.id not in waiting:
                    planner.leave(item.booking.id)
            for held in before.candidates:
                if held.booking.id not in holding:
                    planner.end(held.booking.id)
            names = before.nodes.keys() | state.nodes.keys()
            changed = [n for n in names if before.nodes.get(n) != state.nodes.get(n)]
            planner.touch(nodes=changed)
        else:
            planner.touch(nodes=state.nodes)
        for held in state.candidates:
            planner.hold(held)
        for item in state.waiting:
            planner.wait(item, now)
        self._before = state
        return planner.decide(state, now, thorough=thorough)

    def told(self) -> list[Explain]:
        return [line for name in self.planner.teams() for line in self.planner.standing(name)]


def _places(told: list[Explain]) -> list[tuple[str, int, int, bool]]:
    return [(item.booking, item.position, item.queued, item.capped) for item in told]


def _first(draw: st.DrawFn) -> Scene:
    teams = []
    for name in _TEAMS:
        guaranteed = draw(st.sampled_from([0, 0, 2, 4]))
        limit = draw(st.none() | st.integers(guaranteed, 8))
        teams.append(team(name, guaranteed, limit, draw(st.integers(1, 3))))
    nodes = [node(f"n{n}", draw(st.integers(1, 4)), draw(st.integers(0, 3))) for n in range(2)]
    rules = policy(
        # For whom nodes are kept depends on what happened before.
        reserveAfter="30d",
        aging=draw(st.sampled_from(["0s", "0s", "5m"])),
        withinTeam=draw(st.sampled_from(["Fifo", "FairByUser"])),
    )
    scene = Scene(teams, nodes, policy=rules, capacity={"a100": 8000})
    scene.shares = {name: draw(st.floats(0, 1)) for name in _TEAMS}
    return scene


def _submit(draw: st.DrawFn, scene: Scene, name: str, now: float) -> None:
    scene.wait(
        name,
        team=draw(st.sampled_from(_TEAMS)),
        work_class=draw(st.sampled_from(_CLASSES)),
        options=draw(st.sampled_from(_OPTIONS)),
        pods=draw(st.integers(1, 3)),
        at=now - draw(st.sampled_from([0.0, 0.0, 30.0, 200.0])),
        user=draw(st.sampled_from(["ada", "bob"])),
    )
    scene.needs[name] = PodNeeds(cpu_milli=draw(st.sampled_from([0, 4000])))
    if draw(st.integers(0, 9)) == 0:
        scene.not_before[name] = now + 45
    if draw(st.integers(0, 4)) == 0:
        scene.orders[name] = draw(st.integers(-2, 2))


def _happen(draw: st.DrawFn, scene: Scene, number: int, now: float) -> None:
    """Let one thing happen."""
    event = draw(st.sampled_from(["submit"] * 5 + ["end"] * 4 + ["drop", "node", "team", "order",
                                 "share", "stop", "leave", "hold", "unclaim"]))  # fmt: skip
    if event == "submit":
        for each in range(draw(st.integers(1, 3))):
            _submit(draw, scene, f"w{number}-{each}", now)
    elif event == "end" and scene.holding:
        scene.holding.pop(draw(st.integers(0, len(scene.holding) - 1)))
    elif event == "drop" and scene.waiting:
        gone = scene.waiting.pop(draw(st.integers(0, len(scene.waiting) - 1)))
        scene.claims.pop(gone.id, None)
    elif event == "node":
        index = draw(st.integers(0, 1))
        free = draw(st.integers(0, 4))
        scene.nodes[index] = node(f"n{index}", free, draw(st.integers(0, 3)))
    elif event == "team":
        name = draw(st.sampled_from(_TEAMS))
        guaranteed = draw(st.sampled_from([0, 2, 4]))
        limit = draw(st.none() | st.integers(guaranteed, 8))
        scene.teams = [each for each in scene.teams if each.name != name]
        if draw(st.integers(0, 5)):
            scene.teams.append(team(name, guaranteed, limit))
    elif event == "order" and scene.waiting:
        one = draw(st.sampled_from(scene.waiting))
        scene.orders[one.id] = draw(st.integers(-2, 2))
    elif event == "share":
        scene.shares = {**scene.shares, draw(st.sampled_from(_TEAMS)): draw(st.floats(0, 1))}
    elif event == "stop":
        name = draw(st.sampled_from(_TEAMS))
        stop = Stop("", draw(st.booleans()), NOW + 1e6, "the budget is gone")
        scene.stops = {} if scene.stops else {name: (stop,)}
    elif event == "leave" and scene.holding:
        index = draw(st.integers(0, len(scene.holding) - 1))
        scene.holding[index] = structs.replace(scene.holding[index], state=State.PREEMPTED)
    elif event == "hold":
        _hold(draw, scene, f"h{number}", now)
    elif event == "unclaim":
        scene.claims.clear()


def _hold(draw: st.DrawFn, scene: Scene, name: str, now: float) -> None:
    scene.holding.append(
        booking(
            name,
            draw(st.sampled_from(_TEAMS)),
            work_class=draw(st.sampled_from(_CLASSES)),
            options=draw(st.sampled_from(_OPTIONS)),
            state=State.RUNNING,
            place={draw(st.sampled_from(scene.nodes)).name: 1},
            at=now - draw(st.integers(0, 200)),
        )
    )


def _snapshot(scene: Scene) -> PlanState:
    # What a planner is given must not change under it.
    return replace(
        scene,
        teams=list(scene.teams),
        shares=dict(scene.shares),
        claims=dict(scene.claims),
        stops=dict(scene.stops),
    ).state()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_planner_that_remembers_decides_like_one_that_sees_it_all_anew(data: Any) -> None:
    scene, now = _first(data.draw), NOW
    remembering = Remembering()
    for number in range(data.draw(st.integers(1, 12))):
        _happen(data.draw, scene, number, now)
        state = _snapshot(scene)
        expected = plan(state, now)
        actions = [item for item in expected if not isinstance(item, Explain)]
        assert remembering.decide(state, now, thorough=True) == actions
        told = [item for item in expected if isinstance(item, Explain)]
        # What doesn't fit may have been looked at when a little more or less was free.
        assert _places(remembering.told()) == _places(told)
        scene.act(actions, now)
        now += data.draw(st.sampled_from([0.0, 1.0, 30.0, 100.0, 400.0]))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_quick_decision_leaves_nothing_unstarted_that_might_start(data: Any) -> None:
    """Nobody is pushed out and no nodes are kept, so what fits is all that matters."""
    scene, now = _first(data.draw), NOW
    scene.policy = replace(
        scene.policy,
        classes={
            name: replace(each, preempts=scene.policy.classes["batch"].preempts)
            for name, each in scene.policy.classes.items()
        },
    )
    remembering = Remembering()
    for number in range(data.draw(st.integers(1, 12))):
        _happen(data.draw, scene, number, now)
        scene.claims.clear()
        state = _snapshot(scene)
        expected = [item for item in plan(state, now) if isinstance(item, Release)]
        found = remembering.decide(state, now, thorough=False)
        assert [item for item in found if isinstance(item, Release)] == expected
        scene.act(expected, now)
        now += data.draw(st.sampled_from([0.0, 1.0, 30.0, 100.0, 400.0]))
