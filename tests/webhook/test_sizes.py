"""What has more parts than can be looked through is refused, and is no way around."""

from copy import deepcopy
from typing import Any

import pytest

from .conftest import MakeCluster
from .scene import container, job, modes, notebook, pod, policy, team, view
from .test_kinds import manifest

TRAINING = {"fairslice.io/class": "training"}


def many(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [container(f"c{number}", **fields) for number in range(count)]


def choosy(count: int) -> dict[str, Any]:
    rule = {"key": "kubernetes.io/hostname", "operator": "In"}
    names = [f"n{number}" for number in range(count)]
    terms = [{"matchExpressions": [{**rule, "values": names}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


TOO_MUCH = {
    "containers": pod("p", *many(1025)),
    "init containers": pod("p", container(gpus=1), initContainers=many(1024), labels=TRAINING),
    "volumes": pod("p", container(), volumes=[{"name": f"v{n}"} for n in range(1025)]),
    "mounts": pod("p", container(volumeMounts=[{"name": "v", "mountPath": "/v"}] * 8193)),
    "gates": pod("p", labels=TRAINING, schedulingGates=[{"name": f"x/{n}"} for n in range(257)]),
    "claims": pod("p", container(), resourceClaims=[{"name": f"c{n}"} for n in range(257)]),
    "values": pod("p", labels=TRAINING, affinity=choosy(512)),
    "labels": pod("p", labels=TRAINING, nodeSelector={f"k{n}": "x" for n in range(513)}),
}


@pytest.mark.parametrize("what", TOO_MUCH)
async def test_too_much_is_refused_where_something_is_enforced_and_left_alone_elsewhere(
    cluster: MakeCluster, what: str
) -> None:
    place = await cluster()
    body = TOO_MUCH[what]
    for refused in (await place.mutate(body), await place.validate(body)):
        assert refused.code == 422
        assert "more than" in refused.message
    audited = await cluster(view(policy(modes("Audit"))))
    assert (await audited.mutate(body)).patch == []
    assert (await audited.validate(body)).allowed
    exempt = policy(exempt=[{"namespace": "nlp"}])
    assert (await (await cluster(view(exempt))).mutate(body)).allowed


async def test_as_much_as_can_be_looked_through_is(cluster: MakeCluster) -> None:
    place = await cluster()
    done = await place.create(pod("p", *many(1024)))
    assert done.allowed
    seen = {tuple(item["env"][0].items()) for item in done.spec["containers"]}
    assert seen == {(("name", "NVIDIA_VISIBLE_DEVICES"), ("value", "void"))}
    fits = pod("q", labels=TRAINING, affinity=choosy(511))
    assert "more than" not in (await place.mutate(fits)).message


async def test_a_pod_that_is_there_already_can_still_be_changed(cluster: MakeCluster) -> None:
    place = await cluster()
    old = pod("p", *many(2000))
    new = deepcopy(old)
    new["metadata"]["finalizers"] = []
    assert (await place.update(new, old)).patch == []


async def test_a_workload_of_too_many_pod_sets_or_containers_is_refused(
    cluster: MakeCluster,
) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "9999"}]),)))
    jobset = manifest("JobSet")
    worker = jobset["spec"]["replicatedJobs"][1]
    jobset["spec"]["replicatedJobs"] = [{**worker, "name": f"w{n}"} for n in range(257)]
    assert "more than 256 pod sets" in (await place.mutate(jobset)).message
    wide = job()
    wide["spec"]["template"]["spec"]["containers"] += many(1024)
    assert "more than 1024 containers" in (await place.mutate(wide)).message
    audited = await cluster(view(policy(modes("Audit"))))
    assert (await audited.mutate(jobset)).patch == []
    jobset["metadata"]["namespace"] = "elsewhere"
    assert (await place.mutate(jobset)).allowed


async def test_waiting_work_does_not_slip_out_by_becoming_unreadable(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "2"}]),)))
    await place.create(manifest("RayCluster"))
    waiting = manifest("RayCluster")
    waiting["metadata"]["name"] = "second"
    stored = (await place.create(waiting)).obj
    assert stored["spec"]["suspend"] is True
    workers = stored["spec"]["workerGroupSpecs"]
    for groups in (
        [{**workers[0], "groupName": f"g{n}"} for n in range(300)],
        [{**workers[0], "replicas": "many"}],
    ):
        freed = deepcopy(stored)
        freed["spec"] |= {"suspend": False, "workerGroupSpecs": groups}
        assert (await place.update(freed, stored)).code == 422


async def test_a_notebook_is_far_from_all_that(cluster: MakeCluster) -> None:
    assert (await (await cluster()).create(notebook())).allowed
