"""Objects that reflectors keep, looked up by the text that names them; nothing is kept twice."""

from collections.abc import Iterator, Mapping

from fairslice.kube.reflector import Key
from fairslice_queue.facts import PodFacts, WorkloadFacts

__all__ = ["PodsByName", "WorkloadsByName"]


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


class WorkloadsByName(Mapping[str, WorkloadFacts]):
    """Workloads by `kind/namespace/name`: a live view of what is kept by kind."""

    def __init__(self, kinds: Mapping[str, Mapping[Key, WorkloadFacts]]) -> None:
        self._kinds = kinds

    def __getitem__(self, name: str) -> WorkloadFacts:
        kind, _, rest = name.partition("/")
        namespace, _, own = rest.partition("/")
        return self._kinds[kind][Key(namespace, own)]

    def __iter__(self) -> Iterator[str]:
        return (facts.key for kept in self._kinds.values() for facts in kept.values())

    def __len__(self) -> int:
        return sum(len(kept) for kept in self._kinds.values())
