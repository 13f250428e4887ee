"""Reading pod templates: what pods need and ask for. Equal ones are read once and kept once."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, convert, json
from msgspec.structs import replace

from fairslice.gangs import Member
from fairslice.kube.objects import (
    Affinity,
    Container,
    ObjectMeta,
    PodSpec,
    PodTemplateSpec,
    Resources,
)
from fairslice.placement import PodNeeds, SetNeeds, gang_needs, pod_needs
from fairslice.quantity import QuantityError
from fairslice.resource_names import ResourceNameError, parse_resource
from fairslice_queue.kept_strings import KeptStrings
from fairslice_queue.lean_objects import LeanContainer, LeanSpec
from fairslice_queue.sharing import Shared

__all__ = ["Template", "TemplateReader"]

_encode = json.Encoder().encode


class Template(Struct, frozen=True, gc=False):
    """What a spec comes to. Of the spec there is what decisions read."""

    spec: PodSpec
    needs: PodNeeds
    asks_gpus: bool


class TemplateReader:
    """Reads templates, and the pod sets of workloads that have several."""

    def __init__(self, strings: KeptStrings) -> None:
        self._strings = strings
        self._templates = Shared[Template]()
        self._needs = Shared[PodNeeds]()
        self._metadata = Shared[ObjectMeta]()
        self._members = Shared[tuple[Member, ...]](512)

    def read(self, spec: LeanSpec) -> Template:
        """Read a spec."""
        key = _encode(
            (
                spec.containers,
                spec.init_containers,
                spec.node_selector,
                spec.affinity,
                spec.tolerations,
                spec.scheduling_gates,
                spec.service_account_name,
                spec.priority_class_name,
                spec.resource_claims,
                spec.overhead,
            )
        )
        return self._templates.of(key, lambda: self._template(spec))

    def read_whole(self, spec: PodSpec) -> Template:
        """Read a spec that was decoded whole."""
        return self.read(convert(spec, LeanSpec, from_attributes=True))

    def metadata(self, meta: ObjectMeta) -> ObjectMeta:
        """Keep of a template's metadata what says how its pods are classed and what they ask."""
        labels = self._strings.labels(meta.labels)
        notes = self._strings.annotations(meta.annotations)
        key = (tuple(labels.items()), tuple(notes.items()))
        return self._metadata.of(
            key, lambda: ObjectMeta(labels=dict(labels), annotations=dict(notes))
        )

    def members(self, members: Sequence[Member]) -> tuple[Member, ...]:
        """Keep of pod sets what decisions read."""
        found = tuple(
            replace(
                member,
                pod_set=replace(
                    member.pod_set,
                    template=PodTemplateSpec(
                        metadata=self.metadata(member.pod_set.template.metadata),
                        spec=self.read_whole(member.pod_set.template.spec).spec,
                    ),
                    held=ObjectMeta(),
                    scaffold=(),
                ),
            )
            for member in members
        )
        return self._members.of(_encode(found), lambda: found)

    def needs(self, members: Sequence[Member]) -> PodNeeds:
        """Join what the pod sets of a workload need."""
        if not members:
            return PodNeeds()
        sets = [
            SetNeeds(
                count=member.pod_set.count,
                size=member.size,
                needs=self.read_whole(member.pod_set.template.spec).needs,
            )
            for member in members
        ]
        needs = gang_needs(sets)
        return self._needs.of(_encode(needs), lambda: needs)

    def _template(self, lean: LeanSpec) -> Template:
        spec = PodSpec(
            containers=tuple(_container(item) for item in lean.containers),
            init_containers=(
                tuple(_container(item) for item in lean.init_containers)
                if lean.init_containers is not None
                else None
            ),
            node_selector=lean.node_selector,
            affinity=(
                Affinity(node_affinity=lean.affinity.node_affinity)
                if lean.affinity is not None
                else None
            ),
            tolerations=lean.tolerations,
            scheduling_gates=lean.scheduling_gates,
            service_account_name=lean.service_account_name,
            priority_class_name=lean.priority_class_name,
            resource_claims=lean.resource_claims,
            overhead=lean.overhead,
        )
        try:
            needs = pod_needs(spec)
        except QuantityError:  # the API server lets none of these pass
            needs = PodNeeds()
        needs = self._needs.of(_encode(needs), lambda: needs)
        return Template(spec, needs, _asks_gpus((*(spec.init_containers or ()), *spec.containers)))


def _container(lean: LeanContainer) -> Container:
    asked = lean.resources
    return Container(
        resources=(
            Resources(limits=asked.limits, requests=asked.requests) if asked is not None else None
        ),
        restart_policy=lean.restart_policy,
    )


def _asks_gpus(containers: Iterable[Container]) -> bool:
    for container in containers:
        if container.resources is None:
            continue
        for name in container.resources.limits or {}:
            try:
                if parse_resource(name) is not None:
                    return True
            except ResourceNameError:
                continue
    return False
