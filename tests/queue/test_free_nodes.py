"""What is free, kept up to date step by step, is what it comes to when computed from nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fairslice.booking import Booking, Option, State
from fairslice.devices import Offer
from fairslice.node_offers import NodeFacts
from fairslice.placement import NodeState, Placement, PodNeeds, place
from fairslice.v1alpha1.policy import SharingMode
from fairslice_queue.books import Books
from fairslice_queue.free_nodes import FreeNodes

from .plans import GPU, SLICE, WHOLES, booking, option

NODES = ("n1", "n2", "n3")
BOOKINGS = ("b1", "b2", "b3", "b4")
OPTIONS = (option(1), option(2), option(resource=SLICE, milli=143))
NEEDS = (
    PodNeeds(cpu_milli=1000, memory=2**30),
    PodNeeds(cpu_milli=4000, extended={"rdma/hca": 1}),
    PodNeeds(node_selector={"zone": "a"}),
)


@dataclass(frozen=True)
class Pod:
    node: str
    ended: bool
    needs: PodNeeds


def facts(name: str, gpus: int = 8, **fields: Any) -> NodeFacts:
    def offer(resource: str) -> Offer:
        return Offer(
            pool="a100",
            product="A100",
            resource=resource,
            mode=SharingMode.WHOLE,
            milli=1000,
            memory_mib=0,
            size_gb=0,
            isolated=True,
        )

    base: dict[str, Any] = {
        "labels": {"zone": "a" if name == "n1" else "b"},
        "in_service": True,
        "cpu_milli": 16_000,
        "pods": 20,
        "extended": {"rdma/hca": 2},
        "shares": ((offer(GPU), gpus), (offer(SLICE), 7)),
    }
    return NodeFacts(
        name=name, pool="a100", product="A100", taints=(), memory=2**40, **{**base, **fields}
    )


@dataclass
class Cluster:
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    pods: dict[str, dict[str, Pod]] = field(default_factory=dict)
    needs: dict[str, PodNeeds] = field(default_factory=dict)
    books: Books = field(default_factory=Books)
    touched: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.free = FreeNodes(
            self.needs.get,
            lambda name: self.pods.get(name, {}).values(),
            lambda node: bool(node.shares),
        )
        self.books.take_changed()

    def node(self, name: str, found: NodeFacts | None) -> None:
        if found is None:
            self.nodes.pop(name, None)
        else:
            self.nodes[name] = found
        self.free.node_changed(name)

    def pod(self, owner: str, key: str, pod: Pod | None) -> None:
        before = self.pods.setdefault(owner, {}).pop(key, None)
        if before is not None and before.node and not before.ended:
            self.free.pod_left(before.node, before.needs)
        if pod is not None:
            self.pods[owner][key] = pod
            if pod.node and not pod.ended:
                self.free.pod_came(pod.node, pod.needs)
        self.touched.add(owner)

    def change_needs(self, owner: str, needs: PodNeeds) -> None:
        self.needs[owner] = needs
        self.touched.add(owner)

    def update(self) -> set[str]:
        changed = (self.books.take_changed() or set()) | self.touched
        self.touched = set()
        return set(self.free.update(self.nodes, [(name, self.books.get(name)) for name in changed]))

    def from_nothing(self) -> dict[str, NodeState]:
        nodes = {
            name: item.state()
            for name, item in self.nodes.items()
            if item.in_service and item.shares
        }
        for pods in self.pods.values():
            for pod in pods.values():
                if pod.node in nodes and not pod.ended:
                    nodes[pod.node].take(pod.needs, {}, 1)
        homeless: list[tuple[Booking, Option, int]] = []
        for item in self.books.holding():
            given = item.option
            assert given is not None
            for name, count in item.place.items():
                if name not in nodes:
                    continue
                nodes[name].take(PodNeeds(), given.offers, count)
                nodes[name].pods += count
                seen = [pod for pod in self.pods.get(item.id, {}).values() if not pod.ended]
                unseen = count - sum(1 for pod in seen if pod.node == name)
                if unseen > 0:
                    nodes[name].take(self.needs.get(item.id, PodNeeds()), {}, unseen)
            if sum(item.place.values()) < item.pods:
                homeless.append((item, given, item.pods - sum(item.place.values())))
        for item, given, count in sorted(homeless, key=lambda each: each[0].id):
            needs = self.needs.get(item.id, PodNeeds())
            fit = place(count, needs, [given], nodes.values())
            if isinstance(fit, Placement):
                for name, pods in fit.place.items():
                    nodes[name].take(needs, given.offers, pods)
        return nodes


def plain(nodes: Mapping[str, NodeState]) -> dict[str, NodeState]:
    """Without the amounts of nothing that a node doesn't have by itself."""
    return {
        name: structs.replace(
            node,
            units={key: amount for key, amount in node.units.items() if amount},
            extended={key: amount for key, amount in node.extended.items() if amount},
        )
        for name, node in nodes.items()
    }


