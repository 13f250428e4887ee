"""The loop in every replica, against API objects in memory and real TLS clients."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from fairslice_certs.directory import DirectoryStore
from fairslice_certs.inject import ConfigurationRef, PatchOperation, WebhookConfiguration
from fairslice_certs.replicas import OwnReplica, ProbedReplicas
from fairslice_certs.rotation import CertificatePolicy
from fairslice_certs.rotator import CertificateRotator
from fairslice_certs.secret import SecretData, SecretStore, StoredSecret
from fairslice_certs.serving import ServingContext

from .world import (
    MUTATING,
    NAMES,
    POLICY,
    VALIDATING,
    FakeClock,
    MemoryConfigurations,
    MemoryStore,
    handshake,
    served,
    strict_client,
    tls_server,
    users_secret,
)

# Clients judge validity by the real clock. The fake one may be an hour ahead of it (that is how
# far certificates are backdated), so lifetimes are short enough to rotate within the hour.
QUICK = CertificatePolicy(
    NAMES,
    authority_lifetime=timedelta(minutes=30),
    leaf_lifetime=timedelta(minutes=10),
    settle=timedelta(seconds=30),
)


class World:
    """One cluster: its Secret, its webhook configurations, its clock."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.configurations = MemoryConfigurations()
        self.clock = FakeClock()

    def rotator(
        self,
        *,
        leads: bool = True,
        policy: CertificatePolicy = POLICY,
        store: SecretStore | None = None,
    ) -> CertificateRotator:
        serving = ServingContext()
        return CertificateRotator(
            store=store or self.store,
            configurations=self.configurations,
            references=(MUTATING, VALIDATING),
            replicas=OwnReplica(serving),
            serving=serving,
            policy=policy,
            is_leader=lambda: leads,
            clock=self.clock,
        )

    async def verify(self, port: int) -> None:
        """Connect as each API server would, for each webhook entry."""
        for bundle in self.configurations.bundles():
            await served(port, strict_client(bundle))


@pytest.fixture
def world() -> World:
    return World()


async def test_one_look_at_an_empty_cluster_makes_everything_good(world: World) -> None:
    rotator = world.rotator()
    assert not rotator.status.is_ready
    await rotator.look()
    assert rotator.status.is_ready
    assert rotator.status.not_after
    assert rotator.status.not_after - world.clock.now() > timedelta(days=29)
    async with tls_server(rotator.serving.context) as port:
        await world.verify(port)


async def test_a_look_that_finds_all_well_writes_nothing(world: World) -> None:
    rotator = world.rotator()
    await rotator.look()
    writes, patches = world.store.writes, len(world.configurations.patches)
    await rotator.look()
    assert (world.store.writes, len(world.configurations.patches)) == (writes, patches)


async def test_a_follower_never_writes_and_is_ready_once_the_leader_was_there(
    world: World,
) -> None:
    follower = world.rotator(leads=False)
    await follower.look()
    assert not follower.status.is_ready
    assert world.store.writes == 0
    leader = world.rotator()
    await leader.look()
    await follower.look()
    assert follower.status == leader.status
    assert follower.status.is_ready


async def test_rotations_go_by_without_a_client_ever_noticing(world: World) -> None:
    async with AsyncExitStack() as stack:
        rotators, ports = [], []

        async def addresses() -> list[tuple[str, int]]:
            return [("127.0.0.1", port) for port in ports]

        for leads in (True, False):
            rotator = world.rotator(leads=leads, policy=QUICK)
            rotator.replicas = ProbedReplicas(addresses)
            await rotator.look()
            rotators.append(rotator)
            ports.append(await stack.enter_async_context(tls_server(rotator.serving.context)))
        bundle = world.configurations.bundles()[0]
        reader, writer, _ = await handshake(ports[0], strict_client(bundle))
        authorities, serials = set(), set()
        for minute in range(55):
            world.clock.time += timedelta(minutes=1)
            for rotator in rotators[:: 1 if minute % 2 else -1]:
                await rotator.look()
                for port in ports:
                    await world.verify(port)
            assert world.store.data
            authorities.add(world.store.data["ca.crt"])
            serials.add(rotators[1].status.serial)
        assert len(authorities) == 3
        assert len(serials) > 6
        assert all(rotator.status.is_ready for rotator in rotators)
        writer.write(b"the first connection\n")
        assert await reader.readline() == b"the first connection\n"
        writer.close()


