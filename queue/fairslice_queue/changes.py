"""What is other than it was when planning last looked, so that it reads only that again."""

from collections.abc import Set
from dataclasses import dataclass, field

from msgspec import Struct

__all__ = ["Changes", "Pending"]


class Changes(Struct, frozen=True, kw_only=True):
    """What changed since it was last asked.

    `bookings` are ids of those of which the booking itself changed, came or went, or its object,
    or its pods: annotations, needs, start, node, end. `groups` are pod groups (by the books'
    name) that pods came to, left, or changed in. `nodes` are names of nodes on which other
    amounts are free, or that came or went. `everything`: the books were read anew, or
    nobody planned for a while; then all that is remembered of any of these is to be read again.
    `teams`, `policy` and `capacity` say that the team index, the policy and the inventory are
    others.
    """

    everything: bool = False
    bookings: Set[str] = frozenset()
    groups: Set[str] = frozenset()
    nodes: Set[str] = frozenset()
    teams: bool = False
    policy: bool = False
    capacity: bool = False


@dataclass(slots=True)
class Pending:
    """Changes as they come in, until they are taken."""

    everything: bool = True
    bookings: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    teams: bool = True
    policy: bool = True
    capacity: bool = True

    def take(self) -> Changes:
        """Hand over what there is, and begin anew."""
        taken = Changes(
            everything=self.everything,
            bookings=self.bookings,
            groups=self.groups,
            nodes=self.nodes,
            teams=self.teams,
            policy=self.policy,
            capacity=self.capacity,
        )
        self.everything = self.teams = self.policy = self.capacity = False
        self.bookings, self.groups, self.nodes = set(), set(), set()
        return taken
