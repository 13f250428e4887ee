"""Which entry sees a pod, over generated pods: exactly one, and the one that an own model names."""

from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fairslice.hiding_policy import hiding_policy
from fairslice.webhook_configuration import (
    PlainPods,
    Target,
    mutating_configuration,
    validating_configuration,
)

from .clusters import policy

cel = pytest.importorskip("fairslice_sandbox.cel")

Obj = dict[str, Any]

TARGET = Target(namespace="fairslice-system", secret_path="s", resources=("example.com/gpu",))
BOTH = pytest.mark.parametrize("plain_pods", PlainPods)

_RESOURCES = (
    *("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/gpu"),
    *("deviceclass.resource.kubernetes.io/x", "cpu", "memory", "example.com/gpus", "nvidia.com"),
)
_VARIABLES = (
    *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_GDS", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VERSION"),
    *("CUDA_HOME", "PATH", "nvidia_visible_devices"),
)
_KEYS = (
    *("app", "fairslice.io/class", "system.fairslice.io/booking", "example.com/fairslice"),
    *("cdi.k8s.io/x", "nvidia.cdi.k8s.io", "devices.nri.io/container.c", "nri.io", "a.nri.io.b"),
    *("devices.noderesource.dev/pod", "devices.gke.io/container.c", "devices.crio.io"),
    *("io.kubernetes.cri-o.Devices", "cdi.k8s.io", "example.com/cdi-devices.nri.io"),
)


def few(items: st.SearchStrategy[Any], *, beyond: int) -> st.SearchStrategy[list[Any]]:
    """Make lists of a few, seldom of just as many as are gone through, and of one more."""
    long = st.builds(
        lambda item, more: [item] * (beyond + more), items, st.sampled_from((-1, 0, 1))
    )
    return st.one_of(*(st.lists(items, max_size=3),) * 12, long)


def maps(keys: tuple[str, ...], *, beyond: int) -> st.SearchStrategy[dict[str, str]]:
    few_keys = st.dictionaries(st.sampled_from(keys), st.just("1"), max_size=3)
    many = st.sampled_from((beyond, beyond + 1)).map(lambda n: {f"x{i}": "1" for i in range(n)})
    return st.one_of(*(few_keys,) * 12, many)


