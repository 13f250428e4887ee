from datetime import UTC, date, datetime, timedelta
from math import inf
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from fairslice.periods import clock_time
from fairslice.team import PolicyError, Team
from fairslice.teams import TeamIndex
from fairslice.v1alpha1.team import TeamSpec

BERLIN = ZoneInfo("Europe/Berlin")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOUR = 3600.0

zones = st.sampled_from(sorted(available_timezones() - {"Factory", "localtime"})).map(ZoneInfo)
moments = st.integers(946_684_800, 2_240_524_800).map(float)  # 2000 to 2040
clocks = st.builds("{:02d}:{:02d}".format, st.integers(0, 23), st.integers(0, 59))
windows = st.lists(
    st.fixed_dictionaries(
        {
            "days": st.lists(st.sampled_from(DAYS), min_size=1, max_size=7),
            "from": clocks,
            "to": st.one_of(clocks, st.just("24:00")),
            "limit": st.integers(0, 9).map(str),
        }
    ),
    max_size=3,
)


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def team(zone: ZoneInfo = BERLIN, **spec: object) -> Team:
    return Team.compile("nlp", "uid", convert(spec, TeamSpec), zone)


def with_windows(*windows: dict[str, object], zone: ZoneInfo = BERLIN, **pool: object) -> Team:
    given = {"pool": "a100", "guaranteed": "2", "limit": "4", **pool, "windows": list(windows)}
    return team(zone, pools=[given])


NIGHT = {"days": list(DAYS[:5]), "from": "20:00", "to": "06:00", "limit": "16"}
WEEKEND = {"days": ["Sat", "Sun"], "limit": "32", "guaranteed": "0"}


def test_a_night_that_begins_on_friday_ends_on_saturday_morning() -> None:
    made = with_windows(NIGHT, WEEKEND)
    for moment, limit in (
        ("2026-11-27T19:59:59+01:00", 4000),  # a Friday
        ("2026-11-27T20:00:00+01:00", 16_000),
        ("2026-11-28T05:59:59+01:00", 16_000),  # the first window that is open counts
        ("2026-11-28T06:00:00+01:00", 32_000),
        ("2026-11-29T23:59:59+01:00", 32_000),
        ("2026-11-30T00:00:00+01:00", 4000),  # Sunday's night is no weekday's
        ("2026-11-30T21:00:00+01:00", 16_000),
        ("2026-12-01T05:00:00+01:00", 16_000),
    ):
        assert made.limit("a100", at(moment)) == limit, moment
    assert made.quota("a100", at("2026-11-29T12:00:00+01:00")).guaranteed == 0
    assert made.quota("a100", at("2026-11-28T03:00:00+01:00")).guaranteed == 2000


def test_changes_are_announced_one_after_the_other() -> None:
    made = with_windows(NIGHT, WEEKEND)
    now, found = at("2026-11-27T12:00:00+01:00"), []
    for _ in range(6):
        now = made.next_change(now)
        found.append(datetime.fromtimestamp(now, BERLIN).strftime("%a %H:%M"))
    assert found == ["Fri 20:00", "Sat 00:00", "Sat 06:00", "Sun 00:00", "Mon 00:00", "Mon 20:00"]


def test_loans_end_with_a_change_and_only_in_their_pool() -> None:
    made = team(
        pools=[{"pool": "a100", "limit": "1"}, {"pool": "t4", "limit": "1"}],
        loans=[{"pool": "t4", "gpus": "1", "until": "2026-11-30"}],
    )
    end = at("2026-12-01T00:00:00+01:00")
    assert made.next_change(0) == made.next_change(0, "t4") == end
    assert made.next_change(end) == made.next_change(0, "a100") == inf
    assert team().next_change(0) == inf


def test_the_most_it_may_ever_hold_counts_windows_and_loans_to_come() -> None:
    made = team(
        pools=[{"pool": "a100", "limit": "4", "windows": [NIGHT]}, {"pool": "h100"}],
        loans=[{"pool": "a100", "gpus": "1", "until": "2026-11-30"}],
    )
    assert made.most("a100") == 17_000
    assert made.most("a100", at("2026-12-02T00:00:00+01:00")) == 16_000
    assert made.most("h100") is None
    assert made.most("t4") == 0


def test_it_is_foreseen_when_a_limit_comes_to_so_much() -> None:
    made = with_windows(NIGHT, WEEKEND)
    friday = at("2026-11-27T12:00:00+01:00")
    assert made.opens("a100", 4000, friday) == friday
    assert made.opens("a100", 16_000, friday) == at("2026-11-27T20:00:00+01:00")
    assert made.opens("a100", 20_000, friday) == at("2026-11-28T06:00:00+01:00")
    assert made.opens("a100", 40_000, friday) == inf
    assert made.opens("t4", 1, friday) == inf
    assert team().opens("a100", 10**9, friday) == friday


