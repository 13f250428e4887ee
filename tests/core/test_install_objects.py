"""Installing: all or nothing, again without harm, and away again."""

from collections.abc import AsyncIterator
from copy import deepcopy

import pytest

from fairslice.install import ensure_secret_path, install
from fairslice.kube.client import ApiError, KubeClient
from fairslice.preflight import AccessDenied
from fairslice.rbac import access_objects
from fairslice.registration import register
from fairslice.uninstall import QueueRunning, uninstall
from fairslice.v1alpha1.scalars import Mode
from fairslice.webhook_configuration import Target

from .object_server import ObjectServer
from .scripted_server import ScriptedServer

NAMESPACE = "/api/v1/namespaces/fairslice-system"
POLICY = "/apis/fairslice.io/v1alpha1/sharingpolicies/default"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fairslice"
TARGET = Target(namespace="fairslice-system", secret_path="s3cret", ca_bundle=b"PEM")


@pytest.fixture
def cluster() -> ObjectServer:
    return ObjectServer()


@pytest.fixture
async def client(cluster: ObjectServer) -> AsyncIterator[KubeClient]:
    async with ScriptedServer(default=cluster.handle) as server, server.client() as client:
        yield client


async def test_a_first_install_makes_everything_and_audits(
    cluster: ObjectServer, client: KubeClient
) -> None:
    report = await install(client)
    assert report.updated == report.unchanged == []
    assert set(cluster.objects[POLICY]["spec"]["mode"].values()) == {"Audit"}
    classes = {key.rsplit("/", 1)[1]: o for key, o in cluster.objects.items() if PRIORITIES in key}
    assert set(classes) == {"fairslice-production", "fairslice-training", "fairslice-experiment"}
    assert classes["fairslice-production"]["value"] > classes["fairslice-training"]["value"]
    assert all(each["preemptionPolicy"] == "Never" for each in classes.values())


async def test_a_second_install_writes_nothing(cluster: ObjectServer, client: KubeClient) -> None:
    await install(client)
    before = deepcopy(cluster.objects)
    report = await install(client)
    assert report.created == report.updated == []
    assert cluster.objects == before


