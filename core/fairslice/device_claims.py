"""Dynamic resource allocation (DRA): which GPUs the claims of a pod take.

Fields: kubernetes resource.k8s.io/v1; the flat requests of v1beta1 are read alike. Counting
follows Kubernetes' own quota (pkg/quota/v1/evaluator/core/resource_claims.go): the worst case
where a request leaves open what it takes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from fairslice import stamps
from fairslice.catalog import slice_milli
from fairslice.kube.objects import ObjectMeta, PodResourceClaim
from fairslice.resource_names import (
    DEVICE_CLASS_PREFIX,
    GPU,
    ResourceNameError,
    parse_resource,
)

__all__ = [
    "CLAIM_OF_POD",
    "ClaimSpec",
    "DeviceClass",
    "DeviceNeed",
    "Devices",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "UnseenTemplate",
    "counted",
    "milli_of",
]

DeviceNeed = tuple[tuple[str, int], ...]
"""One device request: what it may come to, of which it gets one: resource name and count."""

CLAIM_OF_POD = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim that was made from a template for one pod."""

_ALL = 32
"""How many devices `allocationMode: All` may come to at most."""

_MOST = 10_000
"""As many devices no claim is ever given, which has room for 32; it waits for all of them."""

# Only comparisons joined by "and", so that each of them holds: nothing that could hide an "or".
_ATOM = re.compile(
    r"""device\.(?:driver|attributes\[(["'])[a-z0-9./-]+\1\]\.\w+)\s*==\s*(["'])[\w./ +-]*\2""",
    re.ASCII,
)
_PROFILE = re.compile(
    r"""device\.attributes\[(["'])gpu\.nvidia\.com\1\]\.profile\s*==\s*(["'])(?P<profile>[\w.+-]+)\2""",
    re.ASCII,
)
_DRIVERS = ("gpu.nvidia.com", "mig.nvidia.com")


class _Object(Struct, frozen=True, kw_only=True, rename="camel", gc=False):
    pass


class _Cel(_Object, frozen=True):
    expression: str = ""


class _Selector(_Object, frozen=True):
    cel: _Cel | None = None


class DeviceClassSpec(_Object, frozen=True):
    """What devices a class holds, and the resource name that stands for it."""

    selectors: tuple[_Selector, ...] | None = None
    extended_resource_name: str | None = None


class DeviceClass(_Object, frozen=True):
    """A class of devices, written by whoever runs the cluster."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class ExactRequest(_Object, frozen=True):
    """Devices of one class."""

    device_class_name: str = ""
    selectors: tuple[_Selector, ...] | None = None
    allocation_mode: str = ""
    count: int | None = None
    admin_access: bool | None = None


class DeviceRequest(ExactRequest, frozen=True):
    """A request of a claim: `exactly`, one of `firstAvailable`, or flat as in v1beta1."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] | None = None

    @property
    def alternatives(self) -> tuple[ExactRequest, ...]:
        """What it may come to."""
        if self.first_available:
            return self.first_available
        return (self.exactly or self,)


