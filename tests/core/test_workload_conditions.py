"""Workloads whose pods stand in other places than a template: seen if they ask for GPUs."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fairslice.webhook_configuration import (
    Target,
    mutating_configuration,
    validating_configuration,
)
from fairslice.workloads import adapter_for

cel = pytest.importorskip("fairslice_sandbox.cel")

Obj = dict[str, Any]

TARGET = Target(namespace="fairslice-system", secret_path="s", resources=("example.com/gpu",))
KINDS = Path(__file__).parents[1] / "kinds"
MANIFESTS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(KINDS.glob("*.yaml"))}
PLURALS = {kind: f"{kind}s" for kind in MANIFESTS}
GPUS = ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/gpu")


def entry(configuration: Obj, kind: str) -> Obj:
    (found,) = (
        each
        for each in configuration["webhooks"]
        if each["name"] == f"gpu-{PLURALS[kind]}.fairslice.io"
    )
    return dict(found)


def sent(obj: Obj) -> bool:
    """Say whether a creation is sent by the mutating entry."""
    request = {"operation": "CREATE", "userInfo": {"username": "alice"}}
    data = {"object": obj, "oldObject": None, "request": request}
    conditions = entry(mutating_configuration(TARGET), obj["kind"].lower())["matchConditions"]
    return all(cel.evaluate(condition["expression"], data) for condition in conditions)


def stripped(value: Any) -> Any:
    """Take everything that asks for GPUs away."""
    if isinstance(value, dict):
        return {k: stripped(v) for k, v in value.items() if k != "gpu" and k not in GPUS}
    return [stripped(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", MANIFESTS)
def test_each_kind_is_sent_if_it_asks_and_only_then(kind: str) -> None:
    asking = deepcopy(MANIFESTS[kind])
    asking["metadata"].pop("labels", None)
    assert sent(asking)
    assert not sent(stripped(asking))
    asking["metadata"]["labels"] = {"fairslice.io/class": "training"}
    assert sent(stripped(asking))


@pytest.mark.parametrize("kind", MANIFESTS)
def test_what_was_booked_is_validated_whatever_it_looks_like_by_then(kind: str) -> None:
    found = entry(validating_configuration(TARGET), kind)
    assert found["objectSelector"] == {"matchLabels": {"system.fairslice.io/managed": "true"}}
    assert "matchConditions" not in found
    assert found["failurePolicy"] == "Fail"


CONTAINER = st.builds(
    lambda name, where: {"name": "c", **({"resources": {where: {name: "1"}}} if name else {})},
    st.sampled_from(("", "", *GPUS, "cpu", "example.com/nic")),
    st.sampled_from(("limits", "requests")),
)
CONTAINERS = st.lists(CONTAINER, max_size=3)
POD_SPEC = st.fixed_dictionaries(
    {"containers": CONTAINERS},
    optional={
        "initContainers": CONTAINERS,
        "resourceClaims": st.sampled_from(([], [{"name": "x"}])),
    },
)
TEMPLATE = st.fixed_dictionaries({"spec": POD_SPEC})
ROLE = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.just({"name": "nvidia.com/gpu", "quantity": 1}),
        "sidecars": CONTAINERS,
        "initContainers": CONTAINERS,
        "template": TEMPLATE,
    },
)


def of_kind(kind: str, spec: Obj) -> Obj:
    made = {key: MANIFESTS[kind][key] for key in ("apiVersion", "kind")}
    return {**made, "metadata": {"name": "w"}, "spec": spec}


SPARK = st.fixed_dictionaries({}, optional={"driver": ROLE, "executor": ROLE}).map(
    lambda spec: of_kind("sparkapplication", spec)
)
TRAIN = CONTAINER.map(
    lambda container: of_kind(
        "trainjob", {"trainer": {"resourcesPerNode": container.get("resources", {})}}
    )
)
JOB = TEMPLATE.map(lambda template: of_kind("job", {"template": template}))
PYTORCH = st.dictionaries(
    st.sampled_from(("Master", "Worker")), st.builds(lambda t: {"template": t}, TEMPLATE)
).map(lambda roles: of_kind("pytorchjob", {"pytorchReplicaSpecs": roles}))
RAY = st.lists(TEMPLATE, max_size=2).map(
    lambda groups: of_kind("raycluster", {"workerGroupSpecs": [{"template": t} for t in groups]})
)
POD = POD_SPEC.map(lambda spec: {"apiVersion": "v1", "kind": "Pod", "spec": spec})
WRAPPED = st.one_of(SPARK, TRAIN, JOB, PYTORCH, RAY, POD)


@st.composite
def wrappers(draw: st.DrawFn) -> Obj:
    components = []
    for inner in draw(st.lists(WRAPPED, max_size=3)):
        component = {"template": inner}
        if draw(st.booleans()):
            component["podSets"] = [{"path": path} for path in declared(inner)]
        components.append(component)
    return of_kind("appwrapper", {"components": components})


def declared(inner: Obj) -> list[str]:
    """Where an AppWrapper would say that the pod sets of an object are."""
    match inner["kind"]:
        case "Pod":
            return ["template"]
        case "Job":
            return ["template.spec.template"]
        case "PyTorchJob":
            roles = inner["spec"]["pytorchReplicaSpecs"]
            return [f"template.spec.pytorchReplicaSpecs.{role}.template" for role in roles]
        case "RayCluster":
            groups = inner["spec"]["workerGroupSpecs"]
            return [f"template.spec.workerGroupSpecs[{n}].template" for n in range(len(groups))]
    return []


def asks(value: Any) -> bool:
    """Say whether anything in an object is a request for GPUs."""
    if isinstance(value, dict):
        return any(
            key in GPUS or (key in ("gpu", "resourceClaims") and bool(item)) or asks(item)
            for key, item in value.items()
        )
    return isinstance(value, list) and any(map(asks, value))


@settings(max_examples=150, deadline=None)
@given(obj=st.one_of(SPARK, TRAIN, wrappers()))
def test_what_asks_for_gpus_is_sent_and_nothing_else(obj: Obj) -> None:
    assert sent(obj) is asks(obj)
    adapter = adapter_for(obj["apiVersion"], obj["kind"])
    assert adapter is not None
    # What is booked as a whole asks, so whatever is read as asking was sent.
    assert sent(obj) or not any(asks(found.template) for found in adapter.find(obj))


@pytest.mark.parametrize(
    "component",
    [
        {"template": {"kind": "Other"}, "podSets": [{"path": "template.spec.pods[0]"}]},
        {"template": {"kind": "Other"}, "podSets": [{"path": "spec.template"}]},
        {"template": {"kind": "Other"}, "podSets": [{}]},
        {"template": {"kind": "AppWrapper"}},
    ],
)
def test_what_a_wrapper_hides_from_the_search_is_sent(component: Obj) -> None:
    assert sent(of_kind("appwrapper", {"components": [component]}))
    assert not sent(of_kind("appwrapper", {"components": [{"template": {"kind": "Other"}}]}))
    assert sent(of_kind("appwrapper", {"components": [{}] * 33}))
