"""What is seen of pods and workloads, by booking, and whom it wakes."""

from typing import Any

import pytest

from fairslice import stamps
from fairslice.booking import State
from fairslice.kube.reflector import Key
from fairslice.node_offers import NodeFacts
from fairslice.placement import PodNeeds
from fairslice_queue.books import Books
from fairslice_queue.facts import PodFacts
from fairslice_queue.sightings import Sightings

from .plans import booking
from .test_free_nodes import facts as node_facts
from .test_reconcile import pod as a_pod
from .test_reconcile import work


class Seen(Sightings):
    """One GPU node, `n1`; claims hold nothing."""

    def __init__(self) -> None:
        super().__init__()
        nodes = {name: node_facts(name) for name in ("n1", "cpu-1")}
        for name in nodes:
            self._free.node_changed(name)
        self._free.update(nodes, ())

    def _serves(self, node: NodeFacts) -> bool:
        return node.name == "n1"

    def _claims_devices(self, pod: PodFacts) -> bool:
        return False

    def woke(self) -> bool:
        was = self.changed.is_set()
        self.changed.clear()
        return was


def pod(name: str = "p", node: str = "n1", phase: str = "Running", **fields: Any) -> PodFacts:
    base = {"needs": PodNeeds(cpu_milli=1000), "booking": ""}
    return a_pod(name, node, phase, **{**base, **fields})


def bare(name: str = "p", **fields: Any) -> PodFacts:
    return pod(name, asks_gpus=True, **fields)


@pytest.fixture
async def seen() -> Seen:
    return Seen()


async def test_a_workload_is_found_by_its_stamp_until_it_is_gone(seen: Seen) -> None:
    facts = work(booking="b1", annotations={stamps.ORDER: "3"})
    seen.see_workload(None, facts)
    assert seen.workload_of("b1") is facts
    assert seen.annotations_of("b1") == {stamps.ORDER: "3"}
    assert seen.dirty == {"b1"}
    seen.see_workload(facts, None)
    assert seen.workload_of("b1") is None
    assert seen.is_gone(facts.uid)


async def test_a_copy_of_a_stamp_takes_nothing_with_it_when_it_goes(seen: Seen) -> None:
    copy = work(booking="b1", uid="copy", where=Key("cv", "copy"))
    first = work(booking="b1")
    seen.see_workload(None, copy)
    seen.see_workload(None, first)
    seen.see_workload(copy, None)
    assert seen.workload_of("b1") is first


async def test_our_own_line_on_a_workload_wakes_nobody(seen: Seen) -> None:
    facts = work(booking="b1")
    seen.see_workload(None, facts)
    seen.dirty.clear()
    assert seen.woke()
    told = work(booking="b1", annotations={stamps.STATUS: "Queued: 1st"})
    seen.see_workload(facts, told)
    assert not seen.woke()
    assert not seen.dirty
    assert seen.annotations_of("b1")[stamps.STATUS] == "Queued: 1st"


async def test_pods_without_gpus_wake_only_when_they_leave_a_node_with_gpus(seen: Seen) -> None:
    here, elsewhere = pod("here"), pod("elsewhere", node="cpu-1")
    for facts in (here, elsewhere):
        seen.see_pod(None, facts)
    assert not seen.woke()
    seen.see_pod(elsewhere, None)
    assert not seen.woke()
    seen.see_pod(here, pod("here", phase="Succeeded"))
    assert seen.woke()
    assert not seen.dirty


async def test_a_pod_is_filed_under_its_booking_and_its_group(seen: Seen) -> None:
    first = pod(booking="b1", group="PodGroup cv/g", group_size=2)
    seen.see_pod(None, first)
    moved = pod(booking="b2", group="PodGroup cv/g", group_size=2)
    seen.see_pod(first, moved)
    assert not seen.pods_of("b1")
    assert list(seen.pods_of("b2").values()) == [moved]
    assert seen.group_members("PodGroup cv/g") == (moved,)
    assert seen.dirty == {"b1", "b2"}
    seen.see_pod(moved, None)
    assert not seen.pods_of("b2")
    assert not seen.group_members("PodGroup cv/g")


async def test_a_pod_with_gpus_that_nobody_booked_is_a_stranger_until_it_ends(seen: Seen) -> None:
    facts = bare()
    seen.see_pod(None, facts)
    assert seen.strangers == {"p": "cv/p"}
    assert seen.stranger("p", "cv/p") is facts
    seen.strangers.clear()
    ended = bare(phase="Succeeded")
    seen.see_pod(facts, ended)
    assert seen.strangers == {"p": "cv/p"}
    assert seen.stranger("p", "cv/p") is None


async def test_disruption_is_news_once(seen: Seen) -> None:
    facts, hit = pod(booking="b1"), pod(booking="b1", disruption="DeletionByTaintManager")
    seen.see_pod(None, facts)
    seen.see_pod(facts, hit)
    assert seen.disrupted == {"b1": "DeletionByTaintManager"}
    seen.disrupted.clear()
    seen.see_pod(hit, pod(booking="b1", disruption="DeletionByTaintManager", phase="Failed"))
    assert not seen.disrupted
    assert seen.disrupted_pods == {"cv/p": "DeletionByTaintManager"}


async def test_a_replica_that_stands_by_collects_nothing_that_is_over(seen: Seen) -> None:
    books = Books([booking("b1", state=State.RUNNING)])
    for name in ("b1", "b2"):
        seen.see_pod(None, pod(name, booking=name, stamp=name))
        seen.see_pod(pod(name, booking=name, stamp=name), None)
    seen.see_pod(None, bare())
    seen.stand_by(books)
    assert not seen.dirty
    assert not seen.strangers
    assert seen.detached == {("b1", "b1")}
    assert [facts.name for facts in seen.strange_pods] == ["p"]


async def test_pods_of_a_booking_that_end_or_go_are_detached(seen: Seen) -> None:
    facts = pod(booking="b1", stamp="s1")
    seen.see_pod(None, facts)
    assert not seen.detached
    seen.see_pod(facts, pod(booking="b1", stamp="s1", phase="Failed"))
    assert seen.detached == {("b1", "s1")}
