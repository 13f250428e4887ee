"""What the sandbox sends to a webhook is what a real control plane sent."""

import json
import re
from typing import Any

import pytest

from fairslice_sandbox.cel import evaluate
from fairslice_sandbox.users import ADMIN, UserInfo, service_account

from .api_world import (
    ALICE,
    APPLY_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Client,
    Obj,
    World,
    pod,
    register,
    running_server,
    shared,
    webhook_server,
)

PODS = "/api/v1/namespaces/nlp/pods"
JOBS = "/apis/batch/v1/namespaces/nlp/jobs"
APPS = "/apis/apps/v1/namespaces/nlp"
GPU = {"limits": {"nvidia.com/gpu": 1}}


def fixture(name: str) -> Obj:
    request: Obj = json.loads(shared("fixtures", "admission", f"{name}.json").read_text())[
        "request"
    ]
    return request


def comparable(value: Any) -> Any:
    """Leave out what differs from run to run."""
    text = json.dumps(value)
    text = re.sub(r"kube-api-access-\w{5}", "kube-api-access", text)
    return _without_chance(json.loads(text))


def _without_chance(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_chance(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {}
    for name, item in value.items():
        if name in ("managedFields", "creationTimestamp", "resourceVersion"):
            continue
        if name == "extra" or (name == "uid" and isinstance(item, str)):
            continue
        result[name] = _without_chance(item)
    return result


async def reviewed(
    name: str, method: str, path: str, body: Any, content_type: str = "application/json",
) -> tuple[Obj, Obj]:  # fmt: skip
    """Send a request as the fixture's user did: the fixture, and the review it caused."""
    expected = fixture(name)
    async with running_server() as world, webhook_server() as hooks:
        everything = {
            "apiGroups": ["*"],
            "apiVersions": ["*"],
            "resources": ["*/*"],
            "operations": ["*"],
        }
        world_client = await _prepared(world, expected)
        webhook = hooks.webhook("all", rules=[everything])
        webhook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": "nlp"}}
        await register(world.api, webhook)
        code, answer = await world_client.send(method, path, body, content_type)
        assert code < 300, answer
        return expected, hooks.requests[0]


async def _prepared(world: World, expected: Obj) -> Client:
    """Store what was there before, and become the fixture's user."""
    info = expected["userInfo"]
    user = UserInfo(info["username"], tuple(info["groups"]))
    if user.username not in ("alice", "admin"):
        binding = {
            "metadata": {"name": "controllers"},
            "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": user.username}],
        }
        rbac = "clusterrolebindings.rbac.authorization.k8s.io"
        await world.api.create(rbac, "", binding, user=ADMIN)
    old = expected["oldObject"]
    if old and old["kind"] != "Scale":
        resource = world.api.registry.of_kind(old["apiVersion"], old["kind"])
        assert resource is not None
        world.api.store.put(resource.key, old)
    return world.client(user)


def controlled(name: str) -> Obj:
    """Give a pod as its controller writes it: the fixture's, without any default."""
    made: Obj = fixture(name)["object"]
    spec = made["spec"]
    for field in ("volumes", "tolerations", "priority", "preemptionPolicy", "enableServiceLinks",
                  "serviceAccountName", "serviceAccount"):  # fmt: skip
        spec.pop(field)
    for container in spec["containers"]:
        container.pop("volumeMounts")
        container["resources"].pop("requests")
    made["metadata"].pop("managedFields", None)
    return made


NB = pod("nb", 1)
NB["metadata"]["labels"] = {"run": "nb"}
NB["spec"]["containers"][0] |= {"name": "nb", "image": "jupyter/base-notebook"}
MULTI = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "multi", "namespace": "nlp"},
    "spec": {
        "initContainers": [
            {"name": "i", "image": "cuda", "resources": GPU},
            {
                "name": "side",
                "image": "cuda",
                "restartPolicy": "Always",
                "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}},
            },
        ],
        "containers": [
            {
                "name": "m",
                "image": "cuda",
                "resources": GPU,
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
                "envFrom": [{"configMapRef": {"name": "cm", "optional": True}}],
            },
            {"name": "sidecar", "image": "logger"},
        ],
    },
}
TRAIN = {
    "metadata": {"generateName": "train-"},
    "spec": {
        "completions": 2,
        "parallelism": 2,
        "completionMode": "Indexed",
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "m", "image": "x", "resources": GPU}],
            }
        },
    },
}


