"""What happened to a workload before, kept on its object as one annotation.

It survives whatever dies, and goes along when the object is made anew.
"""

import time
from collections.abc import Mapping

from msgspec import DecodeError, Struct, ValidationError, json

from fairslice import messages, stamps

__all__ = ["DISRUPTED", "FAILED", "PUSHED", "RESTARTED", "Happened", "Past", "noted", "past_of"]

PUSHED = "PushedOut"  # by the queue
DISRUPTED = "Disrupted"  # by the kube-scheduler, a drain, the loss of a node
FAILED = "FailedToStart"
RESTARTED = "Restarted"

_KEPT = 8


class Happened(Struct, frozen=True, omit_defaults=True):
    """One thing that happened: when (RFC 3339), what, why; `lost` is in seconds of work."""

    at: str
    what: str
    why: str = ""
    lost: int = 0

    @property
    def moment(self) -> float:
        """When it happened, in Unix seconds; 0 if that can't be read."""
        try:
            return time.mktime(time.strptime(self.at, "%Y-%m-%dT%H:%M:%SZ")) - time.timezone
        except (ValueError, OverflowError):
            return 0.0


class Past(Struct, frozen=True, omit_defaults=True):
    """How often a workload was pushed out, failed to start or was made again, and the last few.

    `lost` is in seconds of work.
    """

    pushed: int = 0
    failed: int = 0
    restarted: int = 0
    lost: int = 0
    last: tuple[Happened, ...] = ()

    def text(self) -> str:
        """Write it as the annotation has it."""
        return json.encode(self).decode()


_PAST = json.Decoder(Past)


def past_of(annotations: Mapping[str, str]) -> Past:
    """Read what is written on an object; nothing, if that can't be read."""
    text = annotations.get(stamps.HISTORY)
    if not text:
        return Past()
    try:
        return _PAST.decode(text)
    except (DecodeError, ValidationError):
        return Past()


def noted(
    annotations: Mapping[str, str], what: str, why: str, now: float, lost: float = 0.0
) -> str:
    """Write the annotation anew with one thing more."""
    past = past_of(annotations)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    event = Happened(at, what, messages.line(why), round(lost))
    return Past(
        pushed=past.pushed + (what in (PUSHED, DISRUPTED)),
        failed=past.failed + (what == FAILED),
        restarted=past.restarted + (what == RESTARTED),
        lost=past.lost + event.lost,
        last=(*past.last, event)[-_KEPT:],
    ).text()
