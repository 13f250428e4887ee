"""Why one goes before another in its team's line: the first term in which they differ."""

from fairslice import messages
from fairslice_queue.order import TeamKey

__all__ = ["why_before"]

_PASSES = (messages.order_passes, messages.order_urgent, messages.order_aged)
_PINNED = -1


def why_before(first: TeamKey, second: TeamKey) -> str:
    """Say why the first goes before the second."""
    pinned = first.rank == _PINNED and second.rank != _PINNED
    if first.passes != second.passes:
        if pinned:
            return messages.order_pinned()
        if first.passes < len(_PASSES):
            return _PASSES[first.passes]()
        return messages.order_scavenges()
    if first.borrowed != second.borrowed:
        return messages.order_guarantee()
    if pinned:
        return messages.order_pinned()
    if first.rank != second.rank:
        return messages.order_class()
    if first.order != second.order:
        return messages.order_moved()
    if first.held != second.held:
        return messages.order_user(first.held, second.held)
    if first.queued_at != second.queued_at:
        return messages.order_time(second.queued_at - first.queued_at)
    return messages.order_name()
