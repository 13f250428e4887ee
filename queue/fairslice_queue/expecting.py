"""When kept nodes are free at the latest, by the declared run times of those who hold them."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from math import inf

from fairslice.placement import NodeState
from fairslice_queue.victims import Candidate, without

__all__ = ["free_by"]


def free_by(
    nodes: Mapping[str, NodeState],
    holders: Iterable[Candidate],
    fits: Callable[[Mapping[str, NodeState]], bool],
    now: float,
) -> float | None:
    """Tell the time (Unix seconds) by which something fits on these nodes.

    None: it would take some to end that declared nothing, or that didn't keep their word.
    """
    ending = sorted(
        (
            holder
            for holder in holders
            if now < holder.ends_by < inf and not nodes.keys().isdisjoint(holder.booking.place)
        ),
        key=lambda holder: holder.ends_by,
    )
    # The more have ended, the more fits.
    count = bisect_left(
        range(len(ending) + 1), True, key=lambda number: fits(without(ending[:number], nodes))
    )
    return ending[count - 1].ends_by if 0 < count <= len(ending) else None
