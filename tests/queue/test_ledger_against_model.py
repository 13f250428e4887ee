"""Random histories: the ledger does what a plain model does, and its totals never drift."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fairslice.booking import Booking, Option, Ref, State
from fairslice.redis_connection import RedisConnection
from fairslice.redis_embedded import EmbeddedRedis
from fairslice_queue.ledger import (
    LINGERS,
    BookingTaken,
    BookRequest,
    Keep,
    Ledger,
    LedgerUnavailable,
    Lending,
    Limits,
    ReleaseOrder,
    StaleEpoch,
)

from .books import NOW, POOL, PRODUCT, SLICE, WHOLE, option
from .ledger_model import Entry, Model

T = TypeVar("T")

TWO_KINDS = Option(pool=POOL, product=PRODUCT, mode="mig", milli=1125, units={WHOLE: 1, SLICE: 1})
OPTIONS = st.sampled_from(
    [
        (option(),),
        (option(),),
        (option(units=2),),
        (option(SLICE, 125), option()),
        (option(), option(pool="t4")),
        (TWO_KINDS, option(SLICE, 250)),
    ]
)
POOLS = [
    {POOL: None, "t4": None},
    {POOL: None, "t4": None},
    {POOL: 2000, "t4": 1000},
    {POOL: 3000, "t4": None},
    {POOL: 4000},
]
CAPS = st.builds(
    Limits,
    pools=st.sampled_from(POOLS),
    work_class=st.sampled_from([None, None, None, 3000]),
    user=st.sampled_from([None, None, None, 2500]),
    resources=st.sampled_from([{}, {}, {}, {WHOLE: 3}]),
    surge=st.sampled_from([0, 1000, 2000]),
    guaranteed=st.sampled_from([{}, {}, {POOL: 0}, {POOL: 1000, "t4": 1000}, {POOL: 2000}]),
)
OFFERS = tuple(f"{pool}|{PRODUCT}|{name}" for pool in (POOL, "t4") for name in (WHOLE, SLICE))
NODES = st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 5))
CAPACITY = st.builds(
    lambda wholes, others: {OFFERS[0]: wholes, **others},
    st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(2, 5), min_size=2),
    st.dictionaries(st.sampled_from(OFFERS[1:]), NODES),
)
KEPT = st.dictionaries(st.sampled_from(["cv", "nlp", "nlp"]), st.sampled_from([500, 1000, 3000]))
LENDING = st.dictionaries(
    st.sampled_from([POOL, POOL, "t4"]),
    st.builds(Lending, capacity=st.sampled_from([3000, 6000, 9000]), kept=KEPT),
)
IDS = st.sampled_from([f"b{n}" for n in range(8)])
PODS = st.sampled_from(["p1", "p2"])
PLACES = st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 2), max_size=2)


def _team_of(identity: str) -> str:
    return "cv" if identity < "b6" else "nlp"


@st.composite
def asks(draw: st.DrawFn) -> Booking:
    """A booking whose id tells its team: ids are random, two teams never share one."""
    identity = draw(IDS)
    group = draw(st.sampled_from(["", "Deployment ns/web", "Deployment ns/web"]))
    return Booking(
        id=identity,
        ref=Ref(
            kind="Pod", namespace=_team_of(identity), name=draw(st.sampled_from(["", "x", "y"]))
        ),
        team=_team_of(identity),
        work_class=draw(st.sampled_from(["production", "training"])),
        rank=draw(st.sampled_from([2, 1, 1, 0, 0, 0])),
        user=draw(st.sampled_from(["ada", "bob"])),
        state=State.QUEUED,
        pods=draw(st.sampled_from([0, 1, 1, 1, 2, 3])),
        options=draw(OPTIONS),
        group=group,
        group_revision=draw(st.sampled_from(["", "v1", "v2", "v1", "v2"])) if group else "",
    )


class LedgerMachine(RuleBasedStateMachine):
    """Does the same to the ledger and to the model."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.redis = self.run(self._connect(url))
        self.ledger = Ledger(self.redis)
        self.model = Model({})
        self.now = NOW
        self.epoch = 0
        self.caps = Limits(pools={})
        self.last: BookRequest | None = None
        self.mirror: dict[str, Booking] = {}
        self.position = ""

    async def _connect(self, url: str) -> RedisConnection:
        redis = RedisConnection.parse(url, call_seconds=5.0)
        await redis.call(lambda client: client.flushall())
        return redis

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coroutine)

    def teardown(self) -> None:
        self.run(self.redis.aclose())
        self.runner.close()

    def pick(self, data: st.DataObject, wanted: Callable[[Entry], bool]) -> str:
        """Choose a booking, mostly one for which something can happen."""
        names = sorted(name for name, entry in self.model.entries.items() if wanted(entry))
        mostly: int = data.draw(st.integers(0, 9))
        return data.draw(st.sampled_from(names) if names and mostly else IDS)

    @initialize(capacity=CAPACITY, caps=CAPS)
    def open(self, capacity: dict[str, dict[str, int]], caps: Limits) -> None:
        self.caps = caps
        self.epoch = self.run(self.ledger.lead())
        self.model.capacity = capacity
        self.run(self.ledger.rebuild(self.epoch, [], capacity))

    @rule(
        asked=asks(),
        start=st.sampled_from([True, True, True, True, False]),
        overflow=st.booleans(),
        capacity=st.sampled_from([True, True, True, False]),
        most=st.sampled_from([200, 200, 200, 2]),
        fewer=st.booleans(),
        passes=st.booleans(),
    )
    def book(
        self,
        asked: Booking,
        start: bool,
        overflow: bool,
        capacity: bool,
        most: int,
        fewer: bool,
        passes: bool,
    ) -> None:
        self.last = BookRequest(
            booking=asked,
            limits=self.caps,
            now=self.now,
            start=start,
            overflow_queue=overflow,
            capacity=capacity,
            max_tentative=most,
            passes_all=passes,
            queued_options=asked.options[-1:] if fewer else None,
        )
        self._book(self.last)

    def _book(self, request: BookRequest) -> None:
        try:
            outcome = self.run(self.ledger.book(request))
        except BookingTaken:
            self.model.check_taken(request)
        else:
            self.model.check_book(request, outcome)

    @rule(asked=asks())
    def book_and_bind(self, asked: Booking) -> None:
        """The usual way; several rules would rarely make it."""
        asked = msgspec.structs.replace(
            asked, ref=msgspec.structs.replace(asked.ref, name="", generate_name="g-")
        )
        self._book(BookRequest(booking=asked, limits=self.caps, now=self.now))
        entry = self.model.entries.get(asked.id)
        if entry and not entry.bound and entry.asked.ref.generate_name:
            self._bind(asked.id, "u1")

    @precondition(lambda self: self.last is not None)
    @rule()
    def replay(self) -> None:
        assert self.last is not None
        self._book(msgspec.structs.replace(self.last, now=self.now))

    @rule(caps=CAPS)
    def change_caps(self, caps: Limits) -> None:
        self.caps = caps

    @rule(surge=st.sampled_from([0, 1000, 2000]))
    def let_caps_be_just_reached(self, surge: int) -> None:
        pools: dict[str, int | None] = {
            pool: self.model.used("cv", pool=pool) for pool in (POOL, "t4")
        }
        self.caps = Limits(pools=pools, surge=surge)

    @rule()
    def let_nodes_be_just_full(self) -> None:
        full = {offer: {"n1": 0, "n2": 0, "n3": 0} for offer in OFFERS}
        for offer, nodes in full.items():
            for node, free in self.model.free(offer).items():
                nodes[node] = self.model.capacity[offer][node] - free
        self.publish_these(full)

    @rule(data=st.data(), uid=st.sampled_from(["u1", "u1", "u2"]))
    def bind(self, data: st.DataObject, uid: str) -> None:
        self._bind(self.pick(data, lambda entry: not entry.bound), uid)

    def _bind(self, identity: str, uid: str) -> None:
        entry = self.model.entries.get(identity)
        name = (entry.name if entry else "") or "generated"
        done = self.run(
            self.ledger.bind(
                identity,
                namespace=_team_of(identity),
                kind="Pod",
                name=name,
                uid=identity + uid,
            )
        )
        if entry is None or entry.lingers:
            assert done is None
        elif not entry.bound:
            assert done is not None
            self.model.entries[identity] = replace(
                entry,
                bound=True,
                expires=0.0,
                name=name,
                asked=msgspec.structs.replace(
                    entry.asked, ref=msgspec.structs.replace(entry.asked.ref, uid=identity + uid)
                ),
            )
        else:
            assert (done is not None) is (entry.asked.ref.uid == identity + uid)
            if done is not None:
                self.model.entries[identity] = replace(entry, name=name)

    @rule(data=st.data(), pod=PODS)
    def attach(self, data: st.DataObject, pod: str) -> None:
        identity = self.pick(data, lambda entry: entry.holds)
        entry = self.model.entries.get(identity)
        team = _team_of(identity)
        answer = self.run(
            self.ledger.attach(identity, owner_uid="", team=team, pod=pod, now=self.now)
        )
        if entry is None or entry.lingers:
            assert answer.cause == "gone"
            return
        if not entry.holds or entry.state is State.PREEMPTED:
            assert answer.cause == "state"
            return
        seats = self.model.seats.setdefault(identity, {})
        if pod not in seats and len(seats) >= entry.pods:
            alive = {s: until for s, until in seats.items() if until is None or until > self.now}
            if len(alive) >= entry.pods:
                assert answer.cause == "count"
                return
            seats = self.model.seats[identity] = alive
        assert answer.accepted
        assert answer.option == entry.option
        if seats.get(pod, 0.0) is not None:
            seats[pod] = self.now + 10

    @rule(data=st.data(), pod=PODS)
    def bind_pod(self, data: st.DataObject, pod: str) -> None:
        identity = self.pick(data, lambda entry: entry.asked.id in self.model.seats)
        seats = self.model.seats.get(identity, {})
        done = self.run(self.ledger.bind_pod(identity, pod=pod, uid=pod, name=pod))
        assert done is (pod in seats)
        if done:
            seats[pod] = None

    @rule(data=st.data(), pod=PODS)
    def detach(self, data: st.DataObject, pod: str) -> None:
        identity = self.pick(data, lambda entry: entry.asked.id in self.model.seats)
        seats = self.model.seats.get(identity, {})
        assert self.run(self.ledger.detach(self.epoch, identity, pod=pod)) is (pod in seats)
        seats.pop(pod, None)

    @rule(data=st.data(), place=PLACES, last=st.booleans())
    def release(self, data: st.DataObject, place: dict[str, int], last: bool) -> None:
        identity = self.pick(data, lambda entry: not entry.holds)
        entry = self.model.entries.get(identity)
        chosen = len(entry.asked.options) - 1 if entry and last else 0
        if entry and sum(place.values()) > entry.pods:
            place = {}
        self._release([ReleaseOrder(id=identity, chosen=chosen, place=place, limits=self.caps)])

    def _release(self, orders: list[ReleaseOrder]) -> None:
        outcomes = self.run(self.ledger.release_many(self.epoch, orders, self.now))
        self.model.check_releases(orders, outcomes)

    @rule(data=st.data(), groups=st.lists(st.sampled_from(["", "g", "h"]), max_size=4))
    def release_several(self, data: st.DataObject, groups: list[str]) -> None:
        orders = [
            ReleaseOrder(
                id=self.pick(data, lambda entry: not entry.holds),
                chosen=0,
                place={data.draw(st.sampled_from(["n1", "n2", "n3"])): 1},
                limits=self.caps,
                group=group,
            )
            for group in groups
        ]
        self._release(orders)

    @rule(
        data=st.data(),
        state=st.sampled_from([State.RELEASED, State.RUNNING, State.PREEMPTED]),
        pods=st.integers(0, 4),
        place=PLACES,
    )
    def settle(self, data: st.DataObject, state: State, pods: int, place: dict[str, int]) -> None:
        identity = self.pick(data, lambda entry: entry.holds)
        done = self.run(
            self.ledger.settle(
                self.epoch, identity, state=state, pods=pods, place=place, now=self.now
            )
        )
        entry = self.model.entries.get(identity)
        assert done is (entry is not None and entry.holds and not entry.lingers)
        if done and entry:
            self.model.entries[identity] = replace(entry, state=state, pods=pods, place=place)
            self.model.promote(entry.asked.team)

    @rule(
        data=st.data(),
        state=st.sampled_from([State.QUEUED, State.HELD, State.PREEMPTED]),
        pods=st.integers(0, 3),
    )
    def requeue(self, data: st.DataObject, state: State, pods: int) -> None:
        identity = self.pick(data, lambda entry: entry.holds)
        done = self.run(
            self.ledger.requeue(
                self.epoch, identity, state=state, pods=pods, reason="why", now=self.now
            )
        )
        entry = self.model.entries.get(identity)
        assert done is (entry is not None and not entry.lingers)
        if done and entry:
            self.model.entries[identity] = replace(
                entry,
                state=state,
                pods=pods,
                chosen=-1,
                place={},
                surge=False,
                caps=None,
                blocked=False,
                lifted=False,
                keep=None,
            )
            self.model.seats.pop(identity, None)
            self.model.promote(entry.asked.team)

    @rule(data=st.data(), linger=st.sampled_from([0.0, 60.0, 60.0]))
    def end(self, data: st.DataObject, linger: float) -> None:
        self._end(self.pick(data, lambda entry: entry.holds), linger)

    @rule()
    def end_a_whole_group(self) -> None:
        for identity, entry in sorted(self.model.entries.items()):
            if entry.asked.group and entry.holds:
                self._end(identity, 60.0)

    def _end(self, identity: str, linger: float) -> None:
        entry = self.model.entries.get(identity)
        done = self.run(self.ledger.end(self.epoch, identity, linger_seconds=linger, now=self.now))
        assert done is (entry is not None)
        if entry is None:
            return
        if linger and entry.asked.group and entry.holds and entry.pods:
            if not entry.lingers:
                self.model.entries[identity] = replace(
                    entry, bound=False, expires=self.now + linger, lingers=True
                )
        else:
            self.model.drop([identity])
        self.model.promote(entry.asked.team)

    @rule(asked=asks(), place=PLACES, running=st.booleans())
    def adopt(self, asked: Booking, place: dict[str, int], running: bool) -> None:
        found = msgspec.structs.replace(
            asked,
            ref=msgspec.structs.replace(asked.ref, uid=asked.id + "u1"),
            state=State.RUNNING if running else State.QUEUED,
            chosen=0 if running else -1,
            place=place if running else {},
            bound=True,
        )
        known = self.model.entries.get(asked.id)
        assert self.run(self.ledger.adopt(self.epoch, found)) is (known is None)
        self.model.entries[asked.id] = self._entry(found)
        self.model.promote(asked.team)

    def _entry(self, found: Booking) -> Entry:
        return Entry(
            found,
            found.state,
            found.pods,
            found.chosen,
            found.place,
            bound=True,
            name=found.ref.name,
        )

    @rule(data=st.data(), blocked=st.booleans())
    def block(self, data: st.DataObject, blocked: bool) -> None:
        identity = self.pick(data, lambda entry: entry.state is State.QUEUED)
        self.run(self.ledger.block(self.epoch, identity, blocked=blocked))
        entry = self.model.entries.get(identity)
        if entry and entry.state is State.QUEUED:
            self.model.entries[identity] = replace(entry, blocked=blocked)

    @rule(data=st.data(), lifted=st.booleans())
    def lift(self, data: st.DataObject, lifted: bool) -> None:
        identity = self.pick(data, lambda entry: entry.state is State.QUEUED)
        self.run(self.ledger.block_many(self.epoch, {}, {identity: lifted}))
        entry = self.model.entries.get(identity)
        if entry and entry.state is State.QUEUED:
            self.model.entries[identity] = replace(entry, lifted=lifted)

    @rule(data=st.data(), places=st.lists(PLACES, max_size=2), last=st.booleans())
    def keep(self, data: st.DataObject, places: list[dict[str, int]], last: bool) -> None:
        keeps: dict[str, Keep] = {}
        for place in places:
            identity = self.pick(data, lambda entry: entry.state is State.QUEUED)
            entry = self.model.entries.get(identity)
            chosen = len(entry.asked.options) - 1 if entry and last else 0
            keeps[identity] = Keep(chosen=chosen, place=place)
        self.run(self.ledger.keep(self.epoch, keeps))
        for identity, entry in self.model.entries.items():
            keep = keeps.get(identity) if entry.state is State.QUEUED else None
            self.model.entries[identity] = replace(entry, keep=keep)

    @rule(lending=LENDING)
    def publish_lending(self, lending: dict[str, Lending]) -> None:
        self.model.lending = lending
        self.run(self.ledger.publish_lending(self.epoch, lending))

    @rule(seconds=st.sampled_from([0.5, 0.5, 4.0, 10.0, 61.0]), sweep=st.booleans())
    def pass_time(self, seconds: float, sweep: bool) -> None:
        self.now += seconds
        if not sweep:
            return
        due = [
            identity
            for identity, entry in self.model.entries.items()
            if entry.expires and not entry.bound and entry.expires <= self.now
        ]
        assert self.run(self.ledger.expire(self.epoch, self.now)) == len(due)
        teams = {self.model.entries[identity].asked.team for identity in due}
        self.model.drop(due)
        for team in teams:
            self.model.promote(team)

    @rule(capacity=CAPACITY)
    def publish(self, capacity: dict[str, dict[str, int]]) -> None:
        self.publish_these(capacity)

    def publish_these(self, capacity: dict[str, dict[str, int]]) -> None:
        self.model.capacity = capacity
        self.run(self.ledger.publish_capacity(self.epoch, capacity))

    @rule()
    def change_leader(self) -> None:
        old, self.epoch = self.epoch, self.run(self.ledger.lead())
        with pytest.raises(StaleEpoch):
            self.run(self.ledger.expire(old, self.now))

    @precondition(lambda self: len(self.model.entries) > 4)
    @rule(lost=st.booleans(), capacity=CAPACITY, lending=st.none() | LENDING)
    def rebuild(
        self,
        lost: bool,
        capacity: dict[str, dict[str, int]],
        lending: dict[str, Lending] | None,
    ) -> None:
        shown = {
            identity: entry
            for identity, entry in self.model.entries.items()
            if entry.bound and not entry.surge
        }
        kept = {
            identity: entry
            for identity, entry in self.model.entries.items()
            if not entry.bound and not lost
        }
        if lost:
            self.run(self.redis.call(lambda client: client.flushall()))
            for attempt in (
                self.ledger.held("cv"),
                self.ledger.snapshot(),
                self.ledger.expire(self.epoch, self.now),
                self.ledger.bind("b0", namespace="ns", kind="Pod", name="x", uid="u"),
            ):
                with pytest.raises(LedgerUnavailable):
                    self.run(attempt)
        self.model.capacity = capacity
        self.model.lending = lending
        self.model.entries = {
            **{
                identity: self._entry(self._seen(identity, entry))
                for identity, entry in shown.items()
            },
            **kept,
        }
        self.model.seats = {}
        bookings = [self._seen(identity, entry) for identity, entry in shown.items()]
        self.run(self.ledger.rebuild(self.epoch, bookings, capacity, lending))

    def _seen(self, identity: str, entry: Entry) -> Booking:
        return msgspec.structs.replace(
            entry.asked,
            ref=msgspec.structs.replace(entry.asked.ref, name=entry.name),
            state=entry.state,
            pods=entry.pods,
            chosen=entry.chosen,
            place=dict(entry.place),
            bound=True,
            tentative_until=0.0,
            surge=False,
        )

    @invariant()
    def the_books_are_the_models(self) -> None:
        if not self.epoch:
            return
        snapshot = self.run(self.ledger.snapshot())
        found = {one.id: one for one in snapshot.bookings}
        assert {name: _facts(one) for name, one in found.items()} == {
            name: _model_facts(entry) for name, entry in self.model.entries.items()
        }
        for team in ("cv", "nlp"):
            held = self.run(self.ledger.held(team))
            assert sum(held.pools.values()) == self.model.used(team)
            assert held.surge.get(POOL, 0) == self.model.surge(team, POOL)
            assert held.resources.get(WHOLE, 0) == self.model.units(team, WHOLE)
        assert self.run(self.ledger.audit()) == []
        self._follow(found)

    def _follow(self, found: dict[str, Booking]) -> None:
        changes = self.run(self.ledger.changes(self.position, 0)) if self.position else None
        if changes is None:
            snapshot = self.run(self.ledger.snapshot())
            self.position = snapshot.sequence
            self.mirror = {one.id: one for one in snapshot.bookings}
        else:
            for change in changes:
                self.position = change.sequence
                if change.booking is None:
                    self.mirror.pop(change.id, None)
                else:
                    self.mirror[change.id] = change.booking
        assert self.mirror == found


def _facts(one: Booking) -> object:
    return (
        one.state,
        one.pods,
        one.chosen,
        one.place,
        one.bound,
        one.tentative_until,
        one.surge,
        one.ref.name,
        one.reason == LINGERS,
    )


def _model_facts(entry: Entry) -> object:
    return (
        entry.state,
        entry.pods,
        entry.chosen,
        dict(entry.place),
        entry.bound,
        entry.expires,
        entry.surge,
        entry.name,
        entry.lingers,
    )


@pytest.mark.timeout(300)
def test_any_history_leaves_the_books_a_plain_model_has(redis_server: EmbeddedRedis) -> None:
    class Machine(LedgerMachine):
        def __init__(self) -> None:
            super().__init__(redis_server.url)

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            phases=[Phase.generate],  # shrinking a history takes minutes
            stateful_step_count=40,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
