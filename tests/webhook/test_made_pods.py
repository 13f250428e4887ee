"""Through their pods: kinds that can't be suspended, each with pods of the shape that it makes."""

from copy import deepcopy
from typing import Any

import pytest

from fairslice.classify import owner_kinds
from fairslice.kube.objects import ObjectMeta, OwnerReference

from .conftest import MakeCluster
from .made_pods import MADE, Made, jupyter
from .scene import GPU, JOB_CONTROLLER, SLICE_20, container, job, owner, pod, policy, team, view

BOOKING = "system.fairslice.io/booking"
every = pytest.mark.parametrize("kind", MADE)

RULES = policy(
    classes=[
        {"name": "serving", "memory": "20G", "modes": ["mig", "whole"], "overflow": "Reject",
         "match": [{"ownerKinds": [kind]} for kind in (
             "Deployment", "StatefulSet", "DaemonSet", "LeaderWorkerSet", "Workflow",
             "PipelineRun", "Notebook")] + [{"podLabels": {"component": "singleuser-server"}}]},
        {"name": "training"},
    ]
)  # fmt: skip


def limited(gpus: str) -> Any:
    spec = {"pools": [{"pool": "a100", "limit": gpus}], "allowedClasses": ["serving", "training"]}
    return view(RULES, (team(**spec),))


def another(made: Made, number: int) -> dict[str, Any]:
    obj = deepcopy(made.obj)
    if obj["metadata"].get("name"):
        obj["metadata"]["name"] += f"-{number}"
    obj["metadata"]["labels"]["test/number"] = str(number)
    return obj


@every
async def test_a_pod_is_classified_rewritten_hidden_and_booked_for_whoever_made_it(
    cluster: MakeCluster, kind: str
) -> None:
    place = await cluster(limited("1"))
    made = MADE[kind]
    done = await place.create(made.obj, made.sender)
    assert done.allowed, done.message
    # A DaemonSet's pod names its node, which only the queue looks at: within moments.
    assert done.gated is (kind == "DaemonSet")
    for item in [*done.spec["containers"], *done.spec.get("initContainers", [])]:
        seen = {entry["name"]: entry["value"] for entry in item.get("env") or []}
        if item["name"] == made.main:
            assert item["resources"]["limits"] == {SLICE_20: "1"}
            assert "NVIDIA_VISIBLE_DEVICES" not in seen
        else:
            assert seen["NVIDIA_VISIBLE_DEVICES"] == "void"
    booking = await place.ledger.get(done.annotations[BOOKING])
    assert booking is not None
    assert (booking.work_class, booking.user) == ("serving", made.counts_as)
    held = await place.ledger.held("nlp")
    assert held.pools == ({} if done.gated else {"a100": 250})
    # What the controller wrote is all there still.
    for key, value in made.obj["metadata"]["labels"].items():
        assert done.labels[key] == value


@every
async def test_over_the_limit_a_controllers_pod_waits_and_a_persons_is_refused(
    cluster: MakeCluster, kind: str
) -> None:
    place = await cluster(limited("0.25"))
    made = MADE[kind]
    assert (await place.create(another(made, 0), made.sender)).allowed
    second = await place.create(another(made, 1), made.sender)
    # KubeSpawner's pods have no owner: somebody sits and waits, and is told at once.
    assert second.allowed is bool(made.above)
    assert second.gated is bool(made.above)
    if not made.above:
        assert "0.25 of 0.25 GPUs in use" in second.message


@every
def test_the_kinds_above_a_pod_are_known_by_name(kind: str) -> None:
    made = MADE[kind]
    meta = made.obj["metadata"]
    known = owner_kinds(
        ObjectMeta(
            labels=meta["labels"],
            owner_references=tuple(_reference(item) for item in meta.get("ownerReferences", [])),
        )
    )
    assert set(made.above) <= set(known)


def _reference(item: dict[str, Any]) -> OwnerReference:
    return OwnerReference(
        api_version=item["apiVersion"], kind=item["kind"], name=item["name"], controller=True
    )


async def test_a_jupyterhub_that_sets_iptables_is_told_what_is_in_the_way(
    cluster: MakeCluster,
) -> None:
    place = await cluster(limited("1"))
    made = jupyter(blocks_metadata=True)
    refused = await place.mutate(made.obj, made.sender)
    assert "container block-cloud-metadata: privileged" in refused.message


async def test_a_cron_jobs_job_waits_as_any_job_and_its_pods_are_its_bookings(
    cluster: MakeCluster,
) -> None:
    place = await cluster(limited("1"))
    sender = "system:serviceaccount:kube-system:cronjob-controller"

    def run(minute: int) -> dict[str, Any]:
        made = job(
            f"nightly-2886{minute}",
            metadata={
                "annotations": {"batch.kubernetes.io/cronjob-scheduled-timestamp": "x"},
                "labels": {"fairslice.io/class": "training"},
                "ownerReferences": [owner("CronJob", "nightly")],
            },
        )
        made["metadata"]["name"] = f"nightly-2886{minute}"
        return made

    first = await place.create(run(1), sender)
    assert first.spec["suspend"] is False
    second = await place.create(run(2), sender)
    assert second.allowed
    assert second.spec["suspend"] is True
    assert (await place.ledger.held("nlp")).users == {"CronJob/nightly": 1000}
    meta = first.spec["template"]["metadata"]
    made = pod(
        "",
        container(gpus=1),
        generateName="nightly-28861-",
        labels=dict(meta["labels"]),
        annotations=dict(meta["annotations"]),
        ownerReferences=[owner("Job", "nightly-28861", uid=first.obj["metadata"]["uid"])],
    )
    attached = await place.create(made, JOB_CONTROLLER)
    assert attached.annotations[BOOKING] == first.annotations[BOOKING]
    assert not attached.gated
    assert attached.limits() == {GPU: "1"}


async def test_a_kueue_label_leaves_the_line_to_kueue_but_not_the_quota(
    cluster: MakeCluster,
) -> None:
    place = await cluster(limited("1"))
    body = job(metadata={"labels": {"kueue.x-k8s.io/queue-name": "lq"}})
    body["metadata"]["name"] = "theirs"
    stored = await place.mutate(body)
    assert stored.patch == []
    pods = [
        pod(
            "",
            generateName="theirs-",
            labels={"fairslice.io/class": "training", "test/number": str(number)},
            ownerReferences=[owner("Job", "theirs")],
        )
        for number in range(2)
    ]
    made = [await place.create(item, JOB_CONTROLLER) for item in pods]
    # Kueue lets the Job go when it likes; a label alone is no way past the limit.
    assert [item.gated for item in made] == [False, True]
    assert (await place.ledger.held("nlp")).pools == {"a100": 1000}
