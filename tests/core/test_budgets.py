from datetime import UTC, datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from fairslice.budgets import (
    Budget,
    PoolSpending,
    Spent,
    Stop,
    judge,
    stop_for,
    stops_of,
)
from fairslice.money import COST_UNIT, MICRO
from fairslice.policy import Policy, PolicyError, Team
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import Exhausted, Period, Running, TeamSpec

HOUR = 3600 * MICRO
BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 10, 12, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=BERLIN).timestamp()


def hours(count: int, milli: int = 1000) -> Spent:
    return Spent(gpu=count * milli * HOUR)


def budget(amount: int = 100, **fields: object) -> Budget:
    given = {
        "amount": Fraction(amount),
        "in_money": False,
        "period": Period.MONTHLY,
        "on_exhausted": Exhausted.WAIT,
        **fields,
    }
    return Budget(**given)  # type: ignore[arg-type]


def team(**spec: object) -> Team:
    return Team.compile("nlp", "uid", convert(spec, TeamSpec), BERLIN)


def test_gpu_hours_count_by_the_pools_rates_over_all_pools() -> None:
    pools = {
        "a100": PoolSpending(hours(10)),
        "h100": PoolSpending(hours(10), rate_millionths=2_200_000),
    }
    assert judge(budget(), pools, NOW, BERLIN).spent == 32
    assert judge(budget(pool="h100"), pools, NOW, BERLIN).spent == 10


def test_money_counts_what_the_hours_cost() -> None:
    pools = {"a100": PoolSpending(Spent(gpu=0, cost=5 * MICRO * COST_UNIT))}
    assert judge(budget(in_money=True), pools, NOW, BERLIN).spent == 5


def test_a_budget_is_gone_when_nothing_is_left_and_names_the_next_period() -> None:
    state = judge(budget(10), {"a100": PoolSpending(hours(10))}, NOW, BERLIN)
    assert state.exhausted
    (stop,) = stops_of("nlp", [state], BERLIN)
    assert stop.until == DECEMBER
    assert "10 GPU-hours a month" in stop.reason
    assert "2026-12-01 00:00 CET" in stop.reason
    assert stop_for([stop], "a100", NOW) is stop
    assert stop_for([stop], "a100", DECEMBER) is None


def test_the_forecast_follows_the_present_pace() -> None:
    pools = {"a100": PoolSpending(hours(90), milli=2000)}
    state = judge(budget(), pools, NOW, BERLIN)
    assert state.forecast == NOW + 5 * 3600
    assert judge(budget(100_000), pools, NOW, BERLIN).forecast is None
    idle = {"a100": PoolSpending(hours(90))}
    assert judge(budget(), idle, NOW, BERLIN).forecast is None


@given(st.integers(1, 10**6), st.integers(0, 10**5), st.integers(1, 64_000))
def test_holding_on_at_the_present_pace_exhausts_a_budget_when_forecast(
    amount: int, spent: int, milli: int
) -> None:
    pools = {"a100": PoolSpending(hours(spent), milli=milli)}
    state = judge(budget(amount), pools, NOW, BERLIN)
    if state.forecast is None:
        assert spent + (state.end - NOW) / 3600 * milli / 1000 < amount * 1.000001
        return
    more = round((state.forecast - NOW) * MICRO) + 1
    later = {"a100": PoolSpending(Spent(hours(spent).gpu + milli * more))}
    assert judge(budget(amount), later, NOW, BERLIN).exhausted


def test_what_waits_goes_before_what_scavenges() -> None:
    waits = Stop("a100", False, NOW + 10, "waits")
    scavenges = Stop("", True, NOW + 20, "scavenges")
    assert stop_for([scavenges, waits], "a100", NOW) is waits
    assert stop_for([scavenges, waits], "t4", NOW) is scavenges
    assert stop_for([waits], "t4", NOW) is None


