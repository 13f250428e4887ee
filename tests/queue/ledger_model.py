"""A plain model of the ledger: lists and sums, nothing incremental."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from typing import Any

import msgspec

from fairslice.booking import Booking, Option, State
from fairslice_queue.ledger import (
    BookRequest,
    Keep,
    Lending,
    Limits,
    Outcome,
    ReleaseOrder,
    Verdict,
)


@dataclass(frozen=True)
class Entry:
    """A booking as the model knows it; `first` is what was asked at first."""

    asked: Booking
    state: State
    pods: int
    chosen: int = -1
    place: Mapping[str, int] = field(default_factory=dict)
    bound: bool = False
    expires: float = 0.0
    name: str = ""
    surge: bool = False
    caps: Limits | None = None
    blocked: bool = False
    lifted: bool = False
    keep: Keep | None = None
    lingers: bool = False
    first: Booking | None = None

    @property
    def option(self) -> Option:
        return self.asked.options[self.chosen]

    @property
    def holds(self) -> bool:
        return self.state.holds and self.chosen >= 0

    @property
    def milli(self) -> int:
        return self.option.milli * self.pods if self.holds else 0


@dataclass
class Model:
    """What the ledger should hold and answer."""

    capacity: Mapping[str, Mapping[str, int]]
    entries: dict[str, Entry] = field(default_factory=dict)
    seats: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Booking → stamp → expiry; None once bound."""
    lending: Mapping[str, Lending] | None = None

    def of_team(self, team: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.asked.team == team]

    def used(self, team: str, **want: str) -> int:
        return sum(
            entry.milli
            for entry in self.of_team(team)
            if entry.holds
            and not entry.surge
            and want.get("pool", entry.option.pool) == entry.option.pool
            and want.get("work_class", entry.asked.work_class) == entry.asked.work_class
            and want.get("user", entry.asked.user) == entry.asked.user
        )

    def units(self, team: str, resource: str) -> int:
        return sum(
            entry.option.units.get(resource, 0) * entry.pods
            for entry in self.of_team(team)
            if entry.holds and not entry.surge
        )

    def surge(self, team: str, pool: str) -> int:
        return sum(
            entry.milli
            for entry in self.of_team(team)
            if entry.holds and entry.surge and entry.option.pool == pool
        )

    def free(self, offer: str, *, kept: bool = True) -> dict[str, int]:
        """What is neither placed nor (if `kept` counts) set aside."""
        free = dict(self.capacity.get(offer, {}))
        for entry in self.entries.values():
            takes = [(entry.option, entry.place)] if entry.holds else []
            if entry.keep is not None and kept:
                takes.append((entry.asked.options[entry.keep.chosen], entry.keep.place))
            for option, place in takes:
                units = option.offers.get(offer, 0)
                for node, pods in place.items():
                    if node in free:
                        free[node] -= units * pods
        return free

    def borrows(self, team: str, option: Option, pods: int, caps: Limits) -> bool:
        right = caps.guaranteed.get(option.pool)
        return (
            pods > 0
            and right is not None
            and self.used(team, pool=option.pool) + option.milli * pods > right
        )

    def is_kept(self, team: str, option: Option, pods: int) -> bool:
        """Whether what a team would borrow is kept by others of their guarantees."""
        lending = (self.lending or {}).get(option.pool)
        if lending is None:
            return False
        holds = {
            name: self.used(name, pool=option.pool) + self.surge(name, option.pool)
            for name in ("cv", "nlp")
        }
        others = sum(
            max(0, milli - holds[name]) for name, milli in lending.kept.items() if name != team
        )
        free = max(0, lending.capacity - sum(holds.values()))
        return others > 0 and option.milli * pods > free - others

    def ahead(self, asked: Booking, option: Option, *, borrows: bool, passes: bool) -> bool:
        """Whether others wait for the same and go first."""
        for entry in self.entries.values():
            waits = entry.state is State.QUEUED and entry.bound
            if not waits or entry.blocked or entry.keep is not None:
                continue
            first = entry.lifted or entry.asked.rank <= asked.rank or (borrows and not passes)
            for other in entry.asked.options:
                meets = bool(other.offers.keys() & option.offers.keys())
                # Who may borrow what others keep competes for all of the pool.
                if borrows and option.pool in (self.lending or {}):
                    meets |= other.pool == option.pool and any(
                        offer in self.capacity for offer in other.offers
                    )
                if first and meets:
                    return True
        return False

    def cap_against(self, asked: Booking, option: Option, pods: int, caps: Limits) -> str:
        if pods == 0:
            return ""
        milli, team = option.milli * pods, asked.team
        checks: list[tuple[str, int, int | None]] = [
            ("limit", self.used(team, pool=option.pool) + milli, caps.pools.get(option.pool, 0)),
            ("class", self.used(team, work_class=asked.work_class) + milli, caps.work_class),
            ("user", self.used(team, user=asked.user) + milli, caps.user),
        ]
        for resource, units in option.units.items():
            after = self.units(team, resource) + units * pods
            checks.append(("resource", after, caps.resources.get(resource)))
        return next((name for name, n, cap in checks if cap is not None and n > cap), "")

    def may_surge(self, asked: Booking, option: Option, pods: int, caps: Limits) -> bool:
        others = any(
            entry.asked.group == asked.group
            and entry.asked.group_revision != asked.group_revision
            and entry.holds
            and entry.pods > 0
            and not entry.lingers
            for entry in self.of_team(asked.team)
            if entry.asked.id != asked.id
        )
        return (
            bool(asked.group and asked.group_revision)
            and others
            and self.surge(asked.team, option.pool) + option.milli * pods <= caps.surge
        )

    def fits(self, option: Option, pods: int) -> bool:
        if pods == 0:
            return True
        if len(option.units) != 1:
            return False
        ((offer, units),) = option.offers.items()
        return sum(max(0, n) // units for n in self.free(offer).values()) >= pods

    def check_place(self, option: Option, pods: int, place: Mapping[str, int]) -> None:
        assert sum(place.values()) == pods
        for offer, units in option.offers.items():
            free = self.free(offer)
            assert all(n > 0 and free[node] >= n * units for node, n in place.items())

    def promote(self, team: str) -> None:
        for identity in sorted(self.entries):
            entry = self.entries[identity]
            if entry.asked.team != team or not entry.surge:
                continue
            assert entry.caps is not None
            if not self.cap_against(entry.asked, entry.option, entry.pods, entry.caps):
                self.entries[identity] = replace(entry, surge=False, caps=None)

    def drop(self, identities: Iterable[str]) -> None:
        for identity in identities:
            self.entries.pop(identity, None)
            self.seats.pop(identity, None)

    def lingering_for(self, asked: Booking, pods: int) -> list[str]:
        found = sorted(
            (entry.expires, identity)
            for identity, entry in self.entries.items()
            if entry.lingers
            and asked.group
            and (entry.asked.team, entry.asked.group) == (asked.team, asked.group)
            and asked.ref.name in ("", entry.name)
        )
        taken: list[str] = []
        for _, identity in found:
            if pods <= 0:
                break
            taken.append(identity)
            pods -= self.entries[identity].pods
        return taken

    def check_book(self, request: BookRequest, outcome: Outcome) -> None:
        """Do what was asked, and compare what the ledger answered."""
        asked, team = request.booking, request.booking.team
        expires = request.now + request.tentative_seconds
        tentative = self._expire_tentative(team, request.now)
        same = self.entries.get(asked.id)
        namesake = next(
            (name for name, e in tentative.items() if asked.ref.name and e.name == asked.ref.name),
            None,
        )
        if same and not same.lingers:
            assert self._is_replay(same, asked)
        for name in (asked.id if same and not same.lingers else None, namesake):
            if name is not None and (name == asked.id or self._same_ask(name, asked)):
                entry = self.entries[name]
                if entry.expires and not entry.bound:
                    self.entries[name] = replace(entry, expires=expires)
                assert outcome.id == name
                assert (outcome.verdict is Verdict.BOOKED) is entry.holds
                assert (outcome.chosen, outcome.place) == (entry.chosen, entry.place)
                assert outcome.option == self._told_option(entry)
                return
        assert outcome.id == asked.id
        crowded = len(tentative) - (namesake is not None) >= request.max_tentative
        before = dict(self.entries)
        cleared = [name for name in (asked.id if same else None, namesake) if name is not None]
        self.drop(cleared)
        taken = self.lingering_for(asked, asked.pods)
        given = {name: self.entries[name] for name in taken}
        self.drop(taken)
        fresh = Entry(asked, State.QUEUED, asked.pods, expires=expires, name=asked.ref.name)
        if not self._start(fresh, request, outcome, list(given.values()), crowded):
            self.entries = before
            if outcome.verdict is Verdict.QUEUED:
                assert request.overflow_queue
                self.drop(cleared)
                if request.queued_options is not None:
                    asked = msgspec.structs.replace(asked, options=request.queued_options)
                    fresh = replace(fresh, asked=asked, first=request.booking)
                self.entries[asked.id] = fresh
                assert outcome.option == self._told_option(fresh)
            else:
                assert not request.overflow_queue
                return
        if cleared or given:
            self.promote(team)

    def _expire_tentative(self, team: str, now: float) -> dict[str, Entry]:
        """End what came to nothing; return what is tentative still."""
        tentative = {
            identity: entry
            for identity, entry in self.entries.items()
            if entry.asked.team == team and entry.expires and not entry.bound and not entry.lingers
        }
        late = [name for name, entry in tentative.items() if entry.expires <= now]
        self.drop(late)
        if late:
            self.promote(team)
        return {name: self.entries[name] for name in tentative if name not in late}

    def _start(
        self,
        fresh: Entry,
        request: BookRequest,
        outcome: Outcome,
        given: list[Entry],
        crowded: bool,
    ) -> bool:
        asked, pods, caps = fresh.asked, fresh.pods, request.limits
        causes = []
        for index, option in enumerate(asked.options):
            cause = self.cap_against(asked, option, pods, caps)
            surge = False
            if cause and self.may_surge(asked, option, pods, caps):
                cause, surge = "", True
            covered = sum(e.milli for e in given if e.option.pool == option.pool)
            covers = covered >= option.milli * pods
            borrows = self.borrows(asked.team, option, pods, caps)
            ahead = self.ahead(asked, option, borrows=borrows, passes=request.passes_all)
            unsure = self.lending is None
            if not cause and crowded:
                cause = "tentative"
            if not cause and not request.start:
                cause = "placement"
            if not cause and not covers and borrows:
                cause = "lending" if unsure or self.is_kept(asked.team, option, pods) else ""
            if not cause and not covers and ahead:
                cause = "standing"
            if not cause and request.capacity and not self.fits(option, pods):
                cause = "capacity"
            causes.append(cause)
            if not cause:
                assert (outcome.verdict, outcome.chosen) == (Verdict.BOOKED, index), outcome
                assert outcome.surge is surge
                if request.capacity:
                    self.check_place(option, pods, outcome.place)
                self.entries[asked.id] = replace(
                    fresh,
                    state=State.RELEASED,
                    chosen=index,
                    place=dict(outcome.place),
                    surge=surge,
                    caps=request.limits if surge else None,
                )
                return True
        assert outcome.verdict is not Verdict.BOOKED, outcome
        assert outcome.cause in causes
        return False

    def _same_ask(self, name: str, asked: Booking) -> bool:
        def ask(booking: Booking) -> Any:
            return (
                booking.work_class,
                booking.user,
                booking.pods,
                booking.options,
                booking.group,
                booking.group_revision,
            )

        known = self.entries[name]
        return bool(ask(known.first or known.asked) == ask(asked))

    def _is_replay(self, entry: Entry, asked: Booking) -> bool:
        first = (entry.first or entry.asked).ref
        return (
            not entry.bound
            and first.name == asked.ref.name
            and first.generate_name == asked.ref.generate_name
        )

    def _told_option(self, entry: Entry) -> Option | None:
        if entry.chosen >= 0:
            return entry.option
        return entry.asked.options[0] if len(entry.asked.options) == 1 else None

    def check_taken(self, request: BookRequest) -> None:
        """The ledger left a booking to its object: it must have one."""
        self._expire_tentative(request.booking.team, request.now)
        entry = self.entries[request.booking.id]
        assert not entry.lingers
        assert not self._is_replay(entry, request.booking)

    def check_releases(self, orders: list[ReleaseOrder], outcomes: list[Outcome]) -> None:
        """Each order in its turn; of neighbours in one group, all or none."""
        assert [outcome.id for outcome in outcomes] == [order.id for order in orders]
        told = iter(outcomes)
        for group, members in groupby(orders, lambda order: order.group):
            together = list(members)
            for unit in [together] if group else [[order] for order in together]:
                self._check_unit(unit, list(islice(told, len(unit))))

    def _check_unit(self, orders: list[ReleaseOrder], outcomes: list[Outcome]) -> None:
        before = dict(self.entries)
        surges = []
        for order, outcome in zip(orders, outcomes, strict=True):
            cause, surge = self.release(order.id, order.chosen, order.place, order.limits)
            if cause:
                self.entries = before
                assert (outcome.verdict, outcome.cause) == (Verdict.DENIED, cause)
                for other in outcomes:
                    known = before.get(other.id)
                    if other is outcome or other.id == outcome.id:
                        continue
                    if known and known.holds and not known.lingers:
                        assert (other.verdict, other.chosen) == (Verdict.BOOKED, known.chosen)
                    else:
                        assert (other.cause, other.subject) == ("group", outcome.id)
                return
            surges.append(surge)
        for order, outcome, surge in zip(orders, outcomes, surges, strict=True):
            entry = self.entries[order.id]
            assert (outcome.verdict, outcome.chosen) == (Verdict.BOOKED, entry.chosen), outcome
            assert outcome.surge is surge

    def release(
        self, identity: str, chosen: int, place: Mapping[str, int], caps: Limits
    ) -> tuple[str, bool]:
        """Release as the ledger should: why not (empty: done), and whether it is surge."""
        entry = self.entries.get(identity)
        if entry is None or entry.lingers:
            return "gone", False
        if entry.holds:
            return "", entry.surge
        if entry.state is not State.QUEUED:
            return "state", False
        if chosen >= len(entry.asked.options) or sum(place.values()) > entry.pods:
            return "invalid", False
        before = dict(self.entries)
        self.drop(self.lingering_for(entry.asked, entry.pods))
        option = entry.asked.options[chosen]
        cause, surge = self.cap_against(entry.asked, option, entry.pods, caps), False
        if cause and self.may_surge(entry.asked, option, entry.pods, caps):
            cause, surge = "", True
        if not cause and self.borrows(entry.asked.team, option, entry.pods, caps):
            cause = "lending" if self.is_kept(entry.asked.team, option, entry.pods) else ""
        room = all(
            self.free(offer, kept=False).get(node, -1) >= n * units
            for offer, units in option.offers.items()
            for node, n in place.items()
        )
        if cause or not room:
            self.entries = before
            return cause or "capacity", False
        self.entries[identity] = replace(
            entry,
            state=State.RELEASED,
            chosen=chosen,
            place=place,
            surge=surge,
            caps=caps if surge else None,
            blocked=False,
            lifted=False,
            keep=None,
        )
        self.promote(entry.asked.team)
        return "", surge
