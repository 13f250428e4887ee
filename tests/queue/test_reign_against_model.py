"""Random histories of a whole cluster: at rest it is as a plain model wants it.

Submissions, ends, failures, node loss, quota edits, preemption by others, deaths of the queue's
process at any moment, loss of Redis, and jumps of its clock, in any order and at any time.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fairslice import stamps
from fairslice.kube.client import KubeClient
from fairslice.redis_connection import RedisConnection
from fairslice.redis_embedded import EmbeddedRedis
from fairslice_queue import checks, holding_back, pushing, reign, seat
from fairslice_queue.ledger import Ledger, LedgerUnavailable
from fairslice_queue.team_status import restore_use
from fairslice_queue.watching import Watch
from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.model.objects import rfc3339
from fairslice_sandbox.store import Obj

from .dying import Fate, mortals, spawn
from .reign_model import Plain, Quota, Work
from .world import Leader, World, job, make_leader, node, pod, policy, run_watch, team, world

_TEAMS = ("cv", "nlp")
_CLASSES = ("production", "training", "training", "experiment")
_QUIET_SECONDS = 0.2
_REST_SECONDS = 12.0
_EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "6"))
_STEPS = int(os.environ.get("MODEL_STEPS", "25"))


class ClusterMachine(RuleBasedStateMachine):
    """One cluster, its queue, and what is known of them."""

    redis_url = ""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.works: dict[str, Work] = {}
        self.quotas = {name: Quota() for name in _TEAMS}
        self.nodes = {"n1": 2}
        self.offset = 0.0
        self.number = 0
        self.story: list[str] = []

    # Bringing up and down.

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return self.runner.run(work)
        except AssertionError as error:
            raise AssertionError(f"{error}\nafter: " + "; ".join(self.story)) from error

    @initialize()
    def begin(self) -> None:
        self.run(self._begin())

    async def _begin(self) -> None:
        asyncio.get_running_loop().set_task_factory(mortals)
        self.stack = AsyncExitStack()
        directory = self.stack.enter_context(tempfile.TemporaryDirectory())
        async with RedisConnection.parse(self.redis_url) as redis:
            await redis.client.flushall()
        self.box: World = await self.stack.enter_async_context(
            world(self.redis_url, Path(directory))
        )
        await self.box.create(
            policy(reserveAfter="720h", aging="720h", startTimeout="720h", restartLimit=100)
        )
        for name in _TEAMS:
            await self.box.create(team(name))
        urgent = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 1000,
        }
        await self.box.create(urgent)
        await self.box.cluster.add_node(node("n1", 2))
        # The doorman's view of the cluster outlives every queue process.
        await self.box.watching()
        await self._start()

    async def _start(self) -> None:
        self.client = await KubeClient.connect(self.box.kubeconfig)
        self.redis = RedisConnection.parse(self.box.redis_url)
        self.leader = make_leader(
            Watch(self.client),
            self.client,
            Ledger(self.redis),
            clock=lambda: time.time() + self.offset,
        )
        self.box.leader = self.leader
        self.fate = Fate()
        self.process = spawn(self.fate, _lead(self.leader, self.client))
        for _ in range(500):
            if self.process.done() or await self.box.ledger.ready():
                break
            await asyncio.sleep(0.01)

    async def _die(self) -> None:
        await self.fate.bury()
        await self.client.close()
        await self.redis.aclose()
        self.box.leader = None

    def teardown(self) -> None:
        if hasattr(self, "fate"):
            with self.runner:
                try:
                    self.run(self._all_comes_to_an_end())
                finally:
                    self.runner.run(self._die())
                    self.runner.run(self.stack.aclose())

    # What happens.

    def _new(self, work_class: str) -> str:
        self.number += 1
        return f"{work_class[0]}{self.number}"

    @rule(
        owner=st.sampled_from(_TEAMS),
        gpus=st.sampled_from([1, 1, 1, 2]),
        pods=st.sampled_from([1, 1, 2]),
        work_class=st.sampled_from(_CLASSES),
    )
    def submit_job(self, owner: str, gpus: int, pods: int, work_class: str) -> None:
        name = self._new(work_class)
        self.works[name] = Work(name, owner, "Job", gpus, pods, work_class)
        self.story.append(f"{owner} submits Job {name}: {pods} × {gpus}")
        made = job(name, gpus=gpus, pods=pods, completions=3, seconds=None, work_class=work_class)
        self.run(self.box.create(made, owner))

    @rule(owner=st.sampled_from(_TEAMS), work_class=st.sampled_from(_CLASSES))
    def submit_pod(self, owner: str, work_class: str) -> None:
        name = self._new(work_class)
        comes_back = work_class == "experiment"
        self.works[name] = Work(name, owner, "Pod", 1, 1, work_class, restart=comes_back)
        self.story.append(f"{owner} submits pod {name}")
        made = pod(name, work_class=work_class, restart=comes_back)
        self.run(self.box.create(made, owner))

    @rule(which=st.integers(0, 9), well=st.sampled_from([True, True, True, False]))
    def one_ends(self, which: int, well: bool) -> None:
        running = [item for item in self.box.objects("Pod") if _runs(item)]
        if running:
            self.run(self._end(running[which % len(running)], well))

    async def _end(self, found: Obj, well: bool) -> None:
        owners = found["metadata"].get("ownerReferences") or ()
        name = owners[0]["name"] if owners else found["metadata"]["name"]
        work = self.works.get(name)
        self.story.append(f"a pod of {name} {'succeeds' if well else 'fails'}")
        if work is not None and not work.ended and (not well or work.kind == "Pod"):
            work.ended = "ended" if well else "failed"
        await self._write_end(found, well)

    async def _write_end(self, found: Obj, well: bool) -> None:
        """End a pod as its kubelet would."""
        code = 0 if well else 1
        ended = {
            "exitCode": code,
            "reason": "Completed" if well else "Error",
            "startedAt": rfc3339(self.box.cluster._clock.now()),
            "finishedAt": rfc3339(self.box.cluster._clock.now()),
        }
        status = {
            **found["status"],
            "phase": "Succeeded" if well else "Failed",
            "containerStatuses": [
                {**item, "ready": False, "started": False, "state": {"terminated": ended}}
                for item in found["status"].get("containerStatuses") or ()
            ],
        }
        kubelet = self.box.cluster._kubelet_client(found["spec"]["nodeName"])
        with suppress(ApiError):
            await kubelet.write_status("pods", found, status)

    @precondition(lambda self: self.works)
    @rule(which=st.integers(0, 99))
    def one_is_deleted(self, which: int) -> None:
        alive = [work for work in self.works.values() if not work.ended]
        if alive:
            work = alive[which % len(alive)]
            work.ended = "been deleted"
            self.story.append(f"{work.name} is deleted")
            self.run(self._delete(work))

    async def _delete(self, work: Work) -> None:
        # Who wants to be rid of a pod for good deletes what would bring it back, too.
        with suppress(ApiError):
            await self.box.delete("PodTemplate", f"fairslice-pod-{work.name}", work.team)
        with suppress(ApiError):
            await self.box.delete(work.kind, work.name, work.team)

    @precondition(lambda self: self.works)
    @rule(which=st.integers(0, 99), hold=st.booleans())
    def one_is_held_or_let_go(self, which: int, hold: bool) -> None:
        jobs = [work for work in self.works.values() if work.kind == "Job" and not work.ended]
        if jobs:
            work = jobs[which % len(jobs)]
            work.held = hold
            self.story.append(f"{work.name} is {'held' if hold else 'let go'}")
            note = {"metadata": {"annotations": {stamps.HOLD: "true" if hold else None}}}
            self.run(self.box.merge("Job", work.name, note, work.team))

    @precondition(lambda self: self.works)
    @rule(which=st.integers(0, 99), pods=st.integers(1, 3))
    def parallelism_changes(self, which: int, pods: int) -> None:
        jobs = [work for work in self.works.values() if work.kind == "Job" and not work.ended]
        if jobs:
            work = jobs[which % len(jobs)]
            work.pods = pods
            self.story.append(f"{work.name} is to have {pods} pods")
            self.run(self.box.merge("Job", work.name, {"spec": {"parallelism": pods}}, work.team))

    @rule(
        owner=st.sampled_from(_TEAMS),
        guaranteed=st.sampled_from([0, 0, 1, 2]),
        limit=st.sampled_from([None, None, 1, 2, 3]),
    )
    def a_quota_changes(self, owner: str, guaranteed: int, limit: int | None) -> None:
        self.run(self._rest())
        if limit is not None:
            limit = max(limit, guaranteed)
        plain, quota = self._plain(), self.quotas[owner]
        self.quotas[owner] = Quota(guaranteed, limit, max(quota.grace, plain.held_by(owner)))
        self.story.append(f"{owner} has {guaranteed} of at most {limit}")
        spec = team(owner, guaranteed, limit)["spec"]
        self.run(self.box.merge("Team", owner, {"spec": {"pools": spec["pools"]}}))

    @precondition(lambda self: len(self.nodes) < 3)
    @rule(gpus=st.sampled_from([1, 2, 2]))
    def a_node_comes(self, gpus: int) -> None:
        name = next(f"n{n}" for n in range(1, 5) if f"n{n}" not in self.nodes)
        self.nodes[name] = gpus
        self.story.append(f"node {name} with {gpus} comes")
        self.run(self.box.cluster.add_node(node(name, gpus)))

    @precondition(lambda self: len(self.nodes) > 1)
    @rule()
    def a_node_is_lost(self) -> None:
        name = max(self.nodes)
        del self.nodes[name]
        self.story.append(f"node {name} is lost")
        # Bare pods go with it; those that nobody brings back are gone.
        self.run(self.box.cluster.remove_node(name))

    @rule(cordoned=st.booleans())
    def a_node_is_cordoned_or_not(self, cordoned: bool) -> None:
        name = min(self.nodes)
        self.story.append(f"node {name} is {'cordoned' if cordoned else 'in service'}")
        spec = {"spec": {"unschedulable": True if cordoned else None}}
        self.run(self.box.merge("Node", name, spec))

    @rule()
    def the_scheduler_pushes_others_out(self) -> None:
        self.number += 1
        name = f"x{self.number}"
        self.story.append(f"{name} of nobody comes with a high priority")
        foreign = pod(name, seconds=0.3, priorityClassName="urgent")
        foreign["metadata"]["labels"] = {}
        self.run(self.box.create(foreign, "default"))

    @rule(empty=st.sampled_from([False, False, True]))
    def the_queue_dies(self, empty: bool) -> None:
        self.story.append("the queue dies" + (", and Redis forgets" if empty else ""))

        async def die() -> None:
            await self._die()
            if empty:
                await self.box.redis.client.flushall()
            await self._start()

        self.run(die())

    @rule()
    def redis_forgets(self) -> None:
        self.story.append("Redis forgets")
        self.run(self.box.redis.client.flushall())

    @rule(hours=st.sampled_from([-1.0, -0.01, 0.01, 1.0, 24.0]))
    def the_clock_jumps(self, hours: float) -> None:
        self.story.append(f"the clock jumps by {hours} h")
        self.offset += hours * 3600

    @rule(seconds=st.sampled_from([0.0, 0.005, 0.05, 0.2]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule()
    def all_is_well(self) -> None:
        self.run(self._rest())

    # What is looked at.

    async def _rest(self) -> None:
        """Wait until nothing happens any more; then all must be as the model wants it."""
        self.story.append("rest")
        for _ in range(500):
            with suppress(LedgerUnavailable):
                if await self.box.ledger.ready():
                    break
            await asyncio.sleep(0.01)
        # On a busy machine nothing may happen for a while although something is to come.
        ends = time.monotonic() + _REST_SECONDS
        while True:
            await self._settle()
            faults = list(self._plain().faults())
            if not faults or time.monotonic() > ends:
                break
            await asyncio.sleep(_QUIET_SECONDS)
        assert not faults, f"{faults}\n{self.box.describe()}"
        totals, differing = await self.leader.reign.drift.measure(patience=0.3)
        assert not totals, totals
        assert not differing, differing

    async def _settle(self) -> None:
        ends = time.monotonic() + _REST_SECONDS
        last, since = None, time.monotonic()
        while True:
            if self.process.done():
                self.process.result()
            seen, now = self._seen(), time.monotonic()
            if seen != last or not self._is_idle():
                last, since = seen, now
            elif now - since > _QUIET_SECONDS:
                return
            assert now < ends, f"it never comes to rest\n{self.box.describe()}"
            await asyncio.sleep(0.01)

    def _seen(self) -> object:
        return [
            (
                item["kind"],
                item["metadata"]["name"],
                item["metadata"]["uid"],
                item["spec"].get("suspend"),
                item["spec"].get("nodeName"),
                item["spec"].get("schedulingGates"),
                (item.get("status") or {}).get("phase"),
                [c["type"] for c in (item.get("status") or {}).get("conditions") or ()],
                item["metadata"].get("deletionTimestamp"),
            )
            for kind in ("Job", "Pod")
            for item in self.box.objects(kind)
        ]

    def _is_idle(self) -> bool:
        leading, watch = self.leader.reign, self.leader.watch
        foreign = [item for item in self.box.objects("Pod", "default") if _runs(item)]
        return not (
            watch.dirty
            or leading._seat.calls.busy
            or leading._pushing.warned
            or leading._pushing.claims
            or foreign
        )

    def _plain(self) -> Plain:
        return Plain.of(
            self.works,
            self.quotas,
            nodes=self.box.objects("Node"),
            jobs=self.box.objects("Job"),
            pods=self.box.objects("Pod"),
            stored=self.box.objects("PodTemplate"),
        )

    async def _all_comes_to_an_end(self) -> None:
        """Lift what holds work up, and let all that runs end: nothing is left behind."""
        for name in _TEAMS:
            self.quotas[name] = Quota()
            await self.box.merge("Team", name, {"spec": {"pools": team(name)["spec"]["pools"]}})
        for name in self.nodes:
            await self.box.merge("Node", name, {"spec": {"unschedulable": None}})
        for name, gpus in (("z1", 2), ("z2", 2)):
            await self.box.cluster.add_node(node(name, gpus))
        for work in self.works.values():
            if work.held and not work.ended:
                work.held = False
                note = {"metadata": {"annotations": {stamps.HOLD: None}}}
                await self.box.merge("Job", work.name, note, work.team)
        for _ in range(60):
            await self._rest()
            running = [item for item in self.box.objects("Pod") if _runs(item)]
            if not running:
                break
            for item in running:
                await self._end(item, well=True)
        for work in self.works.values():
            if work.kind == "Job" and work.ended != "been deleted":
                kind = "Failed" if work.ended == "failed" else "Complete"
                assert work.name in self.box.finished(kind=kind), self.box.describe()
        left = [item for item in self.leader.mirror.books if item.bound]
        assert not left, left


async def _lead(leader: Leader, client: KubeClient) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(run_watch(leader.watch))
        await leader.watch.synced()
        restore_use(leader.watch, leader.meter, time.time())
        tasks.create_task(leader.reign.run())
        tasks.create_task(leader.standing.run(client, leader.watch.paths))


def _runs(item: Obj) -> bool:
    return item["status"].get("phase") == "Running" and not _leaves(item)


def _leaves(item: Obj) -> bool:
    return "deletionTimestamp" in item["metadata"]


@pytest.mark.timeout(1800)
def test_any_history_of_a_cluster_ends_as_a_plain_model_wants_it(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is looked at from time to time is looked at often, and nobody is kept back.
    monkeypatch.setattr(reign, "_TICK_SECONDS", 0.05)
    monkeypatch.setattr(reign, "_CHECK_SECONDS", 0.1)
    monkeypatch.setattr(seat, "_REPEAT_SECONDS", 0.3)
    monkeypatch.setattr(pushing, "_CLAIM_SECONDS", 0.3)
    monkeypatch.setattr(checks, "_UNSEEN_SECONDS", 0.5)
    monkeypatch.setattr(holding_back, "_PUSHES_FREE", 1000)
    monkeypatch.setattr(ClusterMachine, "redis_url", redis_server.url)
    run_state_machine_as_test(
        ClusterMachine,
        settings=settings(
            max_examples=_EXAMPLES,
            phases=[Phase.generate],
            stateful_step_count=_STEPS,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )
