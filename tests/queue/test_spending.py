"""What teams used in a period: exact over boundaries, checkpoints, prices and zones."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from fairslice.budgets import Spent
from fairslice.money import MICRO
from fairslice.periods import period_at
from fairslice.policy import Policy
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import Period
from fairslice_queue.spending import Spending
from fairslice_queue.usage import Meter

HOUR = 3600.0
GPU_HOUR = 1000 * 3600 * MICRO
START = datetime(2026, 10, 20, tzinfo=UTC).timestamp()

zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Africa/Cairo"])
steps = st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 64_000)), max_size=10)


def policy(zone: str = "UTC", *prices: tuple[str, str]) -> Policy:
    listed = [{"from": day, "perGpuHour": price} for day, price in prices]
    spec = {"pools": [{"name": "a100", "prices": listed}], "queue": {"timeZone": zone}}
    return Policy.compile(convert(spec, SharingPolicySpec))


def spending(zone: str = "UTC", *prices: tuple[str, str]) -> Spending:
    made = Spending()
    made.use_policy(policy(zone, *prices), START)
    return made


@given(zones, steps, st.integers(0, 3_000_000), st.sampled_from(Period))
def test_what_is_spent_is_what_was_held_since_the_period_began(
    zone: str, changes: list[tuple[int, int]], rest: int, period: Period
) -> None:
    made, now, held = spending(zone), START, 0
    pieces: list[tuple[float, float, int]] = []
    for gap, milli in changes:
        pieces.append((now, now + gap, held))
        now, held = now + gap, milli
        made.hold("nlp", "a100", milli, now)
    pieces.append((now, now + rest, held))
    now += rest
    begin = period_at(period, now, ZoneInfo(zone)).start
    expected = sum(
        milli * round(end - max(start, begin)) * MICRO
        for start, end, milli in pieces
        if end > begin
    )
    assert made.spent("nlp", "a100", period, now).gpu == expected


@given(steps, st.integers(0, 9), st.integers(0, 500_000))
def test_a_checkpoint_goes_on_as_if_nothing_had_happened(
    changes: list[tuple[int, int]], cut: int, rest: int
) -> None:
    prices = (("2026-10-21", "2.75"), ("2026-10-25", "3.1"))
    first, now = spending("Europe/Berlin", *prices), START
    other = spending("Europe/Berlin", *prices)
    second = first
    first.hold("nlp", "a100", 0, now)
    other.hold("nlp", "a100", 0, now)
    for index, (gap, milli) in enumerate(changes):
        now += gap
        first.hold("nlp", "a100", milli, now)
        if index == cut:
            second = spending("Europe/Berlin", *prices)
            second.restore("nlp", "a100", first.checkpoint("nlp", "a100", now))
            second.hold("nlp", "a100", milli, now)
        elif index > cut:
            second.hold("nlp", "a100", milli, now)
    now += rest
    for period in Period:
        assert second.spent("nlp", "a100", period, now) == first.spent("nlp", "a100", period, now)


def test_a_period_that_turns_without_any_event_starts_from_nothing() -> None:
    made = spending()
    made.hold("nlp", "a100", 2000, START)
    assert made.spent("nlp", "a100", Period.DAILY, START + 23 * HOUR).gpu == 46 * GPU_HOUR
    assert made.spent("nlp", "a100", Period.DAILY, START + 25 * HOUR).gpu == 2 * GPU_HOUR
    assert made.spent("nlp", "a100", Period.MONTHLY, START + 25 * HOUR).gpu == 50 * GPU_HOUR


def test_hours_cost_what_they_cost_at_the_time() -> None:
    made = spending("UTC", ("2026-10-01", "2.75"), ("2026-10-20T02:00:00Z", "3"))
    made.hold("nlp", "a100", 1000, START)
    spent = made.spent("nlp", "a100", Period.MONTHLY, START + 4 * HOUR)
    assert spent == Spent(4 * GPU_HOUR, (2 * 2_750_000 + 2 * 3_000_000) * GPU_HOUR)


def test_a_price_list_that_is_corrected_holds_from_then_on() -> None:
    made = spending("UTC", ("2026-10-01", "2"))
    made.hold("nlp", "a100", 1000, START)
    made.use_policy(policy("UTC", ("2026-10-01", "5")), START + HOUR)
    spent = made.spent("nlp", "a100", Period.MONTHLY, START + 2 * HOUR)
    assert spent.cost == 7_000_000 * GPU_HOUR


def test_a_clock_that_is_set_back_adds_nothing_and_takes_nothing_away() -> None:
    made = spending()
    made.hold("nlp", "a100", 1000, START + 2 * HOUR)
    made.hold("nlp", "a100", 1000, START + 3 * HOUR)
    made.hold("nlp", "a100", 1000, START + HOUR)
    assert made.spent("nlp", "a100", Period.DAILY, START + HOUR).gpu == GPU_HOUR
    assert made.spent("nlp", "a100", Period.DAILY, START + 4 * HOUR).gpu == 2 * GPU_HOUR


def test_after_a_checkpoint_what_is_held_counts_since_it() -> None:
    meter = Meter(HOUR)
    before = spending()
    before.hold("nlp", "a100", 1000, START)
    meter.spending.restore("nlp", "a100", before.checkpoint("nlp", "a100", START + HOUR))
    meter.hold("nlp", "a100", 2000, START + 2 * HOUR)
    spent = meter.spending.spent("nlp", "a100", Period.DAILY, START + 2 * HOUR)
    assert spent.gpu == 3 * GPU_HOUR