async def test_an_update_restores_what_was_changed_and_drops_what_is_gone(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await install(client)
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/fairslice-webhook"
    rules = cluster.objects[role]["rules"]
    cluster.objects[role]["rules"] = [*rules, {"apiGroups": ["*"], "resources": ["*"]}]
    cluster.objects[role]["metadata"]["labels"]["theirs"] = "kept"
    cluster.objects[NAMESPACE]["spec"] = {"finalizers": ["kubernetes"]}
    report = await install(client)
    assert report.updated == ["ClusterRole fairslice-webhook"]
    assert cluster.objects[role]["rules"] == rules
    assert cluster.objects[role]["metadata"]["labels"]["theirs"] == "kept"
    assert cluster.objects[NAMESPACE]["spec"] == {"finalizers": ["kubernetes"]}


async def test_a_mode_sets_every_feature_of_a_policy_that_exists(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await install(client)
    cluster.objects[POLICY]["spec"]["pools"] = [{"name": "a100"}]
    await install(client, mode=Mode.ENFORCE)
    assert set(cluster.objects[POLICY]["spec"]["mode"].values()) == {"Enforce"}
    assert cluster.objects[POLICY]["spec"]["pools"] == [{"name": "a100"}]


@pytest.mark.parametrize("broken", ["priorityclasses", "rolebindings/", "clusterroles"])
async def test_a_failed_first_install_leaves_nothing_behind(
    cluster: ObjectServer, client: KubeClient, broken: str
) -> None:
    cluster.failing.add(broken.rstrip("/"))
    with pytest.raises(ApiError, match="broken"):
        await install(client)
    assert cluster.objects == {}


async def test_a_failed_update_keeps_what_was_there(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await install(client)
    before = set(cluster.objects)
    cluster.failing.add("clusterroles")
    with pytest.raises(ApiError):
        await install(client)
    assert set(cluster.objects) == before


async def test_without_permission_nothing_is_tried(
    cluster: ObjectServer, client: KubeClient
) -> None:
    cluster.denied.add("clusterroles")
    with pytest.raises(AccessDenied, match=r"create clusterroles\.rbac"):
        await install(client)
    assert cluster.writes == []


async def test_a_priority_class_that_somebody_else_made_is_left_alone(
    cluster: ObjectServer, client: KubeClient
) -> None:
    theirs = {"metadata": {"name": "fairslice-training"}, "value": 7}
    cluster.put(f"{PRIORITIES}/fairslice-training", theirs)
    await install(client)
    assert cluster.objects[f"{PRIORITIES}/fairslice-training"]["value"] == 7


async def test_a_priority_class_of_ours_with_another_value_is_replaced(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await install(client)
    path = f"{PRIORITIES}/fairslice-training"
    right = cluster.objects[path]["value"]
    cluster.objects[path]["value"] = 1
    await install(client)
    assert cluster.objects[path]["value"] == right


async def test_the_secret_path_is_made_once(cluster: ObjectServer, client: KubeClient) -> None:
    path = f"{NAMESPACE}/secrets/fairslice-webhook-path"
    cluster.put(path, {"metadata": {"name": "x"}, "data": {"path": "YWJj"}})
    assert await ensure_secret_path(client, "fairslice-system") == "abc"


async def test_webhooks_are_registered_whole_or_not_at_all(
    cluster: ObjectServer, client: KubeClient
) -> None:
    cluster.failing.add("validatingwebhookconfigurations")
    with pytest.raises(ApiError):
        await register(client, TARGET)
    assert cluster.objects == {}
    cluster.failing.clear()
    await register(client, TARGET)
    assert MUTATING in cluster.objects


def _job(name: str, state: str, **annotations: str) -> dict[str, object]:
    return {
        "metadata": {
            "namespace": "nlp",
            "name": name,
            "labels": {"system.fairslice.io/state": state, "app": "x"},
            "annotations": {"system.fairslice.io/booking": "b1", **annotations},
        },
        "spec": {"suspend": True},
    }


async def test_uninstall_removes_the_webhooks_first_and_lets_queued_work_go(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await install(client)
    await register(client, TARGET)
    jobs = "/apis/batch/v1/namespaces/nlp/jobs"
    cluster.put(f"{jobs}/waits", _job("waits", "queued"))
    cluster.put(f"{jobs}/paused", _job("paused", "held"))
    pods = "/api/v1/namespaces/nlp/pods"
    gates = [{"name": "example.com/other"}, {"name": "fairslice.io/queued"}]
    gated = {**_job("gated", "queued"), "spec": {"schedulingGates": gates}}
    cluster.put(f"{pods}/gated", gated)
    cluster.writes.clear()
    report = await uninstall(client)
    assert cluster.writes[0] == ("DELETE", MUTATING)
    released = cluster.objects[f"{jobs}/waits"]
    assert released["spec"]["suspend"] is False
    assert released["metadata"]["labels"] == {"app": "x"}
    assert released["metadata"]["annotations"] == {}
    assert cluster.objects[f"{jobs}/paused"]["spec"]["suspend"] is True
    assert cluster.objects[f"{pods}/gated"]["spec"]["schedulingGates"] == gates[:1]
    assert sorted(report.released) == ["Job nlp/waits", "Pod nlp/gated"]
    assert report.left == ["Job nlp/paused: suspended by its owner"]
    assert {key.split("/")[-2] for key in cluster.objects} <= {
        "jobs",
        "pods",
        # What lives in the namespace goes with it on a real cluster.
        "serviceaccounts",
        "roles",
        "rolebindings",
        "sharingpolicies",
    }


async def test_uninstall_of_nothing_is_fine(client: KubeClient) -> None:
    report = await uninstall(client)
    assert report.released == report.removed == report.left == []


async def test_uninstall_refuses_while_a_queue_runs(
    cluster: ObjectServer, client: KubeClient
) -> None:
    lease = {
        "metadata": {"name": "fairslice-queue"},
        "spec": {
            "holderIdentity": "me",
            "renewTime": "2999-01-01T00:00:00.000000Z",
            "leaseDurationSeconds": 15,
        },
    }
    path = "/apis/coordination.k8s.io/v1/namespaces/fairslice-system/leases/fairslice-queue"
    cluster.put(path, lease)
    with pytest.raises(QueueRunning, match="stop it first"):
        await uninstall(client)
    await uninstall(client, force=True)


def test_no_role_of_ours_is_a_wildcard() -> None:
    for obj in access_objects("fairslice-system"):
        for rule in obj.get("rules", ()):
            assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}


def test_only_the_webhook_reads_secrets_and_only_at_home() -> None:
    readers = {
        (obj["kind"], obj["metadata"]["name"])
        for obj in access_objects("fairslice-system")
        for rule in obj.get("rules", ())
        if "secrets" in rule["resources"]
    }
    assert readers == {("Role", "fairslice-webhook")}
