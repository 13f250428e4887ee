"""What the leader does with the ledger."""

import asyncio

import pytest

from fairslice.booking import Ref, State
from fairslice_queue.ledger import (
    Ledger,
    LedgerError,
    Outcome,
    ReleaseOrder,
    StaleEpoch,
    Verdict,
)

from .books import NOW, POOL, SLICES, WHOLES, booking, limits, option, request
from .conftest import Books


async def released(books: Books, identity: str, **fields: object) -> None:
    await books.ledger.book(request(booking(identity, **fields)))
    await bound(books, identity)


async def bound(books: Books, identity: str) -> None:
    assert await books.ledger.bind(
        identity, namespace="ns", kind="Job", name=identity, uid=f"uid-{identity}"
    )


async def queued(books: Books, identity: str, **fields: object) -> None:
    await books.ledger.book(request(booking(identity, **fields), start=False))
    await bound(books, identity)


async def test_a_release_checks_caps_and_nodes_again(books: Books) -> None:
    await queued(books, "b1", pods=2)

    async def attempt(cap: int, place: dict[str, int]) -> tuple[Verdict, str, str]:
        outcome = await books.ledger.release(
            books.epoch, "b1", chosen=0, place=place, limits=limits(cap), now=NOW + 5
        )
        return outcome.verdict, outcome.cause, outcome.subject

    assert await attempt(1999, {"node-a": 2}) == (Verdict.DENIED, "limit", POOL)
    await released(books, "b2", pods=3, rank=0)
    assert await attempt(9000, {"node-a": 2}) == (Verdict.DENIED, "capacity", "node-a")
    assert await attempt(9000, {"gone": 2}) == (Verdict.DENIED, "capacity", "gone")
    assert await attempt(9000, {"node-a": 1, "node-b": 1}) == (Verdict.BOOKED, "", "")
    assert await attempt(0, {}) == (Verdict.BOOKED, "", ""), "a replay"
    found = await books.ledger.get("b1")
    assert found is not None
    assert (found.state, found.place) == (State.RELEASED, {"node-a": 1, "node-b": 1})
    assert (found.since, found.bound) == (NOW + 5, True)


async def release_all(books: Books, *orders: tuple[str, dict[str, int], str]) -> list[Outcome]:
    return await books.ledger.release_many(
        books.epoch,
        [
            ReleaseOrder(id=identity, chosen=0, place=place, limits=limits(4000), group=group)
            for identity, place, group in orders
        ],
        NOW,
    )


async def test_many_are_released_one_after_the_other_in_one_call(books: Books) -> None:
    for n in range(6):
        await queued(books, f"b{n}")
    await books.ledger.requeue(books.epoch, "b1", state=State.HELD, pods=1, reason="", now=NOW)
    orders = [(f"b{n}", {"node-a": 1}, "") for n in (0, 1, 9, 2, 3, 4, 5)]
    outcomes = await release_all(books, *orders)
    assert [outcome.id for outcome in outcomes] == [order[0] for order in orders]
    causes = ["", "state", "gone", "", "", "", "limit"]
    assert [outcome.cause for outcome in outcomes] == causes
    assert (await books.ledger.held("cv")).pools == {POOL: 4000}
    again = await release_all(books, *orders)
    assert [outcome.cause for outcome in again] == causes, "a replay"
    assert await release_all(books) == []


async def test_a_group_is_released_whole_or_not_at_all(books: Books) -> None:
    for n in range(6):
        await queued(books, f"b{n}")
    outcomes = await release_all(
        books,
        ("b0", {"node-a": 1}, "g"),
        ("b1", {"node-c": 1}, "g"),
        ("b2", {"node-a": 1}, "g"),
        ("b3", {"node-b": 1}, "h"),
        ("b4", {"node-b": 1}, "h"),
        ("b5", {"node-b": 1}, ""),
    )
    assert [outcome.cause for outcome in outcomes] == ["group", "capacity", "group", "", "", ""]
    assert [outcome.subject for outcome in outcomes[:3]] == ["b1", "node-c", "b1"]
    assert (await books.ledger.held("cv")).pools == {POOL: 3000}
    found = await books.ledger.get("b0")
    assert found is not None
    assert found.state is State.QUEUED


async def test_hundreds_are_released_in_short_scripts_that_split_no_group(books: Books) -> None:
    await books.ledger.publish_capacity(books.epoch, {WHOLES: {"node-a": 500}})
    for n in range(130):
        await queued(books, f"b{n}")
    place = {"node-a": 1}
    orders = [
        ReleaseOrder(
            id=f"b{n}", chosen=0, place=place, limits=limits(110_000), group="g" * (n > 40)
        )
        for n in range(130)
    ]
    outcomes = await books.ledger.release_many(books.epoch, orders, NOW)
    assert [outcome.verdict for outcome in outcomes[:41]] == [Verdict.BOOKED] * 41
    assert {outcome.verdict for outcome in outcomes[41:]} == {Verdict.DENIED}
    assert (await books.ledger.held("cv")).pools == {POOL: 41_000}


async def test_who_stands_in_the_way_is_said_of_many_at_once(books: Books) -> None:
    for identity in ("b1", "b2"):
        await queued(books, identity, pods=9)

    async def ahead(identity: str) -> tuple[str, int]:
        outcome = await books.ledger.book(
            request(booking(identity, team="nlp"), overflow_queue=False)
        )
        return outcome.cause, outcome.used

    assert await ahead("c1") == ("standing", 2)
    await books.ledger.block_many(books.epoch, {"b1": True, "b2": False, "gone": True})
    assert await ahead("c1") == ("standing", 1)
    await books.ledger.block_many(books.epoch, {"b1": False, "b2": True})
    assert await ahead("c1") == ("standing", 1)
    await books.ledger.block_many(books.epoch, {"b1": True, "b2": True})
    assert await ahead("c1") == ("", 0)


async def test_pods_may_be_released_for_nodes_still_to_come(books: Books) -> None:
    await queued(books, "b1", pods=20)
    outcome = await books.ledger.release(
        books.epoch, "b1", chosen=0, place={"node-a": 4}, limits=limits(), now=NOW
    )
    assert outcome.verdict is Verdict.BOOKED


async def test_what_can_not_be_released_is_said(books: Books) -> None:
    async def attempt(identity: str, chosen: int = 0, pods: int = 1) -> str:
        outcome = await books.ledger.release(
            books.epoch, identity, chosen=chosen, place={"node-a": pods}, limits=limits(), now=NOW
        )
        return outcome.cause

    assert await attempt("b9") == "gone"
    await queued(books, "b1")
    with pytest.raises(LedgerError, match="no such option"):
        await attempt("b1", chosen=1)
    with pytest.raises(LedgerError, match="more pods are placed"):
        await attempt("b1", pods=2)
    await books.ledger.requeue(
        books.epoch, "b1", state=State.HELD, pods=1, reason="held by ada", now=NOW
    )
    assert await attempt("b1") == "state"


async def test_settling_writes_down_what_is_even_beyond_the_caps(books: Books) -> None:
    await released(books, "b1", pods=2)
    assert await books.ledger.settle(
        books.epoch, "b1", state=State.RUNNING, pods=6, place={"node-a": 5, "new": 1}, now=NOW + 1
    )
    assert (await books.ledger.held("cv")).pools == {POOL: 6000}
    full = await books.ledger.book(request(booking("b2", pods=5)))
    assert full.cause == "capacity", "one node is overfull"
    await books.ledger.settle(
        books.epoch, "b1", state=State.RUNNING, pods=1, place={"node-b": 1}, now=NOW + 2
    )
    found = await books.ledger.get("b1")
    assert found is not None
    assert (found.pods, found.since) == (1, NOW + 1)
    assert (await books.ledger.book(request(booking("b3", pods=4)))).place == {"node-a": 4}
    with pytest.raises(LedgerError):
        await books.ledger.settle(books.epoch, "b1", state=State.QUEUED, pods=1, place={}, now=NOW)
    assert not await books.ledger.settle(
        books.epoch, "b2", state=State.RUNNING, pods=1, place={}, now=NOW
    ), "it holds nothing"


async def test_putting_back_frees_everything_and_keeps_the_place_in_line(books: Books) -> None:
    await released(books, "b1", pods=2, queued_at=NOW - 100)
    for _ in range(2):
        assert await books.ledger.requeue(
            books.epoch, "b1", state=State.QUEUED, pods=3, reason="preempted by prod", now=NOW + 9
        )
    found = await books.ledger.get("b1")
    assert found is not None
    assert (found.state, found.pods, found.chosen, found.place) == (State.QUEUED, 3, -1, {})
    assert (found.queued_at, found.reason) == (NOW - 100, "preempted by prod")
    assert (await books.ledger.held("cv")).pools == {}
    behind = await books.ledger.book(request(booking("b2")))
    assert behind.cause == "standing"


async def test_an_end_frees_what_was_held(books: Books) -> None:
    await released(books, "b1", pods=4)
    assert await books.ledger.end(books.epoch, "b1")
    assert not await books.ledger.end(books.epoch, "b1")
    assert (await books.ledger.held("cv")).pools == {}
    assert (await books.ledger.book(request(booking("b2", pods=8)))).verdict is Verdict.BOOKED


async def test_adoption_asks_no_caps(books: Books) -> None:
    found = booking(
        "b1", state=State.RUNNING, pods=12, chosen=0, place={"node-a": 6, "x": 6}, bound=True
    )
    assert await books.ledger.adopt(books.epoch, found)
    assert not await books.ledger.adopt(books.epoch, found)
    assert await books.ledger.get("b1") == found
    assert (await books.ledger.held("cv")).pools == {POOL: 12000}


async def test_capacity_follows_the_nodes(books: Books) -> None:
    await released(books, "b1", pods=4)
    await books.ledger.publish_capacity(books.epoch, {WHOLES: {"node-b": 2, "node-z": 1}})
    assert (await books.ledger.book(request(booking("b2", pods=4)))).cause == "capacity"
    assert (await books.ledger.book(request(booking("b3", pods=3)))).verdict is Verdict.BOOKED
    await books.ledger.publish_capacity(books.epoch, {WHOLES: {"node-a": 5, "node-b": 2}})
    assert (await books.ledger.book(request(booking("b4")))).place == {"node-a": 1}


async def test_a_replaced_leader_can_change_nothing(books: Books) -> None:
    await released(books, "b1")
    newer = await books.ledger.lead()
    assert newer > books.epoch
    old, ledger = books.epoch, books.ledger
    for attempt in (
        ledger.release(old, "b1", chosen=0, place={}, limits=limits(), now=NOW),
        ledger.settle(old, "b1", state=State.RUNNING, pods=0, place={}, now=NOW),
        ledger.requeue(old, "b1", state=State.QUEUED, pods=1, reason="", now=NOW),
        ledger.end(old, "b1"),
        ledger.adopt(old, booking("b2")),
        ledger.expire(old, NOW),
        ledger.block(old, "b1", blocked=True),
        ledger.detach(old, "b1", pod="p"),
        ledger.publish_capacity(old, {}),
        ledger.rebuild(old, [], {}),
    ):
        with pytest.raises(StaleEpoch):
            await attempt
    assert (await ledger.held("cv")).pools == {POOL: 1000}


async def test_epochs_grow_even_when_redis_forgets_them(books: Books) -> None:
    await books.redis.call(lambda redis: redis.flushall())
    newer = await Ledger(books.redis).lead()
    assert newer > books.epoch
    with pytest.raises(StaleEpoch):
        await books.ledger.rebuild(books.epoch, [], {})
    await books.ledger.rebuild(newer, [], {})
    assert await books.ledger.ready()


async def test_expiry_ends_any_number_of_tentative_bookings(books: Books) -> None:
    for n in range(450):
        await books.ledger.book(
            request(booking(f"b{n}", team=f"t{n % 3}"), start=False, max_tentative=999)
        )
    assert await books.ledger.expire(books.epoch, NOW + 10) == 450
    assert (await books.ledger.snapshot()).bookings == ()


