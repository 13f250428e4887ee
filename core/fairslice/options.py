"""The ways to serve a pod, in order of preference; never less than it was promised."""

from collections.abc import Container, Sequence

from fairslice.booking import Option
from fairslice.devices import Offer
from fairslice.policy import Policy, WorkClass
from fairslice.requests import PodAsk

__all__ = ["NoOption", "describe", "options_for"]


class NoOption(ValueError):
    """Nothing that this cluster offers serves the request: what was asked, what exists."""


def options_for(
    ask: PodAsk,
    work_class: WorkClass | None,
    offers: Sequence[Offer],
    policy: Policy,
    *,
    closed_pools: Container[str] = frozenset(),
) -> tuple[Option, ...]:
    """List the options for a pod, best first. `closed_pools` have a limit of 0 for its team.

    `offers` comes from `Inventory.offers`, or `Inventory.offers_for(spec)` for a pod that
    selects nodes. Raises NoOption.
    """
    raise NotImplementedError


def describe(option: Option) -> str:
    """Word an option for a warning: what it is, its memory, its isolation."""
    raise NotImplementedError
