"""What the webhook asks of the ledger."""

import msgspec
import pytest

from fairslice.booking import State
from fairslice_queue.ledger import BookingTaken, LedgerError, Verdict

from .books import NOW, POOL, SLICE, WHOLE, booking, limits, option, request
from .conftest import Books


async def test_what_fits_starts_at_once(books: Books) -> None:
    outcome = await books.ledger.book(request(booking("b1", pods=2), limits(4000)))
    assert outcome.verdict is Verdict.BOOKED
    assert (outcome.chosen, outcome.place) == (0, {"node-a": 2})
    held = await books.ledger.held("cv")
    assert held.pools == {POOL: 2000}
    assert held.classes == {"training": 2000}
    assert held.users == {"ada": 2000}
    assert held.resources == {WHOLE: 2}


async def test_a_booking_reads_back_as_it_was_asked_for(books: Books) -> None:
    asked = booking("b1", queued_at=1_699_999_999.654321, group="Deployment ns/x")
    await books.ledger.book(request(asked))
    found = await books.ledger.get("b1")
    assert found is not None
    assert (found.state, found.since, found.tentative_until) == (State.RELEASED, NOW, NOW + 10)
    assert (found.options, found.queued_at) == (asked.options, 1_699_999_999.654321)
    assert found.held_milli == 1000
    assert await books.ledger.get("b2") is None


async def test_single_pods_fill_the_fullest_node_first(books: Books) -> None:
    places = [
        (await books.ledger.book(request(booking(f"b{n}", pods=pods)))).place
        for n, pods in enumerate((3, 3, 1, 1))
    ]
    assert places == [{"node-a": 3}, {"node-b": 3}, {"node-a": 1}, {"node-b": 1}]


async def test_a_gang_spreads_only_where_no_node_holds_it(books: Books) -> None:
    outcome = await books.ledger.book(request(booking("b1", pods=6)))
    assert sorted(outcome.place.values()) == [2, 4]


async def test_pods_of_several_gpus_need_a_node_with_that_many(books: Books) -> None:
    big = (option(units=3),)
    first = await books.ledger.book(request(booking("b1", options=big, pods=2)))
    assert first.place == {"node-a": 1, "node-b": 1}
    second = await books.ledger.book(request(booking("b2", options=(option(units=2),))))
    assert (second.verdict, second.cause) == (Verdict.QUEUED, "capacity")
    assert (second.used, second.limit, second.asked) == (6000, 8000, 2000)


async def test_the_first_option_that_fits_is_chosen(books: Books) -> None:
    options = (option(SLICE, 125), option())
    await books.ledger.book(request(booking("b1", options=options, pods=7)))
    outcome = await books.ledger.book(request(booking("b2", options=options)))
    assert (outcome.verdict, outcome.chosen, outcome.place) == (Verdict.BOOKED, 1, {"node-a": 1})


async def test_pods_with_two_kinds_of_share_are_the_planners(books: Books) -> None:
    both = option()
    both = type(both)(
        pool=POOL, product=both.product, mode="mig", milli=1125, units={WHOLE: 1, SLICE: 1}
    )
    outcome = await books.ledger.book(request(booking("b1", options=(both,))))
    assert (outcome.verdict, outcome.cause) == (Verdict.QUEUED, "capacity")
    placed_elsewhere = await books.ledger.book(
        request(booking("b2", options=(both,)), capacity=False)
    )
    assert (placed_elsewhere.verdict, placed_elsewhere.place) == (Verdict.BOOKED, {})


async def test_work_with_constraints_waits_for_the_planner(books: Books) -> None:
    outcome = await books.ledger.book(request(booking("b1"), start=False))
    assert (outcome.verdict, outcome.cause) == (Verdict.QUEUED, "placement")


