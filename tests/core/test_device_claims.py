"""Which GPUs claims take, counted once, and what that weighs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from fairslice.device_claims import (
    ClaimSpec,
    DeviceClass,
    Devices,
    ResourceClaim,
    ResourceClaimTemplate,
    counted,
    milli_of,
)
from fairslice.inventory import Inventory
from fairslice.kube.objects import PodSpec
from fairslice.options import NoOption, describe, options_for
from fairslice.requests import AskError, UnseenError, by_claims, read_pod

from .clusters import A100_80 as A100
from .clusters import H100, node, pod, policy

GPU = "nvidia.com/gpu"
SMALL = "nvidia.com/mig-1g.10gb"
IMPLICIT = "deviceclass.resource.kubernetes.io/"
PROFILE = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"


def device_class(name: str, *cel: str, extended: str | None = None) -> DeviceClass:
    return convert(
        {
            "metadata": {"name": name},
            "spec": {
                "selectors": [{"cel": {"expression": text}} for text in cel],
                "extendedResourceName": extended,
            },
        },
        DeviceClass,
    )


def request(device: str, count: int | None = None, **fields: Any) -> dict[str, Any]:
    counts = {} if count is None else {"count": count}
    return {"name": "r", "exactly": {"deviceClassName": device, **counts, **fields}}


def spec(*requests: dict[str, Any]) -> ClaimSpec:
    return convert({"devices": {"requests": list(requests)}}, ClaimSpec)


CLASSES = (
    device_class("gpu.nvidia.com", "device.driver == 'gpu.nvidia.com'", extended=GPU),
    device_class("mig.nvidia.com", "device.attributes['gpu.nvidia.com'].type == 'mig'"),
    device_class("small", f"device.driver == 'gpu.nvidia.com' && {PROFILE}"),
    device_class("by-name", "device.driver == 'gpu.nvidia.com'", extended=SMALL),
    device_class("accelerator", "device.driver == 'gpu.nvidia.com'", extended="example.com/gpu"),
    device_class("anything"),
    device_class("nic", "device.driver == 'nic.example.com'"),
    device_class("channel", "device.driver == 'compute-domain.nvidia.com'"),
)


def devices(*templates: tuple[str, ClaimSpec], claims: tuple[Any, ...] = ()) -> Devices:
    made = [
        convert({"metadata": {"name": name, "namespace": "nlp"}, "spec": {}}, ResourceClaimTemplate)
        for name, _ in templates
    ]
    built = Devices.build(CLASSES, claims, made)
    return Devices(
        built.known,
        built.classes,
        built.names,
        built.claims,
        built.booked,
        {("nlp", name): body for name, body in templates},
    )


@pytest.mark.parametrize(
    ("requested", "takes"),
    [
        (request("gpu.nvidia.com"), {GPU: 1}),
        (request("gpu.nvidia.com", 3), {GPU: 3}),
        (request("gpu.nvidia.com", allocationMode="All"), {GPU: 32}),
        (request("gpu.nvidia.com", adminAccess=True), {GPU: 1}),
        ({"name": "r", "deviceClassName": "gpu.nvidia.com", "count": 2}, {GPU: 2}),
        (request("mig.nvidia.com", 2), {GPU: 2}),
        (request("mig.nvidia.com", selectors=[{"cel": {"expression": PROFILE}}]), {SMALL: 1}),
        (request("small"), {SMALL: 1}),
        (request("by-name", 2), {SMALL: 2}),
        (request("accelerator"), {GPU: 1}),
        (request("anything"), {GPU: 1}),
        (request("nic", 8), {}),
        (request("channel"), {}),
        (request("not.there.gpu.nvidia.com"), {GPU: 1}),
        (request("not-there"), {}),
        (
            {
                "name": "r",
                "firstAvailable": [
                    {"name": "a", "deviceClassName": "gpu.nvidia.com", "count": 2},
                    {"name": "b", "deviceClassName": "gpu.nvidia.com", "count": 4},
                    {"name": "c", "deviceClassName": "small", "count": 3},
                ],
            },
            {GPU: 4, SMALL: 3},
        ),
    ],
)
def test_a_request_counts_as_the_most_that_it_may_come_to(
    requested: dict[str, Any], takes: dict[str, int]
) -> None:
    assert counted(devices().needs(spec(requested))) == takes


@pytest.mark.parametrize(
    "expression",
    [
        f"{PROFILE} || true",
        f"!({PROFILE})",
        f"true ? true : {PROFILE}",
        f"device.attributes['gpu.nvidia.com'].type == 'x && {PROFILE.replace(chr(39), chr(34))} "
        "&& y'",
        PROFILE.replace("1g.10gb", "nonsense"),
        PROFILE.replace("gpu.nvidia.com", "other.example.com"),
        f"[{PROFILE}].size() == 1",
    ],
)
def test_only_a_selector_that_surely_names_a_slice_makes_a_claim_lighter(expression: str) -> None:
    asked = request("mig.nvidia.com", selectors=[{"cel": {"expression": expression}}])
    assert counted(devices().needs(spec(asked))) == {GPU: 1}


def test_of_alternatives_the_heaviest_weighs() -> None:
    either = {
        "name": "r",
        "firstAvailable": [
            {"name": "a", "deviceClassName": "gpu.nvidia.com"},
            {"name": "b", "deviceClassName": "small", "count": 3},
        ],
    }
    assert milli_of(devices().needs(spec(either)), A100) == 1000


alternatives = st.lists(
    st.tuples(st.sampled_from([GPU, SMALL]), st.integers(0, 9)), min_size=1, max_size=4
).map(tuple)


@given(st.lists(alternatives, max_size=4), st.lists(alternatives, max_size=4))
def test_needs_add_up(one: list[Any], other: list[Any]) -> None:
    together = counted([*one, *other])
    parts = counted(one), counted(other)
    assert together == {
        name: parts[0].get(name, 0) + parts[1].get(name, 0) for name in {**parts[0], **parts[1]}
    }
    assert milli_of([*one, *other], A100) == milli_of(one, A100) + milli_of(other, A100)
    most = sum((1000 if name == GPU else 125) * count for name, count in together.items())
    assert milli_of([*one, *other], A100) <= most


@given(st.permutations([("x", 1), ("y", 2), ("z", 3)]))
def test_order_of_alternatives_changes_nothing(order: list[tuple[str, int]]) -> None:
    assert counted([tuple(order)]) == {"x": 1, "y": 2, "z": 3}


def with_claims(*entries: dict[str, str], **container: Any) -> PodSpec:
    return convert(
        {"containers": [{"name": "c", **container}], "resourceClaims": list(entries)},
        PodSpec,
    )


def test_a_template_counts_for_each_pod_and_a_shared_claim_in_its_own_right() -> None:
    shared = convert(
        {
            "metadata": {
                "name": "shared",
                "namespace": "nlp",
                "annotations": {"system.fairslice.io/booking": "b1"},
            },
            "spec": {"devices": {"requests": [request("gpu.nvidia.com", 4)]}},
        },
        ResourceClaim,
    )
    older = convert(
        {
            "metadata": {"name": "older", "namespace": "nlp"},
            "spec": {"devices": {"requests": [request("gpu.nvidia.com", 2)]}},
        },
        ResourceClaim,
    )
    seen = devices(("two", spec(request("gpu.nvidia.com", 2))), claims=(shared, older))
    spec_ = with_claims(
        {"name": "a", "resourceClaimTemplateName": "two"},
        {"name": "b", "resourceClaimName": "shared"},
    )
    ask = read_pod(spec_, None, namespace="nlp", devices=seen)
    assert ask.is_gpu
    assert counted(ask.needs) == {GPU: 2}
    # What nobody booked is counted with the pods that use it; what is yet to come, when it comes.
    by_name = with_claims({"name": "a", "resourceClaimName": "older"})
    assert counted(read_pod(by_name, None, namespace="nlp", devices=seen).needs) == {GPU: 2}
    to_come = with_claims({"name": "a", "resourceClaimName": "none"})
    assert not read_pod(to_come, None, namespace="nlp", devices=seen).is_gpu


def test_a_template_that_is_not_there_is_named() -> None:
    asking = with_claims({"name": "a", "resourceClaimTemplateName": "gone"})
    with pytest.raises(UnseenError, match="gone"):
        read_pod(asking, None, namespace="nlp", devices=devices())
    # Where the API has no claims, the field means nothing.
    assert not read_pod(asking, None).is_gpu


def test_resource_names_that_stand_for_classes_count_as_their_devices() -> None:
    seen = devices()
    implicit = pod({IMPLICIT + "small": "2"}, {IMPLICIT + "nic": "1"}, {"example.com/gpu": "1"})
    ask = read_pod(implicit, None, namespace="nlp", devices=seen)
    assert counted(ask.needs) == {SMALL: 2, GPU: 1}
    assert ask.units == {}
    assert read_pod(implicit, None).needs == ()
    with pytest.raises(AskError):
        read_pod(pod({IMPLICIT + "small": "-1"}), None, devices=seen)


def test_an_extended_resource_without_a_plugin_is_given_by_claims() -> None:
    init = [{"name": "i", "resources": {"limits": {GPU: "1"}}}]
    ask = read_pod(
        convert(
            {
                "initContainers": init,
                "containers": [{"name": "c", "resources": {"limits": {GPU: "2", "cpu": "1"}}}],
            },
            PodSpec,
        ),
        None,
    )
    assert ask.units == {GPU: 2}
    # Init containers get claims of their own.
    assert counted(by_claims(ask, {GPU: GPU}).needs) == {GPU: 3}
    assert by_claims(ask, {GPU: GPU}).units == {}
    assert by_claims(ask, {SMALL: SMALL}) is ask


def test_options_weigh_claims_by_model_and_pin_the_pod_to_it() -> None:
    rules = policy()
    # DRA shows nothing in a node's allocatable.
    seen = Inventory.build((node("a", A100, {}), node("h", H100, {})), rules)
    ask = read_pod(
        with_claims({"name": "a", "resourceClaimTemplateName": "t"}, resources={}),
        None,
        namespace="nlp",
        devices=devices(("t", spec(request("small", 3), request("gpu.nvidia.com")))),
    )
    found = options_for(ask, None, seen.models_for(PodSpec()), rules)
    assert {(option.pool, option.milli) for option in found} == {("a100", 1375), ("h100", 1375)}
    assert all(option.requirements and not option.units for option in found)
    assert "3 × mig-1g.10gb by claim" in describe(found[0])
    closed = frozenset({"a100", "h100"})
    with pytest.raises(NoOption, match="limit is 0"):
        options_for(ask, None, seen.models_for(PodSpec()), rules, closed_pools=closed)
    selecting = convert(
        {"containers": [{"name": "c"}], "nodeSelector": {"nvidia.com/gpu.product": A100}},
        PodSpec,
    )
    assert [offer.pool for offer in seen.models_for(selecting)] == ["a100"]
