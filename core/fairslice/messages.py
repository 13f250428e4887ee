"""Everything fairslice says to people: one function a message, one line, at most 256 characters.

Each text says what happened, with the numbers, and the way out.
"""

from collections.abc import Iterable

from fairslice.quantity import format_milli

__all__ = [
    "ask_disagrees",
    "ask_fraction",
    "ask_memory_containers",
    "ask_memory_malformed",
    "ask_mistyped",
    "ask_negative",
    "ask_not_a_number",
    "ask_requests_only",
    "ask_several_replicas",
    "ask_template_unseen",
    "ask_two_kinds",
    "audit",
    "beyond_booking",
    "booking_gone",
    "books_away",
    "budget_exhausted",
    "cap_exceeded",
    "cap_reached",
    "capacity_taken",
    "changed_after_admission",
    "claim_way_out",
    "class_given",
    "class_kept",
    "class_not_allowed",
    "class_unknown",
    "env_from_open",
    "expected_start",
    "explain_audited",
    "explain_no_team",
    "explain_nothing",
    "explain_room",
    "failed_to_start",
    "fit_apart",
    "fit_elsewhere",
    "fit_gang",
    "fit_kept_off",
    "fit_scarce",
    "foreign_booking",
    "gate_removed",
    "group_disagrees",
    "group_incomplete",
    "group_mixed",
    "guarantee_kept",
    "guard_admin_access",
    "guard_admin_label",
    "guard_annotation",
    "guard_device_mount",
    "guard_env_from",
    "guard_host_namespace",
    "guard_host_path",
    "guard_node_name",
    "guard_privileged",
    "held_by_annotation",
    "held_by_user",
    "hidden",
    "lending_checked",
    "line",
    "lint_memory_fraction",
    "lint_processes",
    "lint_visible_devices",
    "listed",
    "max_runtime_over",
    "max_runtime_set",
    "namespace_without_team",
    "never_fits_cap",
    "never_fits_capacity",
    "no_option_left",
    "no_room",
    "option_given",
    "option_missing",
    "order_aged",
    "order_class",
    "order_guarantee",
    "order_name",
    "order_passes",
    "order_scavenges",
    "order_share",
    "order_time",
    "others_first",
    "patch_inapplicable",
    "placement_planned",
    "pod_group_size",
    "pods_one_by_one",
    "position",
    "preempted",
    "preempted_by",
    "priority_class_missing",
    "priority_class_replaced",
    "pushed_out_by_others",
    "queued",
    "replicas_would_wait",
    "resource_invalid",
    "resumed",
    "rule_borrower",
    "rule_class",
    "rule_quota_cut",
    "rule_scavenger",
    "stamps_kept",
    "still_queued",
    "template_changed",
    "too_many_submissions",
    "try_again",
    "unbooked",
    "waits_for_room",
    "waits_for_victims",
]

MAX_LENGTH = 256
"""The API server cuts a warning there once a response carries many."""


def line(text: str) -> str:
    """Make one line of at most 256 characters, without control characters."""
    flat = " ".join(text.split())
    if not flat.isprintable():
        flat = "".join(char for char in flat if char.isprintable())
    return flat if len(flat) <= MAX_LENGTH else flat[: MAX_LENGTH - 1] + "…"


def listed(items: Iterable[str], most: int = 5) -> str:
    """Join names for a sentence, at most so many of them."""
    names = list(items)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _container(name: str) -> str:
    return f"container {name}" if name else "the pod"


def _amount(cause: str, amount: int) -> str:
    return str(amount) if cause == "resource" else format_milli(amount)


def _unit(cause: str) -> str:
    return "units" if cause == "resource" else "GPUs"


def _asked(cause: str, amount: int) -> str:
    return f"asking for {_amount(cause, amount)}"


def _whose(team: str, cause: str, subject: str) -> str:
    match cause:
        case "class":
            return f"team {team}'s class {subject}"
        case "user":
            return f"{subject}'s (in team {team})"
        case _:
            return f"team {team}'s {subject}"


