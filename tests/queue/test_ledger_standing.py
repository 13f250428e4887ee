"""Who may start at once: those whom nobody of equal or higher standing waits before."""

import asyncio
from collections.abc import Sequence

from fairslice.booking import Option, State
from fairslice_queue.ledger import Keep, Lending, Limits, Outcome, ReleaseOrder, Verdict

from .books import NOW, POOL, PRODUCT, SLICE, SLICES, WHOLE, WHOLES, booking, option, request
from .conftest import Books

OTHER = f"{POOL}|A100-40GB|{WHOLE}"


def caps(guaranteed: int | None = None, limit: int | None = None) -> Limits:
    rights = {} if guaranteed is None else {POOL: guaranteed}
    return Limits(pools={POOL: limit, "t4": limit}, guaranteed=rights)


async def wait(books: Books, identity: str, options: Sequence[Option], **fields: object) -> None:
    """Queue something and let its object exist."""
    fields = {"team": "waiting", **fields}
    asked = booking(identity, options=tuple(options), **fields)
    await books.ledger.book(request(asked, start=False))
    assert await books.ledger.bind(
        identity, namespace="ns", kind="Job", name=identity, uid=f"uid-{identity}"
    )


async def start(
    books: Books, identity: str, *options: Option, right: int | None = None, **fields: object
) -> Outcome:
    passes = bool(fields.pop("passes", False))
    asked = booking(identity, options=options or (option(),), **fields)
    return await books.ledger.book(request(asked, caps(right), passes_all=passes))


async def release(books: Books, identity: str, place: dict[str, int], limits: Limits) -> Outcome:
    order = ReleaseOrder(id=identity, chosen=0, place=place, limits=limits)
    return (await books.ledger.release_many(books.epoch, [order], NOW))[0]


async def test_who_waits_for_slices_holds_up_nobody_who_wants_whole_gpus(books: Books) -> None:
    await wait(books, "w1", [option(SLICE, 125)], pods=9)
    assert (await start(books, "b1")).verdict is Verdict.BOOKED
    behind = await start(books, "b2", option(SLICE, 125))
    assert (behind.cause, behind.subject, behind.used) == ("standing", POOL, 1)


async def test_who_waits_for_another_model_of_the_pool_is_in_nobodys_way(books: Books) -> None:
    other = Option(pool=POOL, product="A100-40GB", mode="whole", milli=1000, units={WHOLE: 1})
    await books.ledger.publish_capacity(books.epoch, {WHOLES: {"node-a": 4}, OTHER: {"node-z": 1}})
    await wait(books, "w1", [other], pods=2)
    assert (await start(books, "b1", other, option())).chosen == 1
    assert (await start(books, "b2", other)).cause == "standing"


async def test_an_option_that_others_wait_for_is_passed_over(books: Books) -> None:
    await wait(books, "w1", [option(SLICE, 125)], pods=9)
    outcome = await start(books, "b1", option(SLICE, 125), option())
    assert (outcome.verdict, outcome.chosen) == (Verdict.BOOKED, 1)


async def test_devices_that_dra_allocates_are_waited_for_by_model(books: Books) -> None:
    claims = Option(pool=POOL, product=PRODUCT, mode="whole", milli=1000, units={})
    await wait(books, "w1", [claims])
    outcome = await books.ledger.book(request(booking("b1", options=(claims,)), capacity=False))
    assert outcome.cause == "standing"
    assert (await start(books, "b2")).verdict is Verdict.BOOKED


async def test_who_borrows_waits_behind_the_guaranteed_of_a_lower_class(books: Books) -> None:
    await books.ledger.publish_lending(books.epoch, {})
    await wait(books, "w1", [option()], pods=9, rank=5)
    assert (await start(books, "b1", rank=1, right=1000)).verdict is Verdict.BOOKED
    behind = await start(books, "b2", rank=1, right=1000)
    assert (behind.cause, behind.used) == ("standing", 1)
    through = await start(books, "b3", rank=1, right=1000, passes=True)
    assert through.verdict is Verdict.BOOKED, "its class passes everyone"


