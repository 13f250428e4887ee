"""The shared I/O against the sandbox's API server, as a cluster's own API would answer."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairslice.election import LeaderElection
from fairslice.install import install
from fairslice.kube.client import Invalid, KubeClient
from fairslice.kube.connection import QUEUE_ACCOUNT, QUEUE_LEASE
from fairslice.kube.reflector import Reflector
from fairslice.kube.tokens import ServiceAccountTokens
from fairslice.registration import register
from fairslice.uninstall import uninstall
from fairslice.v1alpha1.resources import TEAMS, TeamResource
from fairslice.webhook_configuration import Target

from .scripted_server import eventually

box = pytest.importorskip("fairslice_sandbox.box")

TEAM = {
    "apiVersion": "fairslice.io/v1alpha1",
    "kind": "Team",
    "metadata": {"name": "nlp"},
    "spec": {"namespaces": ["nlp"], "pools": [{"pool": "a100", "limit": "4"}]},
}


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with (
        box.cluster_in_a_box(tmp_path / "box") as cluster,
        await KubeClient.connect(str(cluster.kubeconfig)) as client,
    ):
        yield client


async def test_installed_twice_and_away_again(admin: KubeClient) -> None:
    await install(admin)
    again = await install(admin)
    assert again.created == again.updated == []
    await register(admin, Target(namespace="fairslice-system", secret_path="s", url="https://x:1"))
    report = await uninstall(admin)
    assert "mutatingwebhookconfigurations/fairslice" in report.removed
    assert "customresourcedefinitions/teams.fairslice.io" in report.removed
    assert report.left == []


async def test_the_queues_account_follows_teams_and_holds_the_lease(admin: KubeClient) -> None:
    await install(admin)
    tokens = ServiceAccountTokens(admin, "fairslice-system", QUEUE_ACCOUNT)
    async with admin.acting_as(tokens) as queue, asyncio.TaskGroup() as tasks:
        teams = Reflector(queue, TEAMS, TeamResource)
        following = tasks.create_task(teams.run())
        await asyncio.wait_for(teams.synced.wait(), 5)
        await admin.create(TEAMS, TEAM)
        await eventually(lambda: teams.get("nlp") is not None)
        status = {"status": {"used": "1.5", "limit": "4"}}
        await queue.patch(f"{TEAMS}/nlp/status", status)
        await eventually(
            lambda: (team := teams.get("nlp")) is not None and team.status.used == "1.5"
        )
        led = asyncio.Event()

        async def lead() -> None:
            led.set()

        election = LeaderElection(
            queue, namespace="fairslice-system", name=QUEUE_LEASE, identity="me"
        )
        await asyncio.wait_for(election.run(lead), 5)
        assert led.is_set()
        await admin.delete(f"{TEAMS}/nlp")
        await eventually(lambda: not teams.store)
        following.cancel()


async def test_a_team_out_of_range_is_refused_with_path_and_allowed_values(
    admin: KubeClient,
) -> None:
    await install(admin)
    wrong = {**TEAM, "spec": {"weight": 0, "mode": {"hide": "Sometimes"}}}
    with pytest.raises(Invalid) as caught:
        await admin.create(TEAMS, wrong)
    assert "spec.weight" in str(caught.value)
    assert "spec.mode.hide" in str(caught.value)
    assert '"Off", "Audit", "Enforce"' in str(caught.value)


async def test_a_defaulted_team_is_stored_with_its_defaults(admin: KubeClient) -> None:
    await install(admin)
    stored = json.loads(await admin.create(TEAMS, TEAM))
    assert stored["spec"]["weight"] == 1
    assert stored["spec"]["pools"] == [{"pool": "a100", "guaranteed": "0", "limit": "4"}]
