"""What a team's status says: rights by the time, budgets and their forecast, tokens."""

from datetime import UTC, datetime
from typing import Any

from msgspec import convert

from fairslice.booking import State
from fairslice.policy import Policy, Team
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import TeamSpec, TeamStatus, UrgentStatus
from fairslice_queue.books import Books
from fairslice_queue.team_status import team_statuses
from fairslice_queue.usage import Meter

from .plans import booking, option

RULES = Policy.compile(
    convert(
        {
            "pools": [{"name": "a100", "products": ["A100"]}],
            "queue": {"timeZone": "Europe/Berlin"},
        },
        SharingPolicySpec,
    )
)


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


NOW = at("2026-11-30T12:00:00+01:00")  # a Monday


def status(now: float, *spent: UrgentStatus, since: float = 0.0, **spec: Any) -> TeamStatus:
    """The status of team cv, which has held two GPUs since a time."""
    pools = [{"pool": "a100", "guaranteed": "2", "limit": "4"}]
    made = Team.compile("cv", "", convert({"pools": pools, **spec}, TeamSpec), RULES.zone)
    books, meter = Books(), Meter(604_800.0)
    meter.spending.use_policy(RULES, since)
    if since:
        given = booking("x", options=(option(2),), state=State.RUNNING)
        books.put(given)
        meter.hold("cv", "a100", 2000, since)
    return team_statuses([made], RULES, books, meter, now, {"cv": spent})["cv"]


def test_rights_are_those_of_the_time_and_say_until_when() -> None:
    window = {"from": "20:00", "to": "06:00", "guaranteed": "0", "limit": "16"}
    pools = [{"pool": "a100", "guaranteed": "2", "limit": "4", "windows": [window]}]
    (by_day,) = status(NOW, pools=pools).pools
    assert (by_day.guaranteed, by_day.limit) == ("2", "4")
    assert by_day.until == "2026-11-30T20:00:00+01:00"
    (at_night,) = status(at("2026-11-30T23:00:00+01:00"), pools=pools).pools
    assert (at_night.guaranteed, at_night.limit) == ("0", "16")
    assert at_night.until == "2026-12-01T06:00:00+01:00"
    loan = {"pool": "a100", "gpus": "1", "until": "2026-11-30"}
    (lent,) = status(NOW, loans=[loan]).pools
    assert (lent.limit, lent.until) == ("5", "2026-12-01T00:00:00+01:00")
    assert status(NOW).pools[0].until == ""


def test_a_budget_says_what_is_spent_until_when_and_when_it_will_be_gone() -> None:
    spec = {"budgets": [{"gpuHours": 20, "period": "Daily"}]}
    (state,) = status(NOW, since=NOW - 2 * 3600, **spec).budgets
    assert state.budget == "20 GPU-hours a day"
    assert (state.spent, state.exhausted) == ("4.00", False)
    assert state.ends == "2026-12-01T00:00:00+01:00"
    assert state.forecast == "2026-11-30T20:00:00+01:00"
    (gone,) = status(NOW, since=NOW - 11 * 3600, **spec).budgets
    assert gone.exhausted
    assert gone.forecast == ""
    (enough,) = status(NOW, since=NOW - 3600, budgets=[{"gpuHours": 50, "period": "Daily"}]).budgets
    assert enough.forecast == ""


def test_tokens_left_are_those_of_the_week_in_the_policys_time_zone() -> None:
    monday = at("2026-11-30T00:00:00+01:00")

    def token(moment: float) -> UrgentStatus:
        return UrgentStatus(
            booking="b", at=datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
        )

    spent = (token(monday - 1), token(monday), token(NOW))
    assert status(NOW, *spent, urgentPerWeek=3).urgent_left == 1
    assert status(NOW, *spent, urgentPerWeek=1).urgent_left == 0
    assert status(NOW).urgent_left == 0
    assert status(monday - 1, *spent, urgentPerWeek=3).urgent == spent
