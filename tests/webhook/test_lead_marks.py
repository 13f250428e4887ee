"""Who wrote the lead's marks is stamped by admission, and by nobody else."""

from copy import deepcopy
from typing import Any

import pytest

from fairslice import stamps
from fairslice.lead_marks import authors

from .conftest import MakeCluster
from .scene import QUEUE, Cluster, Verdict, job, notebook

PIN, URGENT, ORDER, MARKED = stamps.PIN, stamps.URGENT, stamps.ORDER, stamps.MARKED


def written_by(done: Verdict) -> dict[str, str]:
    return {key: author.user for key, author in authors(done.annotations).items()}


async def annotate(place: Cluster, stored: Verdict, user: str, **notes: str | None) -> Verdict:
    names = {"pin": PIN, "urgent": URGENT, "order": ORDER, "marked": MARKED}
    new = deepcopy(stored.obj)
    for name, value in notes.items():
        found = new["metadata"].setdefault("annotations", {})
        if value is None:
            found.pop(names[name], None)
        else:
            found[names[name]] = value
    return await place.update(new, stored.obj, user)


@pytest.mark.parametrize("make", [job, notebook])
async def test_whoever_writes_a_mark_is_its_author(cluster: MakeCluster, make: Any) -> None:
    place = await cluster()
    stored = await place.create(make())
    assert MARKED not in stored.annotations
    pinned = await annotate(place, stored, "anna", pin="true")
    assert written_by(pinned) == {PIN: "anna"}
    assert any("count from those who may update teams/line" in text for text in pinned.warnings)
    both = await annotate(place, pinned, "ben", urgent="true", order="-1")
    assert written_by(both) == {PIN: "anna", URGENT: "ben", ORDER: "ben"}
    mine = await annotate(place, both, "ben", pin="1")
    assert written_by(mine)[PIN] == "ben"
    less = await annotate(place, both, "ben", urgent=None, order=None)
    assert written_by(less) == {PIN: "anna"}
    none = await annotate(place, less, "ben", pin=None)
    assert MARKED not in none.annotations
    assert not none.warnings


async def test_a_mark_in_a_manifest_is_its_submitters(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(job(metadata={"annotations": {ORDER: "3"}}), "anna")
    assert written_by(stored) == {ORDER: "anna"}


@pytest.mark.parametrize("make", [job, notebook])
async def test_an_author_can_not_be_forged(cluster: MakeCluster, make: Any) -> None:
    place = await cluster()
    marked = await annotate(place, await place.create(make()), "anna", urgent="true")
    lie = marked.annotations[MARKED]
    made = make("forged")
    made["metadata"]["annotations"] = {URGENT: "true", MARKED: lie}
    stored = await place.create(made, "ben")
    assert written_by(stored) == {URGENT: "ben"}
    plain = await place.create(make("plain"))
    forged = await annotate(place, plain, "ben", urgent="true", marked=lie)
    assert written_by(forged) == {URGENT: "ben"}
    assert MARKED not in (await annotate(place, plain, "ben", marked=lie)).annotations


async def test_what_the_queue_makes_anew_keeps_its_authors(cluster: MakeCluster) -> None:
    place = await cluster()
    marked = await annotate(place, await place.create(job()), "anna", pin="true")
    notes = {PIN: "true", MARKED: marked.annotations[MARKED]}
    again = await place.create(job("again", metadata={"annotations": notes}), QUEUE)
    assert written_by(again) == {PIN: "anna"}