def applied(name: str) -> Obj:
    """Give what `kubectl apply` was fed, with the annotation that it adds."""
    key = "kubectl.kubernetes.io/last-applied-configuration"
    text = fixture(name)["object"]["metadata"]["annotations"][key]
    body: Obj = json.loads(text)
    body["metadata"]["annotations"] = {key: text}
    return body


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        ("create-pod-nb-by-alice", f"{PODS}?fieldManager=kubectl-run", NB),
        (
            "create-job-train-by-alice",
            f"{JOBS}?fieldManager=kubectl-create&fieldValidation=Strict",
            TRAIN,
        ),
    ],
)
async def test_a_created_object_is_reviewed_as_upstream(name: str, path: str, body: Obj) -> None:
    expected, found = await reviewed(name, "POST", path, body)
    assert comparable(found) == comparable(expected)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("create-deployment-serve-by-alice", f"{APPS}/deployments"),
        ("create-statefulset-ss-by-alice", f"{APPS}/statefulsets"),
    ],
)
async def test_an_applied_object_is_reviewed_as_upstream(name: str, path: str) -> None:
    query = "?fieldManager=kubectl-client-side-apply&fieldValidation=Strict"
    expected, found = await reviewed(name, "POST", path + query, applied(name))
    assert comparable(found) == comparable(expected)


@pytest.mark.parametrize(
    "name",
    [
        "create-pod-of-job-from-cron-by-job-controller",
        "create-pod-of-job-train-crqjq-0-by-job-controller",
        "create-pod-of-replicaset-serve-by-replicaset-controller",
        "create-pod-of-statefulset-ss-0-by-statefulset-controller",
    ],
)
async def test_a_controllers_pod_is_reviewed_as_upstream(name: str) -> None:
    expected, found = await reviewed(name, "POST", PODS, controlled(name))
    assert comparable(found) == comparable(expected)


async def test_a_server_side_applied_pod_is_reviewed_as_upstream() -> None:
    query = "?fieldManager=kubectl&fieldValidation=Strict&force=false"
    expected, found = await reviewed(
        "create-pod-multi-by-alice", "PATCH", f"{PODS}/multi{query}", MULTI, APPLY_PATCH
    )
    assert comparable(found) == comparable(expected)


async def test_a_dry_run_is_reviewed_as_upstream_and_leaves_nothing() -> None:
    body = pod("dry", 1)
    body["metadata"]["labels"] = {"run": "dry"}
    body["spec"]["containers"][0]["name"] = "nb"
    query = "?dryRun=All&fieldManager=kubectl-run"
    expected, found = await reviewed("create-pod-dry-dryrun-by-alice", "POST", PODS + query, body)
    assert comparable(found) == comparable(expected)


async def test_a_label_is_reviewed_as_upstream() -> None:
    expected, found = await reviewed(
        "update-pod-nb-by-alice",
        "PATCH",
        f"{PODS}/nb?fieldManager=kubectl-label",
        {"metadata": {"labels": {"team": "x"}}},
        MERGE_PATCH,
    )
    assert comparable(found) == comparable(expected)


async def test_an_annotated_job_is_reviewed_as_upstream() -> None:
    expected, found = await reviewed(
        "update-job-of-cronjob-from-cron-by-alice",
        "PATCH",
        f"{JOBS}/from-cron?fieldManager=kubectl-annotate",
        {"metadata": {"annotations": {"x": "y"}}},
        MERGE_PATCH,
    )
    assert comparable(found) == comparable(expected)


async def test_a_dropped_finalizer_is_reviewed_as_upstream() -> None:
    name = "update-pod-of-job-from-cron-by-job-controller"
    expected, found = await reviewed(
        name,
        "PATCH",
        f"{PODS}/from-cron-mqfjn",
        {"metadata": {"$deleteFromPrimitiveList/finalizers": ["batch.kubernetes.io/job-tracking"]}},
        STRATEGIC_PATCH,
    )
    assert comparable(found) == comparable(expected)


async def test_an_ephemeral_container_is_reviewed_as_upstream() -> None:
    added = {
        "name": "debugger-pgc9c",
        "image": "busybox",
        "command": ["sh"],
        "targetContainerName": "nb",
        "resources": {},
    }
    expected, found = await reviewed(
        "update-pod-ephemeralcontainers-nb2-by-admin",
        "PATCH",
        f"{PODS}/nb2/ephemeralcontainers",
        {"spec": {"ephemeralContainers": [added]}},
        STRATEGIC_PATCH,
    )
    assert comparable(found) == comparable(expected)


