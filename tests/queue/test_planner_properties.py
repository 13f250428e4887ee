"""What holds of every plan, whatever the state."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fairslice.booking import State
from fairslice.placement import PodNeeds
from fairslice_queue.actions import Explain, Preempt, Release, Reserve

from .plans import NOW, SLICE, Scene, booking, node, one_more, option, policy, team

_TEAMS = ("cv", "nlp", "hi")
_CLASSES = ("production", "training", "experiment", "batch")
_OPTIONS = (
    (option(1),),
    (option(2),),
    (option(4),),
    (option(resource=SLICE, milli=125),),
    (option(resource=SLICE, milli=125), option(1)),
)


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Teams with quotas, nodes, holders where there is room for them, and a line."""
    teams = []
    for name in _TEAMS:
        guaranteed = draw(st.sampled_from([0, 0, 2, 4, 8]))
        limit = draw(st.none() | st.integers(guaranteed, 12))
        teams.append(team(name, guaranteed, limit, draw(st.integers(1, 3))))
    nodes = [
        node(f"n{n}", draw(st.integers(1, 5)), draw(st.integers(0, 3)), cpu_milli=16_000)
        for n in range(draw(st.integers(1, 3)))
    ]
    scene = Scene(teams, nodes, policy=policy(reserveAfter=draw(st.sampled_from(["90s", "30d"]))))
    for number in range(draw(st.integers(0, 10))):
        name, work_class, chosen = f"w{number}", *_work(draw)
        scene.wait(
            name,
            team=draw(st.sampled_from(_TEAMS)),
            work_class=work_class,
            options=chosen,
            pods=draw(st.integers(1, 3)),
            at=NOW - draw(st.integers(0, 200)),
            user=draw(st.sampled_from(["ada", "bob"])),
        )
        scene.needs[name] = PodNeeds(cpu_milli=draw(st.sampled_from([0, 4000])))
    for number in range(draw(st.integers(0, 14))):
        _hold(draw, scene, f"h{number}")
    scene.shares = {name: draw(st.floats(0, 1)) for name in _TEAMS}
    return scene


def _work(draw: st.DrawFn) -> tuple[str, tuple[object, ...]]:
    return draw(st.sampled_from(_CLASSES)), draw(st.sampled_from(_OPTIONS))


def _hold(draw: st.DrawFn, scene: Scene, name: str) -> None:
    work_class, chosen = _work(draw)
    where = draw(st.sampled_from(scene.nodes)).name
    held = booking(
        name,
        draw(st.sampled_from(_TEAMS)),
        work_class=work_class,
        options=chosen,
        state=draw(st.sampled_from([State.RUNNING] * 4 + [State.PREEMPTED])),
        place={where: 1},
        at=NOW - draw(st.integers(0, 200)),
    )
    scene.holding.append(held)
    if any(free < 0 for n in scene.state().nodes.values() for free in n.units.values()):
        scene.holding.pop()


def _held(scene: Scene) -> Counter[str]:
    held: Counter[str] = Counter()
    for item in scene.holding:
        held[item.team] += item.held_milli
    return held


@settings(max_examples=400, deadline=None)
@given(scenes())
def test_a_plan_gives_out_only_what_is_there_and_allowed(scene: Scene) -> None:
    before = _held(scene)
    plan = scene.plan()
    releases = [item for item in plan if isinstance(item, Release)]
    assert len({item.booking for item in releases}) == len(releases)
    waiting = {item.id: item for item in scene.waiting}
    for item in releases:
        assert sum(item.place.values()) == waiting[item.booking].pods
    scene.act(releases)
    for item in scene.state().nodes.values():
        assert all(free >= 0 for free in item.units.values())
        assert item.cpu_milli >= 0
        assert item.pods >= 0
    after = _held(scene)
    for owner in scene.teams:
        limit = owner.quota("a100").limit
        assert limit is None or after[owner.name] <= max(limit, before[owner.name])


