"""A short working day: notebooks, models, trainings, a forger, a rush hour, a surge.

Everything goes over the API as people would do it; every promise is checked by reading the API.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from fairslice import stamps

from .box import Box
from .model.nodes import NodeSpec
from .narrator import Narrator
from .person import Answer, Person, Refused, manifests
from .promises import Promise, sees_only_its_own, visible_devices

__all__ = ["NODES", "TEAMS", "Day", "examples"]

Obj = dict[str, Any]
T = TypeVar("T")

NODES = (
    NodeSpec(
        name="a100-1",
        model="a100-80gb",
        gpus=4,
        whole=2,
        slices={"1g.10gb": 4, "2g.20gb": 2, "3g.40gb": 2},
    ),
    NodeSpec(name="h100-1", model="h100-80gb", gpus=2),
    NodeSpec(name="t4-1", model="t4", gpus=1, replicas=4),
)
TEAMS = ("nlp", "cv")

_TRIALS = 5  # of each team
_SURGE = 8
_PATIENCE = 60.0
_WHOLE = "nvidia.com/gpu"


class Broken(AssertionError):
    """Something did not come to pass in time."""


def examples() -> Path:
    """Find the example manifests: in the package, or in the source tree."""
    packaged = Path(str(files("fairslice_sandbox"))) / "examples"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "examples"


class Day:
    """One day. `play` returns the promises, kept or broken."""

    def __init__(
        self, box: Box, admin: Person, alice: Person, bob: Person, narrator: Narrator
    ) -> None:
        self._box = box
        self._admin, self._alice, self._bob = admin, alice, bob
        self._tell = narrator
        self._examples = examples()
        self._promises: list[Promise] = []
        self._ran: dict[str, Obj] = {}
        self._trials: list[tuple[Person, str]] = []
        self._events = box.api.store.subscribe("pods")

    async def play(self) -> Sequence[Promise]:
        """Play the day to its end; what goes wrong is a broken promise, and the day goes on."""
        watcher = asyncio.create_task(self._remember_pods())
        try:
            for part in (
                self._morning,
                self._notebooks,
                self._model,
                self._training,
                self._refusals,
                self._rush,
                self._surge,
                self._evening,
            ):
                try:
                    await part()
                except (Broken, Refused) as error:
                    self._tell.fails(str(error))
                    self._promises.append(Promise(_title(part), False, str(error)))
        finally:
            watcher.cancel()
            self._events.close()
        self._promises.append(sees_only_its_own(self._ran.values()))
        return self._promises

    # Parts of the day.

    async def _morning(self) -> None:
        """The platform team sets up."""
        self._tell.chapter("Morning: the platform team shares three machines between two teams")
        for node in NODES:
            await self._box.cluster.add_node(node)
            self._tell.happens(f"node {node.name} joins: {_capacity(self._node(node.name))}")
        (policy,) = manifests(self._examples / "day" / "policy.yaml")
        path = "/apis/fairslice.io/v1alpha1/sharingpolicies/default"
        await self._admin.replace_spec(path, policy["spec"])
        for team in manifests(self._examples / "teams.yaml"):
            await self._admin.create(team)
            self._tell.does("platform", f"team {team['metadata']['name']}: {_rights(team)}")
        await asyncio.sleep(1.0)  # webhook and queue watch; they need no more than a moment

    async def _notebooks(self) -> None:
        """Notebooks get slices, and see nothing else."""
        self._tell.chapter("Notebooks: one GPU asked for, a 10 GB slice given")
        await self._submit(self._alice, "notebook.yaml", "asks for a notebook with 1 GPU")
        pod = await self._running(self._alice, "notebook")
        slice_name = "nvidia.com/mig-1g.10gb"
        self._promise(
            "A notebook that asks for a GPU gets a 10 GB slice",
            _limits(pod) == {slice_name: "1"},
            f"limits {_said(pod)}; priority class {pod['spec'].get('priorityClassName')}",
        )
        await self._submit(
            self._bob, "day/forged-notebook.yaml", "asks to see all GPUs of the node"
        )
        pod = await self._running(self._bob, "curious")
        visible = visible_devices(pod).get("notebook", [])
        self._promise(
            "Asking for all GPUs by NVIDIA_VISIBLE_DEVICES shows one",
            len(visible) == 1 and visible[0].startswith("MIG-"),
            f"sees {', '.join(visible) or 'none'}",
        )
        await self._submit(
            self._bob, "day/no-gpu.yaml", "runs a CUDA image without asking for GPUs"
        )
        pod = await self._running(self._bob, "sneaky")
        visible = visible_devices(pod).get("main", [])
        self._promise(
            "A CUDA image that asks for no GPU sees none", not visible, f"sees {len(visible)} GPUs"
        )

    async def _model(self) -> None:
        """Production gets isolated slices."""
        self._tell.chapter("Production: a model with a guaranteed slice")
        await self._submit(self._alice, "inference.yaml", "deploys a model")
        (pod,) = await self._replicas(1)
        given = _limits(pod)
        self._promise(
            "Production models get isolated 20 GB slices",
            given == {"nvidia.com/mig-2g.20gb": "1"},
            f"limits {_said(pod)}",
        )

    async def _training(self) -> None:
        """Trainings get whole GPUs."""
        self._tell.chapter("Training: whole GPUs, two of one model or one")
        await self._submit(self._bob, "training.yaml", "starts a training on 2 GPUs")
        pod = await self._job_pod(self._bob, "segmentation")
        self._promise(
            "A training on two GPUs keeps two whole GPUs of one model",
            _limits(pod) == {_WHOLE: "2"},
            f"limits {_said(pod)}; on node {pod['spec'].get('nodeName')}",
        )
        await self._submit(self._bob, "day/bare-pod.yaml", "explores in a pod of its own")
        await self._running(self._bob, "explorer")

    async def _refusals(self) -> None:
        """What can't be is said at once."""
        self._tell.chapter("Refusals: with the numbers and the way out")
        for person, file, what in (
            (self._alice, "day/over-quota.yaml", "asks for 6 GPUs, above the team's limit"),
            (self._bob, "day/never-fits.yaml", "asks for 16 GPUs in one pod"),
        ):
            self._tell.does(person.name, what)
            (obj,) = manifests(self._examples / file)
            try:
                await person.create(obj)
            except Refused as refused:
                said = refused.message
                self._promise(
                    f"{obj['kind']} {obj['metadata']['name']} is refused, with the numbers",
                    refused.code in (403, 422) and any(char.isdigit() for char in said),
                    said.rpartition("denied the request: ")[2],
                )
            else:
                self._promise(f"{obj['metadata']['name']} is refused", False, "it was accepted")

    async def _rush(self) -> None:
        """Both teams send an array of small Jobs."""
        self._tell.chapter(f"Rush hour: {2 * _TRIALS} small Jobs for the one GPU that is left")
        (trial,) = manifests(self._examples / "day" / "trial.yaml")
        for number in range(2 * _TRIALS):
            person = self._alice if number % 2 else self._bob
            answer = await person.create(trial)
            self._trials.append((person, answer.name))
        self._tell.does("alice and bob", f"submit {2 * _TRIALS} Jobs")
        waiting = await self._until(
            "Jobs wait with a position",
            lambda: [text for text in map(self._standing, self._trials) if "position" in text],
        )
        suspended = sum(1 for trial_ in self._trials if self._job(trial_)["spec"].get("suspend"))
        self._promise(
            "What finds no room waits, and says where it stands",
            suspended > 0 and bool(waiting),
            f"{suspended} of {2 * _TRIALS} wait; {waiting[0]}",
        )

    async def _surge(self) -> None:
        """Production needs more; others make room and come back."""
        self._tell.chapter(f"Surge: production needs {_SURGE} replicas at once")
        path = "/apis/apps/v1/namespaces/nlp/deployments/chat"
        await self._alice.patch(path, {"spec": {"replicas": _SURGE}})
        self._tell.does(self._alice.name, f"scales the model to {_SURGE} replicas")
        pods = await self._replicas(_SURGE)
        kinds = sorted({next(iter(_limits(pod))) for pod in pods})
        pushed = await self._until("somebody makes room", self._pushed_out)
        for text in pushed[1:3]:
            self._tell.happens(text)
        self._promise(
            "Production goes before everything else, up to its team's limit",
            len(pods) == _SURGE,
            f"{_SURGE} replicas run on {', '.join(kinds)}",
        )
        self._promise("Who is pushed out is told by whom, and why", bool(pushed), pushed[0])
        await self._alice.patch(path, {"spec": {"replicas": 1}})
        self._tell.does(self._alice.name, "scales the model back to 1 replica")

    async def _evening(self) -> None:
        """All come back and end."""
        self._tell.chapter("Evening: what was pushed out comes back by itself")
        pod = await self._job_pod(self._bob, "segmentation")
        self._promise(
            "The training that was pushed out runs again, unasked",
            _limits(pod) == {_WHOLE: "2"},
            f"pod {pod['metadata']['name']} runs on {pod['spec'].get('nodeName')}",
        )
        pod = await self._running(self._bob, "explorer")
        restarts = pod["metadata"]["annotations"].get(stamps.RESTARTS, "0")
        self._promise(
            "The bare pod that asked for it is restarted",
            restarts == "1",
            f"pod explorer runs, restarts: {restarts}",
        )
        done = await self._until(
            "all Jobs complete",
            lambda: all(_is_complete(self._job(trial)) for trial in self._trials),
        )
        await asyncio.sleep(0.2)  # the last pods' ends are still on their way to the watcher
        pods = [pod for pod in self._ran.values() if _owner(pod).startswith("trial-")]
        succeeded = sum(1 for pod in pods if pod["status"].get("phase") == "Succeeded")
        self._promise(
            "Every Job that waited has run, once",
            bool(done) and succeeded == len(self._trials),
            f"{succeeded} pods succeeded for {len(self._trials)} Jobs",
        )

    # Reading the cluster.

    def _node(self, name: str) -> Obj:
        node = self._box.api.store.get("nodes", "", name)
        assert node is not None
        return node

    def _job(self, trial: tuple[Person, str]) -> Obj:
        person, name = trial
        job = self._box.api.store.get("jobs.batch", person.namespace, name)
        if job is None:
            raise Broken(f"Job {person.namespace}/{name} is lost")
        return job

    def _standing(self, trial: tuple[Person, str]) -> str:
        job = self._job(trial)
        text = (job["metadata"].get("annotations") or {}).get(stamps.STATUS, "")
        return f"{trial[1]}: {text}" if text else ""

    def _pushed_out(self) -> list[str]:
        told: dict[str, str] = {}
        for resource in ("jobs.batch", "pods"):
            for obj in self._box.api.store.list(resource):
                text = (obj["metadata"].get("annotations") or {}).get(stamps.PREEMPTION)
                if text:
                    told[obj["metadata"]["name"]] = text
        for pod in self._ran.values():
            text = (pod["metadata"].get("annotations") or {}).get(stamps.PREEMPTION)
            if text:
                told.setdefault(pod["metadata"]["name"], text)
        return [f"{name}: {text}" for name, text in told.items()]

    async def _running(self, person: Person, name: str) -> Obj:
        def find() -> Obj | None:
            pod = self._box.api.store.get("pods", person.namespace, name)
            return pod if pod is not None and pod["status"].get("phase") == "Running" else None

        return await self._until(f"pod {person.namespace}/{name} runs", find)

    async def _job_pod(self, person: Person, job: str) -> Obj:
        def find() -> Obj | None:
            for pod in self._box.api.store.list("pods", person.namespace):
                if _owner(pod) == job and _runs(pod):
                    return pod
            return None

        return await self._until(f"a pod of Job {person.namespace}/{job} runs", find)

    async def _replicas(self, count: int) -> list[Obj]:
        def find() -> list[Obj] | None:
            pods = [
                pod
                for pod in self._box.api.store.list("pods", self._alice.namespace)
                if (pod["metadata"].get("labels") or {}).get("app") == "chat" and _runs(pod)
            ]
            return pods if len(pods) >= count else None

        return await self._until(f"{count} replicas of the model run", find)

    async def _remember_pods(self) -> None:
        async for event in self._events:
            meta = event.object["metadata"]
            if meta["namespace"] in TEAMS and event.object["status"].get("phase") != "Pending":
                self._ran[meta["uid"]] = event.object

    # Doing and telling.

    async def _submit(self, person: Person, file: str, what: str) -> list[Answer]:
        answers = []
        for obj in manifests(self._examples / file):
            self._tell.does(person.name, what)
            answer = await person.create(obj)
            self._tell.warns(answer.warnings)
            answers.append(answer)
        return answers

    def _promise(self, text: str, kept: bool, evidence: str) -> None:
        self._promises.append(Promise(text, kept, evidence))
        (self._tell.happens if kept else self._tell.fails)(f"{text}: {evidence}")

    async def _until(self, what: str, find: Callable[[], T | None]) -> T:
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            found = find()
            if found:
                return found
            await asyncio.sleep(0.05)
        raise Broken(f"{what}: not within {_PATIENCE:.0f} s")


def _title(part: Callable[..., object]) -> str:
    return (part.__doc__ or "").strip()


def _limits(pod: Mapping[str, Any]) -> dict[str, str]:
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits") or {}
    return {key: str(value) for key, value in limits.items() if key.startswith("nvidia.com/")}


def _said(pod: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in _limits(pod).items())


def _owner(pod: Mapping[str, Any]) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("name", ""))


def _runs(pod: Mapping[str, Any]) -> bool:
    deleting = pod["metadata"].get("deletionTimestamp")
    return not deleting and pod["status"].get("phase") == "Running"


def _is_complete(job: Mapping[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Complete" and item["status"] == "True" for item in conditions)


def _capacity(node: Mapping[str, Any]) -> str:
    allocatable = node["status"]["allocatable"]
    shares = [f"{n} × {name}" for name, n in allocatable.items() if name.startswith("nvidia.com/")]
    product = node["metadata"]["labels"]["nvidia.com/gpu.product"]
    return f"{product}, {', '.join(shares)}"


def _rights(team: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{item['pool']} {item.get('guaranteed', '0')} guaranteed, {item.get('limit', 'no')} limit"
        for item in team["spec"]["pools"]
    )
