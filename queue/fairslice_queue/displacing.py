"""Pushing others out: who must go so that work with the right to it can start."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from fairslice import messages
from fairslice.booking import Booking, Option
from fairslice.placement import Placement
from fairslice.v1alpha1.policy import Preempts
from fairslice_queue.actions import Preempt
from fairslice_queue.keeping import place_on
from fairslice_queue.order import Waiting
from fairslice_queue.quota_cuts import over_limit
from fairslice_queue.rights import Rights
from fairslice_queue.room import Room
from fairslice_queue.scene import Scene
from fairslice_queue.slate import Slate
from fairslice_queue.tally import Tally
from fairslice_queue.victims import Candidate, Contender, Push, Victims

__all__ = ["Displacing"]


class Displacing:
    """Chooses victims through one round. `leaving` is what is on its way out, in milli-GPU.

    What is found out of no use is not tried again.
    """

    def __init__(
        self, slate: Slate, scene: Scene, room: Room, tally: Tally, rights: Rights, now: float
    ) -> None:
        self.leaving: Counter[tuple[str, str]] = slate.holders.leaving.copy()
        self._slate = slate
        self._scene = scene
        self._room = room
        self._tally = tally
        self._rights = rights
        self._now = now
        self._pushed: set[str] = set()
        self._hopeless: set[tuple[bytes, str, str]] = set()

    def entitled(self, contender: Contender, options: Sequence[int]) -> list[int]:
        """Return those of its options for which the work may push others out."""
        given = contender.booking.options
        return [index for index in options if self._may_push(contender, given[index])]

    def room_soon(
        self, item: Waiting, contender: Contender, entitled: Sequence[int]
    ) -> Placement | None:
        """Find where the work fits once those have left who leave already."""
        if not self._room.someone_leaves:
            return None
        ready = [index for index in entitled if not contender.over.get(index)]
        fit = place_on(self._room.after_leaving, item, ready)
        return fit if isinstance(fit, Placement) else None

    def push(self, item: Waiting, contender: Contender, entitled: Sequence[int]) -> Push | None:
        """Choose victims; None if no right suffices."""
        right = (item.shape, contender.team.name, contender.work_class.name)
        if right in self._hopeless:
            return None
        push = self._victims.choose(
            contender, entitled, self._tally, self._room.after_leaving, self._pushed
        )
        if push is None:
            self._hopeless.add(right)
        return push

    def preempt(self, booking: Booking, contender: Contender, push: Push) -> Iterator[Preempt]:
        """Send the victims off."""
        self._room.leave(push.victims)
        for victim in push.victims:
            scavenged = self._rights.has_scavenged(victim.booking)
            rule = _rule(contender, victim.booking, scavenged=scavenged)
            yield self._push_out(victim, booking.id, rule)

    def cut_down(self) -> Iterator[Preempt]:
        """Push out what teams hold beyond lowered limits or budgets, where they say so."""
        scene = self._scene
        if not (scene.teams.cut_down or scene.stops):
            return
        for victim, rule in over_limit(
            scene.policy,
            scene.teams,
            scene.tally,
            self._victims,
            self.leaving,
            self._now,
            scene.stops,
        ):
            self._room.leave([victim])
            yield self._push_out(victim, "", rule)

    def _may_push(self, contender: Contender, option: Option) -> bool:
        """Rule out, before victims are looked for, that anybody would have to go."""
        if contender.work_class.preempts is not Preempts.EVERYONE and not self._scene.stops:
            team, pool = contender.team.name, option.pool
            held = self._tally.pools[team, pool] + option.milli * contender.booking.pods
            if held > self._rights.guaranteed(team, pool):
                return False
            if not self._borrowers.get(pool, set()) - {team}:
                return False
        return self._victims.may_push(contender, option, self._tally)

    @cached_property
    def _borrowers(self) -> Mapping[str, set[str]]:
        """The teams that hold more than their guarantee, by pool."""
        found: dict[str, set[str]] = {}
        for (team, pool), milli in self._scene.tally.pools.items():
            if team and milli > self._rights.guaranteed(team, pool):
                found.setdefault(pool, set()).add(team)
        return found

    @cached_property
    def _victims(self) -> Victims:
        scene, holders = self._scene, self._slate.holders
        return Victims(scene.policy, scene.teams, holders, self._tally, self._now, self._rights)

    def _push_out(self, victim: Candidate, beneficiary: str, rule: str) -> Preempt:
        booking, option = victim.booking, victim.booking.option
        self._pushed.add(booking.id)
        if option is not None and not booking.surge:
            self.leaving[booking.team, option.pool] += victim.milli
        theirs = self._scene.policy.classes.get(booking.work_class)
        return Preempt(
            victim=booking.id,
            beneficiary=beneficiary,
            rule=rule,
            lost_seconds=victim.lost(self._now),
            notice=theirs.notice if theirs is not None else 0,
            grace=theirs.grace if theirs is not None else 30,
        )


def _rule(contender: Contender, victim: Booking, *, scavenged: bool) -> str:
    work_class = contender.work_class
    if scavenged:
        return messages.rule_scavenger(victim.team)
    if work_class.preempts is Preempts.EVERYONE:
        return messages.rule_class(work_class.name, victim.work_class or "unclassified")
    return messages.rule_borrower(victim.work_class or "unclassified", contender.team.name)