@settings(max_examples=300, deadline=None)
@given(scenes())
def test_everybody_who_waits_is_told_why_exactly_once(scene: Scene) -> None:
    plan = scene.plan()
    told = Counter(item.booking for item in plan if isinstance(item, Explain))
    assert told == Counter(item.id for item in scene.waiting if item.id not in plan.released)
    for owner in _TEAMS:
        lines = [i for i in plan if isinstance(i, Explain) and _team(scene, i.booking) == owner]
        assert sorted(i.position for i in lines) == list(range(1, len(lines) + 1))
        assert all(i.queued == len(lines) for i in lines)


def _team(scene: Scene, name: str) -> str:
    return next(item.team for item in scene.waiting if item.id == name)


@settings(max_examples=200, deadline=None)
@given(scenes(), st.randoms(use_true_random=False))
def test_a_plan_depends_on_the_state_alone(scene: Scene, random: object) -> None:
    first = scene.plan()
    again = one_more(scene)
    random.shuffle(again.waiting)  # type: ignore[attr-defined]
    random.shuffle(again.holding)  # type: ignore[attr-defined]
    assert again.plan() == first


@settings(max_examples=300, deadline=None)
@given(scenes())
def test_planning_again_on_what_came_of_it_releases_nothing_more(scene: Scene) -> None:
    scene.policy = policy(reserveAfter="30d")
    plan = scene.plan()
    scene.act(item for item in plan if isinstance(item, Release | Reserve))
    for item in plan:
        if isinstance(item, Preempt):
            scene.holding = [
                booking(
                    held.id,
                    held.team,
                    work_class=held.work_class,
                    options=held.options,
                    pods=held.pods,
                    state=State.PREEMPTED,
                    place=held.place,
                    at=held.since,
                )
                if held.id == item.victim
                else held
                for held in scene.holding
            ]
    assert scene.plan().released == []


@settings(max_examples=300, deadline=None)
@given(scenes())
def test_acting_on_plans_comes_to_rest(scene: Scene) -> None:
    """Victims come back into line at once, and all have run long enough to be pushed again."""
    scene.policy = policy(reserveAfter="30d")
    scene.holding = [item for item in scene.holding if not item.state.leaves]
    now = NOW
    for _ in range(40):
        plan = scene.plan(now)
        if not plan.released and not plan.pushed:
            return
        scene.act(plan, now)
        now += 3600
    raise AssertionError("work is pushed around for ever")


@settings(max_examples=300, deadline=None)
@given(scenes())
def test_pushes_make_room_and_respect_every_right(scene: Scene) -> None:
    plan = scene.plan()
    held = {item.id: item for item in scene.holding}
    waiting = {item.id: item for item in scene.waiting}
    pushed = [item for item in plan if isinstance(item, Preempt)]
    assert len({item.victim for item in pushed}) == len(pushed)
    for item in pushed:
        victim, winner = held[item.victim], waiting[item.beneficiary]
        assert victim.preemptible
        assert victim.state is not State.PREEMPTED
        least = 60 if victim.work_class == "training" else 0
        assert NOW - victim.since >= least
        assert winner.work_class != "batch"
        if winner.work_class == "production":
            assert victim.rank > winner.rank
        else:
            assert victim.team != winner.team
        assert item.beneficiary in plan.kept
    # When all who were told to have left, those they were pushed out for fit where told.
    gone = {item.victim for item in pushed} | {h.id for h in scene.holding if h.state.leaves}
    scene.act(item for item in plan if isinstance(item, Release))
    scene.holding = [item for item in scene.holding if item.id not in gone]
    nodes = scene.state().nodes
    for name in {item.beneficiary for item in pushed}:
        kept, winner = plan.kept[name], waiting[name]
        for where, pods in kept.place.items():
            nodes[where].take(scene.needs[name], winner.options[kept.chosen].offers, pods)
    assert all(free >= 0 for item in nodes.values() for free in item.units.values())
