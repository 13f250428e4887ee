"""Those who hold something, with what planning counts of them; kept from round to round."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from fairslice_queue.victims import Candidate

__all__ = ["Holders"]


class Holders:
    """Holders by booking id. `leaving` is what is on its way out, in milli-GPU."""

    def __init__(self) -> None:
        self.leaving: Counter[tuple[str, str]] = Counter()
        self._all: dict[str, Candidate] = {}
        self._revisions: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._leavers = 0

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    @property
    def someone_leaves(self) -> bool:
        """Say whether anybody is on its way out."""
        return self._leavers > 0

    def get(self, booking_id: str) -> Candidate | None:
        """Find a holder."""
        return self._all.get(booking_id)

    def put(self, item: Candidate) -> Candidate | None:
        """Add a holder, or what is new of it; return what was known."""
        known = self.drop(item.booking.id)
        self._all[item.booking.id] = item
        self._count(item, 1)
        return known

    def drop(self, booking_id: str) -> Candidate | None:
        """Take a holder out; return what was known."""
        known = self._all.pop(booking_id, None)
        if known is not None:
            self._count(known, -1)
        return known

    def has_other_revisions(self, group: str, revision: str) -> bool:
        """Say whether pods of another revision of the same rollout hold something."""
        found = self._revisions.get(group)
        return found is not None and any(name != revision for name in found)

    def _count(self, item: Candidate, sign: int) -> None:
        booking, option = item.booking, item.booking.option
        if booking.group:
            found = self._revisions[booking.group]
            found[booking.group_revision] += sign
            if not found[booking.group_revision]:
                del found[booking.group_revision]
            if not found:
                del self._revisions[booking.group]
        if item.leaving:
            self._leavers += sign
            if option is not None and not booking.surge:
                self.leaving[booking.team, option.pool] += sign * item.milli
