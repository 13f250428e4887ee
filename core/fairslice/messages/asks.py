"""What is said of GPU requests: mistakes in them, what they get, what can't work with it."""

from collections.abc import Iterable

from fairslice.messages.wording import MAX_LENGTH, line, listed, named

__all__ = [
    "ask_disagrees",
    "ask_fraction",
    "ask_memory_containers",
    "ask_memory_malformed",
    "ask_mistyped",
    "ask_negative",
    "ask_not_a_number",
    "ask_refused",
    "ask_requests_only",
    "ask_several_replicas",
    "ask_template_unseen",
    "ask_too_many",
    "ask_two_kinds",
    "lint_memory_fraction",
    "lint_processes",
    "lint_several_slices",
    "lint_visible_devices",
    "option_given",
    "option_missing",
    "pods_one_by_one",
]


def ask_disagrees(container: str, resource: str, limit: str, request: str) -> str:
    """Deny: a container's limit and request of a GPU resource differ."""
    return line(
        f"{named(container)}: {resource} has limit {limit} but request {request}: GPUs "
        f"can't be overcommitted, set both to the same number or leave the request out"
    )


def ask_fraction(container: str, resource: str, value: str) -> str:
    """Deny: a fraction of a GPU where fractions mean nothing."""
    return line(
        f"{named(container)}: {resource}: {value} is not a whole number: ask for 1, and "
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
        f"{named(container)}: {resource} is no MIG resource: names look like "
        f"nvidia.com/mig-1g.10gb, nvidia.com/mig-1g.10gb.me or nvidia.com/mig-3g.40gb.shared"
    )


def ask_negative(container: str, resource: str, value: str) -> str:
    """Deny: less than nothing."""
    return line(f"{named(container)}: {resource}: {value} is negative: ask for 1 or more")


def ask_not_a_number(container: str, resource: str, value: str) -> str:
    """Deny: a value outside the quantity grammar."""
    return line(f"{named(container)}: {resource}: {value!r} is not a number of GPUs such as 1")


def ask_refused(problem: str, exists: Iterable[str]) -> str:
    """Deny: a GPU request that can't be meant, with what there is to ask for."""
    names = list(exists)
    # As many as there is room for: half a name helps nobody.
    for most in range(5, 0, -1):
        text = f"{problem}; this cluster has {listed(names, most) or 'no GPUs'}"
        if len(text) <= MAX_LENGTH:
            return line(text)
    return line(problem)


def ask_requests_only(container: str, resource: str, value: str) -> str:
    """Deny: a GPU request without a limit, which the API server would refuse less clearly."""
    return line(
        f"{named(container)}: requests {resource}: {value} but sets no limit: put "
        f"{resource}: {value} under resources.limits"
    )


def ask_several_replicas(container: str, resource: str, value: str) -> str:
    """Deny: more than one replica of shared GPUs in one container."""
    return line(
        f"{named(container)}: {resource}: {value}: several replicas may be one and the same "
        f"GPU and add neither memory nor speed: ask for 1, or for whole GPUs"
    )


def ask_template_unseen(name: str, namespace: str) -> str:
    """Deny: a pod's claims can't be counted, since their template isn't there."""
    return line(
        f"ResourceClaimTemplate {name} does not exist in namespace {namespace}: create it before "
        f"the pods that use it"
    )


def ask_too_many(container: str, resource: str, value: str) -> str:
    """Deny: more GPUs than any node could ever have."""
    return line(f"{named(container)}: {resource}: {value[:40]}: no node has as many: ask for less")


def ask_two_kinds(container: str, first: str, second: str) -> str:
    """Deny: two GPU resources in one container, of which it would see only one."""
    return line(
        f"{named(container)}: asks for {first} and {second}, but would see only one of "
        f"them: ask for one kind per container"
    )


def lint_memory_fraction(container: str, what: str) -> str:
    """Warn: a server reckons its memory from the whole card, of which it has only a share."""
    return line(
        f"{named(container)}: its memory fraction is of the whole card, yet it gets {what}: "
        f"set a fraction that leaves the others theirs, or choose a class with slices"
    )


def lint_processes(container: str, flag: str, count: int, held: int) -> str:
    """Warn: more processes or shards than GPUs, each of which wants one of its own."""
    return line(
        f"{named(container)}: {flag} {count} wants {count} GPUs, it can use {held}: lower it "
        f"to {held}, or ask for {count} whole GPUs"
    )


def lint_several_slices(container: str, count: int, resource: str) -> str:
    """Warn: several MIG slices in one container, of which a process can use one."""
    return line(
        f"{named(container)}: {resource}: {count}: a process sees one MIG slice, the others lie "
        f"idle: ask for 1 larger slice, or start a process for each"
    )


def lint_visible_devices(container: str, value: str, held: int) -> str:
    """Warn: CUDA_VISIBLE_DEVICES names a GPU that the container won't have."""
    only = "0" if held == 1 else f"0 to {held - 1}"
    return line(
        f"{named(container)}: CUDA_VISIBLE_DEVICES={value[:40]} names GPUs that it won't "
        f"have: leave it out; its own are numbered {only}"
    )


def option_given(description: str) -> str:
    """Warn: what a GPU request was rewritten to, and how isolated it is."""
    return line(f"fairslice gives {description}")


def option_missing(container: str, asked: str, why: str, exists: Iterable[str]) -> str:
    """Deny: nothing that this cluster offers can serve the request."""
    return ask_refused(f"{named(container)}: {asked}: {why}", exists)


def pods_one_by_one(kind: str) -> str:
    """Warn: a workload's pods have no share or class in common, so that they start one by one."""
    return line(
        f"the pods of this {kind} are of different classes or kinds of GPUs: they wait and start "
        f"one by one, not together; ask for the same to have them start as one"
    )
