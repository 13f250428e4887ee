"""Leader election: one leader at a time, given up in time, handed over at once."""

import asyncio
import time
from typing import Any

import pytest
from aiohttp import web

from fairslice.election import ElectionTiming, LeaderElection, LeadershipOverrun

from .scripted_server import ScriptedServer, eventually, status

QUICK = ElectionTiming(lease=1, renew=0.6, retry=0.05)


class LeaseServer:
    """One Lease, with versions and conflicts; it can be made to hang or fail."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.hanging = False
        self.failing = False

    @property
    def holder(self) -> str:
        return "" if self.lease is None else str(self.lease["spec"]["holderIdentity"])

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.hanging:
            await asyncio.sleep(3600)
        if self.failing:
            return await status(500, "etcd is away")(request)
        if request.method == "GET":
            if self.lease is None:
                return await status(404, "no lease", "NotFound")(request)
            return web.json_response(self.lease)
        body = await request.json()
        if request.method == "POST" and self.lease is not None:
            return await status(409, "there is one", "AlreadyExists")(request)
        if request.method == "PUT" and (
            self.lease is None
            or body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]
        ):
            return await status(409, "changed", "Conflict")(request)
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        self.lease = body
        return web.json_response(body)


class Candidate:
    """Campaigns as a task and records when it led."""

    def __init__(self, server: ScriptedServer, name: str) -> None:
        self.leading = False
        self.reigns = 0
        self.client = server.client()
        self.election = LeaderElection(
            self.client, namespace="ns", name="l", identity=name, timing=QUICK
        )
        self.task = asyncio.create_task(self.election.run(self.lead))

    async def lead(self) -> None:
        self.leading = True
        self.reigns += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.leading = False

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))
        await self.client.close()


async def test_one_of_many_leads_and_hands_over_at_once_when_it_stops() -> None:
    leases = LeaseServer()
    async with ScriptedServer(default=leases.handle) as server:
        candidates = [Candidate(server, f"c{n}") for n in range(4)]
        for left in range(4, 0, -1):
            await eventually(lambda: any(each.leading for each in candidates))
            assert sum(each.leading for each in candidates) == 1
            leader = next(each for each in candidates if each.leading)
            assert leases.holder == leader.election.holder
            started = time.monotonic()
            await leader.stop()
            candidates.remove(leader)
            if left > 1:
                await eventually(lambda: any(each.leading for each in candidates))
                assert time.monotonic() - started < 0.6
        assert leases.holder == ""


async def test_the_lease_carries_utc_microseconds_and_counts_transitions() -> None:
    leases = LeaseServer()
    async with ScriptedServer(default=leases.handle) as server:
        first = Candidate(server, "a")
        await eventually(lambda: first.leading)
        assert leases.lease is not None
        renewed = leases.lease["spec"]["renewTime"]
        assert renewed.endswith("Z")
        assert len(renewed) == len("2026-01-01T00:00:00.000000Z")
        await eventually(lambda: leases.lease["spec"]["renewTime"] != renewed)
        assert leases.lease["spec"]["leaseTransitions"] == 0
        await first.stop()
        second = Candidate(server, "b")
        await eventually(lambda: second.leading)
        assert leases.lease["spec"]["leaseTransitions"] == 1
        await second.stop()


@pytest.mark.parametrize("trouble", ["hanging", "failing"])
async def test_a_leader_that_cannot_renew_stops_before_others_may_start(trouble: str) -> None:
    leases = LeaseServer()
    async with ScriptedServer(default=leases.handle) as server:
        leader = Candidate(server, "a")
        await eventually(lambda: leader.leading)
        started = time.monotonic()
        setattr(leases, trouble, True)
        await eventually(lambda: not leader.leading)
        assert 0.4 < time.monotonic() - started < 1.0
        setattr(leases, trouble, False)
        await eventually(lambda: leader.leading)
        assert leader.reigns == 2
        await leader.stop()


async def test_a_dead_leaders_lease_is_taken_after_it_has_been_still_for_its_duration() -> None:
    leases = LeaseServer()
    leases.lease = {
        "metadata": {"name": "l", "resourceVersion": "7"},
        # However wrong the other's wall clock is, it doesn't matter.
        "spec": {
            "holderIdentity": "dead",
            "leaseDurationSeconds": 1,
            "renewTime": "2001-01-01T00:00:00.000000Z",
        },
    }
    async with ScriptedServer(default=leases.handle) as server:
        candidate = Candidate(server, "a")
        await asyncio.sleep(0.7)
        assert not candidate.leading
        assert candidate.election.holder == "dead"
        await eventually(lambda: candidate.leading)
        await candidate.stop()


async def test_a_leader_whose_lease_was_taken_stops_at_once() -> None:
    leases = LeaseServer()
    async with ScriptedServer(default=leases.handle) as server:
        leader = Candidate(server, "a")
        await eventually(lambda: leader.leading)
        assert leases.lease is not None
        leases.lease = {
            "metadata": {"name": "l", "resourceVersion": "99"},
            "spec": {"holderIdentity": "b", "leaseDurationSeconds": 30},
        }
        await eventually(lambda: not leader.leading, 0.5)
        assert leases.holder == "b"
        await leader.stop()
        assert leases.holder == "b"


async def test_the_leaders_own_error_comes_out_and_frees_the_lease() -> None:
    async def fail() -> None:
        raise LookupError("a bug")

    leases = LeaseServer()
    async with ScriptedServer(default=leases.handle) as server, server.client() as client:
        election = LeaderElection(client, namespace="ns", name="l", identity="a", timing=QUICK)
        with pytest.raises(LookupError):
            await election.run(fail)
        assert leases.holder == ""


async def test_work_that_will_not_stop_ends_the_process() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if released.is_set():
                    raise

    leases = LeaseServer()
    released = asyncio.Event()
    async with ScriptedServer(default=leases.handle) as server, server.client() as client:
        election = LeaderElection(client, namespace="ns", name="l", identity="a", timing=QUICK)
        task = asyncio.create_task(election.run(stubborn))
        await eventually(lambda: election.leading)
        leases.failing = True
        with pytest.raises(LeadershipOverrun):
            await asyncio.wait_for(task, 5)
        released.set()
        for each in asyncio.all_tasks() - {asyncio.current_task()}:
            if "stubborn" in repr(each):
                each.cancel()
