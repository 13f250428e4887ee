"""Bookings made from what the API server shows: after a loss of Redis, or found at install.

An object's own stamps say what it was given; where there are none, its spec is read as the
webhook reads it, and it is taken into the books as it is: nothing that runs is touched.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import structs

from fairslice import stamps
from fairslice.booking import Booking, Option, Ref, State
from fairslice.classify import ClassError, classify
from fairslice.device_claims import Devices
from fairslice.devices import Offer
from fairslice.gangs import common_options, part_of
from fairslice.inventory import Inventory
from fairslice.kube.objects import PodSpec
from fairslice.options import NoOption, options_for
from fairslice.policy import Policy, Team, WorkClass
from fairslice.requests import AskError, PodAsk, by_claims, read_pod
from fairslice.teams import TeamIndex
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.reconcile import held_by

__all__ = ["Adopter"]

_Alike = tuple[int, int, int, str, str, str]
# Options, sizes, and who was read, lest the ids go to others meanwhile.
_Found = tuple[tuple[Option, ...] | None, tuple[int, ...], WorkloadFacts]


@dataclass(frozen=True, slots=True)
class Adopter:
    """Makes bookings. `new_id` gives a fresh booking id for objects that carry none."""

    policy: Policy
    teams: TeamIndex
    inventory: Inventory
    new_id: Callable[[], str]
    devices: Devices = field(default_factory=Devices)
    _found: dict[_Alike, _Found] = field(default_factory=dict, init=False, compare=False)

    def workload(
        self, facts: WorkloadFacts, pods: Sequence[PodFacts], now: float
    ) -> Booking | None:
        """Book a suspendable workload that carries our stamp; None if it asks for no GPU."""
        team = self._team(facts.namespace, facts.spec)
        # As the webhook classifies it: what its templates say counts, its own labels more.
        work_class = self._class(
            team,
            facts.namespace,
            {**(facts.template.labels or {}), **facts.labels},
            facts.spec.priority_class_name,
            (facts.kind, *facts.kinds),
        )
        options, sizes = self._of_workload(facts, team, work_class)
        if options is None:
            return None
        booking = self._booking(facts, facts.kind, team, work_class, options, now)
        booking = structs.replace(booking, sizes=_unlike(sizes))
        live = [pod for pod in pods if not pod.ended]
        place: Counter[str] = Counter()
        for pod in live:
            if pod.node:
                place[pod.node] += held_by(booking, [pod])
        if facts.suspended and not place:
            return structs.replace(booking, state=_waiting_state(facts.labels), pods=facts.desired)
        given = part_of(facts.assignment.option, sizes[0]) if facts.assignment is not None else None
        if given is None and options:
            given = options[0]
        if given is None:
            return None
        if facts.suspended:
            state, count = State.PREEMPTED, place.total()
        else:
            running = any(pod.phase == "Running" for pod in live)
            state = State.RUNNING if running else State.RELEASED
            count = max(facts.desired, held_by(booking, live))
        options, chosen = _with(options, given)
        return structs.replace(
            booking, state=state, options=options, chosen=chosen, pods=count, place=dict(place)
        )

    def _of_workload(
        self, facts: WorkloadFacts, team: Team | None, work_class: WorkClass | None
    ) -> tuple[tuple[Option, ...] | None, tuple[int, ...]]:
        """List what a workload could be given, and its pods' sizes; None if it asks for no GPU."""
        # A long line is of a few shapes, and facts that are alike are one object.
        alike = (
            id(facts.spec),
            id(facts.template),
            id(facts.members),
            facts.namespace if self.devices.known else "",
            team.name if team is not None else "",
            work_class.name if work_class is not None else "",
        )
        found = self._found.get(alike)
        if found is None:
            options, sizes = self._read_workload(facts, team, work_class)
            found = self._found[alike] = (options, sizes, facts)
        return found[:2]

    def _read_workload(
        self, facts: WorkloadFacts, team: Team | None, work_class: WorkClass | None
    ) -> tuple[tuple[Option, ...] | None, tuple[int, ...]]:
        if not facts.members:
            ask = self._read(facts.namespace, facts.spec, facts.template.annotations or {})
            if ask is None:
                return None, ()
            return self._options(facts.spec, ask, team, work_class), (1,)
        sizes = tuple(member.size for member in facts.members)
        found = [
            self._options(member.pod_set.template.spec, member.ask, team, work_class)
            for member in facts.members
        ]
        return common_options(found, sizes), sizes

    def pod(self, facts: PodFacts, now: float) -> Booking | None:
        """Book a pod that belongs to no booked workload; None if it holds no GPU."""
        ask = self._read(facts.namespace, facts.spec, facts.annotations)
        if ask is None:
            return None
        team = self._team(facts.namespace, facts.spec)
        work_class = self._class(
            team,
            facts.namespace,
            facts.labels,
            facts.spec.priority_class_name,
            facts.kinds,
        )
        where = facts.node or facts.nominated_node
        option = facts.assignment.option if facts.assignment is not None else None
        if option is None:
            option = self._option_on(where, ask)
        if option is None:
            options = self._options(facts.spec, ask, team, work_class)
            option = options[0] if options else None
        if option is None:
            return None
        group, revision = facts.booked_group
        booking = self._booking(facts, "Pod", team, work_class, (option,), now)
        booking = structs.replace(booking, group=group, group_revision=revision)
        if facts.gated:
            return booking
        return structs.replace(
            booking,
            state=State.RUNNING if facts.phase == "Running" else State.RELEASED,
            chosen=0,
            place={where: 1} if where else {},
        )

    def _booking(
        self,
        facts: PodFacts | WorkloadFacts,
        kind: str,
        team: Team | None,
        work_class: WorkClass | None,
        options: tuple[Option, ...],
        now: float,
    ) -> Booking:
        return Booking(
            id=facts.booking or self.new_id(),
            ref=Ref(kind=kind, namespace=facts.namespace, name=facts.name, uid=facts.uid),
            team=team.name if team is not None else "",
            work_class=work_class.name if work_class is not None else "",
            # Work that no class was chosen for stands behind all classes.
            rank=work_class.rank if work_class is not None else len(self.policy.classes),
            user=facts.annotations.get(stamps.USER, ""),
            state=State.QUEUED,
            pods=1,
            options=options,
            queued_at=facts.queued_at,
            since=now,
            bound=True,
            # What belongs to no team is none of the queue's business to push out.
            preemptible=work_class.preemptible if work_class is not None else team is not None,
            restarts=_number(facts.annotations.get(stamps.RESTARTS)),
        )

    def _team(self, namespace: str, spec: PodSpec) -> Team | None:
        if self.policy.is_exempt(namespace, spec.service_account_name):
            return None
        return self.teams.of(namespace)

    def _class(
        self,
        team: Team | None,
        namespace: str,
        labels: Mapping[str, str],
        priority_class: str,
        kinds: Sequence[str],
    ) -> WorkClass | None:
        try:
            found = classify(
                self.policy,
                team,
                namespace=namespace,
                labels=labels,
                priority_class=priority_class,
                owner_kinds=kinds,
            )
        except ClassError:
            return None
        return found.work_class

    def _read(self, namespace: str, spec: PodSpec, annotations: Mapping[str, str]) -> PodAsk | None:
        names = self.devices.names
        try:
            ask = read_pod(
                spec, annotations, fractions=True, namespace=namespace, devices=self.devices
            )
        except AskError:
            return None
        advertised = self.inventory.advertises
        given = {name: unit for name, unit in names.items() if not advertised(name)}
        ask = by_claims(ask, given) if given and ask.units else ask
        return ask if ask.is_gpu else None

    def _options(
        self, spec: PodSpec, ask: PodAsk, team: Team | None, work_class: WorkClass | None
    ) -> tuple[Option, ...]:
        closed = set()
        if team is not None:
            pools = {offer.pool for offer in self.inventory.offers}
            closed = {pool for pool in pools if team.most(pool) == 0}
        try:
            return options_for(
                ask,
                work_class,
                self.inventory.offers_for(spec) if ask.units else self.inventory.models_for(spec),
                self.policy,
                closed_pools=frozenset(closed),
            )
        except NoOption:
            return ()

    def _option_on(self, node: str, ask: PodAsk) -> Option | None:
        """Tell from a node what a pod there holds, when nobody wrote it down."""
        capacity = self.inventory.capacity()
        found: list[tuple[Offer, int]] = []
        for resource, units in ask.units.items():
            offer = next(
                (
                    offer
                    for offer in self.inventory.offers
                    if offer.resource == resource and node in capacity.get(offer.key, {})
                ),
                None,
            )
            if offer is None:
                return None
            found.append((offer, units))
        if not found:
            return None
        first = found[0][0]
        return Option(
            pool=first.pool,
            product=first.product,
            mode=first.mode.value,
            milli=sum(offer.milli * units for offer, units in found),
            units={offer.resource: units for offer, units in found},
            isolated=all(offer.isolated for offer, _ in found),
            memory_mib=first.memory_mib,
        )


def _unlike(sizes: tuple[int, ...]) -> tuple[int, ...]:
    distinct = tuple(sorted(set(sizes)))
    return () if distinct == (1,) else distinct


def _with(options: tuple[Option, ...], given: Option) -> tuple[tuple[Option, ...], int]:
    """Find what was given among the options, or put it before them."""
    for index, option in enumerate(options):
        if (option.pool, option.product, option.units) == (given.pool, given.product, given.units):
            return options, index
    return (given, *options), 0


def _waiting_state(labels: Mapping[str, str]) -> State:
    held = labels.get(stamps.STATE) == State.HELD.value.lower()
    return State.HELD if held else State.QUEUED


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0
