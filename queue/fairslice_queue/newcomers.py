"""Taking into the books what is not in them: strangers, and all there is after a loss."""

import msgspec

from fairslice.booking import Booking, State
from fairslice_queue.adoption import Adopter
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.seat import Seat
from fairslice_queue.shared_claims import CLAIM

__all__ = ["STRANGER", "Newcomers"]

STRANGER = "x-"
"""Begins the ids of pods that carry no stamp: older than the install, or of exempt namespaces."""


_UNSEEN_SECONDS = 10.0


class Newcomers:
    """Books what the cluster shows. Methods raise LedgerUnavailable."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def adopter(self) -> Adopter:
        """Make an adopter for the cluster as it is now."""
        watch = self._seat.watch
        return Adopter(
            watch.policy, watch.teams, watch.inventory, self._seat.new_id, watch.claims.devices
        )

    async def adopt(self, workload: WorkloadFacts | None, pods: list[PodFacts], now: float) -> None:
        """Book an object that carries the stamp of a booking that isn't there."""
        booking = None
        if workload is not None:
            if not workload.finished and not workload.deleting:
                booking = self.adopter().workload(workload, pods, now)
        elif pods and not pods[0].ended:
            booking = self.adopter().pod(pods[0], now)
        if booking is None:
            return
        known = self._seat.mirror.books.get(booking.id)
        if known is None and await self._seat.ledger.get(booking.id) is not None:
            return  # the mirror lags behind
        if known is None or booking.options:
            await self._seat.ledger.adopt(self._seat.epoch, booking)

    async def look_at_claim(self, booking_id: str, booking: Booking | None, now: float) -> None:
        """Compare a claim that many pods may share with the books."""
        seat = self._seat
        facts = seat.watch.claims.of(booking_id)
        if booking is None:
            if facts is not None and await seat.ledger.get(booking_id) is None:
                made = facts.booking(seat.watch.policy, seat.watch.teams, now)
                await seat.ledger.adopt(seat.epoch, made)
        elif facts is None:
            # What is bound exists; the watch may only be behind.
            if booking.bound and not 0 <= now - booking.since <= _UNSEEN_SECONDS:
                await seat.ledger.end(seat.epoch, booking_id)
        elif not booking.bound:
            await seat.ledger.bind(
                booking_id,
                namespace=facts.namespace,
                kind=CLAIM,
                name=facts.name,
                uid=facts.uid,
            )

    async def confirm(
        self, booking: Booking, workload: WorkloadFacts | None, pods: list[PodFacts]
    ) -> None:
        """Bind a tentative booking to the object that the watch shows."""
        found: WorkloadFacts | PodFacts | None = workload
        if booking.ref.kind == "Pod":
            found = pods[0] if pods else None
        if found is not None:
            await self._seat.ledger.bind(
                booking.id,
                namespace=found.namespace,
                kind=booking.ref.kind,
                name=found.name,
                uid=found.uid,
            )

    async def look_at_strangers(self) -> None:
        """Take pods with GPUs that nobody booked into the books, and let them go again."""
        seat, now = self._seat, self._seat.clock()
        strangers = seat.watch.strangers
        while strangers:
            uid, key = next(iter(strangers.items()))
            known = seat.mirror.books.get(STRANGER + uid)
            pod = seat.watch.stranger(uid, key)
            if pod is None:
                if known is not None:
                    await seat.ledger.end(seat.epoch, known.id)
            else:
                where = pod.node or pod.nominated_node
                if known is None or known.place != ({where: 1} if where else {}):
                    booking = self.stranger(pod, now)
                    if booking is not None:
                        await seat.ledger.adopt(seat.epoch, booking)
            strangers.pop(uid, None)

    def stranger(self, pod: PodFacts, now: float) -> Booking | None:
        """Book a pod that carries no stamp, by what it asks for itself.

        None: that says nothing about what it holds, or its workload's booking counts it.
        """
        booking = self.adopter().pod(msgspec.structs.replace(pod, assignment=None), now)
        if booking is None or self._is_counted(pod, booking):
            return None
        return msgspec.structs.replace(booking, id=STRANGER + pod.uid)

    def _is_counted(self, pod: PodFacts, own: Booking) -> bool:
        """Say whether a pod, made while nobody stamped it, is one of a released workload's.

        So are the pods of Jobs that are let go while the brake is on. One that asks for other
        shares than its workload was given counts for itself.
        """
        given, owner = pod.assignment, pod.controller
        if given is None or owner is None:
            return False
        workload = self._seat.watch.workload_of(given.booking)
        booking = self._seat.mirror.books.get(given.booking)
        if workload is None or booking is None or workload.uid != owner.uid:
            return False
        if booking.state not in (State.RELEASED, State.RUNNING) or booking.option is None:
            return False
        return own.option is not None and own.option.offers == booking.option.offers

    def look_at_all(self) -> None:
        """Mark all there is to be looked at: a new leader, or books made anew."""
        watch = self._seat.watch
        for booking in self._seat.mirror.books:
            if booking.id.startswith(STRANGER):
                key = f"{booking.ref.namespace}/{booking.ref.name}"
                watch.strangers[booking.id.removeprefix(STRANGER)] = key
            else:
                watch.dirty.add(booking.id)
        watch.dirty.update(item.booking for item in watch.workloads.values() if item.booking)
        watch.dirty.update(claim.assignment.booking for claim in watch.claims)
        watch.dirty.update(pod.booking for pod in watch.pods.values() if pod.booking)
        watch.look_at_strangers()
        watch.capacity_changed = True
        watch.changed.set()

    def all_seen(self) -> dict[str, Booking]:
        """Make a booking of everything that the cluster shows."""
        watch, now, adopter = self._seat.watch, self._seat.clock(), self.adopter()
        made: dict[str, Booking] = {}
        for facts in watch.workloads.values():
            if facts.finished or facts.deleting or not facts.booking:
                continue
            booking = adopter.workload(facts, list(watch.pods_of(facts.booking).values()), now)
            if booking is not None:
                made[booking.id] = booking
        for pod in watch.pods.values():
            if not pod.booking or pod.ended or pod.booking in made:
                continue
            booking = adopter.pod(pod, now)
            if booking is not None:
                made[booking.id] = booking
        for claim in watch.claims:
            booking = claim.booking(watch.policy, watch.teams, now)
            made[booking.id] = booking
        for pod in watch.strange_pods:
            booking = self.stranger(pod, now)
            if booking is not None:
                made[booking.id] = booking
        return made
