"""The round of those that no event tells of."""

from fairslice.booking import State
from fairslice_queue.books import Books
from fairslice_queue.patrol import Patrol

from .plans import booking


def turn(patrol: Patrol, books: Books) -> list[str]:
    return [name for batch in patrol.turn(books) for name in batch]


def test_few_bookings_are_all_looked_at_each_time() -> None:
    books = Books([booking(f"b{n}") for n in range(100)])
    patrol = Patrol()
    for _ in range(3):
        assert sorted(turn(patrol, books)) == sorted(item.id for item in books)


def test_of_many_each_comes_up_once_in_twelve_turns() -> None:
    books = Books([booking(f"b{n}") for n in range(12_000)])
    patrol = Patrol()
    turns = [turn(patrol, books) for _ in range(12)]
    assert {len(ids) for ids in turns} == {1000}
    assert len({name for ids in turns for name in ids}) == 12_000


def test_what_starts_or_leaves_comes_up_each_time_and_once() -> None:
    books = Books([booking(f"b{n}") for n in range(12_000)])
    books.put(booking("starts", state=State.RELEASED))
    books.put(booking("leaves", state=State.PREEMPTED))
    patrol = Patrol()
    for _ in range(12):
        ids = turn(patrol, books)
        assert {"starts", "leaves"} <= set(ids)
        assert len(ids) == len(set(ids))


def test_it_goes_in_small_batches() -> None:
    books = Books([booking(f"b{n}") for n in range(120)])
    assert [len(batch) for batch in Patrol().turn(books)] == [50, 50, 20]
