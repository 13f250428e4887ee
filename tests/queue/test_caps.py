"""A team's caps: which stands in the way first, and what is not counted."""

from hypothesis import given
from hypothesis import strategies as st

from fairslice_queue.caps import excess, limits_of
from fairslice_queue.tally import Tally

from .plans import SLICE, booking, option, team


def test_pool_class_user_and_exact_resources_are_capped() -> None:
    owner = team(
        "cv",
        limit=4,
        classLimits={"training": "2"},
        userLimit="3",
        resources={SLICE: 1},
    )
    limits = limits_of(owner, "training", [option(), option(resource=SLICE, milli=125)])
    assert limits.pools == {"a100": 4000}
    assert (limits.work_class, limits.user, limits.resources) == (2000, 3000, {SLICE: 1})
    tally = Tally()
    asks = booking("x", gpus=3)
    assert excess(asks, option(3), limits, tally).cause == "class"  # type: ignore[union-attr]
    tally.add(booking("y", work_class="experiment"), option(3))
    found = excess(booking("x", gpus=2), option(2), limits, tally)
    assert found is not None
    assert (found.cause, found.used, found.limit, found.asked) == ("limit", 3000, 4000, 2000)
    found = excess(booking("x"), option(1), limits, tally)
    assert found is not None
    assert (found.cause, found.subject) == ("user", "ada")
    two = booking("x", pods=2, user="bob", options=[option(resource=SLICE, milli=125)])
    found = excess(two, two.options[0], limits, tally)
    assert found is not None
    assert (found.cause, found.asked, found.limit) == ("resource", 2, 1)


def test_a_pool_that_the_team_does_not_name_gives_nothing() -> None:
    limits = limits_of(team("cv"), "training", [option(pool="h100")])
    assert limits.pools == {"h100": 0}
    assert excess(booking("x"), option(pool="h100"), limits, Tally()) is not None


def test_a_rollouts_extra_pod_may_go_over_by_the_surge_allowance_and_counts_nowhere() -> None:
    limits = limits_of(team("cv", limit=1), "training", [option()])
    tally = Tally()
    tally.add(booking("old"), option())
    surge = booking("new")
    assert excess(surge, option(), limits, tally) is not None
    assert excess(surge, option(), limits, tally, replaces=True) is None
    tally.add(booking("new", surge=True), option())
    assert tally.pools["cv", "a100"] == 1000
    assert excess(booking("newer"), option(), limits, tally, replaces=True) is not None


@given(
    st.integers(0, 8),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=6),
)
def test_what_caps_allow_never_adds_up_to_more_than_the_limit(
    limit: int, asks: list[tuple[int, int]]
) -> None:
    limits, tally = limits_of(team("cv", limit=limit), "training", [option()]), Tally()
    for number, (gpus, pods) in enumerate(asks):
        asked = booking(f"b{number}", gpus=gpus, pods=pods)
        if excess(asked, option(gpus), limits, tally) is None:
            tally.add(asked, option(gpus))
    assert tally.pools["cv", "a100"] <= limit * 1000
