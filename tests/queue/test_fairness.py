"""What teams get over hours: shares by weight, guarantees in time, and a turn for the large."""

from random import Random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fairslice.fairshare import jain_index

from .plans import node, policy, team
from .simulated import Simulated

_HALF_LIFE = 3600.0
_STEP = 30.0
_ONCE = [Phase.generate]  # to shrink hours takes hours


@settings(max_examples=10, deadline=None, phases=_ONCE)
@given(
    weights=st.lists(st.integers(1, 4), min_size=2, max_size=5),
    gpus=st.sampled_from([(16,), (8, 8), (4, 4, 4, 4)]),
    late=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_backlogged_teams_get_their_weighted_shares_within_two_half_lives(
    weights: list[int], gpus: tuple[int, ...], late: bool, seed: int
) -> None:
    random = Random(seed)
    teams = [team(f"t{number}", weight=weight) for number, weight in enumerate(weights)]
    nodes = [node(f"n{number}", count) for number, count in enumerate(gpus)]
    world = Simulated(teams, nodes, policy(halfLife="1h"), half_life=_HALF_LIFE)
    begun = world.now

    def arrive(world: Simulated) -> None:
        for number, each in enumerate(teams):
            # One team had everything to itself for a whole half-life.
            if late and number and world.now - begun < _HALF_LIFE:
                continue
            while len(world.waiting(each.name)) < 8:
                world.submit(each.name, random.uniform(60, 300), gpus=random.choice([1, 1, 1, 2]))

    while world.now < begun + (3 if late else 2) * _HALF_LIFE:
        world.step(_STEP, arrive)
    before = dict(world.held)
    while world.now < begun + (5 if late else 4) * _HALF_LIFE:
        world.step(_STEP, arrive)
    decayed = [world.use[each.name] / each.weight for each in teams]
    assert jain_index(decayed) >= 0.99, decayed
    if not late:  # who had everything pays it off
        lately = [(world.held[each.name] - before[each.name]) / each.weight for each in teams]
        assert jain_index(lately) >= 0.99, lately
    # Nothing stood idle meanwhile, but for what is too little for a request of two.
    assert sum(world.held.values()) > 0.9 * sum(gpus) * 1000 * (world.now - begun)


_MIN_RUNTIME = 60.0  # of the class `training`, as the plans' policy has it


@settings(max_examples=12, deadline=None, phases=_ONCE)
@given(
    guaranteed=st.lists(st.integers(0, 3), min_size=2, max_size=4),
    gpus=st.sampled_from([(4,), (2, 2), (4, 4), (8,)]),
    grace=st.sampled_from([0.0, 10.0, 30.0]),
    seed=st.integers(0, 2**32),
)
def test_nobody_stays_under_a_guarantee_while_others_borrow(
    guaranteed: list[int], gpus: tuple[int, ...], grace: float, seed: int
) -> None:
    random, total = Random(seed), sum(gpus)
    while sum(guaranteed) > total:
        guaranteed[guaranteed.index(max(guaranteed))] -= 1
    teams = [team(f"t{number}", count) for number, count in enumerate(guaranteed)]
    owed = {each.name: count for each, count in zip(teams, guaranteed, strict=True)}
    nodes = [node(f"n{number}", count) for number, count in enumerate(gpus)]
    world = Simulated(teams, nodes, policy(), half_life=_HALF_LIFE, grace=grace)
    busy = {each.name: random.random() < 0.5 for each in teams}
    since: dict[str, float] = {}
    step = 5.0

    def arrive(world: Simulated) -> None:
        for each in teams:
            if random.random() < 0.02:  # demand comes and goes
                busy[each.name] = not busy[each.name]
            while busy[each.name] and len(world.waiting(each.name)) < 3:
                world.submit(each.name, random.uniform(20, 2000))

    while world.now < 1_700_000_000.0 + 2 * 3600:
        world.step(step, arrive)
        for name, count in owed.items():
            lacks = world.gpus_of(name) < count and bool(world.waiting(name))
            borrows = any(world.gpus_of(other) > owed[other] for other in owed if other != name)
            if not (lacks and (borrows or world.free)):
                since.pop(name, None)
                continue
            waited = world.now - since.setdefault(name, world.now)
            # A round to see that it may, and one to see that it has left.
            assert waited <= _MIN_RUNTIME + grace + 2 * step, (name, owed, world.now)


@settings(max_examples=25, deadline=None, phases=_ONCE)
@given(
    gpus=st.sampled_from([(4,), (2, 4), (4, 4, 4)]),
    size=st.sampled_from(["a node", "all nodes"]),
    longest=st.sampled_from([60.0, 300.0, 600.0]),
    declared=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_large_workload_starts_in_time_whatever_small_work_keeps_coming(
    gpus: tuple[int, ...], size: str, longest: float, declared: bool, seed: int
) -> None:
    """Within reserveAfter plus the longest run time, though it stands behind better classes."""
    random, reserve_after = Random(seed), 120.0
    teams = [team("big"), team("a", weight=random.randint(1, 4)), team("b")]
    nodes = [node(f"n{number}", count) for number, count in enumerate(gpus)]
    rules = policy(reserveAfter="2m")
    world = Simulated(teams, nodes, rules, half_life=_HALF_LIFE)
    world.use["big"] = random.choice([0.0, 1e9])  # it may have used more than all others
    step = 5.0

    def arrive(world: Simulated) -> None:
        for name in ("a", "b"):
            while len(world.waiting(name)) < 6:
                world.submit(
                    name,
                    random.uniform(5, longest),
                    declared=declared,
                    gpus=random.choice([1, 1, 2]),
                    work_class=random.choice(["training", "experiment"]),
                )

    for _ in range(20):
        world.step(step, arrive)
    ask = {
        "a node": {"gpus": max(gpus)},
        "all nodes": {"gpus": min(gpus), "pods": sum(n // min(gpus) for n in gpus)},
    }[size]
    name = world.submit("big", 600.0, work_class="experiment", **ask)
    submitted = world.now
    while name not in world.started:
        world.step(step, arrive)
        # A step each: for the last before it to start, to be seen to have ended, and for itself
        # to start.
        assert world.now - submitted <= reserve_after + longest + 3 * step