async def test_work_that_waited_for_long_stands_before_every_class(books: Books) -> None:
    await wait(books, "w1", [option()], pods=9, rank=5)
    assert (await start(books, "b1", rank=0)).verdict is Verdict.BOOKED
    await books.ledger.block_many(books.epoch, {}, {"w1": True})
    assert (await start(books, "b2", rank=0)).cause == "standing"
    await books.ledger.block_many(books.epoch, {}, {"w1": False})
    assert (await start(books, "b3", rank=0)).verdict is Verdict.BOOKED


async def test_what_is_kept_for_one_leaves_the_rest_to_all(books: Books) -> None:
    await wait(books, "w1", [option()], pods=3)
    assert (await start(books, "b1", pods=2)).cause == "standing"
    await books.ledger.end(books.epoch, "b1")
    await books.ledger.keep(books.epoch, {"w1": Keep(chosen=0, place={"node-a": 3})})
    first = await start(books, "b2", pods=4)
    assert first.place == {"node-b": 4}, "node-a has one left that is not kept"
    assert (await start(books, "b3")).place == {"node-a": 1}
    over = await start(books, "b4")
    assert (over.cause, over.used, over.limit) == ("capacity", 8000, 8000)
    taken = await release(books, "w1", {"node-a": 3}, caps())
    assert taken.verdict is Verdict.BOOKED, "who they are kept for may have them"
    assert await books.ledger.end(books.epoch, "w1")
    assert await books.ledger.end(books.epoch, "b4")
    assert (await start(books, "b5", pods=3)).place == {"node-a": 3}, "and leaves them behind"


async def test_units_are_kept_ahead_on_nodes_that_are_in_use(books: Books) -> None:
    assert (await start(books, "b1", pods=4)).place == {"node-a": 4}
    await wait(books, "w1", [option()], pods=4)
    keep = {"w1": Keep(chosen=0, place={"node-a": 4})}
    await books.ledger.keep(books.epoch, keep)
    assert (await start(books, "b2", pods=4)).place == {"node-b": 4}
    assert await books.ledger.end(books.epoch, "b1")
    await books.ledger.publish_capacity(books.epoch, {WHOLES: {"node-a": 4, "node-b": 4}})
    assert (await start(books, "b3")).cause == "capacity"
    await wait(books, "w2", [option()], pods=2)
    await books.ledger.keep(books.epoch, {**keep, "gone": keep["w1"]})
    filled = await release(books, "w2", {"node-a": 2}, caps())
    assert filled.verdict is Verdict.BOOKED, "the queue may fill in what it keeps"
    await books.ledger.end(books.epoch, "w2")
    await books.ledger.keep(books.epoch, {})
    assert (await start(books, "b4")).cause == "standing", "it waits like others again"


async def test_keeping_ends_when_its_owner_is_put_on_hold(books: Books) -> None:
    await wait(books, "w1", [option()], pods=4)
    await books.ledger.keep(books.epoch, {"w1": Keep(chosen=0, place={"node-a": 4})})
    await books.ledger.requeue(books.epoch, "w1", state=State.HELD, pods=4, reason="", now=NOW)
    await books.ledger.keep(books.epoch, {"w1": Keep(chosen=0, place={"node-a": 4})})
    assert (await start(books, "b1", pods=8)).verdict is Verdict.BOOKED


async def lend(books: Books, capacity: int = 8000, **kept: int) -> None:
    told = {POOL: Lending(capacity=capacity, kept=kept)}
    await books.ledger.publish_lending(books.epoch, told)


async def test_nobody_borrows_before_the_queue_has_said_what_is_kept(books: Books) -> None:
    assert (await start(books, "b1", right=1000)).verdict is Verdict.BOOKED
    assert (await start(books, "b2", right=1000)).cause == "lending"
    assert (await start(books, "b3")).verdict is Verdict.BOOKED, "where nobody has rights"
    await books.ledger.publish_lending(books.epoch, {})
    assert (await start(books, "b4", right=1000)).verdict is Verdict.BOOKED


