"""Pods of released workloads, rollouts, and pods that follow one another."""

from fairslice.booking import State
from fairslice_queue.ledger import LINGERS, Outcome, Verdict

from .books import NOW, POOL, SLICE, booking, limits, option, request
from .conftest import Books


async def attach(books: Books, pod: str, **fields: object) -> str:
    known: dict[str, object] = {"owner_uid": "uid-b1", "team": "cv", "now": NOW}
    answer = await books.ledger.attach("b1", pod=pod, **{**known, **fields})  # type: ignore[arg-type]
    assert answer.accepted is (answer.option is not None)
    return answer.cause or "accepted"


async def job_of_two(books: Books) -> None:
    options = (option(SLICE, 125), option())
    await books.ledger.book(request(booking("b1", pods=2, options=options)))
    await books.ledger.bind("b1", namespace="ns", kind="Job", name="b1", uid="uid-b1")


async def test_only_pods_of_the_booking_attach_and_only_as_many(books: Books) -> None:
    await job_of_two(books)
    assert await attach(books, "p1", team="nlp") == "team"
    assert await attach(books, "p1", owner_uid="forged") == "owner"
    assert await attach(books, "p1") == "accepted"
    assert await attach(books, "p1") == "accepted", "a replay"
    assert await attach(books, "p2") == "accepted"
    assert await attach(books, "p3") == "count"
    answer = await books.ledger.attach("b1", owner_uid="", team="cv", pod="p1", now=NOW)
    assert answer.option == option(SLICE, 125)
    missing = await books.ledger.attach("b9", owner_uid="", team="cv", pod="p", now=NOW)
    assert missing.cause == "gone"


async def test_a_pod_that_never_came_leaves_its_seat_to_another(books: Books) -> None:
    await job_of_two(books)
    await attach(books, "p1")
    await attach(books, "p2")
    assert await books.ledger.bind_pod("b1", pod="p1", uid="u1", name="b1-0")
    assert await books.ledger.bind_pod("b1", pod="p1", uid="u1", name="b1-0"), "a replay"
    assert not await books.ledger.bind_pod("b1", pod="p1", uid="u2", name="b1-0")
    assert not await books.ledger.bind_pod("b1", pod="p9", uid="u9", name="b1-9")
    assert await attach(books, "p3", now=NOW + 9) == "count"
    assert await attach(books, "p3", now=NOW + 10) == "accepted"
    assert not await books.ledger.bind_pod("b1", pod="p2", uid="u2", name="b1-1")
    assert await attach(books, "p1", now=NOW + 999) == "accepted", "bound pods stay"


async def test_a_pod_that_ended_leaves_its_seat_to_another(books: Books) -> None:
    await job_of_two(books)
    for pod in ("p1", "p2"):
        await attach(books, pod)
        await books.ledger.bind_pod("b1", pod=pod, uid=pod, name=pod)
    assert await books.ledger.detach(books.epoch, "b1", pod="p1")
    assert not await books.ledger.detach(books.epoch, "b1", pod="p1")
    assert await attach(books, "p3") == "accepted"


async def test_no_pod_attaches_to_work_that_was_not_let_go(books: Books) -> None:
    await job_of_two(books)
    await attach(books, "p1")
    await books.ledger.settle(books.epoch, "b1", state=State.PREEMPTED, pods=2, place={}, now=NOW)
    assert await attach(books, "p2") == "state"
    await books.ledger.requeue(books.epoch, "b1", state=State.QUEUED, pods=1, reason="", now=NOW)
    assert await attach(books, "p2") == "state"
    await books.ledger.release(
        books.epoch, "b1", chosen=1, place={"node-a": 1}, limits=limits(), now=NOW
    )
    assert await attach(books, "p2") == "accepted", "earlier pods are forgotten"


async def replica(
    books: Books, identity: str, revision: str, cap: int = 2000, surge: int = 1000, **more: object
) -> Outcome:
    asked = booking(
        identity, kind="Pod", name="", group="Deployment ns/web", group_revision=revision
    )
    caps = limits(cap, surge=surge)
    return await books.ledger.book(request(asked, caps, **more))


