"""The registration follows the brake and the policy, and nobody's hand is overruled."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairslice.brake import Brake, brake, release
from fairslice.device_claims import Devices
from fairslice.install import install
from fairslice.kube.client import KubeClient
from fairslice.policy import Policy
from fairslice.registration import is_registered, withdraw
from fairslice.settings import HideBy
from fairslice.webhook_configuration import PlainPods, Target
from fairslice_webhook.registrar import Registrar
from fairslice_webhook.view import View

from .scene import modes, policy, view

box = pytest.importorskip("fairslice_sandbox.box")


@dataclass
class Replica:
    """A webhook, as far as its registration goes."""

    client: KubeClient
    brake: Brake
    view: View = field(default_factory=view)
    ready: bool = True
    times: int = 0
    hide_by: HideBy = HideBy.AUTO

    def __post_init__(self) -> None:
        self.registrar = Registrar(
            self.client,
            self.brake,
            target=lambda: Target(namespace="fairslice-system", secret_path="s", url="https://x:1"),
            view=lambda: self.view,
            is_ready=lambda: self.ready,
            registered=self._registered,
            hide_by=self.hide_by,
        )

    async def _registered(self) -> None:
        self.times += 1


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with (
        box.cluster_in_a_box(tmp_path / "box") as cluster,
        await KubeClient.connect(str(cluster.kubeconfig)) as client,
    ):
        await install(client)
        yield client


@pytest.fixture
async def replica(admin: KubeClient) -> AsyncIterator[Replica]:
    followed = Brake(admin, "fairslice-system")
    following = asyncio.create_task(followed.run())
    await asyncio.wait_for(followed.synced.wait(), 5)
    yield Replica(admin, followed)
    await stop(following)


@pytest.fixture
async def running(replica: Replica) -> AsyncIterator[Replica]:
    await replica.registrar.come_up()
    running = asyncio.create_task(replica.registrar.run())
    yield replica
    await stop(running)


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


_CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fairslice"


async def eventually(look: Callable[[], Awaitable[bool]], seconds: float = 8.0) -> None:
    async with asyncio.timeout(seconds):
        while not await look():  # noqa: ASYNC110 - the API server is asked
            await asyncio.sleep(0.05)


async def test_the_brake_alone_makes_a_webhook_withdraw_and_its_release_register(
    running: Replica, admin: KubeClient
) -> None:
    assert await is_registered(admin)
    flag = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fairslice-brake"}}
    path = "/api/v1/namespaces/fairslice-system/configmaps"
    await admin.create(path, flag)

    async def gone() -> bool:
        return not await is_registered(admin)

    await eventually(gone)
    assert running.brake.text.startswith("the brake is on since 20")
    await admin.delete(f"{path}/fairslice-brake")
    await eventually(lambda: is_registered(admin))

    # It is registered a moment before its registrar has noticed.
    async def noticed() -> bool:
        return running.times == 2

    await eventually(noticed)


async def test_a_webhook_that_starts_while_the_brake_is_on_does_not_register(
    replica: Replica, admin: KubeClient
) -> None:
    await brake(admin)

    async def noticed() -> bool:
        return replica.brake.on

    await eventually(noticed)
    await replica.registrar.come_up()
    assert not await is_registered(admin)
    assert replica.times == 0


async def test_a_webhook_that_is_not_ready_does_not_register_on_release(
    running: Replica, admin: KubeClient
) -> None:
    await brake(admin)
    await asyncio.sleep(1.2)
    running.ready = False
    report = await release(admin, wait=1.5)
    assert len(report.problems) == 1
    running.ready = True
    await eventually(lambda: is_registered(admin))


async def test_what_somebody_took_out_by_hand_is_not_put_back_by_a_change_of_policy(
    running: Replica, admin: KubeClient
) -> None:
    await withdraw(admin)
    running.view = view(policy(modes(hide="Audit")))
    await asyncio.sleep(1.5)
    assert not await is_registered(admin)
    assert running.times == 1


async def test_a_change_of_hiding_is_registered(running: Replica, admin: KubeClient) -> None:
    running.view = view(policy(modes(hide="Audit")))

    async def twice() -> bool:
        return running.times == 2

    await eventually(twice)
    running.view = view(policy(modes(hide="Audit", queue="Off")))
    await asyncio.sleep(1.2)
    assert running.times == 2


async def test_a_name_that_comes_to_stand_for_gpus_is_registered(
    running: Replica, admin: KubeClient
) -> None:
    async def told() -> bool:
        return b"'example.com/gpu'" in (await admin.get(_CONFIGURATION)).replace(b'\\"', b"'")

    assert not await told()
    names = {"example.com/gpu": "nvidia.com/gpu", "nvidia.com/gpu": "nvidia.com/gpu"}
    running.view = view(devices=Devices(known=True, names=names))
    await eventually(told)
    # The well-known ones are matched by their prefix.
    assert b'k in [\\"example.com/gpu\\"]' in await admin.get(_CONFIGURATION)


async def test_namespaces_that_are_exempt_as_a_whole_are_never_sent(
    running: Replica, admin: KubeClient
) -> None:
    async def unsent() -> set[str]:
        entries = json.loads(await admin.get(_CONFIGURATION))["webhooks"]
        found = [
            set(expression["values"])
            for entry in entries
            for expression in entry["namespaceSelector"]["matchExpressions"]
        ]
        assert all(each == found[0] for each in found)
        return found[0] - {"kube-system", "kube-node-lease", "fairslice-system"}

    assert await unsent() == {"gpu-operator"}  # the policy's default
    running.view = view(
        policy(
            exempt=[
                {"namespace": "storage", "serviceAccounts": ["*"]},
                {"namespace": "lab", "serviceAccounts": ["probe"]},
            ]
        )
    )

    async def told() -> bool:
        return await unsent() == {"storage"}

    await eventually(told)


@pytest.mark.parametrize("hide_by", HideBy)
async def test_who_hides_plain_pods_can_be_set(
    admin: KubeClient, monkeypatch: pytest.MonkeyPatch, hide_by: HideBy
) -> None:
    asked: list[Policy | None] = []

    async def register(_: KubeClient, __: Target, hidden_by: Policy | None) -> PlainPods:
        asked.append(hidden_by)
        return PlainPods.SENT

    monkeypatch.setattr("fairslice_webhook.registrar.register", register)
    replica = Replica(admin, Brake(admin, "fairslice-system"), hide_by=hide_by)
    await replica.registrar.come_up()
    assert (asked == [None]) is (hide_by is HideBy.WEBHOOK)