@pytest.mark.parametrize(
    ("day", "night_hours"), [("2026-03-28", 9), ("2026-10-24", 11), ("2026-06-05", 10)]
)
def test_nights_are_an_hour_shorter_or_longer_where_clocks_change(
    day: str, night_hours: int
) -> None:
    made = with_windows({"from": "20:00", "to": "06:00", "limit": "16"})
    opens = made.next_change(at(f"{day}T12:00:00+00:00"))
    assert made.next_change(opens) - opens == night_hours * HOUR


def test_a_window_that_clocks_jump_over_stays_shut_that_day() -> None:
    # On 29 March 2026 clocks go from 02:00 to 03:00.
    made = with_windows({"days": ["Sun"], "from": "02:15", "to": "02:45", "limit": "16"})
    assert made.next_change(at("2026-03-28T12:00:00+01:00")) == at("2026-04-05T02:15:00+02:00")
    half = with_windows({"days": ["Sun"], "from": "02:15", "to": "04:00", "limit": "16"})
    assert half.next_change(at("2026-03-28T12:00:00+01:00")) == at("2026-03-29T03:00:00+02:00")


@given(zones, st.dates(date(2000, 1, 1), date(2039, 12, 31)), st.integers(0, 1439))
def test_a_clock_time_is_when_clocks_first_show_it_or_more(
    zone: ZoneInfo, day: date, minutes: int
) -> None:
    wall = datetime(day.year, day.month, day.day, *divmod(minutes, 60))
    moment = clock_time(day, minutes, zone)

    def shown(seconds: float) -> datetime:
        return datetime.fromtimestamp(seconds, zone).replace(tzinfo=None)

    assert shown(moment) >= wall
    assert shown(moment - 1) < wall
    # Nor did they show it before, within as far as clocks are ever put back.
    for back in range(0, 5 * 3600, 600):
        assert shown(moment - 1 - back) < wall


@given(zones, windows, moments)
def test_nothing_changes_before_the_next_change(
    zone: ZoneInfo, listed: list[dict[str, object]], now: float
) -> None:
    made = with_windows(*listed, zone=zone, guaranteed="0")
    change = made.next_change(now)
    assert change > now
    if change == inf:
        assert not listed
        return
    assert change - now <= 16 * 24 * HOUR
    quota = made.quota("a100", now)
    for part in range(10):
        assert made.quota("a100", now + (change - 1 - now) * part / 10) == quota


@given(zones, windows.filter(bool), moments)
def test_a_window_is_open_while_the_clock_says_so(
    zone: ZoneInfo, listed: list[dict[str, object]], now: float
) -> None:
    made = with_windows(*listed, zone=zone, guaranteed="0")
    local = datetime.fromtimestamp(now, zone)
    offsets = {
        (local + timedelta(days=days)).replace(tzinfo=UTC).astimezone(zone).utcoffset()
        for days in range(-3, 4)
    }
    if len(offsets) > 1:  # where clocks are changed, an hour may come twice
        return
    clock, today = f"{local:%H:%M}", DAYS[local.weekday()]
    yesterday = DAYS[local.weekday() - 1]
    expected = 4000
    for window in reversed(listed):
        start, end, days = str(window["from"]), str(window["to"]), str(window["days"])
        if start < end:
            is_open = today in days and start <= clock < end
        else:
            is_open = (today in days and clock >= start) or (yesterday in days and clock < end)
        if is_open:
            expected = int(str(window["limit"])) * 1000
    assert made.limit("a100", now) == expected


def test_at_no_time_in_particular_the_usual_quota_holds() -> None:
    made = with_windows({"limit": "16"})
    assert made.quota("a100").limit == 4000
    assert made.limit("a100", inf) == 4000


def test_what_teams_keep_for_themselves_goes_by_the_time() -> None:
    made = with_windows({"from": "08:00", "to": "18:00", "lendable": "0"})
    index = TeamIndex.build([made], {})
    assert index.kept("a100", at("2026-11-30T12:00:00+01:00")) == [("nlp", 2000)]
    assert index.kept("a100", at("2026-11-30T20:00:00+01:00")) == []
    assert index.kept("t4", 0) == []


@pytest.mark.parametrize(
    ("window", "fault"),
    [
        ({"guaranteed": "6"}, r"spec\.pools\[0\]\.windows\[0\]\.limit: 4 is below guaranteed 6"),
        ({"limit": "1"}, "1 is below guaranteed 2"),
        ({"from": "24:00"}, r"windows\[0\]\.from: 24:00 is where a day ends"),
    ],
)
def test_a_window_that_contradicts_itself_is_refused(window: dict[str, object], fault: str) -> None:
    with pytest.raises(PolicyError, match=fault):
        with_windows(window)
