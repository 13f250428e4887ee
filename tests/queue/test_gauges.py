"""What a scrape shows of the books."""

import asyncio
import time

from prometheus_client import CollectorRegistry

from fairslice.booking import State
from fairslice_queue.books import Books
from fairslice_queue.gauges import clear_gauges, set_gauges
from fairslice_queue.metrics import QueueMetrics
from fairslice_queue.pacing import paced
from fairslice_queue.usage import Meter

from .plans import booking
from .test_watching import TEAMS, Stub, team, watching


async def test_a_scrape_shows_who_waits_who_holds_and_what_teams_may() -> None:
    registry, meter = CollectorRegistry(), Meter(3600.0)
    metrics, now = QueueMetrics(registry), time.time()
    quota = {"pool": "a100", "guaranteed": "2", "limit": "4"}
    books = Books(
        [
            booking("a", "nlp", at=now - 60),
            booking("b", "nlp", at=now - 90),
            booking("c", "nlp", gpus=2, state=State.RUNNING, place={"n1": 1}),
        ]
    )
    async with watching(Stub(**{TEAMS: [team(pools=[quota])]})) as watch:
        await set_gauges(metrics, books, watch, meter, now)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"fairslice_{name}", {"team": "nlp", **labels})

    assert value("queue_pending", **{"class": "training"}) == 2
    assert value("queue_oldest_pending_seconds", **{"class": "training"}) == 90
    assert value("team_gpus_held", pool="a100") == 2
    assert value("team_gpus_guaranteed", pool="a100") == 2
    assert value("team_gpus_limit", pool="a100") == 4
    clear_gauges(metrics)
    assert value("queue_pending", **{"class": "training"}) is None
    assert value("team_gpus_held", pool="a100") is None


async def test_others_have_their_turn_while_much_is_gone_through() -> None:
    turns: list[int] = []

    async def other() -> None:
        while True:
            turns.append(len(seen))
            await asyncio.sleep(0)

    seen: list[int] = []
    task = asyncio.create_task(other())
    async for item in paced(range(10), 4):
        seen.append(item)  # noqa: PERF401 - the other looks at it meanwhile
    task.cancel()
    assert seen == list(range(10))
    assert turns == [4, 8]
