"""Budgets that are gone, guarantees that are kept, loans and longest runs, at admission."""

from datetime import UTC, datetime
from typing import Any

import pytest

from fairslice.v1alpha1.team import BudgetStatus, Exhausted, TeamStatus
from fairslice_queue.ledger import Ledger
from fairslice_webhook.view import View

from .conftest import MakeCluster
from .scene import NOW, a100_node, job, modes, notebook, policy, team, view

END = datetime.fromtimestamp(NOW + 86_400, UTC).isoformat(timespec="seconds")
BUDGET = {"gpuHours": 2000, "period": "Monthly"}


def gone(on: Exhausted = Exhausted.WAIT) -> TeamStatus:
    state = BudgetStatus(
        budget="2000 GPU-hours a month",
        ends=END,
        exhausted=True,
        on_exhausted=on,
    )
    return TeamStatus(budgets=(state,))


def seen(status: TeamStatus, **spec: Any) -> View:
    spec.setdefault("budgets", [BUDGET])
    return view(teams=(team(**spec),), statuses={"nlp": status})


async def test_a_job_waits_once_its_teams_budget_is_gone_and_says_until_when(
    cluster: MakeCluster,
) -> None:
    done = await (await cluster(seen(gone()))).create(job())
    assert done.spec["suspend"]
    assert any("2000 GPU-hours a month" in text and "2027-" in text for text in done.warnings)


async def test_a_notebook_that_can_not_wait_is_denied_with_the_date(cluster: MakeCluster) -> None:
    done = await (await cluster(seen(gone()))).create(notebook())
    assert not done.allowed
    assert "has used up its budget of 2000 GPU-hours a month" in done.message


async def test_a_budget_that_was_raised_or_whose_period_is_over_closes_nothing(
    cluster: MakeCluster,
) -> None:
    raised = await cluster(seen(gone(), budgets=[{**BUDGET, "gpuHours": 3000}]))
    assert not (await raised.create(job("one"))).spec["suspend"]
    over = await cluster(seen(gone()))
    over.now = NOW + 90_000
    assert not (await over.create(job("two"))).spec["suspend"]


async def test_scavengers_are_judged_by_the_queue_and_notebooks_may_still_start(
    cluster: MakeCluster,
) -> None:
    made = await cluster(seen(gone(Exhausted.SCAVENGE)))
    assert (await made.create(notebook())).allowed
    assert (await made.create(job())).spec["suspend"]


async def test_a_budget_of_another_pool_closes_nothing(cluster: MakeCluster) -> None:
    state = BudgetStatus(budget="2000 GPU-hours a month of t4", ends=END, exhausted=True, pool="t4")
    budgets = [{**BUDGET, "pool": "t4"}]
    made = await cluster(seen(TeamStatus(budgets=(state,)), budgets=budgets))
    assert not (await made.create(job())).spec["suspend"]


async def test_dry_runs_and_audit_tell_the_same(cluster: MakeCluster) -> None:
    made = await cluster(seen(gone()))
    dry = await made.mutate(notebook(), dryRun=True)
    assert "has used up its budget" in dry.message
    rules = policy(modes("Audit"))
    teams = (team(budgets=[BUDGET]),)
    audited = await cluster(view(rules, teams=teams, statuses={"nlp": gone()}))
    told = await audited.mutate(notebook("other"))
    assert told.allowed
    assert any(text.startswith("[audit]") and "budget" in text for text in told.warnings)


def keepers(**window: str) -> View:
    pools = [{"pool": "a100", "guaranteed": "1", "limit": "4"}]
    windows = [{"from": "20:00", "to": "06:00", **window}] if window else []
    kept = [{"pool": "a100", "guaranteed": "3", "lendable": "0", "windows": windows}]
    teams = (team(pools=pools), team("cv", pools=kept))
    return view(teams=teams, nodes=(a100_node(whole=4, small=0, large=0),))


async def test_work_within_its_guarantee_starts_at_once_and_beyond_it_waits_for_what_is_lent(
    cluster: MakeCluster,
) -> None:
    made = await cluster(keepers())
    assert not (await made.create(job("own"))).spec["suspend"]
    second = await made.create(job("borrows"))
    assert second.spec["suspend"]
    assert any("3 GPUs of a100 are free, but 3 are kept" in text for text in second.warnings)


async def test_what_others_lend_is_borrowed_at_once(cluster: MakeCluster) -> None:
    lent = [{"pool": "a100", "guaranteed": "3", "lendable": "1"}]
    pools = [{"pool": "a100", "guaranteed": "1", "limit": "4"}]
    teams = (team(pools=pools), team("cv", pools=lent))
    made = await cluster(view(teams=teams, nodes=(a100_node(whole=4, small=0, large=0),)))
    assert not (await made.create(job("own"))).spec["suspend"]
    assert not (await made.create(job("borrows"))).spec["suspend"]
    assert (await made.create(job("more"))).spec["suspend"]


