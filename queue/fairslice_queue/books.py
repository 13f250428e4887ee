"""The leader's mirror of the ledger, with the totals that planning reads."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from fairslice.booking import Booking

__all__ = ["Books"]


class Books:
    """All bookings by id. Totals follow each change; amounts are milli-GPU."""

    def __init__(self, bookings: Iterable[Booking] = ()) -> None:
        self._bookings: dict[str, Booking] = {}
        self._pools: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._surge: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._classes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._users: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._resources: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._waiting: set[str] = set()
        for booking in bookings:
            self.put(booking)

    def __iter__(self) -> Iterator[Booking]:
        return iter(self._bookings.values())

    def __len__(self) -> int:
        return len(self._bookings)

    def get(self, booking_id: str) -> Booking | None:
        """Return a booking, or None."""
        return self._bookings.get(booking_id)

    def put(self, booking: Booking) -> Booking | None:
        """Add or replace a booking; return what it was before."""
        old = self.drop(booking.id)
        self._bookings[booking.id] = booking
        self._count(booking, 1)
        if booking.state.waits:
            self._waiting.add(booking.id)
        return old

    def drop(self, booking_id: str) -> Booking | None:
        """Remove a booking; return what it was."""
        old = self._bookings.pop(booking_id, None)
        if old is not None:
            self._count(old, -1)
            self._waiting.discard(booking_id)
        return old

    def waiting(self) -> Iterator[Booking]:
        """Yield the bookings in line, in no order."""
        return (self._bookings[booking_id] for booking_id in self._waiting)

    def holding(self) -> Iterator[Booking]:
        """Yield the bookings that hold something."""
        return (booking for booking in self._bookings.values() if booking.state.holds)

    def pool_held(self, team: str, pool: str) -> int:
        """Return what counts against a team's limit in a pool."""
        return self._pools[team, pool]

    def surge_held(self, team: str, pool: str) -> int:
        """Return what a team's rollouts hold beyond its limit."""
        return self._surge[team, pool]

    def class_held(self, team: str, work_class: str) -> int:
        """Return what a team holds for one class."""
        return self._classes[team, work_class]

    def user_held(self, team: str, user: str) -> int:
        """Return what one user of a team holds."""
        return self._users[team, user]

    def resource_held(self, team: str, resource: str) -> int:
        """Return how many units of an extended resource a team holds."""
        return self._resources[team, resource]

    def team_pools(self, team: str) -> Mapping[str, int]:
        """Return a team's holdings by pool."""
        return {pool: held for (name, pool), held in self._pools.items() if name == team and held}

    def _count(self, booking: Booking, sign: int) -> None:
        option = booking.option
        if option is None or not booking.state.holds:
            return
        milli = sign * option.milli * booking.pods
        totals = self._surge if booking.surge else self._pools
        totals[booking.team, option.pool] += milli
        self._classes[booking.team, booking.work_class] += milli
        self._users[booking.team, booking.user] += milli
        for resource, units in option.units.items():
            self._resources[booking.team, resource] += sign * units * booking.pods


