"""The kinds that are queued as a whole: where they suspend, which pods they make."""

from typing import Any

from msgspec import Struct

from fairslice.booking import Kind
from fairslice.kube.objects import Job, PodTemplateSpec

__all__ = ["ADAPTERS", "Adapter", "PodSet", "WorkloadError", "adapter_for", "held_pods"]


class WorkloadError(ValueError):
    """An object that isn't shaped as its kind should be: path and what is wrong."""


class PodSet(Struct, frozen=True, kw_only=True):
    """Pods of one template: its JSON pointer, how many at once, the fewest that make sense."""

    path: str
    count: int
    template: PodTemplateSpec
    min_count: int = 0


class Adapter(Struct, frozen=True, kw_only=True):
    """A kind's row: `suspend` is the JSON pointer of the field, empty where there is none."""

    kind: Kind
    suspend: str

    def pod_sets(self, obj: dict[str, Any]) -> tuple[PodSet, ...]:
        """Read the pods that an object will make.

        Raises WorkloadError for an object that isn't shaped as its kind.
        """
        raise NotImplementedError

    def is_suspended(self, obj: dict[str, Any]) -> bool:
        """Say whether the object is suspended."""
        raise NotImplementedError


ADAPTERS: tuple[Adapter, ...] = ()


def adapter_for(api_version: str, kind: str) -> Adapter | None:
    """Find a kind's row; the API group counts, the version doesn't."""
    raise NotImplementedError


def held_pods(job: Job) -> int:
    """Count the pods that a Job holds room for: wanted now, and those not yet gone."""
    raise NotImplementedError