names, owners = st.sampled_from(NODES), st.sampled_from(BOOKINGS)
node_facts = st.builds(
    lambda name, gpus, ready: facts(
        name, gpus, in_service=ready, **({} if gpus else {"shares": ()})
    ),
    names,
    st.sampled_from([0, 4, 8]),
    st.booleans(),
)
pods = st.builds(Pod, st.sampled_from(("", *NODES)), st.booleans(), st.sampled_from(NEEDS))
bookings = st.builds(
    lambda name, given, pods, where, state: booking(
        name, options=[given], pods=pods, place=where if state.holds else {}, state=state
    ),
    owners,
    st.sampled_from(OPTIONS),
    st.integers(1, 4),
    st.dictionaries(st.sampled_from((*NODES, "away")), st.integers(1, 2), max_size=2),
    st.sampled_from([State.QUEUED, State.RELEASED, State.RUNNING, State.PREEMPTED]),
)
events = st.one_of(
    st.tuples(st.just("node"), node_facts),
    st.tuples(st.just("no node"), names),
    st.tuples(st.just("pod"), owners, st.sampled_from(["p", "q"]), st.none() | pods),
    st.tuples(st.just("needs"), owners, st.sampled_from(NEEDS)),
    st.tuples(st.just("put"), bookings),
    st.tuples(st.just("drop"), owners),
    st.tuples(st.just("look")),
)


def happen(cluster: Cluster, event: tuple[Any, ...]) -> None:
    match event:
        case ("node", found):
            cluster.node(found.name, found)
        case ("no node", name):
            cluster.node(name, None)
        case ("pod", owner, key, pod):
            cluster.pod(owner, key, pod)
        case ("needs", owner, needs):
            cluster.change_needs(owner, needs)
        case ("put", item):
            cluster.books.put(item)
        case ("drop", owner):
            cluster.books.drop(owner)


def looked(cluster: Cluster, known: dict[str, NodeState]) -> None:
    """Bring up to date: all is as computed from nothing, and just what differs is named."""
    was = plain(known)
    changed = cluster.update()
    now = plain(cluster.free.nodes)
    assert now == plain(cluster.from_nothing())
    assert {name for name in was | now if was.get(name) != now.get(name)} <= changed
    for name, node in cluster.free.nodes.items():
        if name in known and name not in changed:
            assert node is known[name]
    known.clear()
    known.update(cluster.free.nodes)


@settings(max_examples=200, deadline=None)
@given(st.lists(events, max_size=30))
def test_what_is_free_is_the_same_step_by_step_as_from_nothing(sequence: list[Any]) -> None:
    cluster = Cluster()
    for name in NODES:
        cluster.node(name, facts(name))
    known: dict[str, NodeState] = {}
    looked(cluster, known)
    for event in [*sequence, ("look",)]:
        if event == ("look",):
            looked(cluster, known)
        else:
            happen(cluster, event)


def test_only_the_nodes_that_an_event_concerns_are_named() -> None:
    cluster = Cluster()
    for name in NODES:
        cluster.node(name, facts(name))
    assert cluster.update() == set(NODES)
    cluster.books.put(booking("b1", options=[option(2)], state=State.RUNNING, place={"n2": 1}))
    assert cluster.update() == {"n2"}
    assert cluster.free.nodes["n2"].units[WHOLES] == 6
    assert cluster.update() == set()


def test_a_state_handed_out_is_never_changed() -> None:
    cluster = Cluster()
    cluster.node("n1", facts("n1"))
    cluster.update()
    before = cluster.free.nodes["n1"]
    cluster.pod("b1", "p", Pod("n1", False, NEEDS[0]))
    cluster.update()
    assert before.cpu_milli == 16_000
    assert cluster.free.nodes["n1"].cpu_milli == 15_000


def test_room_is_set_aside_for_what_has_no_place_until_it_has() -> None:
    cluster = Cluster()
    for name in NODES:
        cluster.node(name, facts(name))
    waits = booking("b1", options=[option(2)], state=State.RELEASED)
    cluster.books.put(waits)
    cluster.update()
    assert sum(node.units[WHOLES] for node in cluster.free.nodes.values()) == 22
    cluster.books.put(structs.replace(waits, place={"n3": 1}))
    cluster.update()
    assert [cluster.free.nodes[name].units[WHOLES] for name in NODES] == [8, 8, 6]


def test_a_node_that_comes_back_has_taken_what_runs_there() -> None:
    cluster = Cluster()
    cluster.node("n1", facts("n1"))
    cluster.books.put(booking("b1", options=[option(2)], state=State.RUNNING, place={"n1": 1}))
    cluster.update()
    cluster.node("n1", facts("n1", in_service=False))
    assert cluster.update() == {"n1"}
    assert "n1" not in cluster.free.nodes
    cluster.node("n1", facts("n1"))
    cluster.update()
    assert cluster.free.nodes["n1"].units[WHOLES] == 6