class _Devices(_Object, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None


class ClaimSpec(_Object, frozen=True):
    """What a claim asks for."""

    devices: _Devices | None = None

    @property
    def requests(self) -> tuple[DeviceRequest, ...]:
        """Its device requests."""
        return (self.devices.requests if self.devices is not None else None) or ()


class ResourceClaim(_Object, frozen=True):
    """A claim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()


class _TemplateSpec(_Object, frozen=True):
    spec: ClaimSpec = ClaimSpec()


class ResourceClaimTemplate(_Object, frozen=True):
    """A template from which each pod gets a claim of its own."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _TemplateSpec = _TemplateSpec()


class UnseenTemplate(LookupError):
    """A pod names a claim template that doesn't exist, or not yet. `str()` is its name."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Device classes, claims and templates as last seen; empty where the API has none.

    `classes` says which resource a device of a class weighs as (None: it is no GPU), `names`
    does so for the resource names that stand for classes in a container's resources.
    """

    known: bool = False
    classes: Mapping[str, str | None] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    claims: Mapping[tuple[str, str], ClaimSpec] = field(default_factory=dict)
    booked: frozenset[tuple[str, str]] = frozenset()
    templates: Mapping[tuple[str, str], ClaimSpec] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        classes: Iterable[DeviceClass],
        claims: Iterable[ResourceClaim],
        templates: Iterable[ResourceClaimTemplate],
    ) -> "Devices":
        """Index what the API shows."""
        units: dict[str, str | None] = {}
        names: dict[str, str] = {}
        for item in classes:
            name = item.metadata.name
            unit = units[name] = _unit_of(item)
            if unit is not None:
                names[DEVICE_CLASS_PREFIX + name] = unit
                if item.spec.extended_resource_name:
                    names[item.spec.extended_resource_name] = unit
        kept = list(claims)
        return cls(
            known=True,
            classes=units,
            names=names,
            claims={_key(item.metadata): item.spec for item in kept},
            booked=frozenset(
                _key(item.metadata)
                for item in kept
                if stamps.BOOKING in (item.metadata.annotations or {})
            ),
            templates={_key(item.metadata): item.spec.spec for item in templates},
        )

    def unit(self, device_class: str) -> str | None:
        """Return what a device of a class weighs as; None if it is no GPU.

        A class that isn't there (yet) is judged by its name.
        """
        if device_class in self.classes:
            return self.classes[device_class]
        named = parse_resource(DEVICE_CLASS_PREFIX + device_class)
        # Which slice a name such as mig.nvidia.com gives is open: at most a whole GPU.
        return GPU if named is not None else None

    def needs(self, spec: ClaimSpec) -> tuple[DeviceNeed, ...]:
        """Read which GPUs a claim takes; access for administrators counts like any other."""
        found = []
        for request in spec.requests:
            need = tuple(self._alternatives(request))
            if need:
                found.append(need)
        return tuple(found)

    def needs_of_pod(
        self, namespace: str, claims: Iterable[PodResourceClaim]
    ) -> Iterator[DeviceNeed]:
        """Read which GPUs a pod's claims take that are not in the books by themselves.

        A claim by name that isn't there yet is counted when it is made. Raises UnseenTemplate.
        """
        for claim in claims:
            if claim.resource_claim_template_name:
                key = (namespace, claim.resource_claim_template_name)
                if key not in self.templates:
                    raise UnseenTemplate(claim.resource_claim_template_name)
                yield from self.needs(self.templates[key])
            elif claim.resource_claim_name:
                key = (namespace, claim.resource_claim_name)
                if key in self.claims and key not in self.booked:
                    yield from self.needs(self.claims[key])

    def _alternatives(self, request: DeviceRequest) -> Iterator[tuple[str, int]]:
        for item in request.alternatives:
            unit = self.unit(item.device_class_name)
            if unit is None:
                continue
            if unit == GPU:
                unit = _narrowed(item.selectors) or unit
            one = 1 if item.count is None else item.count
            yield unit, _ALL if item.allocation_mode == "All" else min(max(one, 0), _MOST)


def counted(needs: Iterable[DeviceNeed]) -> dict[str, int]:
    """Count devices by what they weigh as; of alternatives the most of each."""
    total: dict[str, int] = {}
    for need in needs:
        most: dict[str, int] = {}
        for name, count in need:
            most[name] = max(most.get(name, 0), count)
        for name, count in most.items():
            total[name] = total.get(name, 0) + count
    return total


def milli_of(needs: Iterable[DeviceNeed], product: str) -> int:
    """Weigh devices of one GPU model, in milli-GPU; of alternatives the heaviest."""
    return sum(max(_milli(name, product) * count for name, count in need) for need in needs)


def _milli(name: str, product: str) -> int:
    resource = parse_resource(name)
    if resource is None or not resource.profile:
        return 1000
    return slice_milli(product, resource.profile)


def _unit_of(item: DeviceClass) -> str | None:
    """Tell what a device of a class weighs as, in the worst case."""
    extended = _gpu_name(item.spec.extended_resource_name or "")
    selectors = item.spec.selectors
    if extended is not None and extended != GPU:
        return extended
    named = parse_resource(DEVICE_CLASS_PREFIX + item.metadata.name) is not None
    # A class that selects nothing holds every device that there is.
    open_to_gpus = not selectors or any(
        driver in selector.cel.expression
        for selector in selectors
        if selector.cel is not None
        for driver in _DRIVERS
    )
    if extended is None and not named and not open_to_gpus:
        return None
    return _narrowed(selectors) or GPU


def _gpu_name(name: str) -> str | None:
    try:
        resource = parse_resource(name)
    except ResourceNameError:
        return None
    if resource is None or resource.device_class:
        return None
    return f"nvidia.com/mig-{resource.profile}" if resource.profile else GPU


def _narrowed(selectors: Iterable[_Selector] | None) -> str | None:
    """Find the MIG profile that selectors surely ask for; they must all hold."""
    for selector in selectors or ():
        text = selector.cel.expression.strip() if selector.cel is not None else ""
        parts = re.split(r"\s*&&\s*", text)
        if not all(_ATOM.fullmatch(part) for part in parts):
            continue
        for part in parts:
            match = _PROFILE.fullmatch(part)
            if match is not None:
                name = "nvidia.com/mig-" + match["profile"].replace("+", ".")
                return _gpu_name(name)
    return None


def _key(meta: ObjectMeta) -> tuple[str, str]:
    return meta.namespace, meta.name
