"""The names that fairslice reads from and writes on objects.

What users write is `fairslice.io/…`; what we stamp is `system.fairslice.io/…`, and only the
latter is dropped when a user sends it.
"""

__all__ = [
    "ASSIGNMENT",
    "BOOKING",
    "CHECKPOINT_EVERY",
    "CLAIMED",
    "CLASS",
    "DISRUPTED",
    "GATE",
    "GPU_MEMORY",
    "GROUPS",
    "HISTORY",
    "HOLD",
    "LABEL_MANAGED",
    "MANIFEST",
    "MARKED",
    "MARKS_TOLD",
    "ORDER",
    "PIN",
    "POD_GROUP",
    "POD_GROUP_SIZE",
    "POD_STAMP",
    "PREEMPTION",
    "QUEUED_AT",
    "RESTART",
    "RESTARTS",
    "RUNTIME",
    "STATE",
    "STATUS",
    "SYSTEM",
    "URGENT",
    "USER",
    "USER_PREFIX",
]

USER_PREFIX = "fairslice.io/"
SYSTEM = "system.fairslice.io/"

# Written by users.
CLASS = "fairslice.io/class"  # label
GPU_MEMORY = "fairslice.io/gpu-memory"
RESTART = "fairslice.io/restart"
RUNTIME = "fairslice.io/runtime"  # declared run time, for backfill and expected starts
CHECKPOINT_EVERY = "fairslice.io/checkpoint-every"
POD_GROUP = "fairslice.io/pod-group"
POD_GROUP_SIZE = "fairslice.io/pod-group-size"
HOLD = "fairslice.io/hold"
ORDER = "fairslice.io/order"  # a team's own order: a whole number, smaller goes first
PIN = "fairslice.io/pin"  # "true": first of its team's line
URGENT = "fairslice.io/urgent"  # "true": before all but production, for one of its team's tokens

GATE = "fairslice.io/queued"  # scheduling gate of a pod in the queue

# Stamped by fairslice, as annotations unless said otherwise.
BOOKING = SYSTEM + "booking"  # id of the booking in the ledger
POD_STAMP = SYSTEM + "pod"  # a pod's own id among those attached to its workload's booking
CLAIMED = SYSTEM + "claimed"  # id of the workload's booking in which a waiting pod had no place
STATE = SYSTEM + "state"  # label: a State, lower case, on whatever the queue looks after
LABEL_MANAGED = SYSTEM + "managed"  # label: "true" on every pod and workload in the books
USER = SYSTEM + "user"
GROUPS = SYSTEM + "groups"  # the submitter's groups, a JSON list
DISRUPTED = SYSTEM + "disrupted"  # on a stored manifest: why its object went
MANIFEST = SYSTEM + "manifest"  # on a PodTemplate: the object to create again
QUEUED_AT = SYSTEM + "queued-at"  # RFC 3339, first time in line
ASSIGNMENT = SYSTEM + "assignment"  # JSON of an Assignment, on pods and pod templates
MARKED = SYSTEM + "marked"  # JSON: who wrote order, pin and urgent
MARKS_TOLD = SYSTEM + "marks"  # one line for people: which of these count
STATUS = SYSTEM + "status"  # one line for people: state, reason, position
PREEMPTION = SYSTEM + "preemption"  # notice to a victim: when, by whom, why
RESTARTS = SYSTEM + "restarts"
HISTORY = (
    SYSTEM + "history"
)  # JSON: how often it was pushed out or failed to start, why, what was lost
