from datetime import datetime
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice.periods import day_after, day_or_time, period_at, zone_named
from fairslice.v1alpha1.team import Period

BERLIN = ZoneInfo("Europe/Berlin")
HOUR = 3600.0

zones = st.sampled_from(sorted(available_timezones() - {"Factory", "localtime"})).map(ZoneInfo)
moments = st.integers(946_684_800, 2_240_524_800).map(float)  # 2000 to 2040


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@given(zones, moments, st.sampled_from(Period))
def test_periods_follow_each_other_without_gap_or_overlap(
    zone: ZoneInfo, moment: float, period: Period
) -> None:
    span = period_at(period, moment, zone)
    assert span.start <= moment < span.end
    assert period_at(period, span.start, zone) == span
    assert period_at(period, span.end - 1, zone) == span
    assert period_at(period, span.end, zone).start == span.end


@given(zones, moments)
def test_weeks_begin_on_mondays_and_months_on_their_first(zone: ZoneInfo, moment: float) -> None:
    week = datetime.fromtimestamp(period_at(Period.WEEKLY, moment, zone).start, zone)
    month = datetime.fromtimestamp(period_at(Period.MONTHLY, moment, zone).start, zone)
    assert week.weekday() == 0
    assert month.day == 1


def test_days_have_23_and_25_hours_where_clocks_change() -> None:
    spring = period_at(Period.DAILY, at("2026-03-29T12:00:00+02:00"), BERLIN)
    autumn = period_at(Period.DAILY, at("2026-10-25T12:00:00+01:00"), BERLIN)
    assert spring.end - spring.start == 23 * HOUR
    assert autumn.end - autumn.start == 25 * HOUR


def test_a_day_whose_midnight_is_skipped_begins_when_the_clocks_change() -> None:
    cairo = ZoneInfo("Africa/Cairo")
    span = period_at(Period.DAILY, at("2026-04-24T12:00:00+03:00"), cairo)
    assert span.start == at("2026-04-24T01:00:00+03:00")
    assert span.end - span.start == 23 * HOUR


def test_dates_are_days_of_the_zone_and_an_end_includes_its_day() -> None:
    assert day_or_time("2026-07-01", BERLIN) == at("2026-07-01T00:00:00+02:00")
    assert day_after("2026-07-01", BERLIN) == at("2026-07-02T00:00:00+02:00")
    assert day_after("2026-07-01T12:00:00Z", BERLIN) == at("2026-07-01T12:00:00+00:00")


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "Europe"])
def test_a_zone_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no time zone"):
        zone_named(name)