def _cap(team: str, cause: str, subject: str, used: int, limit: int, asked: int) -> str:
    return line(
        f"{_whose(team, cause, subject)} limit: {_amount(cause, used)} of "
        f"{_amount(cause, limit)} {_unit(cause)} in use, {_amount(cause, asked)} asked"
    )


def _fitting(pods: int, fits: int) -> str:
    if fits <= 0:
        return "ask for a smaller share"
    return (
        f"at most {fits} of {pods} pods would fit: lower the count" if pods > 1 else "ask for less"
    )


# Denials.


def booking_gone(kind: str) -> str:
    """Deny: the booking made a moment ago is no longer there when the object is to be stored."""
    return line(f"this {kind}'s booking has ended before it was stored: submit it again")


def cap_exceeded(
    team: str, cause: str, subject: str, used: int, limit: int, asked: int, *, waits: str
) -> str:
    """Deny: a cap of the team stands in the way now. `waits` says how to wait instead."""
    return line(f"{_cap(team, cause, subject, used, limit, asked)}: {waits}")


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


def gate_removed() -> str:
    """Deny: someone takes the scheduling gate off a pod that waits in the queue."""
    return line(
        "the scheduling gate fairslice.io/queued is removed by the queue when it is this pod's "
        "turn: see its position with kubectl fairslice queue"
    )


def guard_admin_access(name: str) -> str:
    """Deny: a DRA claim that reaches devices in use by others."""
    return line(f"device request {name}: adminAccess opens GPUs that others use: leave it out")


def guard_admin_label(namespace: str, team: str) -> str:
    """Deny: the label by which a namespace's claims may reach devices in use by others."""
    return line(
        f"label resource.kubernetes.io/admin-access on namespace {namespace} of team {team} opens "
        f"GPUs that others use: leave it out, or exempt the namespace in the SharingPolicy"
    )


def guard_annotation(key: str) -> str:
    """Deny: an annotation by which a runtime injects devices."""
    return line(
        f"annotation {key} injects devices past the scheduler: remove it and ask for GPUs under "
        f"resources.limits"
    )


def guard_device_mount(container: str, path: str) -> str:
    """Deny: a mount by which the container toolkit selects GPUs."""
    return line(
        f"{_container(container)}: a mount at {path} selects GPUs past the scheduler: remove it "
        f"and ask for GPUs under resources.limits"
    )


def guard_env_from(container: str) -> str:
    """Deny: envFrom on a GPU container, whose keys could overrule the device plugin."""
    return line(
        f"{_container(container)}: envFrom could set NVIDIA_VISIBLE_DEVICES on a container with "
        f"GPUs: name the variables you need under env with valueFrom"
    )


def guard_host_namespace(field: str) -> str:
    """Deny: a GPU pod in the node's process or IPC namespace."""
    return line(f"{field} with GPUs opens other people's GPU processes: remove {field}")


def guard_host_path(volume: str, path: str) -> str:
    """Deny: a directory of the node that holds devices or the sockets that hand them out."""
    return line(
        f"volume {volume}: hostPath {path} opens the node's devices: use an emptyDir (medium: "
        f"Memory in place of /dev/shm) or a persistent volume"
    )


def guard_node_name(node: str) -> str:
    """Deny: a GPU pod that names its node."""
    return line(
        f"nodeName {node} skips scheduler and queue: use nodeSelector kubernetes.io/hostname: "
        f"{node}"
    )


def guard_privileged(container: str, what: str) -> str:
    """Deny: a container that sees all the node's devices."""
    return line(
        f"{_container(container)}: {what} opens every GPU of the node: remove it, or ask the "
        f"platform team for an exempt ServiceAccount"
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
        f"can never run: {_asked(cause, asked)} exceeds {_whose(team, cause, subject)} limit of "
        f"{_amount(cause, limit)} {_unit(cause)}: {_fitting(pods, fits)} or ask for a higher limit"
    )