async def test_nothing_is_borrowed_before_the_queue_has_said_what_is_kept(
    cluster: MakeCluster, ledger: Ledger
) -> None:
    made = await cluster(keepers())
    await ledger.rebuild(await ledger.lead(), [], made.view.inventory.capacity())
    assert not (await made.create(job("own"))).spec["suspend"]
    second = await made.create(job("borrows"))
    assert any("the queue checks what others keep" in text for text in second.warnings)


async def test_what_can_not_wait_may_not_borrow_what_is_kept(cluster: MakeCluster) -> None:
    made = await cluster(keepers())
    assert not (await made.create(job("own"))).spec["suspend"]
    done = await made.create(notebook())
    assert not done.allowed
    assert "3 GPUs of a100 are free, but 3 are kept" in done.message


async def test_a_loan_opens_a_pool_that_the_team_does_not_have(cluster: MakeCluster) -> None:
    spec = {"pools": [{"pool": "t4", "limit": "1"}]}
    loan = {"pool": "a100", "gpus": "1", "until": "2027-01-31"}
    closed = await cluster(seen(TeamStatus(), **spec))
    assert not (await closed.create(job("one"))).allowed
    lent = await cluster(seen(TeamStatus(), loans=[loan], **spec))
    assert not (await lent.create(job("two"))).spec["suspend"]
    assert (await lent.create(job("three"))).spec["suspend"]
    lent.now = datetime(2027, 2, 1, tzinfo=UTC).timestamp()
    assert not (await lent.create(job("four"))).allowed


# NOW is 08:00 UTC on a Friday.
NIGHT = {"from": "20:00", "to": "06:00", "limit": "4"}


async def test_what_only_the_night_allows_waits_by_day_and_starts_at_night(
    cluster: MakeCluster,
) -> None:
    pools = [{"pool": "a100", "limit": "1", "windows": [NIGHT]}]
    made = await cluster(seen(TeamStatus(), pools=pools))
    by_day = await made.create(job("day", pods=3))
    assert by_day.spec["suspend"]
    assert any("0 of 1 GPUs in use, 3 asked" in text for text in by_day.warnings)
    assert "can never run" in (await made.create(job("huge", pods=5))).message
    later = await cluster(seen(TeamStatus(), pools=pools))
    later.now = NOW + 13 * 3600
    assert not (await later.create(job("night", pods=3))).spec["suspend"]


async def test_a_pool_that_only_a_window_opens_is_closed_until_then(cluster: MakeCluster) -> None:
    pools = [{"pool": "a100", "limit": "0", "windows": [NIGHT]}]
    made = await cluster(seen(TeamStatus(), pools=pools))
    assert (await made.create(job("day"))).spec["suspend"]
    shut = await cluster(seen(TeamStatus(), pools=[{"pool": "a100", "limit": "0"}]))
    assert not (await shut.create(job("never"))).allowed


async def test_what_others_keep_by_day_may_be_borrowed_at_night(cluster: MakeCluster) -> None:
    seen = keepers(lendable="3")
    by_day = await cluster(seen)
    assert not (await by_day.create(job("own"))).spec["suspend"]
    assert not (await by_day.create(notebook("day"))).allowed
    at_night = await cluster(seen, NOW + 13 * 3600)
    assert not (await at_night.create(job("own"))).spec["suspend"]
    assert (await at_night.create(notebook("night"))).allowed


@pytest.mark.parametrize(("mine", "becomes"), [(None, 43_200), (90_000, 43_200), (60, 60)])
async def test_a_classes_longest_run_is_written_into_jobs(
    cluster: MakeCluster, mine: int | None, becomes: int
) -> None:
    classes = [{"name": "training", "maxRuntime": "12h"}]
    made = await cluster(view(policy(classes=classes)))
    fields = {} if mine is None else {"activeDeadlineSeconds": mine}
    done = await made.create(job(**fields))
    assert done.spec["activeDeadlineSeconds"] == becomes
    told = any("runs for 12 h at most" in text for text in done.warnings)
    assert told is (mine != becomes)


async def test_a_longer_run_can_not_be_had_by_an_edit(cluster: MakeCluster) -> None:
    made = await cluster(view(policy(classes=[{"name": "training", "maxRuntime": "12h"}])))
    stored = (await made.create(job())).obj
    longer = {**stored, "spec": {**stored["spec"], "activeDeadlineSeconds": 90_000}}
    shorter = {**stored, "spec": {**stored["spec"], "activeDeadlineSeconds": 60}}
    assert (await made.update(longer, stored)).spec["activeDeadlineSeconds"] == 43_200
    assert (await made.update(shorter, stored)).spec["activeDeadlineSeconds"] == 60
