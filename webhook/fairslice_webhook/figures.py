"""Counted figures of several processes, added up for one page of metrics."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.samples import Sample

__all__ = ["Family", "counted", "page"]

# Gauges say how the whole is, which the first process knows.
_COUNTED = ("counter", "histogram")
_CREATED = "_created"


class Figure(Struct, frozen=True):
    """One number: its name and labels."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Family(Struct, frozen=True):
    """What is counted under one name."""

    name: str
    kind: str
    text: str
    figures: tuple[Figure, ...]


def counted(registry: CollectorRegistry) -> tuple[Family, ...]:
    """Read what a process has counted."""
    return tuple(
        Family(
            metric.name,
            metric.type,
            metric.documentation,
            tuple(
                Figure(sample.name, tuple(sorted(sample.labels.items())), sample.value)
                for sample in metric.samples
            ),
        )
        for metric in registry.collect()
        if metric.type in _COUNTED
    )


def page(registry: CollectorRegistry, others: Iterable[Sequence[Family]]) -> bytes:
    """Write the page of metrics of a process, with what other processes have counted added."""
    return generate_latest(_Sum(registry, tuple(others)))


class _Sum(CollectorRegistry):
    """What a registry holds, plus what others counted."""

    def __init__(self, own: CollectorRegistry, others: Sequence[Sequence[Family]]) -> None:
        super().__init__()
        self._own = own
        self._others = others

    def collect(self) -> Iterator[Metric]:
        """Yield each family once, its numbers added up."""
        added: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for families in self._others:
            for family in families:
                found = added.setdefault(family.name, {})
                for figure in family.figures:
                    key = (figure.name, figure.labels)
                    if figure.name.endswith(_CREATED):
                        found[key] = min(found.get(key, figure.value), figure.value)
                    else:
                        found[key] = found.get(key, 0.0) + figure.value
        for metric in self._own.collect():
            yield _added(metric, added.get(metric.name, {}))


def _added(metric: Metric, more: dict[tuple[str, tuple[tuple[str, str], ...]], float]) -> Metric:
    whole = Metric(metric.name, metric.documentation, metric.type, metric.unit)
    left = dict(more)
    for sample in metric.samples:
        value = left.pop((sample.name, tuple(sorted(sample.labels.items()))), None)
        if value is None:
            value = sample.value
        elif sample.name.endswith(_CREATED):
            value = min(value, sample.value)
        else:
            value += sample.value
        whole.samples.append(Sample(sample.name, sample.labels, value))
    whole.samples += [Sample(name, dict(labels), value) for (name, labels), value in left.items()]
    return whole