async def test_a_rollout_at_the_limit_completes(books: Books) -> None:
    for identity in ("old-1", "old-2"):
        assert (await replica(books, identity, "v1")).verdict is Verdict.BOOKED
    assert (await replica(books, "old-3", "v1")).cause == "limit", "no other revision"
    for step in ("1", "2"):
        surging = await replica(books, f"new-{step}", "v2")
        assert (surging.verdict, surging.surge) == (Verdict.BOOKED, True)
        assert (await replica(books, "new-9", "v2", overflow_queue=False)).cause == "limit"
        held = await books.ledger.held("cv")
        assert (held.pools, held.surge) == ({POOL: 2000}, {POOL: 1000})
        await books.ledger.end(books.epoch, f"old-{step}")
        held = await books.ledger.held("cv")
        assert (held.pools, held.surge) == ({POOL: 2000}, {})
        found = await books.ledger.get(f"new-{step}")
        assert found is not None
        assert not found.surge
    assert (await replica(books, "new-3", "v2")).cause == "limit"


async def test_surge_is_for_rollouts_only(books: Books) -> None:
    await replica(books, "old-1", "v1", cap=1000)
    assert (await replica(books, "new-1", "v2", cap=1000, surge=0)).cause == "limit"
    stranger = booking("b1", group="Deployment ns/other", group_revision="v2")
    outcome = await books.ledger.book(request(stranger, limits(1000, surge=1000)))
    assert outcome.cause == "limit"
    assert (await replica(books, "new-2", "", cap=1000)).cause == "limit"


async def test_a_queued_pod_of_a_rollout_is_released_as_surge(books: Books) -> None:
    await replica(books, "old-1", "v1", cap=1000)
    await replica(books, "new-1", "v2", cap=1000, start=False)
    outcome = await books.ledger.release(
        books.epoch,
        "new-1",
        chosen=0,
        place={"node-a": 1},
        limits=limits(1000, surge=1000),
        now=NOW,
    )
    assert (outcome.verdict, outcome.surge) == (Verdict.BOOKED, True)
    await books.ledger.settle(books.epoch, "old-1", state=State.RUNNING, pods=0, place={}, now=NOW)
    found = await books.ledger.get("new-1")
    assert found is not None
    assert not found.surge


async def member(books: Books, identity: str, *, now: float = NOW, name: str = "db-0") -> Outcome:
    asked = booking(
        identity, kind="Pod", name=name, group="StatefulSet ns/db", pods=1, options=(option(),)
    )
    outcome = await books.ledger.book(request(asked, limits(8000), now=now))
    await books.ledger.bind(identity, namespace="ns", kind="Pod", name=name, uid=identity)
    return outcome


async def test_a_deleted_pod_keeps_its_units_for_its_successor(books: Books) -> None:
    await member(books, "old")
    await books.ledger.book(request(booking("rest", pods=7), limits(8000)))
    await books.ledger.bind("rest", namespace="ns", kind="Job", name="rest", uid="r")
    for _ in range(2):
        assert await books.ledger.end(books.epoch, "old", linger_seconds=60, now=NOW)
    kept = await books.ledger.get("old")
    assert kept is not None
    assert (kept.bound, kept.tentative_until, kept.reason) == (False, NOW + 60, LINGERS)
    stranger = await books.ledger.book(request(booking("thief", rank=0), limits(8000)))
    assert stranger.verdict is Verdict.QUEUED
    await books.ledger.bind("thief", namespace="ns", kind="Job", name="thief", uid="t")
    successor = await member(books, "new", now=NOW + 30)
    assert (successor.verdict, successor.place) == (Verdict.BOOKED, kept.place)
    assert await books.ledger.get("old") is None
    assert (await books.ledger.held("cv")).pools == {POOL: 8000}


async def test_each_successor_takes_over_its_namesake(books: Books) -> None:
    for n in range(2):
        await member(books, f"old-{n}", name=f"db-{n}")
        await books.ledger.end(books.epoch, f"old-{n}", linger_seconds=60 + n, now=NOW)
    await member(books, "new-1", name="db-1")
    assert await books.ledger.get("old-0") is not None
    assert await books.ledger.get("old-1") is None


