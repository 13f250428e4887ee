"""Order, pins and urgency count from the team's lead alone, and urgency so many times a week."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest_asyncio

from fairslice import stamps
from fairslice.lead_marks import NO_MARKS, Marks
from fairslice_queue.leads import Leads
from fairslice_queue.team_status import publish_team_status
from fairslice_sandbox.users import UserInfo

from .world import World, job, node, pod, policy, team, world

ANNA = UserInfo("anna", ("system:authenticated",))
BEN = UserInfo("ben", ("researchers", "system:authenticated"))
RBAC = "rbac.authorization.k8s.io"
WEEK = 7 * 86_400.0


@pytest_asyncio.fixture
async def box(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    """No GPUs, so that everything waits. Anna leads team cv; Ben may edit its work."""
    async with world(redis_url, tmp_path) as made:
        await made.create(policy())
        cv = team("cv")
        cv["spec"]["urgentPerWeek"] = 2
        await made.create(cv)
        await made.create(team("nlp"))
        await made.cluster.add_node(node(gpus=1))
        grant = {
            "leads": (["anna"], "fairslice.io", "teams/line", ["update"], ["cv"]),
            "edits": (["anna", "ben"], "batch", "jobs", ["patch", "get"], []),
            "pods": (["anna", "ben"], "", "pods", ["patch", "get"], []),
        }
        for name, (users, group, resource, verbs, names) in grant.items():
            rule: dict[str, Any] = {"apiGroups": [group], "resources": [resource], "verbs": verbs}
            if names:
                rule["resourceNames"] = names
            await rbac(made, name, rule, users)
        await made.start()
        await made.create(job("blocker", seconds=None), "nlp")
        await made.until(lambda: made.running() == {"blocker"})
        yield made
        made.check_alive()


async def rbac(box: World, name: str, rule: dict[str, Any], users: list[str]) -> None:
    for kind, body in (
        ("ClusterRole", {"rules": [rule]}),
        (
            "ClusterRoleBinding",
            {
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": RBAC, "kind": "User", "name": user} for user in users],
            },
        ),
    ):
        made = {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": {"name": name}, **body}
        await box.api.create(f"{kind.lower()}s.{RBAC}", "", made, user=UserInfo("root", MASTERS))


MASTERS = ("system:masters",)


async def annotate(box: World, name: str, user: UserInfo, kind: str = "Job", **marks: Any) -> None:
    notes = {f"fairslice.io/{key}": value for key, value in marks.items()}
    resource = "jobs.batch" if kind == "Job" else "pods"
    patch = json.dumps({"metadata": {"annotations": notes}}).encode()
    await box.api.patch(resource, "cv", name, patch, "application/merge-patch+json", user=user)


@asynccontextmanager
async def leads(box: World, clock: Callable[[], float] = time.time) -> AsyncIterator[Leads]:
    """Run what looks marks up, beside the leader whose watch and books it reads."""
    leader = box.leader
    assert leader is not None
    made = Leads(box.client, leader.watch, leader.standing, lambda: box.books, clock)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def counting(box: World, looked: Leads, name: str) -> Marks:
    booking = box.booking_of(name)
    assert booking is not None
    assert box.leader is not None
    return looked.marks(booking, box.leader.watch.annotations_of(booking.id))


def tokens(box: World) -> list[dict[str, str]]:
    found = (box.get("Team", "cv", "") or {}).get("status", {}).get("urgent", [])
    assert isinstance(found, list)
    return found


def told(box: World, looked: Leads, name: str, kind: str = "Job") -> str:
    counting(box, looked, name)  # as planning does, which is what has marks looked at
    return box.note(kind, name, "cv", stamps.MARKS_TOLD)


async def test_marks_count_from_the_lead_and_from_nobody_else(box: World) -> None:
    await box.create(job("train"), "cv")
    await box.until(lambda: box.booking_of("train"))
    async with leads(box) as looked:
        await annotate(box, "train", BEN, pin="true", order="-5")
        await box.until(
            lambda: counting(box, looked, "train") == NO_MARKS and told(box, looked, "train")
        )
        text = told(box, looked, "train")
        assert "pin does not count: ben may not update teams/line of team cv" in text
        await annotate(box, "train", ANNA, pin="yes", order="-4")
        await annotate(box, "train", ANNA, pin="true", order="-5")
        await box.until(lambda: counting(box, looked, "train") == Marks(-5, True, False))
        await box.until(lambda: told(box, looked, "train") == "order -5: counts, by anna; "
                        "pin true: counts, by anna")  # fmt: skip
        # What Ben then writes is his, and does not count.
        await annotate(box, "train", BEN, order="-9")
        await box.until(lambda: counting(box, looked, "train") == Marks(0, True, False))
        await annotate(box, "train", ANNA, pin=None, order=None)
        await box.until(lambda: counting(box, looked, "train") == NO_MARKS)
        await box.until(lambda: not told(box, looked, "train"))
    assert tokens(box) == []


async def test_an_urgent_token_is_spent_once_and_audited(box: World) -> None:
    await box.create(job("train"), "cv")
    await box.create(pod("nb"), "cv")
    await box.until(lambda: box.booking_of("train") and box.booking_of("nb"))
    async with leads(box) as looked:
        await annotate(box, "train", ANNA, urgent="true")
        await box.until(lambda: counting(box, looked, "train").urgent)
        await box.until(
            lambda: "1 of 2 tokens of team cv are left until" in told(box, looked, "train")
        )
        await annotate(box, "nb", ANNA, "Pod", urgent="true")
        await box.until(lambda: "0 of 2 tokens" in told(box, looked, "nb", "Pod"))
        # Off and on again costs nothing more.
        await annotate(box, "train", ANNA, urgent=None)
        await box.until(lambda: not counting(box, looked, "train").urgent)
        await annotate(box, "train", ANNA, urgent="true")
        await box.until(lambda: counting(box, looked, "train").urgent)
    spent = tokens(box)
    assert [(item["workload"], item["by"]) for item in spent] == [
        ("Job cv/train", "anna"), ("Pod cv/nb", "anna")]  # fmt: skip
    assert all(item["at"].endswith("+00:00") for item in spent)
    # A successor reads it off the team, and spends nothing.
    async with leads(box) as successor:
        assert not counting(box, successor, "train").urgent
        await box.until(lambda: counting(box, successor, "train").urgent)
    assert tokens(box) == spent
    await box.until(
        lambda: any(
            "urgent: counts, by anna; 0 of 2 tokens" in item["message"]
            for item in box.objects("Event", "cv")
            if item["reason"] == "Marked"
        )
    )


async def test_a_token_can_not_be_had_by_who_is_not_the_lead_nor_by_a_forged_stamp(
    box: World,
) -> None:
    await box.create(job("train"), "cv")
    await box.until(lambda: box.booking_of("train"))
    author = {stamps.URGENT: {"value": "true", "user": "anna"}}
    forged = {"metadata": {"annotations": {
        stamps.URGENT: "true", stamps.MARKED: json.dumps(author)}}}  # fmt: skip
    patch = json.dumps(forged).encode()
    async with leads(box) as looked:
        await box.api.patch(
            "jobs.batch", "cv", "train", patch, "application/merge-patch+json", user=BEN
        )
        await box.until(lambda: "ben may not update teams/line" in told(box, looked, "train"))
        assert counting(box, looked, "train") == NO_MARKS
    assert tokens(box) == []


async def test_of_two_who_ask_at_once_for_the_last_token_one_gets_it(box: World) -> None:
    names = ["a", "b", "c", "d"]
    for name in names:
        await box.create(job(name), "cv")
    await box.until(lambda: all(box.booking_of(name) for name in names))
    # Two leaders at once: one of them was deposed and hasn't heard of it yet.
    async with leads(box) as one, leads(box) as other:
        await asyncio.gather(*(annotate(box, name, ANNA, urgent="true") for name in names))
        await box.until(
            lambda: all(told(box, each, name) for each in (one, other) for name in names)
        )
        await box.until(
            lambda: all(counting(box, one, n) == counting(box, other, n) for n in names)
        )
        granted = [name for name in names if counting(box, one, name).urgent]
    assert len(granted) == 2
    assert sorted(item["workload"] for item in tokens(box)) == [f"Job cv/{n}" for n in granted]
    refused = next(name for name in names if name not in granted)
    text = box.note("Job", refused, "cv", stamps.MARKS_TOLD)
    assert "has spent its 2 tokens of this week; the next ones come" in text


async def test_a_new_week_brings_new_tokens_and_keeps_those_of_work_that_still_waits(
    box: World,
) -> None:
    now = [time.time()]
    for name in ("a", "b", "c"):
        await box.create(job(name), "cv")
    await box.until(lambda: all(box.booking_of(name) for name in "abc"))
    async with leads(box, lambda: now[0]) as looked:
        for name in ("a", "b"):
            await annotate(box, name, ANNA, urgent="true")
            await box.until(lambda name=name: counting(box, looked, name).urgent)  # type: ignore[misc]
        await box.delete("Job", "b", "cv")
        await box.until(lambda: box.booking_of("b") is None)
        now[0] += WEEK
        await annotate(box, "c", ANNA, urgent="true")
        await box.until(lambda: counting(box, looked, "c").urgent)
        assert counting(box, looked, "a").urgent
    assert [item["workload"] for item in tokens(box)] == ["Job cv/a", "Job cv/c"]


async def test_how_many_are_left_is_on_the_team_and_survives_other_writes(box: World) -> None:
    await box.create(job("train"), "cv")
    await box.until(lambda: box.booking_of("train"))
    leader = box.leader
    assert leader is not None
    publishing = asyncio.create_task(
        publish_team_status(box.client, leader.watch, lambda: box.books, leader.meter, time.time)
    )

    def left() -> int | None:
        return (box.get("Team", "cv", "") or {}).get("status", {}).get("urgentLeft")

    async with leads(box) as looked:
        await box.until(lambda: left() == 2)
        await annotate(box, "train", ANNA, urgent="true")
        await box.until(lambda: counting(box, looked, "train").urgent)
        await box.until(lambda: left() == 1)
    assert len(tokens(box)) == 1
    publishing.cancel()
    with suppress(asyncio.CancelledError):
        await publishing