async def test_a_mirror_follows_every_change(books: Books) -> None:
    snapshot = await books.ledger.snapshot()
    assert await books.ledger.changes(snapshot.sequence, 0) == ()
    await released(books, "b1")
    await queued(books, "b2")
    await released(books, "b3")
    await books.ledger.end(books.epoch, "b3")
    changes = await books.ledger.changes(snapshot.sequence, 1)
    assert changes is not None
    assert [(change.id, change.booking is None) for change in changes] == [
        ("b1", False),
        ("b2", False),
        ("b3", True),
    ]
    assert changes[0].booking == await books.ledger.get("b1")
    after = await books.ledger.snapshot()
    assert after.sequence == changes[-1].sequence
    assert {one.id for one in after.bookings} == {"b1", "b2"}


async def test_waiting_for_changes_ends_with_the_first(books: Books) -> None:
    position = (await books.ledger.snapshot()).sequence
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(books.ledger.changes(position, 30))
        await asyncio.sleep(0.05)
        await books.ledger.book(request(booking("b1")))
    assert [change.id for change in waiting.result() or ()] == ["b1"]
    position = (await books.ledger.snapshot()).sequence
    assert await books.ledger.changes(position, 0.05) == ()


async def test_who_is_too_far_behind_must_begin_anew(books: Books) -> None:
    position = (await books.ledger.snapshot()).sequence
    assert await books.ledger.changes("nonsense", 0) is None
    await books.redis.call(lambda redis: redis.xtrim("{fairslice}:log", maxlen=0))
    await books.ledger.book(request(booking("b1")))
    assert await books.ledger.changes(position, 0) is None
    position = (await books.ledger.snapshot()).sequence
    await books.ledger.rebuild(books.epoch, [], {})
    assert await books.ledger.changes(position, 0) is None


async def test_a_rebuild_replaces_all_but_what_is_on_its_way(books: Books) -> None:
    await released(books, "b1", pods=2)
    await books.ledger.attach("b1", owner_uid="uid-b1", team="cv", pod="p", now=NOW)
    await books.ledger.book(request(booking("b2", group="g")))
    many = [
        booking(f"c{n}", bound=True, state=State.RUNNING, chosen=0, place={"node-b": 1})
        for n in range(500)
    ]
    await books.ledger.rebuild(books.epoch, many, {WHOLES: {"node-b": 501}, SLICES: {}})
    assert {one.id for one in (await books.ledger.snapshot()).bookings} == {
        "b2",
        *(one.id for one in many),
    }
    assert await books.ledger.audit() == []
    assert (await books.ledger.held("cv")).pools == {POOL: 501_000}
    assert (await books.ledger.book(request(booking("b3")))).place == {"node-b": 1}
    assert (await books.ledger.book(request(booking("b4")))).cause == "capacity"


async def test_the_audit_names_what_was_tampered_with(books: Books) -> None:
    await released(books, "b1")
    await books.redis.call(lambda redis: redis.hset("{fairslice}:held:cv", f"p|{POOL}", 3000))
    await books.redis.call(lambda redis: redis.zadd(f"{{fairslice}}:free:{WHOLES}", {"node-a": 1}))
    assert await books.ledger.audit() == [
        f"free:{WHOLES} node-a: 1, bookings say 3",
        f"held:cv p|{POOL}: 3000, bookings say 1000",
    ]
    await books.ledger.rebuild(books.epoch, [], {})
    assert await books.ledger.audit() == []


async def test_a_booking_of_an_object_without_name_reads_its_ref(books: Books) -> None:
    asked = booking("b1", ref=Ref(kind="Pod", namespace="ns", generate_name="nb-"), pods=1)
    await books.ledger.book(request(asked, capacity=False))
    await books.ledger.bind("b1", namespace="ns", kind="Pod", name="nb-1", uid="u")
    found = await books.ledger.get("b1")
    assert found is not None
    assert found.ref == Ref(kind="Pod", namespace="ns", name="nb-1", generate_name="nb-", uid="u")
    assert found.option == option()
