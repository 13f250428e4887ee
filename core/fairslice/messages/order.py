"""Why one goes before another in line."""

from fairslice.messages.wording import line
from fairslice.quantity import format_milli

__all__ = [
    "order_aged",
    "order_class",
    "order_guarantee",
    "order_moved",
    "order_name",
    "order_passes",
    "order_pinned",
    "order_scavenges",
    "order_time",
    "order_urgent",
    "order_user",
]


def order_aged() -> str:
    """Explain an order: the first has waited longer than the policy's aging."""
    return line("has waited longer than the queue's aging time")


def order_class() -> str:
    """Explain an order: the first is of a more important class."""
    return line("is of a more important class")


def order_guarantee() -> str:
    """Explain an order: the first stays within its team's guarantee, the other borrows."""
    return line("is within its team's guarantee, the other would borrow")


def order_moved() -> str:
    """Explain an order: the team's lead has moved one before the other."""
    return line("goes first by the order that the team's lead gave")


def order_name() -> str:
    """Explain an order: equal in everything, so the name decides."""
    return line("is equal in standing; the name decides")


def order_passes() -> str:
    """Explain an order: the first's class passes everyone."""
    return line("is of a class that may pass everyone")


def order_pinned() -> str:
    """Explain an order: the first is pinned by the team's lead."""
    return line("is pinned by the team's lead")


def order_scavenges() -> str:
    """Explain an order: the other's team has used up a budget and has what nobody else wants."""
    return line("the other's team has used up its budget and has only what nobody else wants")


def order_time(seconds: float) -> str:
    """Explain an order: the first came earlier."""
    return line(f"has been in line {seconds:.0f} s longer")


def order_urgent() -> str:
    """Explain an order: the first was marked as urgent by its team's lead."""
    return line("was marked as urgent by its team's lead")


def order_user(first: int, second: int) -> str:
    """Explain an order: users take turns, and the first one's holds less, in milli-GPU."""
    return line(
        f"is of a user who holds less: {format_milli(first)} GPUs against {format_milli(second)}"
    )