async def test_what_others_keep_is_borrowed_neither_at_once_nor_by_release(books: Books) -> None:
    await lend(books, owner=3000, cv=500)
    assert (await start(books, "o1", team="owner", right=3000)).verdict is Verdict.BOOKED
    for n in range(4):
        assert (await start(books, f"b{n}", pods=1, right=0)).verdict is Verdict.BOOKED
    await wait(books, "w1", [option()], team="cv", rank=9)
    await books.ledger.block(books.epoch, "w1", blocked=True)
    fifth = await start(books, "b4", right=0)
    assert (fifth.cause, fifth.subject) == ("", ""), "8 of 8 less 1 used, 4 used, 2 kept: 1 left"
    sixth = await start(books, "b5", right=0)
    assert (sixth.cause, sixth.used, sixth.limit, sixth.asked) == ("lending", 2000, 2000, 1000)
    refused = await release(books, "w1", {"node-b": 1}, caps(0))
    assert (refused.cause, refused.used, refused.limit) == ("lending", 2000, 2000)
    within = await release(books, "w1", {"node-b": 1}, caps(6000))
    assert within.verdict is Verdict.BOOKED, "its own right needs nobody's leave"
    assert (await start(books, "o2", team="owner", right=3000)).verdict is Verdict.BOOKED


async def test_a_keeper_who_gives_up_what_it_holds_keeps_it_again(books: Books) -> None:
    await start(books, "o1", team="owner", pods=3)
    await lend(books, owner=3000)
    assert (await start(books, "b1", pods=5, right=0)).verdict is Verdict.BOOKED
    await books.ledger.end(books.epoch, "b1")
    await books.ledger.end(books.epoch, "o1")
    assert (await start(books, "b2", pods=6, right=0)).cause == "lending"
    await books.ledger.end(books.epoch, "b2")
    assert (await start(books, "b3", pods=4, right=0)).verdict is Verdict.BOOKED
    await lend(books, capacity=4000, owner=3000)
    await books.ledger.end(books.epoch, "b3")
    assert (await start(books, "b4", pods=2, right=0)).cause == "lending"


async def test_who_may_borrow_waits_for_all_of_the_pool(books: Books) -> None:
    await lend(books, owner=1000)
    await wait(books, "w1", [option()], pods=9)
    assert (await start(books, "b1", option(SLICE, 125), right=0)).cause == "standing"
    assert (await start(books, "b2", option(SLICE, 125), right=125)).verdict is Verdict.BOOKED


async def test_racing_borrowers_leave_what_is_kept(books: Books) -> None:
    await books.ledger.publish_capacity(books.epoch, {WHOLES: {"node-a": 100}})
    await lend(books, capacity=100_000, owner=30_000)
    outcomes = await asyncio.gather(
        *(
            start(books, f"b{n}", team=f"team-{n % 5}", pods=1 + n % 3, right=2000, rank=1)
            for n in range(300)
        )
    )
    booked = [outcome for outcome in outcomes if outcome.verdict is Verdict.BOOKED]
    used = sum(outcome.place["node-a"] for outcome in booked)
    assert used == 70
    assert (await start(books, "o1", team="owner", pods=30, right=30_000)).cause == ""


async def test_booking_costs_no_more_with_thousands_waiting(books: Books) -> None:
    capacity = {WHOLES: {f"n{n}": 4 for n in range(500)}, SLICES: {"node-c": 7}}

    async def commands() -> int:
        stats = await books.redis.call(lambda client: client.info("commandstats"))
        return sum(kind["calls"] for kind in stats.values())

    async def cost(waiting: int) -> int:
        bookings = [
            booking(f"w{n}", team="waiting", pods=2, rank=5, bound=True) for n in range(waiting)
        ]
        await books.ledger.rebuild(books.epoch, bookings, capacity)
        assert (await start(books, f"a{waiting}", rank=1)).verdict is Verdict.BOOKED
        before = await commands()
        assert (await start(books, f"b{waiting}", rank=1)).verdict is Verdict.BOOKED
        behind = await start(books, f"c{waiting}", rank=9)
        assert (behind.cause, behind.used) == ("standing", waiting)
        return await commands() - before

    assert await cost(5000) == await cost(1)
