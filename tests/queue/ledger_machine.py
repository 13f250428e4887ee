"""A ledger and a model side by side: what the webhook asks, and what must hold at all times."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from fairslice.booking import Booking, State
from fairslice.redis_connection import RedisConnection
from fairslice_queue.ledger import LINGERS, BookingTaken, BookRequest, Ledger, Limits

from .books import NOW, POOL, WHOLE
from .ledger_asks import CAPACITY, CAPS, IDS, PODS, asks, team_of
from .ledger_model import Entry, Model

T = TypeVar("T")


class WebhookMachine(RuleBasedStateMachine):
    """Does the same to the ledger and to the model, as far as the webhook does it."""

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

    @rule(data=st.data(), uid=st.sampled_from(["u1", "u1", "u2"]))
    def bind(self, data: st.DataObject, uid: str) -> None:
        self._bind(self.pick(data, lambda entry: not entry.bound), uid)

    def _bind(self, identity: str, uid: str) -> None:
        entry = self.model.entries.get(identity)
        name = (entry.name if entry else "") or "generated"
        done = self.run(
            self.ledger.bind(
                identity,
                namespace=team_of(identity),
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
        team = team_of(identity)
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
