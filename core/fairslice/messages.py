"""Everything fairslice says to people: one function a message, one line, at most 256 characters.

Each text says what happened, with the numbers, and the way out.
"""

from collections.abc import Iterable

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
    "ask_two_kinds",
    "class_not_allowed",
    "class_unknown",
    "fit_elsewhere",
    "fit_gang",
    "fit_kept_off",
    "fit_scarce",
    "line",
    "listed",
    "option_given",
    "option_missing",
]

MAX_LENGTH = 256
"""The API server cuts a warning there once a response carries many."""


def line(text: str) -> str:
    """Make one line of at most 256 characters, without control characters."""
    flat = " ".join(text.split())
    flat = "".join(char for char in flat if char.isprintable())
    return flat if len(flat) <= MAX_LENGTH else flat[: MAX_LENGTH - 1] + "…"


def listed(items: Iterable[str], most: int = 5) -> str:
    """Join names for a sentence, at most so many of them."""
    names = list(items)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _container(name: str) -> str:
    return f"container {name}" if name else "the pod"


# Denials.


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


def option_given(description: str) -> str:
    """Warn: what a GPU request was rewritten to, and how isolated it is."""
    return line(f"fairslice gives {description}")


# Reasons for waiting.


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
