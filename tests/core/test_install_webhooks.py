"""What the API server sends to the webhook, judged by the expressions themselves."""

import json
import os
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from fairslice.webhook_configuration import (
    SUSPENDABLE,
    Target,
    mutating_configuration,
    validating_configuration,
)
from fairslice.webhook_configuration import (
    Path as UrlPath,
)
from fairslice.workloads import ADAPTERS

cel = pytest.importorskip("fairslice_sandbox.cel")

SHARED = Path(os.environ.get("FAIRSLICE_SHARED", Path(__file__).parents[3] / "shared"))
TARGET = Target(namespace="fairslice-system", secret_path="s3cret", url="https://127.0.0.1:9443")
MUTATING = {w["name"]: w for w in mutating_configuration(TARGET)["webhooks"]}
VALIDATING = {w["name"]: w for w in validating_configuration(TARGET)["webhooks"]}
GPU = MUTATING["gpu-pods.fairslice.io"]
HIDE = MUTATING["hide.fairslice.io"]


def matches(entry: dict[str, Any], obj: Any, old: Any = None, *, subresource: str = "") -> bool:
    request = {"operation": "CREATE" if old is None else "UPDATE"}
    # The API server leaves out what is empty.
    request |= {"subResource": subresource} if subresource else {}
    data = {"object": obj, "oldObject": old, "request": request}
    return all(cel.evaluate(c["expression"], data) for c in entry["matchConditions"])


def asks(obj: Any) -> bool:
    (condition,) = (c for c in GPU["matchConditions"] if c["name"] == "asks")
    return bool(cel.evaluate(condition["expression"], {"object": obj}))


