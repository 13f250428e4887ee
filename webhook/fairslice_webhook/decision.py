"""What a review comes to: an answer, or something to ask the ledger first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from fairslice_queue.ledger import BookRequest
from fairslice_webhook.patching import Op

if TYPE_CHECKING:
    from fairslice_webhook.claims import ClaimPlan
    from fairslice_webhook.pod_plan import PodPlan
    from fairslice_webhook.replicas import ReplicaPlan
    from fairslice_webhook.workloads import WorkloadPlan

__all__ = [
    "Answer",
    "Attach",
    "AuditRecord",
    "Bind",
    "BindPod",
    "Book",
    "Decision",
    "Denial",
    "Peek",
    "PeekReplicas",
    "Wish",
    "allow",
    "deny",
]


class AuditRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that Enforce would have done. `outcome` is `change`, `deny` or `queue`.

    `at` is in Unix seconds.
    """

    feature: str
    outcome: str
    kind: str
    namespace: str
    name: str
    team: str
    user: str
    message: str
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is refused. The code is HTTP's, as kubectl shows it.

    `unseen` says that what the object rests on may only not have been seen yet.
    """

    message: str
    code: int = 403
    reason: str = "Forbidden"
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The final word on a review.

    `strict` says that the object must not be stored without the patch: GPU work that would
    otherwise run unbooked.
    """

    ops: Sequence[Op] = ()
    warnings: Sequence[str] = ()
    denial: Denial | None = None
    records: Sequence[AuditRecord] = field(default=(), kw_only=True)
    strict: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Book:
    """Hold room for a pod, workload or claim."""

    request: BookRequest
    plan: "PodPlan | WorkloadPlan | ClaimPlan"


@dataclass(frozen=True, slots=True)
class Attach:
    """Count a pod of so many units against its released workload.

    `above` are the kinds of workloads for which others, such as the pod's owner, make pods.
    """

    booking: str
    owner_uid: str
    above: Sequence[str]
    units: int
    team: str
    pod: str
    now: float
    plan: "PodPlan"


@dataclass(frozen=True, slots=True)
class Bind:
    """Tie a booking to the object about to be stored; `waits` if it is gated or suspended.

    `units` is what a pod asks for in the end.
    """

    booking: str
    namespace: str
    kind: str
    name: str
    uid: str
    waits: bool
    units: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class BindPod:
    """Tie an attached pod to its final uid and name."""

    booking: str
    pod: str
    uid: str
    name: str
    waits: bool


@dataclass(frozen=True, slots=True)
class Peek:
    """Read what a team holds, to say what booking would come to without doing it.

    `dry` is a dry run, answered as the real one would be; else it is audit.
    """

    team: str
    request: BookRequest
    plan: "PodPlan | WorkloadPlan | ClaimPlan"
    dry: bool


@dataclass(frozen=True, slots=True)
class PeekReplicas:
    """Read what a team holds, to say which replicas would wait."""

    team: str
    plan: "ReplicaPlan"


Wish = Book | Attach | Bind | BindPod | Peek | PeekReplicas
Decision = Answer | Wish


def allow(*warnings: str) -> Answer:
    """Let the object pass as it is."""
    return Answer((), warnings)


def deny(message: str, *, code: int = 403, reason: str = "Forbidden") -> Answer:
    """Refuse the object."""
    return Answer(denial=Denial(message, code, reason))
