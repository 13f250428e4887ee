"""Bills over months, restarts and changes of the policy; where they are kept; who reads them."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import convert, json

from fairslice.bills import IDLE, UNASSIGNED, UNRECORDED, BillRecord, bill_rows, charges_of
from fairslice.money import MICRO, Prices, rounded
from fairslice.policy import Policy
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice_queue.bill_api import bill_routes
from fairslice_queue.bill_keeping import keep_bills
from fairslice_queue.bill_store import BillStore
from fairslice_queue.billing import Bills

from .world import World, job, node, policy, team, world

DAY = 86_400.0
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()


def rules(price: str = "3.6", zone: str = "UTC") -> Policy:
    pools = [
        {"name": name, "products": [name], "prices": [{"from": "2026-01-01", "perGpuHour": price}]}
        for name in ("a100", "t4")
    ]
    return Policy.compile(convert({"pools": pools, "queue": {"timeZone": zone}}, SharingPolicySpec))


def begun(at: float = NOVEMBER, policy: Policy | None = None, **milli: int) -> Bills:
    bills = Bills()
    bills.use_policy(policy or rules(), at)
    bills.hardware(milli or {"a100": 8000}, at)
    return bills


def amounts(record: BillRecord, pool: str = "a100") -> dict[str, float]:
    found = charges_of(record.pools[pool])
    return {name: charge.micro / MICRO for name, charge in found.items()}


def reread(record: BillRecord) -> BillRecord:
    return json.decode(json.encode(record), type=BillRecord)


def successor(bills: Bills, record: BillRecord, now: float, policy: Policy | None = None) -> Bills:
    """Another leader, which knows what there is and is held now, and what was written down."""
    after = Bills()
    after.use_policy(policy or rules(), now)
    after.hardware({pool: bill.capacity for pool, bill in bills._pools.items()}, now)
    for pool, bill in bills._pools.items():
        for name, milli in bill.held.items():
            after.hold("" if name == UNASSIGNED else name, pool, milli, now)
    after.go_on(reread(record), now)
    return after


def test_who_held_what_when_is_charged_and_the_rest_is_idle() -> None:
    bills = begun()
    bills.hold("nlp", "a100", 4000, NOVEMBER + 10 * DAY)
    bills.hold("", "a100", 1000, NOVEMBER + 20 * DAY)
    bills.hold("nlp", "a100", 0, NOVEMBER + 20 * DAY)
    (month,) = (bills.record(DECEMBER), bills.closed[0])[1:]
    assert month.final
    assert (month.month, month.start) == ("2026-11", round(NOVEMBER * MICRO))
    gpu_day = 24 * 3.6
    assert amounts(month) == {
        "nlp": 40 * gpu_day,
        UNASSIGNED: 10 * gpu_day,
        IDLE: pytest.approx((8 * 30 - 50) * gpu_day),
    }


def test_a_month_ends_at_midnight_there_and_what_is_held_goes_on() -> None:
    bills = begun(policy=rules(zone="Europe/Berlin"))
    bills.hold("nlp", "a100", 8000, NOVEMBER)
    ends = datetime.fromisoformat("2026-12-01T00:00:00+01:00").timestamp()
    assert bills.record(ends - 1).month == "2026-11"
    later = bills.record(ends + 3600)
    assert later.month == "2026-12"
    assert amounts(later) == {"nlp": 8 * 3.6}
    (over,) = bills.closed
    assert over.final
    assert over.at == round(ends * MICRO)


def test_a_successor_charges_what_it_finds_held_since_the_last_record() -> None:
    bills = begun()
    bills.hold("nlp", "a100", 2000, NOVEMBER)
    written = bills.record(NOVEMBER + DAY)
    after = successor(bills, written, NOVEMBER + DAY + 50)
    record = after.record(NOVEMBER + 2 * DAY)
    assert amounts(record)["nlp"] == pytest.approx(2 * 2 * 24 * 3.6)
    assert sum(amounts(record).values()) == pytest.approx(8 * 2 * 24 * 3.6)


def test_what_a_standby_counted_by_itself_does_not_count() -> None:
    bills = begun()
    bills.hold("nlp", "a100", 2000, NOVEMBER)
    written = bills.record(DECEMBER + DAY)
    standby = begun(at=NOVEMBER + 5 * DAY)
    standby.hold("nlp", "a100", 2000, DECEMBER + DAY)
    assert standby.closed
    standby.go_on(reread(written), DECEMBER + DAY)
    assert not standby.closed
    assert amounts(standby.record(DECEMBER + DAY)) == amounts(written)


def test_after_a_long_time_without_a_queue_nobody_is_charged_for_it() -> None:
    bills = begun()
    bills.hold("nlp", "a100", 2000, NOVEMBER)
    written = bills.record(NOVEMBER + DAY)
    after = successor(bills, written, DECEMBER + DAY)
    (november,) = after.closed
    december = after.record(DECEMBER + 2 * DAY)
    gpu_day = 24 * 3.6
    assert amounts(november)["nlp"] == pytest.approx(2 * gpu_day)
    assert amounts(november)[UNRECORDED] == pytest.approx(8 * 29 * gpu_day)
    assert amounts(december)["nlp"] == pytest.approx(2 * gpu_day)
    assert amounts(december)[UNRECORDED] == pytest.approx(8 * gpu_day)


def test_a_leader_that_died_right_after_closing_a_month_leaves_no_gap() -> None:
    bills = begun()
    bills.hold("nlp", "a100", 8000, NOVEMBER)
    bills.record(DECEMBER)
    after = successor(bills, bills.closed[0], DECEMBER + 100)
    record = after.record(DECEMBER + 3600)
    assert (record.month, record.start) == ("2026-12", round(DECEMBER * MICRO))
    assert amounts(record) == {"nlp": pytest.approx(8 * 3.6)}


def test_another_price_or_time_zone_holds_from_then_on() -> None:
    bills = begun(policy=rules("3.6"))
    bills.hold("nlp", "a100", 1000, NOVEMBER)
    bills.use_policy(rules("7.2", "Asia/Tokyo"), NOVEMBER + 3600)
    record = bills.record(NOVEMBER + 7200)
    assert record.month == "2026-11"
    assert amounts(record)["nlp"] == pytest.approx(3.6 + 7.2)
    # There December begins nine hours earlier; going back west again ends no month twice.
    tokyo = DECEMBER - 9 * 3600
    assert bills.record(tokyo).month == "2026-12"
    bills.use_policy(rules("7.2", "America/Los_Angeles"), tokyo + 60)
    assert bills.record(DECEMBER + 7 * 3600).month == "2026-12"
    january = datetime.fromisoformat("2027-01-01T00:00:00-08:00").timestamp()
    assert bills.record(january - 1).month == "2026-12"
    assert bills.record(january).month == "2027-01"
    assert [month.month for month in bills.closed] == ["2026-11", "2026-12"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0, 12 * DAY),
            st.sampled_from(["nlp", "cv", "", "hardware", "price", "restart", "crash"]),
            st.sampled_from(["a100", "t4"]),
            st.integers(0, 9000),
        ),
        max_size=25,
    )
)
def test_all_months_together_cost_what_the_hardware_does(
    steps: Iterable[tuple[float, str, str, int]],
) -> None:
    """Over restarts, crashes, changes of price, repartitions, and ends of months."""
    listed = {name: rules(name) for name in ("3.6", "1.234567")}
    price = "3.6"
    bills, now = begun(a100=8000, t4=4000), NOVEMBER
    capacity = {"a100": 8000, "t4": 4000}
    exact = dict.fromkeys(capacity, 0)
    months: list[BillRecord] = []
    written = bills.record(now)

    def flat() -> Prices:
        return Prices.of([(0, round(float(price) * MICRO))])

    def save() -> None:
        nonlocal written
        written = bills.record(now)
        months.extend(bills.closed)
        bills.closed = []

    for gap, what, pool, milli in steps:
        # A crash is seen to before long.
        before, now = now, now + (min(gap, 1800.0) if what == "crash" else gap)
        for name, have in capacity.items():
            exact[name] += flat().cost(have, round(before * MICRO), round(now * MICRO))
        match what:
            case "hardware":
                capacity[pool] = milli
                bills.hardware(capacity, now)
            case "price":
                price = "1.234567" if price == "3.6" else "3.6"
                bills.use_policy(listed[price], now)
            case "restart" | "crash":
                if what == "restart":
                    save()
                bills = successor(bills, written, now, listed[price])
            case _:
                bills.hold(what, pool, milli, now)
        save()
    save()
    for name in capacity:
        whole = [month.pools[name] for month in (*months, written)]
        total = sum(Fraction(int(bill.cost), MICRO) for bill in whole)
        assert total == exact[name]
        for bill in whole:
            charges = charges_of(bill)
            assert sum(charge.micro for charge in charges.values()) == rounded(
                int(Fraction(int(bill.cost), MICRO))
            )
            assert all(charge.micro >= 0 for charge in charges.values())
    assert len({month.month for month in months}) == len(months)


# On a cluster.

POOL = {
    "name": "default",
    "products": ["*"],
    "prices": [{"from": "2020-01-01", "perGpuHour": "3600"}],
}


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """A node of two GPUs, of which each costs 1 a second."""
    async with world(redis_url, tmp_path) as made:
        given = policy(timeZone="Europe/Berlin")
        given["spec"]["pools"] = [POOL]
        await made.create(given)
        await made.create(team("cv"))
        await made.create(team("nlp"))
        space = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "fairslice-system"}}
        await made.create(space)
        await made.cluster.add_node(node())
        yield made
        made.check_alive()


@asynccontextmanager
async def keeping(box: World) -> AsyncIterator[Bills]:
    leader = box.leader
    assert leader is not None
    store = BillStore(box.client, "fairslice-system")
    bills = leader.meter.bills
    task = asyncio.create_task(
        keep_bills(store, leader.watch, bills, lambda: leader.mirror.books, time.time)
    )
    yield bills
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def charged(bills: Bills) -> dict[str, float]:
    return amounts(bills.record(time.time()), "default")


async def test_a_bill_survives_leader_and_redis_and_sums_to_the_hardware(box: World) -> None:
    await box.start()
    async with keeping(box) as bills:
        await box.until(lambda: bills.is_kept)
        began = bills.record(time.time()).start / MICRO
        await box.create(job("train", seconds=None), "cv")
        await box.until(lambda: box.running() == {"train"})
        await asyncio.sleep(0.5)
        before = charged(bills)
        assert before["cv"] >= 0.4
        await BillStore(box.client, "fairslice-system").save(bills.record(time.time()))
    assert box.leader is not None
    await box.leader.stop()
    await box.redis.client.flushall()
    await box.start()
    async with keeping(box) as bills:
        await box.until(lambda: bills.is_kept and box.state_of("train"))
        await asyncio.sleep(0.3)
        record = bills.record(time.time())
    found = amounts(record, "default")
    assert found["cv"] >= before["cv"] + 0.3
    hardware = sum(found.values())
    # The node was there all the time, but hardware is looked at every other second only.
    assert 2 * (record.at / MICRO - began) - 5 <= hardware <= 2 * (record.at / MICRO - began) + 0.01
    here = datetime.fromtimestamp(record.at / MICRO, ZoneInfo("Europe/Berlin"))
    assert record.month == here.strftime("%Y-%m")


async def test_bills_are_read_over_http_also_those_of_months_that_are_over(
    box: World, unused_tcp_port: int
) -> None:
    await box.start()
    store = BillStore(box.client, "fairslice-system")
    old = begun()
    old.hold("nlp", "a100", 8000, NOVEMBER)
    old.record(DECEMBER)
    await store.save(old.closed[0])
    await store.save(begun(at=NOVEMBER).record(NOVEMBER + 1))  # of one who was deposed since
    leader = box.leader
    assert leader is not None
    present: list[Bills | None] = [None]
    app = web.Application()
    app.add_routes(bill_routes(store, lambda: leader.watch.policy.zone, lambda: present[0]))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()

    async def get(query: str = "") -> tuple[int, Any]:
        url = f"http://127.0.0.1:{unused_tcp_port}/bill{query}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.json()

    code, said = await get("?month=2026-11&team=nlp")
    assert code == 200
    (row,) = said["items"]
    assert (row["team"], row["amount"], row["gpu_hours"]) == ("nlp", "20736.000000", "5760.000000")
    assert row["final"]
    assert row["end"] == "2026-12-01T01:00:00+01:00"
    assert await get("?month=2025-01") == (
        404,
        {"error": "there is no bill for 2025-01; there are: 2026-11"},
    )
    async with keeping(box) as bills:
        await box.until(lambda: bills.is_kept)
        present[0] = bills
        code, said = await get()
        assert code == 200
        # Weeks went by since the last record: nobody knows who held what.
        assert {row["team"] for row in said["items"]} <= {IDLE, UNRECORDED, "nlp"}
    await runner.cleanup()


def test_rows_of_a_pool_sum_to_its_hardware() -> None:
    bills = begun(a100=7000)
    for name in ("a", "b", "c"):
        bills.hold(name, "a100", 3000, NOVEMBER)
    record = bills.record(NOVEMBER + 1)
    rows = list(bill_rows(record, UTC))
    total = sum(round(float(row.amount) * MICRO) for row in rows if row.pool == "a100")
    assert total == 7 * 1000
