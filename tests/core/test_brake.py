"""The brake: out of the admission path whatever else is broken, and back once a webhook answers."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairslice.brake import Brake, brake, release
from fairslice.kube.client import KubeClient
from fairslice.registration import register
from fairslice.webhook_configuration import Target

from .object_server import ObjectServer
from .scripted_server import ScriptedServer, eventually
from .test_cli_commands import kubeconfig, one_line, run, serving

FLAG = "/api/v1/namespaces/fairslice-system/configmaps/fairslice-brake"
REGISTRATIONS = "/apis/admissionregistration.k8s.io/v1"
MUTATING = f"{REGISTRATIONS}/mutatingwebhookconfigurations/fairslice"
VALIDATING = f"{REGISTRATIONS}/validatingwebhookconfigurations/fairslice"
HIDING = f"{REGISTRATIONS}/mutatingadmissionpolicies/fairslice-hide"
BINDING = f"{REGISTRATIONS}/mutatingadmissionpolicybindings/fairslice-hide"
TARGET = Target(namespace="fairslice-system", secret_path="s3cret", ca_bundle=b"PEM")


@pytest.fixture
def cluster() -> ObjectServer:
    return ObjectServer()


@pytest.fixture
async def client(cluster: ObjectServer) -> AsyncIterator[KubeClient]:
    async with ScriptedServer(default=cluster.handle) as server, server.client() as client:
        yield client


def registered(cluster: ObjectServer) -> None:
    for path in (MUTATING, VALIDATING, HIDING, BINDING):
        cluster.put(path, {"metadata": {"name": path.rsplit("/", 1)[1]}})


async def test_the_brake_says_that_it_is_on_before_it_takes_anything_away(
    cluster: ObjectServer, client: KubeClient
) -> None:
    registered(cluster)
    report = await brake(client, reason="drill")
    assert list(cluster.objects) == [FLAG]
    assert cluster.objects[FLAG]["data"]["reason"] == "drill"
    assert cluster.writes[0][0] == "POST"
    assert [path for _, path in cluster.writes[1:]] == [MUTATING, VALIDATING, BINDING, HIDING]
    assert report.problems == []
    assert "mutatingwebhookconfigurations/fairslice: removed" in report.done


async def test_braking_twice_is_as_good_as_once(cluster: ObjectServer, client: KubeClient) -> None:
    await brake(client, reason="first")
    report = await brake(client, reason="second")
    assert report.problems == []
    assert cluster.objects[FLAG]["data"]["reason"] == "first"


async def test_what_can_be_taken_away_is_although_the_brake_cannot_be_noted(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await register(client, TARGET)
    cluster.failing.add("configmaps")
    report = await brake(client)
    assert cluster.objects == {}
    (problem,) = report.problems
    assert "may register again" in problem


async def test_release_waits_for_a_webhook_to_register(
    cluster: ObjectServer, client: KubeClient
) -> None:
    await brake(client)
    async with asyncio.TaskGroup() as tasks:
        releasing = tasks.create_task(release(client, wait=5))
        await eventually(lambda: FLAG not in cluster.objects)
        assert not releasing.done()
        await register(client, TARGET)
    assert releasing.result().problems == []


async def test_release_says_so_when_no_webhook_registers(client: KubeClient) -> None:
    report = await release(client, wait=0.1)
    assert report.done == ["the brake was off"]
    assert "no webhook has registered within 0.1 s" in report.problems[0]


async def test_whoever_follows_the_brake_sees_since_when_and_why(
    cluster: ObjectServer, client: KubeClient
) -> None:
    followed = Brake(client, "fairslice-system")
    await brake(client, reason="drill")
    cluster.objects[FLAG]["metadata"]["namespace"] = "fairslice-system"
    following = asyncio.create_task(followed.run())
    await asyncio.wait_for(followed.synced.wait(), 5)
    assert followed.on
    assert followed.text.endswith(": drill")
    following.cancel()


def test_the_command_says_what_it_did_and_how_to_go_back(tmp_path: Path) -> None:
    cluster = ObjectServer()
    registered(cluster)
    with serving(cluster.handle) as url:
        config = kubeconfig(tmp_path / "c", url)
        on = run("brake", "--kubeconfig", config, "--reason", "drill")
        off = run("brake", "--release", "--kubeconfig", config, "--wait", "0.1", "-o", "json")
    assert on.exit_code == 0, on.output
    assert "fairslice brake --release" in on.stdout
    assert off.exit_code == 1
    told = json.loads(off.stdout)
    assert told["brake"] == "off"
    assert len(told["problems"]) == 1


def test_without_an_api_server_the_command_fails_in_one_line(tmp_path: Path) -> None:
    config = kubeconfig(tmp_path / "c", "http://127.0.0.1:1")
    assert "can't reach the API server" in one_line(run("brake", "--kubeconfig", config))
