"""What is released and finds no node: back in line, and no room is kept for what can't run."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import json

from fairslice import stamps
from fairslice.booking import State
from fairslice_queue import reign
from fairslice_queue.reconcile import NOWHERE

from .world import World, job, node, pod, policy, team, world


def apart_from(app: str) -> dict[str, object]:
    """What the kube-scheduler minds, and the queue doesn't."""
    term = {
        "labelSelector": {"matchLabels": {"app": app}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


NO_NODE = apart_from("shy")


@pytest_asyncio.fixture
async def box(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    """A node of two GPUs; what finds no node in two seconds is taken back."""
    monkeypatch.setattr(reign, "_CHECK_SECONDS", 0.2)
    monkeypatch.setattr(reign, "_TICK_SECONDS", 0.1)
    async with world(redis_url, tmp_path) as made:
        await made.create(policy(startTimeout="2s"))
        await made.create(team("cv"))
        await made.create(team("nlp", limit=3))
        await made.cluster.add_node(node())
        await made.start()
        shy = pod("shy", gpus=0)
        shy["metadata"]["labels"] = {"app": "shy"}
        await made.create(shy, "nlp")
        await made.until(lambda: made.get("Pod", "shy", "nlp")["spec"].get("nodeName"))
        yield made
        made.check_alive()
        assert await made.audit() == []


def history(box: World, kind: str, name: str, namespace: str) -> dict[str, object]:
    text = box.note(kind, name, namespace, stamps.HISTORY)
    return dict(json.decode(text)) if text else {}


async def test_a_job_that_finds_no_node_is_back_in_line_and_leaves_its_room(box: World) -> None:
    lost = job("lost", gpus=2, seconds=None)
    lost["spec"]["template"]["spec"]["affinity"] = NO_NODE
    await box.create(lost, "nlp")
    await box.until(lambda: box.state_of("lost") is State.RELEASED)
    await box.create(job("next", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"shy", "next"}, 15.0)
    assert box.suspended() == {"lost"}
    text = await box.until(
        lambda: (t := box.note("Job", "lost", "nlp")).startswith("Queued: position 1 of 1") and t
    )
    assert "kept back until" in text
    assert "affinity" in text
    assert history(box, "Job", "lost", "nlp")["failed"] == 1
    events = await box.until(
        lambda: [e for e in box.objects("Event", "nlp") if e["reason"] == "FailedToStart"]
    )
    assert events[0]["involvedObject"]["name"] == "lost"


async def test_the_pause_doubles_from_one_failure_to_the_next(
    box: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairslice_queue.holding_back._FIRST_SECONDS", 0.5)
    lost = job("lost", gpus=2, seconds=None)
    lost["spec"]["template"]["spec"]["affinity"] = NO_NODE
    await box.create(lost, "nlp")

    def failed(times: int) -> bool:
        return history(box, "Job", "lost", "nlp").get("failed") == times

    await box.until(lambda: failed(1), 15.0)
    await box.until(lambda: failed(2), 15.0)
    assert box.leader is not None
    (until, _why) = box.leader.reign._reconciler.held_back[box.booking_of("lost").id]  # type: ignore[union-attr]
    assert until > 0


async def test_a_pod_that_asks_to_be_made_again_is_back_in_line_too(box: World) -> None:
    await box.create(pod("nb", gpus=2, restart=True, affinity=NO_NODE), "nlp")
    await box.create(job("next", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"shy", "next"}, 15.0)
    made = await box.until(
        lambda: (p := box.get("Pod", "nb", "nlp")) and p["spec"].get("schedulingGates") and p
    )
    assert made["metadata"]["annotations"][stamps.RESTARTS] == "1"
    past = history(box, "Pod", "nb", "nlp")
    assert (past["failed"], past["restarted"]) == (1, 1)
    await box.until(lambda: "kept back until" in box.note("Pod", "nb", "nlp"))
    await box.delete("Job", "next", "cv")
    # There is room again, but it has failed just now.
    await box.stays(lambda: box.state_of("nb") is State.QUEUED, 1.0)


async def test_a_pod_that_can_not_be_made_again_keeps_no_room_but_counts(box: World) -> None:
    await box.create(pod("stray", gpus=2, affinity=NO_NODE), "nlp")
    await box.until(lambda: box.state_of("stray") is State.RELEASED)
    await box.create(job("next", gpus=2, seconds=None), "cv")
    await box.until(lambda: box.running() == {"shy", "next"}, 15.0)
    booking = box.booking_of("stray")
    assert booking is not None
    assert (booking.state, booking.place) == (State.RELEASED, {NOWHERE: 1})
    await box.until(lambda: "no node takes this pod" in box.note("Pod", "stray", "nlp"))
    # It may come to run at any moment: what its team may hold is not given away.
    await box.create(job("more", gpus=2, seconds=None), "nlp")
    await box.until(lambda: "nlp" in box.note("Job", "more", "nlp"))
    assert "more" in box.suspended()
    await box.delete("Pod", "stray", "nlp", grace=0)
    await box.delete("Job", "next", "cv")
    await box.until(lambda: box.running() == {"shy", "more"})


async def test_the_ranks_of_one_run_go_back_together_and_others_go_on(box: World) -> None:
    apart = apart_from("ranks")
    ranks = job("ranks", pods=2, seconds=None, completionMode="Indexed")
    ranks["spec"]["template"]["spec"]["affinity"] = apart
    ranks["spec"]["template"]["metadata"]["labels"] = {"app": "ranks"}
    await box.create(ranks, "nlp")
    await box.until(lambda: box.running() == {"shy", "ranks"})
    # One of two runs: as a whole it does nothing, and another may use what it held.
    await box.until(lambda: "ranks" in box.suspended(), 15.0)
    await box.until(lambda: box.running() == {"shy"})
    plain = job("plain", pods=2, seconds=None)
    plain["spec"]["template"]["spec"]["affinity"] = apart
    plain["spec"]["template"]["metadata"]["labels"] = {"app": "ranks"}
    await box.create(plain, "cv")
    await box.until(lambda: box.running() == {"shy", "plain"})
    await box.create(job("next", seconds=None), "nlp")
    await box.until(lambda: box.running() == {"shy", "plain", "next"}, 15.0)