@pytest.mark.parametrize(
    ("caps", "cause", "subject", "numbers"),
    [
        (limits(2000), "limit", POOL, (1000, 2000, 2000)),
        (limits(work_class=2500), "class", "training", (1000, 2500, 2000)),
        (limits(user=2999), "user", "ada", (1000, 2999, 2000)),
        (limits(resources={WHOLE: 2}), "resource", WHOLE, (1, 2, 2)),
    ],
)
@pytest.mark.parametrize("queue", [True, False])
async def test_a_cap_that_is_full_is_named_with_its_numbers(
    books: Books, caps: object, cause: str, subject: str, numbers: object, queue: bool
) -> None:
    await books.ledger.book(request(booking("b1")))
    outcome = await books.ledger.book(
        request(booking("b2", pods=2), caps, overflow_queue=queue)  # type: ignore[arg-type]
    )
    assert outcome.verdict is (Verdict.QUEUED if queue else Verdict.DENIED)
    assert (outcome.cause, outcome.subject) == (cause, subject)
    assert (outcome.used, outcome.limit, outcome.asked) == numbers
    assert ((await books.ledger.get("b2")) is not None) is queue


async def test_a_pool_that_no_cap_names_gives_nothing(books: Books) -> None:
    asked = booking("b1", options=(option(pool="h100"),))
    outcome = await books.ledger.book(request(asked, capacity=False))
    assert (outcome.cause, outcome.limit) == ("limit", 0)


async def test_nobody_passes_those_of_equal_or_higher_standing(books: Books) -> None:
    await books.ledger.book(request(booking("b1", pods=9)))
    await bind(books, "b1")
    equal = await books.ledger.book(request(booking("b2", team="nlp")))
    assert (equal.verdict, equal.cause, equal.used) == (Verdict.QUEUED, "standing", 1)
    higher = await books.ledger.book(request(booking("b3", team="nlp", rank=0)))
    assert higher.verdict is Verdict.BOOKED
    elsewhere = booking("b4", options=(option(pool="t4"),))
    assert (await books.ledger.book(request(elsewhere, capacity=False))).verdict is Verdict.BOOKED
    await books.ledger.block(books.epoch, "b1", blocked=True)
    assert (await books.ledger.book(request(booking("b5")))).verdict is Verdict.BOOKED


async def test_what_never_came_to_be_stands_in_nobodys_way(books: Books) -> None:
    await books.ledger.book(request(booking("b1", pods=9)))
    outcome = await books.ledger.book(request(booking("b2", team="nlp")))
    assert outcome.verdict is Verdict.BOOKED


async def test_the_same_request_again_is_the_same_booking(books: Books) -> None:
    first = await books.ledger.book(request(booking("b1"), limits(1000)))
    again = await books.ledger.book(request(booking("b1"), limits(1000)))
    assert first == again
    waiting = await books.ledger.book(request(booking("b2"), limits(1000)))
    assert await books.ledger.book(request(booking("b2"), limits(1000))) == waiting
    assert (await books.ledger.held("cv")).pools == {POOL: 1000}


async def test_the_same_object_again_is_the_same_booking(books: Books) -> None:
    first = await books.ledger.book(request(booking("b1", name="train")))
    again = await books.ledger.book(request(booking("b2", name="train")))
    assert (again.id, again.place) == ("b1", first.place)
    other_kind = await books.ledger.book(request(booking("b3", name="train", kind="Pod")))
    assert other_kind.id == "b3"
    generated = booking("b4", name="")
    assert (await books.ledger.book(request(generated))).id == "b4"
    assert (await books.ledger.book(request(booking("b5", name="")))).id == "b5"


async def test_another_ask_under_the_same_name_takes_the_firsts_place(books: Books) -> None:
    await books.ledger.book(request(booking("b1", name="train"), limits(4000)))
    outcome = await books.ledger.book(request(booking("b2", name="train", pods=4), limits(4000)))
    assert (outcome.verdict, outcome.id) == (Verdict.BOOKED, "b2")
    assert await books.ledger.get("b1") is None
    assert (await books.ledger.held("cv")).pools == {POOL: 4000}
    refused = await books.ledger.book(
        request(booking("b3", name="train", pods=5), limits(4000), overflow_queue=False)
    )
    assert refused.verdict is Verdict.DENIED
    assert await books.ledger.get("b2") is not None


async def test_a_bound_booking_of_the_same_name_is_another_objects(books: Books) -> None:
    await books.ledger.book(request(booking("b1", name="train")))
    await bind(books, "b1", name="train")
    assert (await books.ledger.book(request(booking("b2", name="train")))).id == "b2"


