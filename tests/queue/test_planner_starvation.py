"""Nothing starves: unbounded arrivals of small work, and one large workload among them."""

from dataclasses import replace
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairslice_queue.actions import Release

from .plans import NOW, Scene, node, policy, team
from .test_planner_memory import Remembering

_STEP = 5.0
_AFTER = 60.0
_TEAMS = ("small0", "small1", "small2")


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_large_workload_starts_once_what_runs_had_time_to_end(data: Any) -> None:
    """It starts within reserveAfter plus the longest declared run time, if it fits at all."""
    draw = data.draw
    sizes = draw(st.lists(st.integers(2, 8), min_size=1, max_size=3))
    nodes = [node(f"n{n}", gpus) for n, gpus in enumerate(sizes)]
    per_pod = draw(st.integers(1, max(sizes)))
    pods = draw(st.integers(1, sum(gpus // per_pod for gpus in sizes)))
    asks = draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
    # Of work that asks for the same, fair shares alone say who goes first.
    assume(pods > 1 or per_pod > max(asks))
    run_times = draw(st.lists(st.sampled_from([5.0, 20.0, 45.0, 120.0]), min_size=1, max_size=4))
    scene = Scene([team("large"), *(team(name) for name in _TEAMS)], nodes,
                  policy=policy(reserveAfter=f"{_AFTER:.0f}s"))  # fmt: skip
    # The large one's team has used most, so everybody goes before it but for the reservation.
    scene.shares = {"large": 0.9} | {name: draw(st.floats(0, 0.5)) for name in _TEAMS}
    scene.wait("large", team="large", gpus=per_pod, pods=pods, at=NOW)
    bound = NOW + _AFTER + max(run_times) + 2 * _STEP
    queue, now, number = Remembering(), NOW, 0
    while now <= bound:
        scene.holding = [h for h in scene.holding if now - h.since < scene.runtimes[h.id]]
        while len(scene.waiting) < 12:
            name = f"s{number}"
            scene.runtimes[name] = run_times[number % len(run_times)]
            gpus = min(asks[number % len(asks)], max(sizes))
            scene.wait(name, team=_TEAMS[number % 3], gpus=gpus, at=now)
            number += 1
        state = replace(scene, shares=dict(scene.shares)).state()
        releases = [
            item for item in queue.decide(state, now, thorough=True) if isinstance(item, Release)
        ]
        if any(item.booking == "large" for item in releases):
            return
        scene.act(releases, now)
        now += _STEP
    raise AssertionError(f"{pods} pods with {per_pod} GPUs still wait on nodes of {sizes}")
