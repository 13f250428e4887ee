"""What else is said of objects that were accepted, and by `fairslice explain`."""

from collections.abc import Iterable

from fairslice.messages.wording import line, listed, whole_span

__all__ = [
    "audit",
    "class_given",
    "class_kept",
    "explain_audited",
    "explain_no_team",
    "explain_nothing",
    "explain_room",
    "held_by_user",
    "mark_checked",
    "max_runtime_set",
    "pool_unknown",
    "pools_gone",
    "priority_class_missing",
    "priority_class_replaced",
    "queued",
    "replicas_would_wait",
    "request_kept",
    "resumed",
    "stamps_kept",
    "still_queued",
]


def audit(text: str) -> str:
    """Warn: what would have happened, were the feature enforced."""
    return line(f"[audit] {text}")


def class_given(work_class: str, source: str, priority_class: str) -> str:
    """Warn: the class that a pod was found to be of, and the PriorityClass that comes with it."""
    return line(f"class {work_class} ({source}): PriorityClass {priority_class}")


def class_kept(kind: str) -> str:
    """Warn: the class label was changed after admission and is put back."""
    return line(f"the class of a {kind} is decided when it is created: fairslice.io/class put back")


def explain_audited() -> str:
    """Explain: nothing is held back, since quota and queue are only audited."""
    return line("quota and queue only audit here: it starts as it is")


def explain_no_team(namespace: str) -> str:
    """Explain: nobody counts what a namespace of no team does."""
    return line(f"namespace {namespace} belongs to no team: fairslice does not count it")


def explain_nothing() -> str:
    """Explain: an object that asks for nothing that is counted."""
    return line("asks for no GPU that fairslice counts")


def explain_room() -> str:
    """Explain: within all caps, with room free."""
    return line("there is room, within all caps")


def held_by_user(kind: str) -> str:
    """Warn: a workload that its user suspended is out of the queue."""
    return line(f"this {kind} is suspended by you and holds no place in line: resume it to queue")


def mark_checked(marks: str, team: str) -> str:
    """Warn: an annotation was written that only counts from a team's lead."""
    return line(
        f"{marks} count from those who may update teams/line of team {team}: the queue says in "
        f"system.fairslice.io/marks what counts"
    )


def max_runtime_set(kind: str, work_class: str, limit: int) -> str:
    """Warn: the class's longest run time was written into a Job."""
    return line(
        f"class {work_class} runs for {whole_span(limit)} at most: activeDeadlineSeconds of "
        f"this {kind} set"
    )


def pool_unknown(team: str, unknown: Iterable[str], pools: Iterable[str]) -> str:
    """Warn: a Team names a pool that the policy does not have, misspelt or not made yet."""
    return line(
        f"team {team} names a pool that the policy does not have: {listed(unknown)}; it gives "
        f"nothing until a pool of that name is made (there are: {listed(pools)})"
    )


def pools_gone(gone: Iterable[str], teams: Iterable[str]) -> str:
    """Warn: a SharingPolicy lacks pools that Teams name, so that their quota there is void."""
    return line(
        f"this policy does not have the pool {listed(gone)}, named by {listed(teams)}: what these "
        "teams have there gives nothing until they name another, or the pool is made"
    )


def priority_class_missing(name: str) -> str:
    """Warn: the class's PriorityClass does not exist, so the pod keeps its own."""
    return line(f"PriorityClass {name} does not exist: the pod keeps its priority")


def priority_class_replaced(old: str, new: str, work_class: str) -> str:
    """Warn: a PriorityClass that no class owns gave way to the class's."""
    return line(f"PriorityClass {old} replaced by {new} of class {work_class}")


def queued(why: str) -> str:
    """Warn: the work waits in the queue."""
    return line(f"queued: {why}")


def replicas_would_wait(fitting: int, replicas: int, why: str) -> str:
    """Warn: a Deployment or StatefulSet asks for more than its team may hold."""
    return line(f"{fitting} of {replicas} replicas can start, the others will wait: {why}")


def request_kept(asked: str, amount: str, given: str) -> str:
    """Warn: a manifest with a fraction was applied again; its pod stays as it was admitted."""
    return line(f"{asked}: {amount} was served as {given}: 1 at the pod's creation, and stays so")


def resumed(kind: str) -> str:
    """Warn: a workload that its user resumed is in the queue again."""
    return line(f"this {kind} is queued again and starts when it is its turn")


def stamps_kept() -> str:
    """Warn: annotations or labels of ours were changed and are put back."""
    return line("system.fairslice.io annotations and labels are fairslice's own: put back")


def still_queued(kind: str) -> str:
    """Warn: a queued workload was un-suspended by hand."""
    return line(
        f"this {kind} is still queued and stays suspended until it is its turn: see its position "
        f"with kubectl fairslice queue"
    )
