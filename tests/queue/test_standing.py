"""What is written on objects: the first twenty of each team, ten writes a second in all."""

import asyncio
import json
from itertools import pairwise
from typing import Any, cast

import pytest

from fairslice import stamps
from fairslice.kube.client import KubeClient, Unreachable
from fairslice_queue.standing import Standing, StandingLine

from .plans import booking


class _Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sleeping = asyncio.Event()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.sleeping.set()
        await _yield()


async def _yield() -> None:
    await asyncio.tasks.__sleep0()  # type: ignore[attr-defined]


class _Client:
    """Keeps what is written, and when."""

    def __init__(self, clock: _Clock) -> None:
        self.clock = clock
        self.patched: list[tuple[float, str, str]] = []
        self.events: list[tuple[float, Any]] = []
        self.away = False

    async def patch(self, path: str, body: Any, kind: str) -> bytes:
        if self.away:
            raise Unreachable("away")
        text = body["metadata"]["annotations"][stamps.STATUS]
        self.patched.append((self.clock.now, path.rpartition("/")[2], text))
        return b"{}"

    async def create(self, path: str, body: Any) -> bytes:
        json.dumps(body)
        self.events.append((self.clock.now, body))
        return b"{}"


async def _run(standing: Standing, seconds: float, monkeypatch: pytest.MonkeyPatch) -> _Client:
    client = _Client(_clock_of(standing))
    await _go_on(standing, client, seconds, monkeypatch)
    return client


def _clock_of(standing: Standing) -> _Clock:
    clock = standing._clock
    assert isinstance(clock, _Clock)
    return clock


async def _go_on(
    standing: Standing, client: _Client, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    until = client.clock.now + seconds
    with monkeypatch.context() as patch:
        patch.setattr("asyncio.sleep", client.clock.sleep)
        task = asyncio.create_task(standing.run(cast(KubeClient, client)))
        for _ in range(5000):
            if client.clock.now >= until or task.done():
                break
            await _yield()
        task.cancel()
        await asyncio.wait([task])


class _Line:
    """A line in which everybody waits for the same reason."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.shown = ""
        self.asked: list[int | None] = []

    def teams(self) -> list[str]:
        return ["cv"]

    def of_team(self, team: str, most: int | None = None) -> list[StandingLine]:
        self.asked.append(most)
        lines = [
            StandingLine(booking(name, team), number, len(self.names), "waits", self.shown)
            for number, name in enumerate(self.names, 1)
        ]
        return lines[:most]


def _round(standing: Standing, line: _Line, names: list[str]) -> None:
    for name in set(line.names) - set(names):
        standing.forget(name)
    line.names = names
    standing.changed(["cv"])


def _scene() -> tuple[Standing, _Line]:
    standing, line = Standing(_Clock()), _Line()
    standing.follow(line)
    return standing, line


async def test_the_first_twenty_are_told_ten_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    standing, line = _scene()
    _round(standing, line, [f"j{n:02}" for n in range(50)])
    client = await _run(standing, 20, monkeypatch)
    assert sorted(name for _, name, _ in client.patched) == [f"j{n:02}" for n in range(20)]
    for second in range(20):
        writes = [at for at, *_ in client.patched if at == second]
        writes += [at for at, _ in client.events if at == second]
        assert len(writes) <= 10
    assert "position 3 of 50 in team cv: waits" in client.patched[2][2]
    assert set(line.asked) == {20}  # nobody asks for the whole line in order to tell a part
    assert len(standing.of_team("cv")) == 50


async def test_nothing_is_written_twice_and_changes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    standing, line = _scene()
    _round(standing, line, ["a", "b"])
    client = await _run(standing, 3, monkeypatch)
    _round(standing, line, ["a", "b"])
    await _go_on(standing, client, 3, monkeypatch)
    assert len(client.patched) == 2
    _round(standing, line, ["b"])
    await _go_on(standing, client, 8, monkeypatch)
    assert [name for _, name, _ in client.patched] == ["a", "b", "b"]
    assert len(client.events) == 2


async def test_what_moves_all_the_time_is_told_every_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing, line = _scene()
    names = [f"j{n:02}" for n in range(30)]
    _round(standing, line, names)
    client = await _run(standing, 1, monkeypatch)
    while client.clock.now < 30:
        names = names[:-1]
        _round(standing, line, names)
        await _go_on(standing, client, 1, monkeypatch)
    first = [at for at, name, _ in client.patched if name == "j00"]
    # After what is told first, a correction; then now and then.
    assert all(later - earlier >= 5 for earlier, later in pairwise(first[1:]))
    assert len(first) >= 4
    # And nobody is left with a line that is no longer true.
    await _go_on(standing, client, 10, monkeypatch)
    told = {name: text for _, name, text in client.patched}
    assert f"position 1 of {len(names)} " in told["j00"]


async def test_who_comes_back_into_line_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    standing, line = _scene()
    _round(standing, line, ["a"])
    client = await _run(standing, 3, monkeypatch)
    _round(standing, line, [])
    _round(standing, line, ["a"])
    await _go_on(standing, client, 3, monkeypatch)
    assert [name for _, name, _ in client.patched] == ["a", "a"]


async def test_what_could_not_be_written_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    standing, line = _scene()
    _round(standing, line, ["a"])
    client = _Client(_clock_of(standing))
    client.away = True
    await _go_on(standing, client, 3, monkeypatch)
    client.away = False
    await _go_on(standing, client, 3, monkeypatch)
    assert [name for _, name, _ in client.patched] == ["a"]


async def test_what_an_earlier_leader_wrote_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing, line = _scene()
    line.shown = "Queued: position 1 of 1 in team cv: waits"
    _round(standing, line, ["a"])
    client = await _run(standing, 3, monkeypatch)
    assert (client.patched, client.events) == ([], [])


async def test_who_does_not_lead_knows_of_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    standing, line = _scene()
    _round(standing, line, ["a"])
    assert standing.line(booking("a")) is not None
    standing.follow(None)
    assert standing.line(booking("a")) is None
    assert standing.teams() == ()
    client = await _run(standing, 3, monkeypatch)
    assert client.patched == []


async def test_events_are_told_once_and_never_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing = Standing(_Clock())
    for number in range(2000):
        standing.tell(booking(f"j{number}"), "Preempted", "made room")
    client = await _run(standing, 60, monkeypatch)
    assert len(client.events) == 500
    assert client.events[-1][1]["involvedObject"]["name"] == "j1999"
    assert client.events[-1][1]["type"] == "Warning"