async def test_a_scaled_deployment_is_reviewed_as_upstream() -> None:
    expected = fixture("update-scale-scale-serve-by-alice")
    async with running_server() as world, webhook_server() as hooks:
        deployment = {
            "metadata": {"name": "serve"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "m", "image": "vllm"}]},
                },
            },
        }
        client = world.client(ALICE)
        code, _ = await client.send("POST", f"{APPS}/deployments", deployment)
        assert code == 201
        status = {"status": {"replicas": 1}}
        path = f"{APPS}/deployments/serve"
        await world.client().send("PATCH", f"{path}/status", status, MERGE_PATCH)
        rule = {"apiGroups": ["apps"], "apiVersions": ["*"], "operations": ["UPDATE"]}
        rules = [{**rule, "resources": ["deployments/scale"]}]
        await register(world.api, hooks.webhook("scale", rules=rules))
        _, scale = await client.send("GET", f"{path}/scale")
        scale["spec"]["replicas"] = 2
        code, answer = await client.send("PUT", f"{path}/scale", scale)
        assert (code, answer["spec"]) == (200, {"replicas": 2})
        assert comparable(hooks.requests[0]) == comparable(expected)


@pytest.mark.parametrize(
    ("name", "path", "options"),
    [
        ("delete-pod-nb-by-alice", f"{PODS}/nb", {"propagationPolicy": "Background"}),
        (
            "delete-pod-nb-by-admin",
            f"{PODS}/nb",
            {
                "gracePeriodSeconds": 0,
                "preconditions": {"uid": "36d4acab-9e94-4ac4-af99-b6cea488035d"},
            },
        ),
        (
            "delete-job-of-cronjob-from-cron-by-alice",
            f"{JOBS}/from-cron",
            {"propagationPolicy": "Background"},
        ),
        ("delete-pod-of-job-from-cron-by-job-controller", f"{PODS}/from-cron-mqfjn", {}),
    ],
)
async def test_a_deletion_is_reviewed_as_upstream(name: str, path: str, options: Obj) -> None:
    expected, found = await reviewed(name, "DELETE", path, options)
    assert comparable(found) == comparable(expected)


async def test_a_binding_is_reviewed_as_upstream() -> None:
    expected = fixture("create-binding-binding-nb-by-admin")
    async with running_server() as world, webhook_server() as hooks:
        await world.api.create("pods", "nlp", pod("nb"), user=ALICE)
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"]}
        rules = [{**rule, "resources": ["pods/binding"]}]
        await register(world.api, hooks.webhook("binding", rules=rules))
        body = {
            "kind": "Binding",
            "apiVersion": "v1",
            "metadata": {"name": "nb", "namespace": "nlp"},
            "target": {"kind": "Node", "name": "gpu-1"},
        }
        code, _ = await world.client().send("POST", f"{PODS}/nb/binding", body)
        assert code == 201
        found = comparable(hooks.requests[0])
        assert found == comparable(expected)
        assert world.api.get("pods", "nlp", "nb")["spec"]["nodeName"] == "gpu-1"


async def test_the_job_controller_is_known_as_upstream() -> None:
    expected = fixture("create-pod-of-job-from-cron-by-job-controller")["userInfo"]
    user = service_account("kube-system", "job-controller", expected["uid"], "x")
    assert comparable(user.as_json()) == comparable(expected)


def conditions(webhook: str) -> list[str]:
    reference = json.loads(shared("reference", "matchconditions.json").read_text())
    found = next(item for item in reference["webhooks"] if item["name"] == webhook)
    return [condition["expression"] for condition in found["matchConditions"]]


def holds(webhook: str, request: Obj) -> bool:
    about = {"name": "", "subResource": "", **request}
    data = {"object": request["object"], "oldObject": request["oldObject"], "request": about}
    return all(evaluate(expression, data) is True for expression in conditions(webhook))


@pytest.mark.parametrize(
    ("name", "asks"),
    [
        ("create-pod-nb-by-alice", True),
        ("create-pod-multi-by-alice", True),
        ("create-pod-plain-by-alice", False),
        ("create-pod-plainenv-by-alice", True),
        ("update-pod-nb-by-alice", False),
        ("update-pod-ephemeralcontainers-nb2-by-admin", True),
    ],
)
def test_the_reference_match_conditions_choose(name: str, asks: bool) -> None:
    request = fixture(name)
    assert holds("gpu-pods.fairslice.io", request) is asks
    if request["operation"] == "CREATE":
        assert holds("hide.fairslice.io", request) is not asks


def test_the_reference_match_conditions_know_jobs() -> None:
    assert holds("gpu-jobs.fairslice.io", fixture("create-job-train-by-alice"))
