"""What is registered where: one policy hides in the API server, or the webhook does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from fairslice import registration
from fairslice.hiding_policy import hiding_policy
from fairslice.kube.client import ApiError, KubeClient
from fairslice.policy import Policy, Team
from fairslice.registration import hides_everywhere, is_registered, register, withdraw
from fairslice.webhook_configuration import (
    PlainPods,
    Target,
    mutating_configuration,
    validating_configuration,
)

from .clusters import policy, team
from .object_server import ObjectServer
from .scripted_server import ScriptedServer, status
from .test_brake import BINDING, HIDING, MUTATING, TARGET, VALIDATING

ENFORCED = {"mode": {"hide": "Enforce"}}


@pytest.fixture
def cluster() -> ObjectServer:
    made = ObjectServer()
    made.objects["/version"] = {"major": "1", "minor": "36+"}
    return made


@pytest.fixture
async def client(cluster: ObjectServer) -> AsyncIterator[KubeClient]:
    async with ScriptedServer(default=cluster.handle) as server, server.client() as client:
        yield client


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "_IN_FORCE_SECONDS", 0.0)


def entries(cluster: ObjectServer) -> list[str]:
    return [each["name"].partition(".")[0] for each in cluster.objects[MUTATING]["webhooks"]]


@pytest.mark.parametrize(
    ("of_policy", "teams", "alike"),
    [
        (ENFORCED, (), True),
        (ENFORCED, (team("a"), team("b", mode={"hide": "Enforce", "queue": "Off"})), True),
        (ENFORCED, (team("a"), team("b", mode={"hide": "Off"})), False),
        (ENFORCED, (team("a", mode={"hide": "Audit"}),), False),
        ({}, (), False),
        ({"mode": {"hide": "Off"}}, (team("a", mode={"hide": "Enforce"}),), False),
    ],
)
def test_one_policy_hides_only_where_all_are_enforced_alike(
    of_policy: dict[str, Any], teams: tuple[Team, ...], alike: bool
) -> None:
    assert hides_everywhere(policy(**of_policy), teams) is alike


async def test_from_1_36_on_the_api_server_hides_and_the_hide_entry_falls_away(
    cluster: ObjectServer, client: KubeClient
) -> None:
    assert await register(client, TARGET, policy(**ENFORCED)) is PlainPods.IN_PROCESS
    assert {HIDING, BINDING, MUTATING, VALIDATING} <= set(cluster.objects)
    assert "hide" not in entries(cluster)
    # The policy was there before the entry that it stands in for was not.
    order = [path.rsplit("/", 1)[1] for method, path in cluster.writes if method == "POST"]
    assert order == [path.rsplit("/", 2)[1] for path in (HIDING, BINDING, MUTATING, VALIDATING)]


@pytest.mark.parametrize("version", [("1", "35"), ("1", "30+"), ("", "")])
async def test_before_that_the_webhook_hides(
    cluster: ObjectServer, client: KubeClient, version: tuple[str, str]
) -> None:
    cluster.objects["/version"] = {"major": version[0], "minor": version[1]}
    assert await register(client, TARGET, policy(**ENFORCED)) is PlainPods.SENT
    assert HIDING not in cluster.objects
    assert "hide" in entries(cluster)


async def test_where_not_all_are_alike_the_webhook_hides_again(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await register(client, TARGET, policy(**ENFORCED))
    cluster.writes.clear()
    await register(client, TARGET, None)
    assert HIDING not in cluster.objects
    assert BINDING not in cluster.objects
    assert "hide" in entries(cluster)
    methods = [method for method, path in cluster.writes if method in ("PUT", "DELETE")]
    assert methods == ["PUT", "PUT", "DELETE", "DELETE"]


async def test_a_change_of_exemptions_reaches_the_policy(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await register(client, TARGET, policy(**ENFORCED))
    exempt = [{"namespace": "lab", "serviceAccounts": ["probe"]}]
    await register(client, TARGET, policy(**ENFORCED, exempt=exempt))
    (text,) = (
        each["expression"]
        for each in cluster.objects[HIDING]["spec"]["matchConditions"]
        if each["name"] == "not-exempt"
    )
    assert '"lab": ["probe"]' in text


async def test_registering_again_writes_nothing(cluster: ObjectServer, client: KubeClient) -> None:
    await register(client, TARGET, policy(**ENFORCED))
    before = dict(cluster.objects)
    await register(client, TARGET, policy(**ENFORCED))
    assert cluster.objects == before


async def test_an_api_server_that_refuses_the_policy_gets_the_entry(
    cluster: ObjectServer, client: KubeClient
) -> None:
    async def refuse(request: Any) -> Any:
        if "mutatingadmissionpolic" in request.path and request.method == "POST":
            return await _not_found(request)
        return await cluster.handle(request)

    async with ScriptedServer(default=refuse) as server, server.client() as other:
        assert await register(other, TARGET, policy(**ENFORCED)) is PlainPods.SENT
    assert "hide" in entries(cluster)


async def _not_found(request: Any) -> Any:
    return await status(404, "the server could not find the requested resource", "NotFound")(
        request
    )


async def test_a_failed_first_registration_leaves_no_policy_behind(
    cluster: ObjectServer, client: KubeClient
) -> None:
    cluster.failing.add("validatingwebhookconfigurations")
    with pytest.raises(ApiError):
        await register(client, TARGET, policy(**ENFORCED))
    assert set(cluster.objects) == {"/version"}


async def test_withdrawing_takes_all_away_and_can_be_repeated(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await register(client, TARGET, policy(**ENFORCED))
    assert await is_registered(client)
    assert len(await withdraw(client)) == 4
    assert not await is_registered(client)
    assert await withdraw(client) == []


async def test_what_fails_to_go_keeps_nothing_else_from_going(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await register(client, TARGET, policy(**ENFORCED))

    async def refuse(request: Any) -> Any:
        if request.path == MUTATING and request.method == "DELETE":
            await asyncio.sleep(5)
        return await cluster.handle(request)

    async with ScriptedServer(default=refuse) as server, server.client() as other:
        with pytest.raises(ApiError):
            await withdraw(other, within=0.2)
    assert set(cluster.objects) == {"/version", MUTATING}


def _conditions(entry: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["expression"] for each in entry["matchConditions"]}


def test_the_policy_is_literally_the_negation_of_the_gpu_entries() -> None:
    made = hiding_policy(TARGET, policy())["spec"]
    negated = _conditions(made)["not-asking"]
    for configuration in (mutating_configuration, validating_configuration):
        entry = configuration(TARGET, PlainPods.IN_PROCESS)["webhooks"][0]
        assert entry["name"] == "gpu-pods.fairslice.io"
        assert negated == f"!({_conditions(entry)['asks']})"
    assert made["failurePolicy"] == "Ignore"


def test_the_entry_left_for_plain_pods_sees_those_that_open_a_way_to_devices() -> None:
    (entry,) = (
        each
        for each in mutating_configuration(TARGET, PlainPods.IN_PROCESS)["webhooks"]
        if each["name"] == "guards.fairslice.io"
    )
    assert (entry["failurePolicy"], entry["timeoutSeconds"]) == ("Ignore", 1)
    cel = pytest.importorskip("fairslice_sandbox.cel")
    opens = _conditions(entry)["opens"]

    def sent(container: dict[str, Any], **spec: Any) -> bool:
        pod = {"spec": {"containers": [{"name": "c", **container}], **spec}}
        return bool(cel.evaluate(opens, {"object": pod}))

    assert sent({"securityContext": {"privileged": True}})
    assert sent({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}})
    assert sent({"volumeMounts": [{"mountPath": "/var/run/./nvidia-container-devices/all"}]})
    assert sent({}, volumes=[{"name": "d", "hostPath": {"path": "/dev"}}])
    assert sent({}, initContainers=[{"name": "i", "securityContext": {"privileged": True}}])
    assert not sent({"securityContext": {"privileged": False, "capabilities": {"drop": ["ALL"]}}})
    assert not sent({}, volumes=[{"name": "d", "emptyDir": {}}])


@pytest.mark.parametrize("resource", ["example.com/gpu", "example.com/nic"])
def test_names_that_stand_for_gpus_here_are_matched(resource: str) -> None:
    cel = pytest.importorskip("fairslice_sandbox.cel")
    target = replace(TARGET, resources=("example.com/gpu",))
    spec = {"containers": [{"name": "c", "resources": {"limits": {resource: "1"}}}]}
    pod, job = {"spec": spec}, {"spec": {"template": {"spec": spec}}}
    entries = {
        each["name"].partition(".")[0]: _conditions(each)
        for configuration in (mutating_configuration, validating_configuration)
        for each in configuration(target)["webhooks"]
        if "matchConditions" in each
    }
    for name, condition, obj in (
        ("gpu-pods", "asks", pod),
        ("gpu-jobs", "asks", job),
        ("advise", "asks", job),
        ("hide", "not-asking", pod),
    ):
        is_gpu = resource == "example.com/gpu"
        matches = bool(cel.evaluate(entries[name][condition], {"object": obj}))
        assert matches is (is_gpu is (name != "hide")), name


def test_the_policy_negates_the_names_of_this_cluster_too() -> None:
    target = replace(TARGET, resources=("example.com/'gpu'",))
    negated = _conditions(hiding_policy(target, policy())["spec"])["not-asking"]
    (entry, *_) = mutating_configuration(target, PlainPods.IN_PROCESS)["webhooks"]
    assert negated == f"!({_conditions(entry)['asks']})"


def test_our_own_and_excluded_namespaces_are_left_alone() -> None:
    target = Target(namespace="ours", secret_path="s", excluded=("storage",))
    selector = hiding_policy(target, policy())["spec"]["matchConstraints"]["namespaceSelector"]
    (expression,) = selector["matchExpressions"]
    assert {"ours", "storage", "kube-system"} <= set(expression["values"])


def test_names_that_users_write_are_quoted() -> None:
    odd: Policy = policy(hiding={"extraEnv": ['A"] + ["', "B\\", "NVIDIA_VISIBLE_DEVICES"]})
    (hidden,) = (
        each["expression"]
        for each in hiding_policy(TARGET, odd)["spec"]["variables"]
        if each["name"] == "hidden"
    )
    cel = pytest.importorskip("fairslice_sandbox.cel")
    names = cel.evaluate(hidden, {})
    assert {'A"] + ["', "B\\", "NVIDIA_GDS"} <= set(names)
    # Which of several entries of this one stays is decided elsewhere.
    assert "NVIDIA_VISIBLE_DEVICES" not in names