async def test_an_id_of_another_team_is_refused(books: Books) -> None:
    await books.ledger.book(request(booking("b1")))
    with pytest.raises(LedgerError, match="of team cv"):
        await books.ledger.book(request(booking("b1", team="nlp")))


async def test_unfinished_requests_keep_their_team_from_starting_for_seconds_only(
    books: Books,
) -> None:
    for n in range(3):
        await books.ledger.book(request(booking(f"b{n}", pods=2), limits(6000), max_tentative=3))
    asked = request(booking("b3"), limits(7000), max_tentative=3)
    waits = await books.ledger.book(asked)
    assert (waits.verdict, waits.cause) == (Verdict.QUEUED, "tentative")
    denied = msgspec.structs.replace(asked, booking=booking("b4"), overflow_queue=False)
    outcome = await books.ledger.book(denied)
    assert (outcome.verdict, outcome.cause) == (Verdict.DENIED, "tentative")
    assert (outcome.used, outcome.limit) == (4, 3)
    other = await books.ledger.book(request(booking("c0", team="nlp"), max_tentative=3))
    assert other.verdict is Verdict.BOOKED
    later = await books.ledger.book(
        request(booking("b5", pods=6), limits(6000), max_tentative=3, now=NOW + 10)
    )
    assert later.verdict is Verdict.BOOKED


async def test_binding_makes_a_booking_last(books: Books) -> None:
    await books.ledger.book(request(booking("b1")))
    await books.ledger.book(request(booking("b2")))
    assert await bind(books, "b1")
    assert await bind(books, "b1"), "a replay"
    assert not await bind(books, "b1", uid="another")
    assert not await bind(books, "b9")
    assert not await bind(books, "b2", name="not-what-was-booked")
    assert not await bind(books, "b2", kind="Pod")
    assert await books.ledger.expire(books.epoch, NOW + 9.9) == 0
    assert await books.ledger.expire(books.epoch, NOW + 10) == 1
    found = await books.ledger.get("b1")
    assert found is not None
    assert (found.bound, found.ref.uid, found.tentative_until) == (True, "uid-b1", 0.0)
    assert await books.ledger.get("b2") is None
    assert not await bind(books, "b2")


async def test_a_generated_name_is_written_down_when_it_is_known(books: Books) -> None:
    await books.ledger.book(request(booking("b1", name="")))
    assert await bind(books, "b1", name="train-x7f2p")
    found = await books.ledger.get("b1")
    assert found is not None
    assert found.ref.name == "train-x7f2p"


async def test_denied_and_dry_requests_leave_no_trace(books: Books) -> None:
    before = await books.ledger.snapshot()
    await books.ledger.book(request(booking("b1"), limits(0), overflow_queue=False))
    assert await books.ledger.snapshot() == before


async def bind(
    books: Books, identity: str, *, name: str = "", kind: str = "Job", uid: str = ""
) -> bool:
    bound = await books.ledger.bind(
        identity, namespace="ns", kind=kind, name=name or identity, uid=uid or f"uid-{identity}"
    )
    return bound is not None


async def test_a_copied_stamp_books_under_the_spare_id_and_leaves_the_first_alone(
    books: Books,
) -> None:
    await books.ledger.book(request(booking("b1")))
    bound = await books.ledger.bind("b1", namespace="ns", kind="Job", name="b1", uid="u1")
    assert bound is not None
    assert bound.ref.uid == "u1"
    copied = msgspec.structs.replace(request(booking("b1")), spare="b2")
    outcome = await books.ledger.book(copied)
    assert outcome.id == "b2"
    with pytest.raises(BookingTaken):
        await books.ledger.book(request(booking("b1")))


async def test_audit_entries_are_read_oldest_first(books: Books) -> None:
    await books.ledger.record_audit([b'{"a":1}', b'{"a":2}'])
    await books.ledger.record_audit([b'{"a":3}'])
    assert await books.ledger.audit_entries(2) == (b'{"a":2}', b'{"a":3}')
