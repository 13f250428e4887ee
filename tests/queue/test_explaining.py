"""Why work stands where it does: the terms are those of the order, and the numbers add up."""

import math
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import json
from prometheus_client import CollectorRegistry

from fairslice import stamps
from fairslice.budgets import Stop
from fairslice.fairshare import PoolWeight
from fairslice.settings import Address
from fairslice.status_client import StatusUnavailable, fetch, print_rows
from fairslice.teams import TeamIndex
from fairslice_queue.explaining import Explanation, explain
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.order import Order, Waiting
from fairslice_queue.rights import Rights
from fairslice_queue.status_api import StatusApi

from .plans import NOW, Scene, node, policy, team
from .world import World, job, world
from .world import node as gpu_node
from .world import policy as rules
from .world import team as a_team

pools = st.dictionaries(st.sampled_from(["a100", "t4", "h100"]), st.floats(0, 1e12), max_size=3)
weights = st.fixed_dictionaries(
    {
        name: st.builds(
            PoolWeight,
            capacity=st.integers(1000, 64_000),
            rate_millionths=st.integers(1, 3_000_000),
        )
        for name in ("a100", "t4")
    }
)


def explained(
    state: Scene, use: dict[str, float], weighed: dict[str, PoolWeight]
) -> tuple[Explanation, Waiting, Order]:
    drawn = state.state()
    teams = TeamIndex.build(state.teams, {})
    item = drawn.waiting[0]
    owner = teams.named(item.booking.team)
    assert owner is not None
    rights = Rights(teams, drawn.tally, NOW, state.stops)
    told = explain(
        item, owner, state.policy, drawn.tally, rights, use, weighed, NOW, reason="waits"
    )
    share = next(term.value for term in told.terms if term.term == "share")
    assert isinstance(share, float)
    line = Order(state.policy, drawn.tally, lambda _: share, NOW, rights)
    return told, item, line


@given(pools, weights, st.integers(1, 5))
def test_the_terms_of_the_share_add_up_to_what_the_line_goes_by(
    use: dict[str, float], weighed: dict[str, PoolWeight], weight: int
) -> None:
    state = Scene([team("cv", weight=weight)], [node()])
    state.wait("x", at=NOW - 77)
    told, item, line = explained(state, use, weighed)
    parts = [
        item.used_gpu_hours / (item.capacity_gpus * item.horizon_hours) * item.rate
        for item in told.pools
    ]
    assert parts == [pytest.approx(item.part, rel=1e-9, abs=1e-15) for item in told.pools]
    terms = {term.term: term.value for term in told.terms}
    assert terms["share"] == pytest.approx(max(parts, default=0.0) / weight, abs=1e-9)
    key = line.key(item)
    assert (key.passes, key.borrowed, key.rank, key.share, key.queued_at, key.name) == (
        terms["passes"],
        terms["borrowed"],
        terms["class"],
        terms["share"],
        terms["queued at"],
        terms["name"],
    )


_SHARE = re.compile(
    r"(\S+): (\S+) GPU-hours \(decayed\) / \((\S+) GPUs × (\S+) h\) × rate (\S+) = (\S+), "
    r"/ weight (\d+)"
)
_HELD = re.compile(r"holds (\S+) \+ asks (\S+) = (\S+) of (\S+) guaranteed")


def printed(told: Explanation, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    """What `fairslice queue explain` shows: by term its value and how that came about."""
    capsys.readouterr()
    print_rows(json.decode(json.encode(told.terms)), "table", empty="")
    _, *lines = capsys.readouterr().out.splitlines()
    found = {}
    for line in lines:
        term, value, how = re.split(r"\s{2,}|(?<=\d) (?=\S)", line.strip(), maxsplit=2)
        found[term] = (value, how)
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(st.sampled_from(["a100", "t4", "h100"]), st.floats(0, 1e11), max_size=3),
    weights,
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(0, 6),
)
def test_what_is_printed_can_be_reckoned_again(
    capsys: pytest.CaptureFixture[str],
    use: dict[str, float],
    weighed: dict[str, PoolWeight],
    weight: int,
    held: int,
    asked: int,
    guaranteed: int,
) -> None:
    state = Scene([team("cv", weight=weight, guaranteed=guaranteed)], [node()])
    if held:
        state.hold("runs", pods=held)
    state.wait("x", pods=asked, at=NOW - 77)
    told, item, line = explained(state, use, weighed)
    rows = printed(told, capsys)
    key = line.key(item)
    match = _SHARE.fullmatch(rows["share"][1])
    if match is None:
        assert rows["share"] == ("0.0", "team cv has used nothing lately")
        assert not key.share
    else:
        hours, gpus, horizon, rate, part, over = (float(text) for text in match.groups()[1:])
        again = hours / (gpus * horizon) * rate
        assert part == pytest.approx(again, rel=2e-5, abs=1e-12)
        assert float(rows["share"][0]) == pytest.approx(again / over, rel=3e-5, abs=2e-9)
    holds, asks, both, most = map(float, _HELD.search(rows["borrowed"][1]).groups())  # type: ignore[union-attr]
    assert (holds, asks, both, most) == (held, asked, held + asked, guaranteed)
    assert rows["borrowed"][0] == str(int(both > most)) == str(key.borrowed)
    assert rows["class"] == ("1", "training, place 2 of 4 (0 is the best)")
    assert rows["passes"] == ("3", "ordinary")
    assert rows["queued at"][1].endswith(", 77 s ago")


