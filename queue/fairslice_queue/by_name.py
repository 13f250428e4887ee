"""Objects that reflectors keep, looked up by the text that names them; nothing is kept twice."""

from collections.abc import Callable, Iterator, Mapping, ValuesView
from typing import Any, TypeVar

from fairslice.kube.reflector import Key
from fairslice_queue.facts import PodFacts, WorkloadFacts

__all__ = ["PodsByName", "WorkloadsByName"]

T = TypeVar("T")


class _Values(ValuesView[T]):
    """All values, without a look-up by name for each."""

    def __init__(self, named: Mapping[str, T], each: Callable[[], Iterator[T]]) -> None:
        super().__init__(named)
        self._each = each

    def __iter__(self) -> Iterator[T]:
        return self._each()

    def __contains__(self, value: Any) -> bool:
        return any(each == value for each in self._each())


class PodsByName(Mapping[str, PodFacts]):
    """Pods by `namespace/name`: a live view."""

    def __init__(self, pods: Mapping[Key, PodFacts]) -> None:
        self._pods = pods

    def __getitem__(self, name: str) -> PodFacts:
        namespace, _, own = name.partition("/")
        return self._pods[Key(namespace, own)]

    def __iter__(self) -> Iterator[str]:
        return (pod.key for pod in self._pods.values())

    def __len__(self) -> int:
        return len(self._pods)

    def values(self) -> ValuesView[PodFacts]:
        """Look at all of them."""
        return _Values(self, lambda: iter(self._pods.values()))


class WorkloadsByName(Mapping[str, WorkloadFacts]):
    """Workloads by `kind/namespace/name`: a live view of what is kept by kind."""

    def __init__(self, kinds: Mapping[str, Mapping[Key, WorkloadFacts]]) -> None:
        self._kinds = kinds

    def __getitem__(self, name: str) -> WorkloadFacts:
        kind, _, rest = name.partition("/")
        namespace, _, own = rest.partition("/")
        return self._kinds[kind][Key(namespace, own)]

    def __iter__(self) -> Iterator[str]:
        return (facts.key for facts in self._each())

    def __len__(self) -> int:
        return sum(len(kept) for kept in self._kinds.values())

    def values(self) -> ValuesView[WorkloadFacts]:
        """Look at all of them."""
        return _Values(self, self._each)

    def _each(self) -> Iterator[WorkloadFacts]:
        return (facts for kept in self._kinds.values() for facts in kept.values())