def test_budgets_are_read_from_teams() -> None:
    made = team(
        budgets=[
            {"gpuHours": 2000, "onExhausted": "Scavenge"},
            {"pool": "a100", "money": "99.5", "period": "Weekly"},
        ]
    )
    assert made.budgets == (
        budget(2000, on_exhausted=Exhausted.SCAVENGE, running=Running.DEGRADE),
        budget(amount=Fraction(199, 2), in_money=True, period=Period.WEEKLY, pool="a100"),
    )
    assert [item.text for item in made.budgets] == [
        "2000 GPU-hours a month",
        "99.50 of money a week of a100",
    ]
    with pytest.raises(PolicyError, match="set gpuHours or money"):
        team(budgets=[{"period": "Daily"}])


def test_what_becomes_of_running_work_is_said_or_follows_from_what_new_work_may() -> None:
    def running(**fields: str) -> Running:
        return team(budgets=[{"gpuHours": 1, **fields}]).budgets[0].running

    assert running() is Running.FINISH
    assert running(onExhausted="Scavenge") is Running.DEGRADE
    assert running(running="Stop") is Running.STOP
    assert running(onExhausted="Scavenge", running="Stop") is Running.STOP
    with pytest.raises(PolicyError, match=r"spec\.budgets\[0\]\.running: with onExhausted Scav"):
        running(onExhausted="Scavenge", running="Finish")


def test_a_loan_adds_to_the_limit_through_its_last_day() -> None:
    made = team(
        pools=[{"pool": "a100", "guaranteed": "1", "limit": "2"}, {"pool": "h100"}],
        loans=[
            {"pool": "a100", "gpus": "2", "until": "2026-11-30"},
            {"pool": "t4", "gpus": "1", "until": "2026-11-10T13:00:00Z"},
        ],
    )
    assert made.limit("a100", NOW) == 4000
    assert made.limit("a100", DECEMBER - 1) == 4000
    assert made.limit("a100", DECEMBER) == 2000
    assert made.limit("h100", NOW) is None
    assert made.limit("t4", NOW) == 1000
    assert made.limit("t4", NOW + 3600) == 0
    with pytest.raises(PolicyError, match=r"spec\.loans\[0\]\.until"):
        team(loans=[{"pool": "a100", "gpus": "2", "until": "2026-02-30"}])


def test_what_is_not_lendable_of_a_guarantee_is_kept() -> None:
    made = team(
        pools=[
            {"pool": "a100", "guaranteed": "4", "lendable": "1"},
            {"pool": "t4", "guaranteed": "4"},
            {"pool": "h100", "guaranteed": "1", "lendable": "2"},
        ]
    )
    assert [made.quota(pool).kept for pool in ("a100", "t4", "h100", "k80")] == [3000, 0, 0, 0]


def test_policies_have_one_currency_and_a_time_zone_that_exists() -> None:
    def policy(**spec: object) -> Policy:
        return Policy.compile(convert(spec, SharingPolicySpec))

    price = {"from": "2026-07-01", "perGpuHour": "2.75", "currency": "EUR"}
    made = policy(pools=[{"name": "a100", "prices": [price]}], queue={"timeZone": "Europe/Berlin"})
    day = datetime(2026, 7, 1, tzinfo=BERLIN).timestamp()
    assert made.pools[0].prices.at(round(day * MICRO)) == 2_750_000
    assert made.pools[0].prices.at(round(day * MICRO) - 1) == 0
    with pytest.raises(PolicyError, match="one currency"):
        policy(
            pools=[
                {"name": "a100", "prices": [price]},
                {"name": "t4", "prices": [{**price, "currency": "USD"}]},
            ]
        )
    with pytest.raises(PolicyError, match=r"spec\.queue\.timeZone"):
        policy(queue={"timeZone": "Europe/Atlantis"})
    with pytest.raises(PolicyError, match=r"prices\[0\]\.from"):
        policy(pools=[{"name": "a100", "prices": [{**price, "from": "2026-02-30"}]}])
