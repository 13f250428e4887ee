"""Why work waits, and where it stands."""

from collections.abc import Iterable

from fairslice.messages.wording import cap_text, line
from fairslice.quantity import format_milli

__all__ = [
    "beyond_booking",
    "books_away",
    "budget_exhausted",
    "cap_reached",
    "capacity_taken",
    "expected_start",
    "failed_to_start",
    "fit_apart",
    "fit_elsewhere",
    "fit_gang",
    "fit_kept_off",
    "fit_scarce",
    "group_disagrees",
    "group_incomplete",
    "group_mixed",
    "guarantee_kept",
    "held_by_annotation",
    "lending_checked",
    "no_option_left",
    "others_first",
    "placement_planned",
    "position",
    "pushed_out_often",
    "too_many_submissions",
    "unschedulable",
    "waits_for_room",
    "waits_for_victims",
    "waits_for_window",
]


def beyond_booking(workload: str) -> str:
    """Wait: a pod beyond what its workload booked."""
    return line(f"{workload} has booked no room for this pod")


def books_away() -> str:
    """Wait: the ledger could not be asked when the work was submitted."""
    return line("GPU quotas could not be checked just now; it starts when they can")


def budget_exhausted(team: str, budget: str, until: str) -> str:
    """Wait: a budget of the team is used up for this period; what runs goes on."""
    return line(f"team {team} has used up its budget of {budget}: it starts anew {until}")


def cap_reached(team: str, cause: str, subject: str, used: int, limit: int, asked: int) -> str:
    """Wait: a cap of the team is reached."""
    return cap_text(team, cause, subject, used, limit, asked)


def capacity_taken(what: str) -> str:
    """Wait: every share of this kind is taken."""
    return line(f"waits for {what}")


def expected_start(reason: str, until: str) -> str:
    """Wait: room is kept for it, and declared run times tell when that is free at the latest."""
    return line(f"{reason}; expected to start by {until} (declared run times)")


def failed_to_start(reason: str, until: str) -> str:
    """Wait: it could not start, or was pushed out too often, and is kept back for a while."""
    return line(f"kept back until {until}: {reason}")


def fit_apart(what: str) -> str:
    """Wait: every need is met somewhere, but on no single node all at once."""
    return line(f"no node has {what} and enough cpu and memory free at once")


def fit_elsewhere(resource: str, product: str) -> str:
    """Wait: no node in service offers this kind of share."""
    return line(f"no node in service offers {resource} of {product}")


def fit_gang(pods: int, fit: int, what: str) -> str:
    """Wait: a gang of which only a part would find room."""
    return line(f"needs {pods} pods with {what} at once; {fit} fit now")


def fit_kept_off(nodes: int, why: str) -> str:
    """Wait: the pod's own selectors, or taints, exclude every node with such GPUs."""
    noun = "node" if nodes == 1 else "nodes"
    return line(f"{why} on all {nodes} {noun} with such GPUs")


def fit_scarce(needed: str, what: str, free: str) -> str:
    """Wait: no single node has enough of one thing left."""
    return line(f"needs {needed} {what} on one node; the most free on one node is {free}")


def group_disagrees(name: str, sizes: Iterable[int]) -> str:
    """Wait: the pods of a group don't agree on how many they are."""
    found = ", ".join(str(size) for size in sorted(sizes))
    return line(f"the pods of group {name} name different sizes ({found}): make them the same")


def group_incomplete(name: str, present: int, size: int) -> str:
    """Wait: a group starts as one, and not all of its pods exist."""
    return line(
        f"group {name} starts as one: {present} of its {size} pods exist; create the others, or "
        f"lower fairslice.io/pod-group-size"
    )


def group_mixed(name: str) -> str:
    """Wait: the pods of a group have no kind of share in common."""
    return line(
        f"the pods of group {name} ask for different kinds of GPUs and can't start as one: ask for "
        f"the same kind"
    )


def guarantee_kept(pool: str, free: int, kept: int) -> str:
    """Wait: what is free is kept for teams that don't lend all of their guarantee."""
    return line(
        f"{format_milli(free)} GPUs of {pool} are free, but {format_milli(kept)} are kept for "
        f"teams that don't lend them: it starts within its own team's guarantee, or once more "
        f"is free"
    )


def held_by_annotation() -> str:
    """Wait: somebody holds it back by annotation; it keeps its time in line."""
    return line("held back by the annotation fairslice.io/hold: remove it to go on")


def lending_checked(team: str, pool: str) -> str:
    """Wait: beyond its team's guarantee, in a pool where others keep a part of theirs."""
    return line(f"beyond team {team}'s guarantee of {pool}: the queue checks what others keep")


def no_option_left() -> str:
    """Wait: nothing that this cluster offers now serves the request."""
    return line("no node offers what it asks for; it starts when one does")


def others_first(what: str) -> str:
    """Wait: work of equal or higher standing waits for the same."""
    return line(f"others wait before it for {what}")


def placement_planned() -> str:
    """Wait: the pod chooses its nodes, so the queue must place it."""
    return line("its node constraints are checked by the queue")


def position(place: int, queued: int, team: str, reason: str) -> str:
    """Tell a waiting workload where it stands."""
    return line(f"position {place} of {queued} in team {team}: {reason}")


def pushed_out_often(times: int) -> str:
    """Wait: its GPUs were others' to take back again and again."""
    return line(
        f"pushed out {times} times in a day from borrowed GPUs; within its own team's guarantee it "
        f"starts at once"
    )


def too_many_submissions(team: str, limit: int) -> str:
    """Wait: a flood of requests that never became objects."""
    return line(f"team {team} has {limit} submissions that are not stored yet")


def unschedulable(reason: str) -> str:
    """Not started: the kube-scheduler finds no node for a pod that can't be queued again."""
    return line(
        f"no node takes this pod: it holds no GPU but counts towards its team's limit; delete it, "
        f'or make it with fairslice.io/restart: "true" to be queued again: {reason}'
    )


def waits_for_room(reason: str) -> str:
    """Wait: it fits nowhere just now, and why."""
    return line(f"waits for room: {reason}")


def waits_for_window(team: str, pool: str, asked: int, limit: int, until: str) -> str:
    """Wait: more than its team may hold now, but not more than it may hold once a window opens."""
    return line(
        f"asks for {format_milli(asked)} {pool}, of which team {team} may hold "
        f"{format_milli(limit)} until {until}, and enough for it from then on"
    )


def waits_for_victims(reason: str) -> str:
    """Wait: others are making room for it."""
    return line(f"work is being pushed out for it ({reason})")
