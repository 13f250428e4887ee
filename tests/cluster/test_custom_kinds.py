"""A kind that comes with a CRD, from submission to its end, and work that grows as it runs."""

from .harness.history import has_condition, is_suspended
from .harness.jobsets import JobSets, jobset
from .harness.kinds import Obj
from .harness.manifests import deployment, job
from .harness.scene import Scene, Team
from .harness.shapes import a100
from .harness.waiting import eventually, stays

_TRAINING = {"fairslice.io/class": "training"}
_GATE = "fairslice.io/queued"
_STATE = "system.fairslice.io/state"


def _gated(pods: list[Obj]) -> list[Obj]:
    return [
        found
        for found in pods
        if any(gate["name"] == _GATE for gate in found["spec"].get("schedulingGates") or ())
    ]


async def _gpus(scene: Scene, namespace: str) -> list[int]:
    """How many GPUs each pod that ever ran was given, JobSets' pods only."""
    runs = [run for run in await scene.started(namespace) if run.owner.startswith("pretrain")]
    return sorted(sum(run.resources.values()) for run in runs)


async def test_a_jobset_waits_as_a_whole_starts_as_a_whole_and_lets_go(
    scene: Scene, jobsets: JobSets
) -> None:
    await scene.node(a100(6))
    team = await scene.team("nlp", {"a100": ("6", "6")})
    place = team.namespace
    await team.create(job("first", place, labels=_TRAINING, pods=2, seconds=None))
    await eventually("the Job runs", lambda: scene.started(place, "first"))
    async with jobsets.played(place):
        waits = (await scene.api.create(jobset("pretrain", place, seconds=1.0))).obj
        assert waits["spec"]["suspend"] is True
        assert waits["metadata"]["labels"][_STATE] == "queued"
        await eventually(
            "its Jobs are suspended",
            lambda: scene.api.list("Job", place),
            lambda jobs: len(jobs) == 3 and sum(map(is_suspended, jobs)) == 2,
        )
        # The one that waits is the JobSet; its Jobs have no place in line.
        free = {"spec": {"suspend": False}}
        back = await scene.api.patch("JobSet", "pretrain", free, place)
        assert back.obj["spec"]["suspend"] is True
        assert any("still queued" in text for text in back.warnings)
        await stays("nothing of it runs", lambda: _gpus(scene, place), lambda gpus: not gpus, 0.5)

        await team.api.delete("Job", "first", place)

        await eventually("all of it runs", lambda: _gpus(scene, place), [1, 2, 2].__eq__)
        forged = await _forge(scene, team)
        await scene.settled(
            "JobSet", "pretrain", place, "completes", lambda obj: has_condition(obj, "Completed")
        )
        assert await _gpus(scene, place) == [1, 2, 2]
        await team.api.delete("Job", forged, place)
        next_one = job("next", place, labels=_TRAINING, pods=6)
        await team.create(next_one)
        await eventually(
            "all GPUs are free again",
            lambda: scene.started(place, "next"),
            lambda runs: len(runs) == 6,
            within=10,
        )


async def _forge(scene: Scene, team: Team) -> str:
    """Make a Job that passes itself off for one of the JobSet's: its pod must not start."""
    parent = await scene.api.get("JobSet", "pretrain", team.namespace)
    template = parent["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]
    forged = job("forged", team.namespace, gpus=2, labels=_TRAINING)
    forged["metadata"]["ownerReferences"] = [
        {
            "apiVersion": parent["apiVersion"],
            "kind": "JobSet",
            "name": "pretrain",
            "uid": parent["metadata"]["uid"],
            "controller": True,
        }
    ]
    forged["spec"]["template"]["metadata"] = template["metadata"]
    await team.create(forged)
    await eventually(
        "its pod is gated",
        lambda: scene.pods(team.namespace, "job-name=forged"),
        lambda pods: len(_gated(pods)) == 1,
    )
    return "forged"


async def test_pods_beyond_a_released_jobs_booking_come_one_by_one(scene: Scene) -> None:
    await scene.node(a100(4))
    team = await scene.team("nlp", {"a100": ("2", "2")})
    grows = job("grows", team.namespace, labels=_TRAINING, seconds=None)
    del grows["spec"]["completions"]
    await team.create(grows)
    await eventually("the first runs", lambda: scene.started(team.namespace, "grows"))

    await team.api.patch("Job", "grows", {"spec": {"parallelism": 3}}, team.namespace)

    await eventually(
        "three pods, one of them gated",
        lambda: scene.pods(team.namespace),
        lambda pods: len(pods) == 3 and len(_gated(pods)) == 1,
    )
    await eventually("two run", lambda: scene.started(team.namespace), lambda runs: len(runs) == 2)
    await scene.limit(team, "a100", "3", "3")
    await eventually(
        "the third runs", lambda: scene.started(team.namespace), lambda runs: len(runs) == 3
    )


async def test_a_deployment_that_is_scaled_up_gets_what_the_limit_allows(scene: Scene) -> None:
    await scene.node(a100(4))
    team = await scene.team("nlp", {"a100": ("2", "2")})
    await team.create(deployment("serve", team.namespace, labels=_TRAINING))
    await eventually("the first runs", lambda: scene.started(team.namespace))

    async def scale(replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        await team.api.patch("Deployment", "serve", body, team.namespace, subresource="scale")

    await scale(4)
    await eventually(
        "four pods, two of them gated",
        lambda: scene.pods(team.namespace),
        lambda pods: len(pods) == 4 and len(_gated(pods)) == 2,
    )
    await eventually("two run", lambda: scene.started(team.namespace), lambda runs: len(runs) == 2)
    await scale(1)
    await eventually("one is left", lambda: scene.pods(team.namespace), lambda pods: len(pods) == 1)
    await scale(2)
    await eventually(
        "two are there and none is gated",
        lambda: scene.pods(team.namespace),
        lambda pods: len(pods) == 2 and not _gated(pods),
    )
