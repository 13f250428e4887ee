"""Claims that are in the books by themselves, since many pods may share one (DRA)."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fairslice import stamps
from fairslice.booking import Assignment, Booking, Ref, State
from fairslice.device_claims import Devices, ResourceClaim
from fairslice.device_watch import DeviceWatch
from fairslice.kube.client import KubeClient
from fairslice.policy import Policy
from fairslice.teams import TeamIndex
from fairslice_queue.facts import assignment_of, timestamp

__all__ = ["CLAIM", "ClaimFacts", "SharedClaims"]

CLAIM = "ResourceClaim"


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """A booked claim."""

    namespace: str
    name: str
    uid: str
    user: str
    work_class: str
    assignment: Assignment
    created: float

    def booking(self, policy: Policy, teams: TeamIndex, now: float) -> Booking:
        """Make its booking anew: it holds, and nobody may push it out."""
        team = teams.of(self.namespace)
        work_class = policy.classes.get(self.work_class)
        return Booking(
            id=self.assignment.booking,
            ref=Ref(kind=CLAIM, namespace=self.namespace, name=self.name, uid=self.uid),
            team=team.name if team is not None else "",
            work_class=self.work_class,
            rank=work_class.rank if work_class is not None else len(policy.classes),
            user=self.user,
            state=State.RELEASED,
            pods=1,
            options=(self.assignment.option,),
            chosen=0,
            queued_at=self.created,
            since=now,
            bound=True,
            preemptible=False,
        )


class SharedClaims:
    """Follows booked claims. `touched` is called with the booking id of one that changed."""

    def __init__(
        self, client: KubeClient, touched: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        self._touched = touched
        self._by_booking: dict[str, ClaimFacts] = {}
        self._watch = DeviceWatch(client, changed, self._on_claim)

    async def run(self) -> None:
        """Follow, forever."""
        await self._watch.run()

    @property
    def synced(self) -> asyncio.Event:
        """Set once all claims were listed, or there surely are none."""
        return self._watch.synced

    @property
    def devices(self) -> Devices:
        """What claims of pods come to."""
        return self._watch.devices

    @property
    def gives_gpus(self) -> bool:
        """Whether GPUs may come through claims here."""
        return self._watch.gives_gpus

    def of(self, booking_id: str) -> ClaimFacts | None:
        """Find the claim that carries a booking's stamp."""
        return self._by_booking.get(booking_id)

    def __iter__(self) -> Iterator[ClaimFacts]:
        """Yield all booked claims."""
        return iter(tuple(self._by_booking.values()))

    def _on_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        before, now = _facts(old), _facts(new)
        if before is not None:
            self._by_booking.pop(before.assignment.booking, None)
        if now is not None:
            self._by_booking[now.assignment.booking] = now
        for facts in {item.assignment.booking for item in (before, now) if item is not None}:
            self._touched(facts)


def _facts(claim: ResourceClaim | None) -> ClaimFacts | None:
    if claim is None:
        return None
    meta = claim.metadata
    annotations = meta.annotations or {}
    assignment = assignment_of(meta)
    if assignment is None or annotations.get(stamps.BOOKING) != assignment.booking:
        return None
    return ClaimFacts(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        user=annotations.get(stamps.USER, ""),
        work_class=(meta.labels or {}).get(stamps.CLASS, ""),
        assignment=assignment,
        created=timestamp(meta.creation_timestamp),
    )
