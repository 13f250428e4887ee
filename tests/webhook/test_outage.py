"""The ledger away: GPU work waits or is refused, everything else passes."""

import asyncio
import os
import signal
import time
from copy import deepcopy
from pathlib import Path

import pytest

from fairslice.redis_connection import RedisConnection
from fairslice.redis_embedded import EmbeddedRedis
from fairslice_queue.ledger import Ledger

from .conftest import MakeCluster
from .scene import (
    JOB_CONTROLLER,
    RS_CONTROLLER,
    SLICE_20,
    Cluster,
    container,
    deployment,
    job,
    modes,
    notebook,
    owner,
    pod,
    policy,
    replica,
    view,
)

STATE = "system.fairslice.io/state"


@pytest.fixture
def cut_off(tmp_path: Path) -> Cluster:
    """A cluster whose ledger doesn't answer."""
    redis = RedisConnection.parse(f"unix://{tmp_path}/nothing.sock")
    return Cluster(Ledger(redis), view())


async def test_pods_without_gpus_pass_and_are_hidden(cut_off: Cluster) -> None:
    done = await cut_off.mutate(pod("plain", container()))
    assert done.allowed
    assert done.env() == {"NVIDIA_VISIBLE_DEVICES": "void"}


async def test_a_person_is_asked_to_try_again(cut_off: Cluster) -> None:
    refused = await cut_off.mutate(notebook())
    assert not refused.allowed
    assert refused.code == 503
    assert "try again" in refused.message


async def test_controllers_pods_are_gated_never_denied(cut_off: Cluster) -> None:
    done = await cut_off.mutate(replica("a"), RS_CONTROLLER)
    assert done.gated
    assert done.limits() == {SLICE_20: "1"}
    assert done.labels[STATE] == "queued"
    again = await cut_off.mutate(done.obj, RS_CONTROLLER)
    assert again.patch == []
    done.obj["metadata"] |= {"uid": "u", "name": "serve-x"}
    assert (await cut_off.validate(done.obj, RS_CONTROLLER)).allowed


async def test_jobs_are_suspended_and_stamped(cut_off: Cluster) -> None:
    done = await cut_off.mutate(job())
    assert done.spec["suspend"] is True
    assert done.labels[STATE] == "queued"
    assert done.annotations["system.fairslice.io/booking"]
    assert done.annotations["system.fairslice.io/user"] == "alice"
    assert (await cut_off.mutate(done.obj)).patch == []
    done.obj["metadata"]["uid"] = "u"
    assert (await cut_off.validate(done.obj)).allowed


async def test_pods_of_released_work_are_gated(cluster: MakeCluster, cut_off: Cluster) -> None:
    place = await cluster()
    stored = await place.create(job())
    template = stored.spec["template"]
    made = pod(
        "",
        generateName="train-",
        labels=dict(template["metadata"]["labels"]),
        annotations=dict(template["metadata"]["annotations"]),
        ownerReferences=[owner("Job", "train", uid=stored.obj["metadata"]["uid"])],
    )
    done = await cut_off.mutate(made, JOB_CONTROLLER)
    assert done.gated


async def test_what_was_booked_before_is_stored(cluster: MakeCluster, cut_off: Cluster) -> None:
    place = await cluster()
    done = await place.mutate(notebook())
    done.obj["metadata"]["uid"] = "u"
    assert (await cut_off.validate(done.obj)).allowed


async def test_deployments_and_audit_go_on_without_numbers(cut_off: Cluster) -> None:
    assert (await cut_off.mutate(deployment(99))).allowed
    cut_off.view = view(policy(modes("Audit")))
    done = await cut_off.mutate(notebook())
    assert done.allowed
    assert done.patch == []


async def test_books_not_rebuilt_yet_are_as_good_as_away(ledger: Ledger) -> None:
    place = Cluster(ledger, view())
    assert (await place.mutate(notebook())).code == 503


async def test_a_gated_pod_without_booking_is_stored_when_redis_is_back(
    cluster: MakeCluster, cut_off: Cluster
) -> None:
    done = await cut_off.mutate(replica("a"), RS_CONTROLLER)
    stored = deepcopy(done.obj)
    stored["metadata"] |= {"uid": "u", "name": "serve-x"}
    place = await cluster()
    assert (await place.validate(stored, RS_CONTROLLER)).allowed
    stored["spec"]["schedulingGates"] = []
    assert not (await place.validate(stored, RS_CONTROLLER)).allowed


async def test_while_redis_hangs_everyone_is_answered_within_300_ms(tmp_path: Path) -> None:
    async with (
        EmbeddedRedis(tmp_path / "redis") as server,
        RedisConnection.parse(server.url) as redis,
    ):
        ledger, seen = Ledger(redis), view()
        await ledger.rebuild(await ledger.lead(), [], seen.inventory.capacity(), {})
        place = Cluster(ledger, seen)
        assert not (await place.create(job("before"))).spec["suspend"]
        pid = int((await redis.call(lambda client: client.info("server")))["process_id"])

        times: list[float] = []

        async def answered(number: int) -> None:
            for made, user in ((job(f"job-{number}"), "alice"), (replica("serve"), RS_CONTROLLER)):
                started = time.monotonic()
                done = await place.mutate(made, user)
                times.append(time.monotonic() - started)
                assert done.gated or done.spec["suspend"]

        os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.gather(*(answered(number) for number in range(10)))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert max(times) < 0.4, "the margin is the machine's"
        async with asyncio.timeout(10):
            while (await place.mutate(notebook("after"))).code == 503:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