def test_each_term_says_where_its_number_comes_from() -> None:
    state = Scene(
        [team("cv", guaranteed=2)],
        [node()],
        policy=policy(withinTeam="FairByUser"),
        orders={"x": -2},
    )
    state.hold("runs", pods=2)
    state.wait("x", pods=1, at=NOW - 60)
    horizon = 604_800 / math.log(2)
    use = {"a100": 8000 * horizon / 4}
    told, _, _ = explained(state, use, {"a100": PoolWeight(capacity=8000)})
    how = {term.term: (term.value, term.how) for term in told.terms}
    assert how["borrowed"] == (1, "a100: holds 2 + asks 1 = 3 of 2 guaranteed")
    assert how["share"][0] == 0.25
    assert "/ (8 GPUs × 242.373 h) × rate 1 = 0.25, / weight 1" in how["share"][1]
    assert how["order"][0] == -2
    assert how["user"] == (2.0, "GPUs held by ada; withinTeam is FairByUser")
    assert "60 s ago" in how["queued at"][1]
    assert how["waits for"] == (0, "waits")


def test_a_scavenger_is_told_so() -> None:
    state = Scene([team("cv", guaranteed=2)], [node()])
    state.stops = {"cv": (Stop("", True, NOW + 60, "gone"),)}
    state.wait("x")
    told, _, _ = explained(state, {}, {})
    how = {term.term: (term.value, term.how) for term in told.terms}
    assert how["passes"] == (4, "its team's budget is used up: after everybody else")
    assert how["borrowed"] == (1, "a100: holds 0 + asks 1 = 1 of 0 guaranteed")


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    async with world(redis_url, tmp_path) as made:
        await made.create(rules())
        await made.create(a_team("cv", guaranteed=1))
        await made.cluster.add_node(gpu_node())
        await made.start()
        yield made


async def test_the_status_api_explains_what_waits(box: World, unused_tcp_port: int) -> None:
    leader = box.leader
    assert leader is not None
    api = StatusApi(
        leader.watch,
        leader.mirror,
        leader.meter,
        leader.standing,
        QueueMetrics(CollectorRegistry()),
        CollectorRegistry(),
        box.ledger,
        leads=lambda: True,
        marks=leader.leads,
    )
    await box.create(job("big", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"big"})
    await box.create(job("next", annotations={stamps.ORDER: "4"}), "cv")
    await box.until(lambda: box.note("Job", "next", "cv"))
    await box.until(lambda: box.note("Job", "next", "cv", stamps.MARKS_TOLD))
    await box.create(job("before"), "cv")
    await box.until(lambda: "position 2" in box.note("Job", "next", "cv"))
    async with api.serving(Address("127.0.0.1", unused_tcp_port)):
        url = f"http://127.0.0.1:{unused_tcp_port}"
        rows = {row["term"]: row for row in await fetch(url, "/explain/cv/next")}
        assert rows["order"]["value"] == 4
        assert rows["borrowed"]["how"] == "default: holds 2 + asks 1 = 3 of 1 guaranteed"
        assert rows["share"]["value"] > 0
        assert rows["behind"]["value"] == "Job cv/before"
        assert rows["behind"]["how"] == "which goes first by the order that the team's lead gave"
        assert rows["waits for"]["value"] == 2
        first = {row["term"]: row for row in await fetch(url, "/explain/cv/before")}
        assert "behind" not in first
        with pytest.raises(StatusUnavailable, match="not in line"):
            await fetch(url, "/explain/cv/big")
        with pytest.raises(StatusUnavailable, match="no workload cv/none"):
            await fetch(url, "/explain/cv/none")