async def test_whoever_comes_second_takes_what_the_first_created(world: World) -> None:
    first, second = world.rotator(), world.rotator()
    async with asyncio.TaskGroup() as group:
        group.create_task(first.look())
        group.create_task(second.look())
    assert world.store.writes == 1
    assert first.status.serial == second.status.serial


async def test_a_rival_between_read_and_write_is_respected(world: World) -> None:
    rotator = world.rotator()
    await rotator.look()
    assert world.store.data
    world.store.data["tls.crt"] = b"broken"
    theirs = users_secret(world.clock.now())
    world.store.before_write = lambda: world.store.put(theirs)
    await rotator.look()
    assert world.store.data == theirs


async def test_a_leader_that_slept_through_a_rotation_does_no_harm(world: World) -> None:
    rival = world.rotator(policy=QUICK)
    slept = False

    async def minutes_pass(minutes: int) -> None:
        for _ in range(minutes):
            world.clock.time += timedelta(minutes=1)
            await rival.look()

    await rival.look()
    await minutes_pass(18)

    async def sleep_once() -> None:
        nonlocal slept
        if not slept:
            slept = True
            await minutes_pass(4)

    class Configurations(MemoryConfigurations):
        async def get(self, ref: ConfigurationRef) -> WebhookConfiguration | None:
            found = await world.configurations.get(ref)
            if ref == VALIDATING:
                await sleep_once()
            return found

        async def patch(self, ref: ConfigurationRef, patch: Sequence[PatchOperation]) -> None:
            await world.configurations.patch(ref, patch)

    class Store(MemoryStore):
        async def get(self) -> StoredSecret | None:
            found = await world.store.get()
            await sleep_once()
            return found

        async def replace(self, data: SecretData, version: str) -> None:
            await world.store.replace(data, version)

    sleeper = world.rotator(policy=QUICK, store=Store())
    sleeper.configurations = Configurations()
    sleeper.replicas = rival.replicas
    before = world.configurations.bundles()
    async with tls_server(rival.serving.context) as port:
        await sleeper.look()
        assert world.configurations.bundles() != before
        await world.verify(port)


async def test_an_emptied_secret_is_repaired_while_clients_go_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rotator = world.rotator()
    await rotator.look()
    before = rotator.status.serial
    async with tls_server(rotator.serving.context) as port:
        world.store.put({"ca.crt": b"", "ca.key": b"", "tls.crt": b"", "tls.key": b""})
        for _ in range(4):
            await rotator.look()
            await world.verify(port)
            assert rotator.status.is_ready
            world.clock.time += timedelta(minutes=1)
    assert rotator.status.serial != before
    assert rotator.status.problem == ""
    assert "repairing the Secret: add the next authority (the Secret is empty)" in caplog.text
    assert world.store.data
    assert world.configurations.bundles() == [world.store.data["ca.crt"]] * 3


async def test_a_broken_secret_is_repaired_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    rotator = world.rotator()
    await rotator.look()
    assert world.store.data
    world.store.put({**world.store.data, "tls.key": b"oops"})
    await rotator.look()
    [record] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert "repairing the Secret: issue a serving certificate (tls.key is unreadable)" in (
        record.getMessage()
    )
    async with tls_server(rotator.serving.context) as port:
        await world.verify(port)


