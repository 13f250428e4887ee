"""Audit: nothing is changed or denied, and what would have been is kept."""

import pytest

from fairslice_queue.ledger import Ledger
from fairslice_webhook.audit import LedgerAuditSink, read_records
from fairslice_webhook.decision import AuditRecord

from .conftest import MakeCluster
from .scene import (
    RS_CONTROLLER,
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
    team,
    view,
)

SMALL = team(pools=[{"pool": "a100", "limit": "0.5"}])


def watched(**spec: object) -> object:
    return view(policy(modes("Audit"), **spec), (SMALL,))


def outcomes(place: Cluster) -> list[tuple[str, str]]:
    return [(record.feature, record.outcome) for record in place.sink.records]


async def test_nothing_is_changed_booked_or_denied(cluster: MakeCluster) -> None:
    place = await cluster(watched())
    submitted = [
        notebook(),
        pod("whole"),
        pod("odd", container(gpus="500m")),
        pod("unknown", container(gpus=1, resource="nvidia.com/mig-9g.1gb")),
        pod("denied", labels={"fairslice.io/class": "nonesuch"}),
        pod("peeping", container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
        pod("open", container(securityContext={"privileged": True})),
        replica("a"),
        job(pods=9),
        deployment(9),
    ]
    for obj in submitted:
        done = await place.mutate(obj, RS_CONTROLLER)
        assert done.allowed
        assert done.patch == []
        assert all(text.startswith("[audit] ") for text in done.warnings)
    assert (await place.ledger.held("nlp")).pools == {}


async def test_a_shrunk_notebook_is_told_and_kept(cluster: MakeCluster) -> None:
    place = await cluster(watched())
    done = await place.mutate(notebook())
    assert outcomes(place) == [("rewrite", "change")] * 2
    assert "1g.10gb" in done.warnings[0]
    assert "fairslice-experiment" in done.warnings[1]
    record = place.sink.records[0]
    assert (record.kind, record.name, record.team, record.user) == ("Pod", "nb", "nlp", "alice")


async def test_what_would_be_denied_or_queued_is_told_apart(cluster: MakeCluster) -> None:
    place = await cluster(watched())
    await place.mutate(pod("whole"))
    assert outcomes(place) == [("quota", "deny")]
    place.sink.records.clear()
    await place.mutate(
        pod("", generateName="x-", ownerReferences=[owner("ReplicaSet", "x", "apps/v1")]),
        RS_CONTROLLER,
    )
    assert outcomes(place) == [("queue", "queue")]


async def test_a_setting_keeps_audit_from_warning(cluster: MakeCluster) -> None:
    place = await cluster(watched(warnings=False))
    done = await place.mutate(pod("whole"))
    assert done.warnings == []
    assert outcomes(place) == [("quota", "deny")]


async def test_variables_that_reach_for_gpus_are_told(cluster: MakeCluster) -> None:
    place = await cluster(watched())
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    await place.mutate(pod("peeping", container(env=env)))
    await place.mutate(pod("plain", container()))
    assert outcomes(place) == [("hide", "change")]


async def test_off_says_nothing_at_all(cluster: MakeCluster) -> None:
    place = await cluster(view(policy(modes("Off")), (SMALL,)))
    for obj in (notebook(), pod("whole"), job(), deployment(9), replica("a")):
        done = await place.mutate(obj)
        assert done.patch == []
        assert done.warnings == []
    assert place.sink.records == []


async def test_one_team_can_be_enforced_before_the_others(cluster: MakeCluster) -> None:
    teams = (
        team("nlp", mode=dict.fromkeys(modes(), "Enforce")),
        team("cv"),
    )
    place = await cluster(view(policy(modes("Audit")), teams))
    assert (await place.mutate(notebook())).patch
    assert not (await place.mutate(notebook(namespace="cv"))).patch


async def test_records_reach_the_ledgers_log_in_order(ledger: Ledger) -> None:
    sink = LedgerAuditSink(ledger)
    records = [
        AuditRecord(
            feature="quota",
            outcome="deny",
            kind="Pod",
            namespace="nlp",
            name=f"p{number}",
            team="nlp",
            user="ada",
            message="no",
            at=1.0,
        )
        for number in range(300)
    ]
    sink.keep(records)
    await sink.flush()
    assert await read_records(ledger) == tuple(records)


async def test_a_flood_of_records_is_dropped_and_counted(ledger: Ledger) -> None:
    sink = LedgerAuditSink(ledger)
    record = AuditRecord(
        feature="a", outcome="b", kind="c", namespace="d", name="e", team="f", user="g", message="h"
    )
    sink.keep([record] * 2100)
    assert sink.dropped == 100


@pytest.mark.parametrize("obj", [notebook(), pod("whole")])
async def test_a_dry_run_is_not_kept(cluster: MakeCluster, obj: dict[str, object]) -> None:
    place = await cluster(watched())
    done = await place.mutate(obj, dryRun=True)
    assert done.warnings
    assert place.sink.records == []
