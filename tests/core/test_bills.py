from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.bills import (
    IDLE,
    BillRecord,
    PoolBill,
    bill_rows,
    charges_of,
    month_at,
)
from fairslice.inventory import Inventory
from fairslice.money import COST_UNIT, MICRO, Prices, parse_micro, rounded
from fairslice.pool_capacity import pool_hardware

from .clusters import A100_80, node, policy

HOUR = 3600 * MICRO

prices = st.lists(st.tuples(st.integers(0, 10 * HOUR), st.integers(0, 50 * MICRO)), max_size=4).map(
    Prices.of
)
events = st.lists(
    st.tuples(
        st.integers(0, 3 * HOUR),  # time since the one before
        st.sampled_from(["capacity", "prices", "restart", "nlp", "cv", "ads"]),
        st.integers(0, 16_000),
    ),
    max_size=14,
)


def micros(bill: PoolBill, now: int) -> dict[str, int]:
    return {name: charge.micro for name, charge in bill.charges(now).items()}


@given(st.lists(prices, min_size=1, max_size=3), events, st.integers(0, 3 * HOUR))
def test_charges_sum_to_the_price_of_the_hardware_to_the_micro_unit(
    lists: list[Prices], changes: list[tuple[int, str, int]], rest: int
) -> None:
    listed = lists[0]
    bill = PoolBill(listed, at=0)
    now, capacity, exact = 0, 0, Fraction(0)
    for elapsed, what, milli in changes:
        exact += Fraction(listed.cost(capacity, now, now + elapsed), COST_UNIT)
        now += elapsed
        match what:
            case "capacity":
                capacity = milli
                bill.change(now, capacity=milli)
            case "prices":
                listed = lists[milli % len(lists)]
                bill.change(now, prices=listed)
            case "restart":
                # What is written down, read by a successor that knows what is held just then.
                bill.advance(now)
                after = PoolBill(listed, now, capacity)
                after.change(now, held=bill.held)
                after.go_on(bill.record(), bill.at)
                bill = after
            case _:
                bill.change(now, held={what: milli})
    exact += Fraction(listed.cost(capacity, now, now + rest), COST_UNIT)
    charges = micros(bill, now + rest)
    assert sum(charges.values()) == rounded(int(exact * COST_UNIT))
    assert all(charge >= 0 for charge in charges.values())


@given(prices, events)
def test_a_holder_owes_what_it_held_times_the_price_while_there_is_enough(
    listed: Prices, changes: list[tuple[int, str, int]]
) -> None:
    bill = PoolBill(listed, at=0, capacity=3 * 16_000)
    now, cost, gpu, held = 0, 0, 0, 0
    for elapsed, what, milli in changes:
        cost += listed.cost(held, now, now + elapsed)
        gpu += held * elapsed
        now += elapsed
        if what in ("nlp", "cv", "ads"):
            bill.change(now, held={what: milli})
            held = milli if what == "nlp" else held
    found = bill.charges(now).get("nlp")
    assert (found.gpu if found else 0) == gpu
    assert abs((found.micro if found else 0) - Fraction(cost, COST_UNIT)) < 1


def test_four_quarters_for_an_hour_are_one_gpu_hour_and_idle_time_has_its_account() -> None:
    bill = PoolBill(Prices.of([(0, parse_micro("2.75"))]), at=0, capacity=2000)
    bill.change(0, held=dict.fromkeys(("a", "b", "c", "d"), 250))
    charges = micros(bill, HOUR)
    assert charges == {"a": 687_500, "b": 687_500, "c": 687_500, "d": 687_500, IDLE: 2_750_000}
    assert bill.charges(HOUR)[IDLE].gpu == 1000 * HOUR


def test_holders_of_more_than_there_is_split_its_price() -> None:
    bill = PoolBill(Prices.of([(0, parse_micro("1"))]), at=0, capacity=1000)
    bill.change(0, held={"a": 1000, "b": 1000, "c": 1000})
    assert sorted(micros(bill, HOUR).values()) == [333_333, 333_333, 333_334]


def test_a_repartition_changes_nobodys_bill() -> None:
    whole = PoolBill(Prices.of([(0, parse_micro("8"))]), at=0, capacity=1000)
    whole.change(0, held={"a": 1000})
    cut = PoolBill(Prices.of([(0, parse_micro("8"))]), at=0, capacity=1000)
    cut.change(0, held={"a": 1000})
    cut.change(HOUR, held={"a": 0})  # seven slices of an eighth each
    cut.change(HOUR, held={f"s{n}": 125 for n in range(7)})
    whole.change(HOUR, held={"a": 0})
    assert sum(micros(whole, 2 * HOUR).values()) == sum(micros(cut, 2 * HOUR).values())
    assert micros(cut, 2 * HOUR)[IDLE] == MICRO  # the eighth that slices leave


def test_rows_are_exact_amounts_and_of_one_team_if_it_is_named() -> None:
    bill = PoolBill(Prices.of([(0, parse_micro("1"))], "EUR"), at=0, capacity=1000)
    bill.change(0, held={"nlp": 333})
    bill.advance(HOUR)
    record = BillRecord(month="1970-01", start=0, at=HOUR, pools={"a100": bill.record()})
    rows = list(bill_rows(record, ZoneInfo("Europe/Berlin")))
    assert [(row.team, row.gpu_hours, row.amount, row.currency) for row in rows] == [
        (IDLE, "0.667000", "0.667000", "EUR"),
        ("nlp", "0.333000", "0.333000", "EUR"),
    ]
    assert rows[0].start == "1970-01-01T01:00:00+01:00"
    assert [row.team for row in bill_rows(record, ZoneInfo("UTC"), "nlp")] == ["nlp"]
    assert sum(charge.micro for charge in charges_of(bill.record()).values()) == MICRO


def test_months_are_those_of_the_zone() -> None:
    assert month_at(-1, ZoneInfo("UTC")) == "1969-12"
    assert month_at(-1, ZoneInfo("Europe/Berlin")) == "1970-01"


@pytest.mark.parametrize(
    ("labels", "allocatable", "gpus"),
    [
        # Whole GPUs, one of them unhealthy: it is paid for.
        ({"nvidia.com/gpu.count": "8"}, {"nvidia.com/gpu": "7"}, 8),
        # Being cut up: nothing is offered just now.
        ({"nvidia.com/gpu.count": "8", "nvidia.com/mig.config.state": "pending"}, {}, 8),
        # Slices of mixed geometry; an eighth is left over.
        ({"nvidia.com/gpu.count": "1"}, {"nvidia.com/mig-1g.10gb": "7"}, 1),
        # One geometry for all: the count is of slices.
        (
            {
                "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb",
                "nvidia.com/gpu.count": "14",
            },
            {"nvidia.com/gpu": "14"},
            2,
        ),
        # No label tells: what is offered counts.
        ({}, {"nvidia.com/gpu": "4"}, 4),
        ({"nvidia.com/gpu.count": "many"}, {"nvidia.com/gpu": "4"}, 4),
        ({}, {}, 0),
    ],
)
def test_hardware_is_what_is_paid_for_however_it_is_cut_up(
    labels: dict[str, str], allocatable: dict[str, str], gpus: int
) -> None:
    memory = {"nvidia.com/gpu.memory": "81920"}
    counts = {name: int(count) for name, count in allocatable.items()}
    made = node("n", A100_80, counts, labels={**memory, **labels}, cordoned=True)
    found = pool_hardware(Inventory.build([made], policy()))
    assert found == ({"a100": gpus * 1000} if gpus else {})