def obj(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[Obj]:
    return st.fixed_dictionaries(required, optional=optional)


SOURCE = st.just({"fieldRef": {"fieldPath": "metadata.name"}})
VARIABLE = obj(
    {"name": st.sampled_from(_VARIABLES)},
    value=st.sampled_from(("void", "all", "")),
    valueFrom=SOURCE,
)
RESOURCES = obj(
    {},
    limits=maps(_RESOURCES, beyond=32),
    requests=maps(_RESOURCES, beyond=32),
    claims=st.just([{"name": "x"}]) | st.just([]),
)
SECURITY = obj(
    {},
    privileged=st.booleans(),
    capabilities=obj({}, add=st.lists(st.just("SYS_ADMIN"), max_size=1)),
)
MOUNT = obj({"mountPath": st.sampled_from(("/data", "/var/run/nvidia-container-devices/0"))})
CONTAINER = obj(
    {"name": st.just("c")},
    env=few(VARIABLE, beyond=256),
    resources=RESOURCES,
    securityContext=SECURITY,
    volumeMounts=st.lists(MOUNT, max_size=2),
)
VOLUME = obj({"name": st.just("v")}, hostPath=st.just({"path": "/"}), emptyDir=st.just({}))
POD_SPEC = obj(
    {"containers": few(CONTAINER, beyond=32)},
    initContainers=few(CONTAINER, beyond=32),
    ephemeralContainers=few(CONTAINER, beyond=32),
    runtimeClassName=st.sampled_from(("nvidia", "nvidia-legacy", "gvisor", "")),
    resourceClaims=st.just([{"name": "x"}]) | st.just([]),
    schedulingGates=st.lists(
        st.sampled_from(("fairslice.io/queued", "example.com/x")).map(lambda n: {"name": n}),
        max_size=2,
    ),
    volumes=st.lists(VOLUME, max_size=2),
)
POD = obj(
    {
        "metadata": obj(
            {"name": st.just("p")},
            labels=maps(_KEYS, beyond=128),
            annotations=maps(_KEYS, beyond=128),
        ),
        "spec": POD_SPEC,
    }
)


def asks(pod: Obj, plain_pods: PlainPods) -> bool:
    """Say by an own model what asks for GPUs, tries a channel to them, or can't be searched."""
    spec, meta = pod["spec"], pod["metadata"]
    lists = [spec.get(f, []) for f in ("containers", "initContainers", "ephemeralContainers")]
    labels, annotations = meta.get("labels", {}), meta.get("annotations", {})
    return (
        any(len(group) > 32 for group in lists)
        or any(container_asks(each, plain_pods) for group in lists for each in group)
        or bool(spec.get("resourceClaims"))
        or any(gate["name"] == "fairslice.io/queued" for gate in spec.get("schedulingGates", []))
        or len(labels) > 128
        or len(annotations) > 128
        or any("fairslice.io/" in key for key in (*labels, *annotations))
        or any(injects(key) for key in annotations)
        or (
            spec.get("runtimeClassName", "").startswith("nvidia")
            if plain_pods is PlainPods.SENT
            else any(sum(len(c.get("env", [])) for c in group) > 256 for group in lists)
        )
    )


def container_asks(container: Obj, plain_pods: PlainPods) -> bool:
    resources, env = container.get("resources", {}), container.get("env", [])
    amounts = [resources.get("limits", {}), resources.get("requests", {})]
    gpus = ("nvidia.com/", "deviceclass.resource.kubernetes.io/")
    if (
        any(len(each) > 32 for each in amounts)
        or any(k.startswith(gpus) or k == "example.com/gpu" for each in amounts for k in each)
        or resources.get("claims")
    ):
        return True
    return plain_pods is PlainPods.SENT and (
        len(env) > 256
        or any(
            each["name"] == "CUDA_VERSION"
            or (
                each["name"].startswith(("NVIDIA_", "CUDA_MPS_"))
                and (each["name"], each.get("value")) != ("NVIDIA_VISIBLE_DEVICES", "void")
            )
            for each in env
        )
    )


def injects(key: str) -> bool:
    domain = key.partition("/")[0]
    begins = ("nvidia.cdi.k8s.io", "devices.gke.io", "io.kubernetes.cri-o.Devices")
    return (
        key.startswith((*begins, "cdi.k8s.io/", "devices.crio.io"))
        or domain.endswith((".nri.io", ".noderesource.dev"))
        or key.endswith((".nri.io", ".noderesource.dev"))
    )


def entry(name: str, plain_pods: PlainPods, *, validating: bool = False) -> Obj:
    make = validating_configuration if validating else mutating_configuration
    (found,) = (
        each
        for each in make(TARGET, plain_pods)["webhooks"]
        if each["name"] == f"{name}.fairslice.io"
    )
    return dict(found)


def matches(entry: Obj, pod: Obj, *, leaving_out: tuple[str, ...] = ()) -> bool:
    request = {"operation": "CREATE", "namespace": "nlp", "userInfo": {"username": "alice"}}
    data = {"object": pod, "oldObject": None, "request": request}
    try:
        return all(
            cel.evaluate(condition["expression"], data)
            for condition in entry["matchConditions"]
            if condition["name"] not in leaving_out
        )
    except cel.CelError as error:
        if "Iteration budget" in str(error):  # this evaluator's own limit, not an API server's
            reject()
        raise


@BOTH
@settings(max_examples=120, deadline=None)
@given(pod=POD)
def test_every_pod_is_seen_by_exactly_one_of_gpu_and_hide(plain_pods: PlainPods, pod: Obj) -> None:
    wanted = asks(pod, plain_pods)
    assert matches(entry("gpu-pods", plain_pods), pod) is wanted
    assert matches(entry("gpu-pods", plain_pods, validating=True), pod) is wanted
    if plain_pods is PlainPods.SENT:
        assert matches(entry("hide", plain_pods), pod) is not wanted
    else:
        # Who hides in the API server leaves the pods of exempt accounts alone.
        hides = hiding_policy(TARGET, policy())["spec"]
        assert matches(hides, pod, leaving_out=("not-exempt",)) is not wanted


@settings(max_examples=120, deadline=None)
@given(pod=POD)
def test_guards_are_asked_about_plain_pods_that_open_a_way_to_devices(pod: Obj) -> None:
    spec = pod["spec"]
    lists = [spec.get(f, []) for f in ("containers", "initContainers", "ephemeralContainers")]
    containers = [each for group in lists for each in group]
    security = [each.get("securityContext", {}) for each in containers]
    opens = (
        any("hostPath" in volume for volume in spec.get("volumes", []))
        or any(each.get("privileged") for each in security)
        or any(each.get("capabilities", {}).get("add") for each in security)
        or any(
            "nvidia-container-devices" in mount["mountPath"]
            for each in containers
            for mount in each.get("volumeMounts", [])
        )
    )
    wanted = opens and not asks(pod, PlainPods.IN_PROCESS)
    assert matches(entry("guards", PlainPods.IN_PROCESS), pod) is wanted


WORKLOADS = tuple(
    each["name"].removesuffix(".fairslice.io")
    for each in mutating_configuration(TARGET)["webhooks"]
    if each["name"].startswith("gpu-") and each["name"] not in ("gpu-pods.fairslice.io",)
)


@pytest.mark.parametrize("name", WORKLOADS)
@settings(max_examples=15, deadline=None)
@given(before=POD, after=POD)
def test_what_only_changes_its_status_never_waits_for_the_webhook(
    name: str, before: Obj, after: Obj
) -> None:
    for validating in (False, True):
        seen = entry(name, PlainPods.SENT, validating=validating)
        assert seen["failurePolicy"] == "Fail"
        assert {operation for rule in seen["rules"] for operation in rule["operations"]} <= {
            "CREATE",
            "UPDATE",
        }
        if all(rule["operations"] == ["CREATE"] for rule in seen["rules"]):
            continue
        request = {"operation": "UPDATE", "namespace": "nlp"}
        (changes,) = (c for c in seen["matchConditions"] if c["name"] == "changes")
        ended = {**before, "status": {"phase": "Succeeded"}}
        ended["metadata"] = {**before["metadata"], "finalizers": [], "deletionTimestamp": "x"}
        size = max(len(before["metadata"].get(f, {})) for f in ("labels", "annotations"))
        data = {"object": ended, "oldObject": before, "request": request}
        # What can't be searched is asked about.
        assert bool(cel.evaluate(changes["expression"], data)) is (size > 128)
        data = {"object": after, "oldObject": before, "request": request}
        if after["spec"] != before["spec"]:
            assert cel.evaluate(changes["expression"], data)


QUEUE = "system:serviceaccount:fairslice-system:fairslice-queue"


@pytest.mark.parametrize("user", ["alice", QUEUE, "system:serviceaccount:nlp:fairslice-queue"])
@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("name", ["gpu-jobs", "gpu-pods"])
def test_what_the_queue_updates_is_no_news_and_what_anybody_else_does_is(
    name: str, operation: str, user: str
) -> None:
    spec: Obj = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    template: Obj = {"spec": spec} if name == "gpu-jobs" else spec
    before: Obj = {"metadata": {}, "spec": {"template": template, "suspend": True, **spec}}
    after: Obj = {"metadata": {}, "spec": {"template": template, "suspend": False, **spec}}
    data = {
        "object": after,
        "oldObject": before if operation == "UPDATE" else None,
        "request": {"operation": operation, "userInfo": {"username": user}},
    }
    seen = all(
        cel.evaluate(condition["expression"], data)
        for condition in entry(name, PlainPods.SENT)["matchConditions"]
    )
    assert seen is (operation == "CREATE" or user != QUEUE)