def never_fits_capacity(what: str, have: int, *, pods: int, fits: int) -> str:
    """Deny: more than the cluster has, autoscaling included."""
    return line(
        f"can never run: {pods} × {what}, but this cluster has {have} in all: "
        f"{_fitting(pods, fits)} or choose another size"
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


def try_again() -> str:
    """Deny: the books can't be read now, and this pod can't wait in the queue."""
    return line("GPU quotas can't be checked just now: try again in a minute")


def unbooked() -> str:
    """Deny: a GPU pod of a team that reaches storage without having been admitted."""
    return line("this pod asks for GPUs but was not booked: submit it again")


def foreign_booking() -> str:
    """Deny: stamps that belong to another object."""
    return line(
        "the system.fairslice.io annotations belong to another object: remove them and submit "
        "it again"
    )


def ask_disagrees(container: str, resource: str, limit: str, request: str) -> str:
    """Deny: a container's limit and request of a GPU resource differ."""
    return line(
        f"{_container(container)}: {resource} has limit {limit} but request {request}: GPUs "
        f"can't be overcommitted, set both to the same number or leave the request out"
    )


def ask_fraction(container: str, resource: str, value: str) -> str:
    """Deny: a fraction of a GPU where fractions mean nothing."""
    return line(
        f"{_container(container)}: {resource}: {value} is not a whole number: ask for 1, and "
        f"say how much memory you need with the annotation fairslice.io/gpu-memory, such as 18Gi"
    )


def ask_memory_containers(value: str, count: int) -> str:
    """Deny: declared memory on a pod with several GPU containers."""
    return line(
        f"annotation fairslice.io/gpu-memory: {value} speaks of one GPU container, this pod "
        f"has {count}: ask for a slice by name in each (such as nvidia.com/mig-1g.10gb: 1)"
    )


def ask_memory_malformed(value: str) -> str:
    """Deny: declared memory that is no positive quantity of memory."""
    return line(
        f"annotation fairslice.io/gpu-memory: {value!r} is not an amount of memory such as "
        f"18Gi, 20G or 9500Mi"
    )


def ask_mistyped(container: str, resource: str) -> str:
    """Deny: a name under nvidia.com/mig- that no device plugin could advertise."""
    return line(
        f"{_container(container)}: {resource} is no MIG resource: names look like "
        f"nvidia.com/mig-1g.10gb, nvidia.com/mig-1g.10gb.me or nvidia.com/mig-3g.40gb.shared"
    )


def ask_negative(container: str, resource: str, value: str) -> str:
    """Deny: less than nothing."""
    return line(f"{_container(container)}: {resource}: {value} is negative: ask for 1 or more")


def ask_not_a_number(container: str, resource: str, value: str) -> str:
    """Deny: a value outside the quantity grammar."""
    return line(f"{_container(container)}: {resource}: {value!r} is not a number of GPUs such as 1")


def ask_requests_only(container: str, resource: str, value: str) -> str:
    """Deny: a GPU request without a limit, which the API server would refuse less clearly."""
    return line(
        f"{_container(container)}: requests {resource}: {value} but sets no limit: put "
        f"{resource}: {value} under resources.limits"
    )


def ask_several_replicas(container: str, resource: str, value: str) -> str:
    """Deny: more than one replica of shared GPUs in one container."""
    return line(
        f"{_container(container)}: {resource}: {value}: several replicas may be one and the same "
        f"GPU and add neither memory nor speed: ask for 1, or for whole GPUs"
    )


def ask_template_unseen(name: str, namespace: str) -> str:
    """Deny: a pod's claims can't be counted, since their template isn't there."""
    return line(
        f"ResourceClaimTemplate {name} does not exist in namespace {namespace}: create it before "
        f"the pods that use it"
    )


def ask_two_kinds(container: str, first: str, second: str) -> str:
    """Deny: two GPU resources in one container, of which it would see only one."""
    return line(
        f"{_container(container)}: asks for {first} and {second}, but would see only one of "
        f"them: ask for one kind per container"
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


def option_missing(asked: str, why: str, exists: Iterable[str]) -> str:
    """Deny: nothing that this cluster offers can serve the request."""
    return line(f"{asked}: {why}; this cluster has {listed(exists) or 'no GPUs'}")


# Warnings.


def audit(text: str) -> str:
    """Warn: what would have happened, were the feature enforced."""
    return line(f"[audit] {text}")


def class_given(work_class: str, source: str, priority_class: str) -> str:
    """Warn: the class that a pod was found to be of, and the PriorityClass that comes with it."""
    return line(f"class {work_class} ({source}): PriorityClass {priority_class}")


def class_kept(kind: str) -> str:
    """Warn: the class label was changed after admission and is put back."""
    return line(f"the class of a {kind} is decided when it is created: fairslice.io/class put back")


def env_from_open(container: str) -> str:
    """Warn: envFrom could overrule the device plugin on a GPU container."""
    return line(
        f"{_container(container)}: envFrom must not set NVIDIA_VISIBLE_DEVICES on a container "
        f"with GPUs"
    )


def hidden(what: Iterable[str]) -> str:
    """Warn: variables that reach for GPUs were set aside."""
    return line(f"set aside, since containers see only the GPUs they ask for: {listed(what)}")


def held_by_user(kind: str) -> str:
    """Warn: a workload that its user suspended is out of the queue."""
    return line(f"this {kind} is suspended by you and holds no place in line: resume it to queue")


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


def max_runtime_set(kind: str, work_class: str, limit: int) -> str:
    """Warn: the class's longest run time was written into a Job."""
    return line(
        f"class {work_class} runs for {_whole_span(limit)} at most: activeDeadlineSeconds of "
        f"this {kind} set"
    )


def pods_one_by_one(kind: str) -> str:
    """Warn: a workload's pods have no kind of share in common, so that they start one by one."""
    return line(
        f"the pods of this {kind} ask for different kinds of GPUs: they wait and start one by one, "
        f"not together; ask for the same kind to have them start as one"
    )


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


def lint_memory_fraction(container: str, what: str) -> str:
    """Warn: a server reckons its memory from the whole card, of which it has only a share."""
    return line(
        f"{_container(container)}: its memory fraction is of the whole card, yet it gets {what}: "
        f"set a fraction that leaves the others theirs, or choose a class with slices"
    )


def lint_processes(container: str, flag: str, count: int, held: int) -> str:
    """Warn: more processes or shards than GPUs, each of which wants one of its own."""
    return line(
        f"{_container(container)}: {flag} {count} wants {count} GPUs, it can use {held}: lower it "
        f"to {held}, or ask for {count} whole GPUs"
    )


def lint_visible_devices(container: str, value: str, held: int) -> str:
    """Warn: CUDA_VISIBLE_DEVICES names a GPU that the container won't have."""
    only = "0" if held == 1 else f"0 to {held - 1}"
    return line(
        f"{_container(container)}: CUDA_VISIBLE_DEVICES={value[:40]} names GPUs that it won't "
        f"have: leave it out; its own are numbered {only}"
    )


def option_given(description: str) -> str:
    """Warn: what a GPU request was rewritten to, and how isolated it is."""
    return line(f"fairslice gives {description}")


# Reasons for waiting.


def books_away() -> str:
    """Wait: the ledger could not be asked when the work was submitted."""
    return line("GPU quotas could not be checked just now; it starts when they can")


def beyond_booking(workload: str) -> str:
    """Wait: a pod beyond what its workload booked."""
    return line(f"{workload} has booked no room for this pod")


def budget_exhausted(team: str, budget: str, until: str) -> str:
    """Wait: a budget of the team is used up for this period; what runs goes on."""
    return line(f"team {team} has used up its budget of {budget}: it starts anew {until}")


def cap_reached(team: str, cause: str, subject: str, used: int, limit: int, asked: int) -> str:
    """Wait: a cap of the team is reached."""
    return _cap(team, cause, subject, used, limit, asked)


def capacity_taken(what: str) -> str:
    """Wait: every share of this kind is taken."""
    return line(f"waits for {what}")


def expected_start(reason: str, until: str) -> str:
    """Wait: room is kept for it, and declared run times tell when that is free at the latest."""
    return line(f"{reason}; expected to start by {until} (declared run times)")


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


def others_first(what: str) -> str:
    """Wait: work of equal or higher standing waits for the same."""
    return line(f"others wait before it for {what}")


def placement_planned() -> str:
    """Wait: the pod chooses its nodes, so the queue must place it."""
    return line("its node constraints are checked by the queue")


def too_many_submissions(team: str, limit: int) -> str:
    """Wait: a flood of requests that never became objects."""
    return line(f"team {team} has {limit} submissions that are not stored yet")


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


def failed_to_start(reason: str, until: str) -> str:
    """Wait: it was released, could not be scheduled, and is kept back for a while."""
    return line(f"could not start ({reason}): tried again at {until}")


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


def no_option_left() -> str:
    """Wait: nothing that this cluster offers now serves the request."""
    return line("no node offers what it asks for; it starts when one does")


def preempted(rule: str, lost_seconds: float) -> str:
    """Tell a victim that made room for nobody: by which right it had to go, and what it lost."""
    return line(f"pushed out: {rule}; lost {_span(lost_seconds)} of work; it is queued again")


def preempted_by(beneficiary: str, rule: str, lost_seconds: float) -> str:
    """Tell a victim: who pushed it out, by which right, and what it lost."""
    return line(f"made room for {beneficiary} ({rule}); lost {_span(lost_seconds)} of work")


def max_runtime_over(work_class: str, limit: int, until: str) -> str:
    """Tell work that it ends, or ended, as it ran for as long as its class may."""
    return line(f"class {work_class} runs for {_whole_span(limit)} at most: ends at {until}")


def position(place: int, queued: int, team: str, reason: str) -> str:
    """Tell a waiting workload where it stands."""
    return line(f"position {place} of {queued} in team {team}: {reason}")


def pushed_out_by_others(reason: str) -> str:
    """Tell a victim of the kube-scheduler, of a drain or of a lost node."""
    return line(f"pushed out by others ({reason}); it is queued again")


def rule_borrower(victim_class: str, team: str) -> str:
    """Name the right to reclaim a guarantee."""
    return line(f"team {team} takes its guarantee back from borrowed {victim_class} work")


def rule_class(work_class: str, victim_class: str) -> str:
    """Name the right of a class that passes everyone."""
    return line(f"class {work_class} goes before {victim_class}")


def rule_quota_cut(team: str, pool: str, held: int, limit: int) -> str:
    """Name the right to bring a team down to a limit that was lowered."""
    return line(
        f"team {team} holds {format_milli(held)} {pool}, its limit is {format_milli(limit)} now"
    )


def rule_scavenger(team: str) -> str:
    """Name the right against work that has only what nobody else wants."""
    return line(f"team {team}'s budget is used up, it has only what nobody else wants")


def waits_for_room(reason: str) -> str:
    """Wait: it fits nowhere just now, and why."""
    return line(f"waits for room: {reason}")


def waits_for_victims(reason: str) -> str:
    """Wait: others are making room for it."""
    return line(f"work is being pushed out for it ({reason})")


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _whole_span(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


def order_aged() -> str:
    """Explain an order: the first has waited longer than the policy's aging."""
    return line("has waited longer than the queue's aging time")


def order_class() -> str:
    """Explain an order: the first is of a more important class."""
    return line("is of a more important class")


def order_guarantee() -> str:
    """Explain an order: the first stays within its team's guarantee, the other borrows."""
    return line("is within its team's guarantee, the other would borrow")


def order_name() -> str:
    """Explain an order: equal in everything, so the name decides."""
    return line("is equal in standing; the name decides")


def order_passes() -> str:
    """Explain an order: the first's class passes everyone."""
    return line("is of a class that may pass everyone")


def order_scavenges() -> str:
    """Explain an order: the other's team has used up a budget and has what nobody else wants."""
    return line("the other's team has used up its budget and has only what nobody else wants")


def order_share(first: float, second: float) -> str:
    """Explain an order: the first's team has used less of its share lately."""
    return line(f"its team has used less lately: share {first:.3g} against {second:.3g}")


def order_time(seconds: float) -> str:
    """Explain an order: the first came earlier."""
    return line(f"has been in line {seconds:.0f} s longer")
