"""The leader's books: what they list is what is in them, after any changes."""

from hypothesis import given
from hypothesis import strategies as st

from fairslice.booking import Booking, State
from fairslice_queue.books import Books

from .plans import booking

NAMES = ("a", "b", "c", "d")
puts = st.builds(
    lambda name, team, state: booking(name, team, state=state),
    st.sampled_from(NAMES),
    st.sampled_from(["cv", "nlp"]),
    st.sampled_from([State.QUEUED, State.HELD, State.RELEASED, State.RUNNING, State.PREEMPTED]),
)


@given(st.lists(puts | st.sampled_from(NAMES), max_size=20), st.integers(0, 20))
def test_lists_and_sums_follow_every_change(steps: list[Booking | str], asked_at: int) -> None:
    books, known, changed = Books(), dict[str, Booking](), set[str]()
    for number, step in enumerate(steps):
        if number == asked_at:
            books.take_changed()
            changed = set()
        if isinstance(step, Booking):
            assert books.put(step) == known.get(step.id)
            known[step.id] = step
            changed.add(step.id)
        else:
            assert books.drop(step) == known.get(step)
            if known.pop(step, None) is not None:
                changed.add(step)
    waiting = [item for item in known.values() if item.state.waits]
    assert sorted(item.id for item in books.waiting()) == sorted(item.id for item in waiting)
    assert set(books.teams_waiting) == {item.team for item in waiting}
    holding = {item.id: item for item in known.values() if item.state.holds}
    assert {item.id: item for item in books.holding()} == holding
    for team in ("cv", "nlp"):
        assert books.waiting_of(team) == sum(item.team == team for item in waiting)
        assert books.holding_of(team) == sum(item.team == team for item in holding.values())
        held = sum(item.held_milli for item in holding.values() if item.team == team)
        assert books.tally.pools[team, "a100"] == held
    assert books.take_changed() == (changed if len(steps) > asked_at else None)
    assert books.take_changed() == set()


def test_new_books_are_all_new_to_who_asks_what_changed() -> None:
    assert Books([booking("a")]).take_changed() is None
