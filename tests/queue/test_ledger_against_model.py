"""Random histories: the ledger does what a plain model does, and its totals never drift."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from fairslice.booking import Booking, State
from fairslice.redis_embedded import EmbeddedRedis
from fairslice_queue.ledger import (
    Keep,
    LedgerUnavailable,
    Lending,
    ReleaseOrder,
    StaleEpoch,
)

from .ledger_asks import CAPACITY, LENDING, OFFERS, PLACES, PODS, asks
from .ledger_machine import WebhookMachine
from .ledger_model import Entry


class LedgerMachine(WebhookMachine):
    """Does what a leader does as well."""

    @rule()
    def let_nodes_be_just_full(self) -> None:
        full = {offer: {"n1": 0, "n2": 0, "n3": 0} for offer in OFFERS}
        for offer, nodes in full.items():
            for node, free in self.model.free(offer).items():
                nodes[node] = self.model.capacity[offer][node] - free
        self.publish_these(full)

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