def pod(container: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c", **(container or {})}], **more.pop("spec", {})}
    return {"metadata": {"name": "p", **more}, "spec": spec}


GPU_CONTAINER = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
PLAIN = pod({"resources": {"limits": {"cpu": "1"}}, "env": [{"name": "HOME", "value": "/"}]})

ASKING = {
    "a limit": pod(GPU_CONTAINER),
    "a request": pod({"resources": {"requests": {"nvidia.com/mig-1g.10gb": "1"}}}),
    "a device class": pod(
        {"resources": {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}}}
    ),
    "a container's claim": pod({"resources": {"claims": [{"name": "x"}]}}),
    "a pod's claim": pod(spec={"resourceClaims": [{"name": "x"}]}),
    "an init container": pod(spec={"initContainers": [{"name": "i", **GPU_CONTAINER}]}),
    "an ephemeral container's variable": pod(
        spec={"ephemeralContainers": [{"name": "e", "env": [{"name": "NVIDIA_VISIBLE_DEVICES"}]}]}
    ),
    "a variable": pod({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}),
    "the legacy image's variable": pod({"env": [{"name": "CUDA_VERSION", "value": "12"}]}),
    "an MPS variable": pod({"env": [{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/x"}]}),
    "a runtime class": pod(spec={"runtimeClassName": "nvidia-legacy"}),
    "our gate": pod(spec={"schedulingGates": [{"name": "fairslice.io/queued"}]}),
    "a class": pod(labels={"fairslice.io/class": "training"}),
    "a forged stamp": pod(annotations={"system.fairslice.io/booking": "b1"}),
    "a CDI annotation": pod(annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
    "an NRI annotation": pod(annotations={"devices.nri.io": "x"}),
    "an NRI annotation with a name": pod(annotations={"cdi.nri.io/c": "x"}),
    "an NRI annotation of today": pod(annotations={"cdi-devices.noderesource.dev/pod": "x"}),
    "an annotation of GKE's": pod(annotations={"devices.gke.io/container.c": "x"}),
    "too many containers to search": pod(
        spec={"containers": [{"name": f"c{n}"} for n in range(33)]}
    ),
    "too many variables to search": pod({"env": [{"name": f"E{n}"} for n in range(257)]}),
    "too many resources to search": pod(
        {"resources": {"limits": {f"example.com/r{n}": "1" for n in range(33)}}}
    ),
    "too many labels to search": pod(labels={f"l{n}": "x" for n in range(129)}),
    "too many annotations to search": pod(annotations={f"a{n}": "x" for n in range(129)}),
}

NOT_ASKING = {
    "plain": PLAIN,
    "bare": {"spec": {"containers": [{"name": "c"}]}},
    "labelled by others": pod(labels={"app.kubernetes.io/name": "x"}),
    "gated by others": pod(spec={"schedulingGates": [{"name": "example.com/x"}]}),
    "hidden already": pod({"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]}),
    "a runtime class of others": pod(spec={"runtimeClassName": "gvisor"}),
    "just as much as can be searched": pod(
        {"env": [{"name": f"E{n}"} for n in range(256)]}, labels={f"l{n}": "x" for n in range(128)}
    ),
}


@pytest.mark.parametrize("why", ASKING)
def test_a_pod_that_asks_reaches_the_gpu_entry_and_not_hide(why: str) -> None:
    assert matches(GPU, ASKING[why])
    assert not matches(HIDE, ASKING[why])


@pytest.mark.parametrize("why", NOT_ASKING)
def test_any_other_pod_reaches_hide_and_not_the_gpu_entry(why: str) -> None:
    assert not matches(GPU, NOT_ASKING[why])
    assert matches(HIDE, NOT_ASKING[why])


def test_hide_is_literally_the_negation_of_gpu() -> None:
    (asking,) = (c["expression"] for c in GPU["matchConditions"] if c["name"] == "asks")
    assert [c["expression"] for c in HIDE["matchConditions"]] == [f"!({asking})"]
    assert (HIDE["failurePolicy"], HIDE["timeoutSeconds"]) == ("Ignore", 1)
    assert GPU["failurePolicy"] == "Fail"


def _changed(before: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    after = deepcopy(before)
    after["metadata"].update(metadata)
    return after


@pytest.mark.parametrize(
    ("after", "seen"),
    [
        (_changed(ASKING["a limit"], finalizers=[]), False),
        (_changed(ASKING["a limit"], deletionTimestamp="2026-01-01T00:00:00Z"), False),
        (_changed(ASKING["a limit"], labels={"app": "x"}), False),
        ({**ASKING["a limit"], "status": {"phase": "Succeeded"}}, False),
        (_changed(ASKING["a limit"], labels={"fairslice.io/class": "production"}), True),
        (_changed(ASKING["a limit"], annotations={"system.fairslice.io/state": "x"}), True),
        (pod({**GPU_CONTAINER, "image": "other"}), True),
    ],
)
def test_an_update_is_seen_only_where_the_spec_or_our_stamps_change(
    after: dict[str, Any], seen: bool
) -> None:
    before = ASKING["a limit"]
    assert matches(GPU, after, before) is seen
    assert matches(GPU, before, after) is seen


def test_a_changed_stamp_is_seen() -> None:
    before = _changed(ASKING["a limit"], labels={"fairslice.io/class": "training"})
    after = _changed(ASKING["a limit"], labels={"fairslice.io/class": "production"})
    assert matches(GPU, after, before)


def test_new_ephemeral_containers_are_always_looked_at() -> None:
    assert matches(GPU, ASKING["a limit"], ASKING["a limit"], subresource="ephemeralcontainers")
    assert matches(HIDE, PLAIN, PLAIN, subresource="ephemeralcontainers")
    for entry in (GPU, HIDE, VALIDATING["gpu-pods.fairslice.io"]):
        resources = {name for rule in entry["rules"] for name in rule["resources"]}
        assert "pods/ephemeralcontainers" in resources


def _wrapped(path: str, template: dict[str, Any]) -> dict[str, Any]:
    """Make the smallest object with a pod template at a path."""
    obj: Any = template
    for segment in reversed(path.split(".")):
        name = segment.rstrip("[]{}")
        if segment.endswith("[]"):
            obj = [obj]
        elif segment.endswith("{}"):
            obj = {"Worker": obj}
        obj = {name: obj}
    return {"metadata": {"name": "w"}, **obj}


@pytest.mark.parametrize("kind", [k for k in SUSPENDABLE if k.templates], ids=lambda k: k.plural)
def test_each_kinds_templates_are_searched(kind: Any) -> None:
    entry = MUTATING[f"gpu-{kind.plural}.fairslice.io"]
    for path in kind.templates:
        with_gpu = _wrapped(path, {"spec": ASKING["a limit"]["spec"]})
        without = _wrapped(path, {"spec": PLAIN["spec"]})
        assert matches(entry, with_gpu)
        assert not matches(entry, without)
        assert not matches(entry, {**with_gpu, "status": {"active": 1}}, with_gpu)
        assert matches(entry, _changed(without, labels={"fairslice.io/class": "training"}))


def test_an_object_without_any_template_is_no_error() -> None:
    for entry in (*MUTATING.values(), *VALIDATING.values()):
        for obj in ({"metadata": {}, "spec": {}}, {"metadata": {}}, {}):
            for condition in entry.get("matchConditions", ()):
                request = {"operation": "UPDATE"}
                cel.evaluate(
                    condition["expression"], {"object": obj, "oldObject": {}, "request": request}
                )


def test_every_kind_that_is_queued_as_a_whole_is_sent() -> None:
    sent = {(kind.group, kind.plural) for kind in SUSPENDABLE}
    assert {(a.kind.group, a.kind.plural) for a in ADAPTERS} <= sent


@pytest.mark.parametrize(
    "huge",
    [
        pod({"env": [{"name": f"E{n}"} for n in range(50_000)]}),
        pod(annotations={f"a{n}": "" for n in range(30_000)}),
        pod(spec={"containers": [{"name": f"c{n}"} for n in range(10_000)]}),
    ],
)
def test_a_huge_pod_is_matched_rather_than_searched(huge: dict[str, Any]) -> None:
    started = time.perf_counter()
    assert asks(huge)
    assert not matches(HIDE, huge)
    assert time.perf_counter() - started < 2


@pytest.mark.skipif(not SHARED.exists(), reason="needs the recorded requests")
def test_recorded_pods_are_sent_where_they_belong() -> None:
    plain = gpus = 0
    for file in sorted((SHARED / "fixtures/admission").glob("*.json")):
        request = json.loads(file.read_text())["request"]
        if request["resource"]["resource"] != "pods" or request["operation"] != "CREATE":
            continue
        obj = request["object"]
        assert matches(GPU, obj) is not matches(HIDE, obj), file.name
        if request.get("subResource"):
            continue
        gpus += "nvidia.com" in json.dumps(obj["spec"])
        plain += matches(HIDE, obj)
    assert plain
    assert gpus


def test_no_entry_that_fails_closed_sees_deletions_or_system_namespaces() -> None:
    for entry in (*MUTATING.values(), *VALIDATING.values()):
        for rule in entry["rules"]:
            assert set(rule["operations"]) <= {"CREATE", "UPDATE"}
        (expression,) = entry["namespaceSelector"]["matchExpressions"]
        assert {"kube-system", "kube-node-lease", "fairslice-system"} <= set(expression["values"])
        if entry["failurePolicy"] == "Fail":
            # Only what asks for GPUs, or is in the books.
            assert entry.get("matchConditions") or entry["objectSelector"]["matchLabels"]


def test_the_url_form_and_the_service_form_carry_the_secret_path() -> None:
    url = TARGET.client_config(UrlPath.MUTATE)
    assert url == {"url": "https://127.0.0.1:9443/s3cret/mutate"}
    service = Target(namespace="ns", secret_path="s3cret", ca_bundle=b"PEM")
    config = service.client_config(UrlPath.HIDE)
    assert config["service"]["path"] == "/s3cret/hide"
    assert config["caBundle"] == "UEVN"
    assert "s3cret" not in repr(service)


# DRA claims, and namespaces that would open devices in use.


def claim(*requests: dict[str, Any], template: bool = False, **metadata: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {"devices": {"requests": list(requests)}}
    return {"metadata": {"name": "c", **metadata}, "spec": {"spec": spec} if template else spec}


ABOUT_GPUS = {
    "a class": claim({"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}),
    "a slice": claim({"name": "r", "exactly": {"deviceClassName": "mig-small"}}),
    "v1beta1": claim({"name": "r", "deviceClassName": "gpu.nvidia.com"}),
    "an alternative": claim(
        {
            "name": "r",
            "firstAvailable": [
                {"name": "a", "deviceClassName": "nic"},
                {"name": "b", "deviceClassName": "gpu.nvidia.com"},
            ],
        }
    ),
    "adminAccess": claim({"name": "r", "exactly": {"deviceClassName": "x", "adminAccess": True}}),
    "a template": claim(
        {"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}, template=True
    ),
    "a forged stamp": claim(annotations={"system.fairslice.io/booking": "b"}),
    "too many requests": claim(*({"name": f"r{n}"} for n in range(33))),
}
ABOUT_OTHERS = {
    "another class": claim({"name": "r", "exactly": {"deviceClassName": "nic.example.com"}}),
    "nothing": claim(),
    "no spec": {"metadata": {"name": "c"}},
}


@pytest.mark.parametrize("why", [*ABOUT_GPUS, *ABOUT_OTHERS])
def test_each_claim_reaches_exactly_one_entry(why: str) -> None:
    obj = (ABOUT_GPUS | ABOUT_OTHERS)[why]
    for entries in (MUTATING, VALIDATING):
        strict, other = entries["gpu-claims.fairslice.io"], entries["claims.fairslice.io"]
        assert (matches(strict, obj), matches(other, obj)) == (
            why in ABOUT_GPUS,
            why in ABOUT_OTHERS,
        )
        assert (strict["failurePolicy"], other["failurePolicy"]) == ("Fail", "Ignore")


def test_a_claims_status_and_end_never_wait_for_the_webhook() -> None:
    entry = MUTATING["gpu-claims.fairslice.io"]
    before = ABOUT_GPUS["a class"]
    allocated = {**before, "status": {"allocation": {}}}
    assert not matches(entry, allocated, before)
    assert not matches(entry, _changed(before, finalizers=[]), before)
    assert matches(entry, _changed(before, labels={"system.fairslice.io/state": "x"}), before)
    assert {rule for each in entry["rules"] for rule in each["operations"]} == {"CREATE", "UPDATE"}


def test_a_namespace_is_sent_only_when_it_gets_the_label() -> None:
    entry = VALIDATING["namespaces.fairslice.io"]
    key = "resource.kubernetes.io/admin-access"

    def namespace(**labels: str) -> dict[str, Any]:
        return {"metadata": {"name": "n", "labels": labels}}

    granted = {"metadata": {"name": "n", "labels": {key: "true"}}}
    assert matches(entry, granted)
    assert matches(entry, granted, namespace())
    assert not matches(entry, granted, granted)
    assert not matches(entry, namespace(a="b"))
    assert not matches(entry, namespace(), granted)
    assert not matches(entry, {"metadata": {"name": "n"}})


@pytest.mark.parametrize(
    "key",
    [
        "cdi.k8s.io/gpu",
        "nvidia.cdi.k8s.io/pod",
        "devices.nri.io/container.c",
        "devices.noderesource.dev/pod",
    ],
)
def test_a_later_annotation_that_injects_devices_is_sent(key: str) -> None:
    before = pod(annotations={"a": "b"})
    after = _changed(before, annotations={"a": "b", key: "all"})
    assert matches(GPU, after, before)
    assert not matches(GPU, _changed(before, annotations={"a": "c"}), before)
