"""What is said of objects that were refused, GPU requests and guards aside."""

from collections.abc import Iterable

from fairslice.messages.wording import asking, cap_text, fitting, line, listed, size_of, unit, whose

__all__ = [
    "booking_gone",
    "cap_exceeded",
    "changed_after_admission",
    "claim_way_out",
    "class_not_allowed",
    "class_unknown",
    "foreign_booking",
    "gate_removed",
    "namespace_without_team",
    "never_fits_cap",
    "never_fits_capacity",
    "no_room",
    "patch_inapplicable",
    "pod_group_size",
    "resource_invalid",
    "template_changed",
    "too_many",
    "try_again",
    "unbooked",
]


def booking_gone(kind: str) -> str:
    """Deny: the booking made a moment ago is no longer there when the object is to be stored."""
    return line(f"this {kind}'s booking has ended before it was stored: submit it again")


def cap_exceeded(
    team: str, cause: str, subject: str, used: int, limit: int, asked: int, *, waits: str
) -> str:
    """Deny: a cap of the team stands in the way now. `waits` says how to wait instead."""
    return line(f"{cap_text(team, cause, subject, used, limit, asked)}: {waits}")


def changed_after_admission(what: str) -> str:
    """Deny: another webhook changed what had been decided."""
    return line(
        f"changed after admission: {what}: another webhook interferes, ask the platform team"
    )


def claim_way_out() -> str:
    """Tell how to wait for devices, at the end of the denial of a claim that finds no room."""
    return line(
        "a claim can't wait in line; use a ResourceClaimTemplate, whose pods can, or end something"
    )


def class_not_allowed(work_class: str, source: str, team: str, allowed: Iterable[str]) -> str:
    """Deny: a class that the team was not granted."""
    return line(
        f"class {work_class} ({source}) is not granted to team {team}: use one of "
        f"{listed(allowed) or 'none'}, or ask the platform team to add it to allowedClasses"
    )


def class_unknown(work_class: str, source: str, known: Iterable[str]) -> str:
    """Deny: a class that the policy doesn't define."""
    return line(f"class {work_class} ({source}) does not exist: use one of {listed(known)}")


def foreign_booking() -> str:
    """Deny: stamps that belong to another object."""
    return line(
        "the system.fairslice.io annotations belong to another object: remove them and submit "
        "it again"
    )


def gate_removed() -> str:
    """Deny: someone takes the scheduling gate off a pod that waits in the queue."""
    return line(
        "the scheduling gate fairslice.io/queued is removed by the queue when it is this pod's "
        "turn: see its position with kubectl fairslice queue"
    )


def namespace_without_team(namespace: str) -> str:
    """Deny: GPUs in a namespace of no team, where the policy wants one."""
    return line(
        f"namespace {namespace} belongs to no team and may not use GPUs: ask the platform team "
        f"to add it to a Team (kubectl get teams)"
    )


def never_fits_cap(
    team: str, cause: str, subject: str, limit: int, asked: int, *, pods: int, fits: int
) -> str:
    """Deny: more than the team may ever hold. `fits` is the number of such pods that would."""
    return line(
        f"can never run: {asking(cause, asked)} exceeds {whose(team, cause, subject)} limit of "
        f"{size_of(cause, limit)} {unit(cause)}: {fitting(pods, fits)} or ask for a higher limit"
    )


def never_fits_capacity(what: str, have: int, *, pods: int, fits: int) -> str:
    """Deny: more than the cluster has, autoscaling included."""
    return line(
        f"can never run: {pods} × {what}, but this cluster has {have} in all: "
        f"{fitting(pods, fits)} or choose another size"
    )


def no_room(what: str, *, waits: str) -> str:
    """Deny: all is taken now, or others wait for it, and this class does not wait."""
    return line(f"no room now: {what}: {waits}")


def patch_inapplicable() -> str:
    """Deny: a GPU pod that could not be changed as it must be."""
    return line(
        "fairslice could not change this object as its GPUs need it: this is a bug, please tell "
        "the platform team (the log has the details)"
    )


def pod_group_size(name: str, text: str, most: int) -> str:
    """Deny: a pod names a group, but not how many pods it is to have."""
    said = f"fairslice.io/pod-group-size is {text[:20]!r}" if text else "it doesn't say how many"
    return line(
        f"pod group {name}: {said}; set fairslice.io/pod-group-size on each of its pods to their "
        f"number, 1 to {most}"
    )


def resource_invalid(kind: str, why: str) -> str:
    """Deny: a Team or SharingPolicy that contradicts itself or its schema."""
    return line(f"{kind}: {why}")


def template_changed() -> str:
    """Deny: a queued workload's GPU request is edited."""
    return line(
        "the GPU request of queued work can't be changed, its place in line was given for it: "
        "delete it and submit it again"
    )


def too_many(what: str, most: int, way_out: str) -> str:
    """Deny: more parts than can be looked through while the API server waits."""
    return line(f"more than {most} {what}: as many are not looked through, {way_out}")


def try_again() -> str:
    """Deny: the books can't be read now, and this pod can't wait in the queue."""
    return line("GPU quotas can't be checked just now: try again in a minute")


def unbooked() -> str:
    """Deny: a GPU pod of a team that reaches storage without having been admitted."""
    return line("this pod asks for GPUs but was not booked: submit it again")