async def test_a_pod_without_a_name_of_its_own_follows_any_of_its_group(books: Books) -> None:
    await member(books, "old")
    await books.ledger.end(books.epoch, "old", linger_seconds=60, now=NOW)
    follower = booking("new", name="", group="StatefulSet ns/db")
    await books.ledger.book(request(follower, limits(1000)))
    assert await books.ledger.get("old") is None


async def test_what_no_successor_claims_is_freed_in_time(books: Books) -> None:
    await member(books, "old")
    await books.ledger.end(books.epoch, "old", linger_seconds=60, now=NOW)
    assert await books.ledger.expire(books.epoch, NOW + 59) == 0
    assert await books.ledger.expire(books.epoch, NOW + 60) == 1
    assert (await books.ledger.held("cv")).pools == {}
    await member(books, "one")
    await books.ledger.end(books.epoch, "one", linger_seconds=60, now=NOW)
    await books.ledger.end(books.epoch, "one")
    assert (await books.ledger.held("cv")).pools == {}, "ended without waiting"


async def test_what_lingers_survives_a_successor_that_does_not_fit(books: Books) -> None:
    await member(books, "old")
    await books.ledger.end(books.epoch, "old", linger_seconds=60, now=NOW)
    bigger = booking("new", name="", group="StatefulSet ns/db", pods=9)
    assert (await books.ledger.book(request(bigger, limits(8000)))).cause == "limit"
    assert await books.ledger.get("old") is not None
    assert (await books.ledger.held("cv")).pools == {POOL: 1000}


async def test_a_successor_takes_over_no_more_than_it_needs(books: Books) -> None:
    for n in range(2):
        await member(books, f"old-{n}", name=f"db-{n}")
    for n in range(2):
        await books.ledger.end(books.epoch, f"old-{n}", linger_seconds=60 + n, now=NOW)
    follower = booking("new", name="", group="StatefulSet ns/db")
    await books.ledger.book(request(follower, limits(2000)))
    assert await books.ledger.get("old-0") is None
    assert await books.ledger.get("old-1") is not None


async def test_a_queued_successor_takes_over_when_it_is_released(books: Books) -> None:
    await member(books, "old")
    await books.ledger.book(
        request(booking("new", kind="Pod", name="", group="StatefulSet ns/db"), start=False)
    )
    await books.ledger.end(books.epoch, "old", linger_seconds=60, now=NOW)
    outcome = await books.ledger.release(
        books.epoch, "new", chosen=0, place={"node-a": 1}, limits=limits(1000), now=NOW
    )
    assert outcome.verdict is Verdict.BOOKED
    assert await books.ledger.get("old") is None


async def test_surge_ends_when_what_lingered_expires(books: Books) -> None:
    await replica(books, "old-1", "v1", cap=1000)
    await replica(books, "new-1", "v2", cap=1000)
    await books.ledger.bind("new-1", namespace="ns", kind="Pod", name="web-1", uid="u")
    await books.ledger.end(books.epoch, "old-1", linger_seconds=60, now=NOW)
    assert (await books.ledger.held("cv")).surge == {POOL: 1000}
    await books.ledger.expire(books.epoch, NOW + 60)
    held = await books.ledger.held("cv")
    assert (held.pools, held.surge) == ({POOL: 1000}, {})


async def test_a_replaced_surge_pod_leaves_its_allowance(books: Books) -> None:
    await replica(books, "old-1", "v1", cap=1000)
    for identity, user in (("new-1", "ada"), ("new-2", "bob")):
        asked = booking(
            identity, name="web", user=user, group="Deployment ns/web", group_revision="v2"
        )
        outcome = await books.ledger.book(request(asked, limits(1000, surge=1000)))
        assert (outcome.verdict, outcome.surge) == (Verdict.BOOKED, True)
    assert await books.ledger.get("new-1") is None


async def test_surge_that_was_adopted_ends_with_the_rollout(books: Books) -> None:
    await replica(books, "old-1", "v1", cap=1000)
    adopted = booking(
        "new-1",
        state=State.RUNNING,
        chosen=0,
        bound=True,
        surge=True,
        group="Deployment ns/web",
        group_revision="v2",
    )
    await books.ledger.adopt(books.epoch, adopted)
    assert (await books.ledger.held("cv")).surge == {POOL: 1000}
    await books.ledger.end(books.epoch, "old-1")
    assert (await books.ledger.held("cv")).surge == {}