async def test_a_users_certificate_is_served_and_published_and_never_written(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = users_secret(world.clock.now())
    world.store.put(theirs)
    rotator = world.rotator()
    for _ in range(3):
        await rotator.look()
        world.clock.time += timedelta(days=100)
    assert world.store.data == theirs
    assert world.store.writes == 1
    assert "the certificate has expired" in caplog.text
    assert rotator.status.problem == "the certificate has expired"
    async with tls_server(rotator.serving.context) as port:
        await world.verify(port)


async def test_a_certificate_that_no_ca_bundle_trusts_yet_waits_its_turn(world: World) -> None:
    rotator = world.rotator()
    await rotator.look()
    ours = rotator.status.serial
    world.configurations.unwritable = {MUTATING}
    world.store.put(users_secret(world.clock.now()))
    async with tls_server(rotator.serving.context) as port:
        await rotator.look()
        assert rotator.status.serial == ours
        await world.verify(port)
        world.configurations.unwritable = set()
        await rotator.look()
        assert rotator.status.serial != ours
        await world.verify(port)


async def test_while_the_api_server_is_away_the_old_certificate_is_served(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    rotator = world.rotator()
    await rotator.look()
    status = rotator.status
    world.store.down = True
    for _ in range(5):
        await rotator.look()
    assert rotator.status == status
    assert [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING] == [
        "certificates: the API server is away"
    ]
    world.store.down = False
    await rotator.look()
    assert rotator.status.is_ready


async def test_a_call_that_hangs_is_given_up(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Hanging(MemoryStore):
        async def get(self) -> None:
            await asyncio.sleep(3600)

    rotator = world.rotator(store=Hanging())
    rotator.time_limit = 0.02
    await rotator.look()
    assert "took too long" in caplog.text


async def test_it_looks_every_minute_and_more_often_before_it_is_ready(world: World) -> None:
    follower, leader = world.rotator(leads=False), world.rotator()
    task = asyncio.create_task(follower.run())
    await world.clock.nap_of(follower.hurry)
    await leader.look()
    await world.clock.nap_of(60.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.clock.naps[0] == follower.hurry
    assert follower.status.is_ready


async def test_configurations_that_do_not_exist_are_named_and_get_the_bundle_when_they_come(
    world: World,
) -> None:
    registered = world.configurations.objects.pop(VALIDATING)
    rotator = world.rotator()
    await rotator.look()
    assert rotator.status.missing == ("fairslice",)
    assert world.store.data
    assert rotator.status.ca_bundle == world.store.data["ca.crt"]
    world.configurations.objects[VALIDATING] = registered
    await rotator.look()
    assert rotator.status.missing == ()
    assert world.configurations.bundles() == [world.store.data["ca.crt"]] * 3


async def test_it_works_on_a_directory_as_well(world: World, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "certs")
    rotator = world.rotator(store=store, policy=QUICK)
    async with tls_server(rotator.serving.context) as port:
        for _ in range(30):
            await rotator.look()
            await world.verify(port)
            world.clock.time += timedelta(minutes=1)
    found = await store.get()
    assert found
    assert world.configurations.bundles() == [found.data["ca.crt"]] * 3
    again = world.rotator(store=DirectoryStore(tmp_path / "certs"), policy=QUICK)
    await again.look()
    assert again.status.serial == rotator.status.serial


async def test_no_key_is_ever_logged_or_shown(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    rotator = world.rotator(policy=QUICK)
    keys: set[str] = set()
    for minute in range(40):
        if minute in (10, 30):
            world.store.put({**(world.store.data or {}), "ca.key": b"-----BEGIN oops"})
        await rotator.look()
        data = world.store.data or {}
        keys |= {
            data[key].decode().splitlines()[1] for key in ("tls.key", "ca-next.key") if key in data
        }
        world.clock.time += timedelta(minutes=1)
    shown = caplog.text + repr(rotator) + repr(rotator.status) + repr(await world.store.get())
    assert len(keys) > 3
    assert not any(key[-24:] in shown for key in keys)
