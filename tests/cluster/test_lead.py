"""A team's lead holds, resumes, moves, pins, cancels and marks as urgent, in his team alone."""

from typing import Any

import aiohttp

from .harness.client import Api
from .harness.history import is_suspended
from .harness.kinds import Obj
from .harness.manifests import job, manifest
from .harness.scene import Scene, Team
from .harness.serving import Fairslice
from .harness.shapes import a100
from .harness.waiting import eventually

_TRAINING = {"fairslice.io/class": "training"}
_OURS = "system.fairslice.io/"
_RBAC = "rbac.authorization.k8s.io"


async def _waiting_line(scene: Scene, **spec: Any) -> Team:
    """A team with one GPU, a Job that holds it, and three that wait for it."""
    await scene.node(a100(1))
    team = await scene.team("nlp", {"a100": ("1", "1")}, **spec)
    await team.create(job("holds", team.namespace, labels=_TRAINING, seconds=None))
    await eventually("the Job runs", lambda: scene.started(team.namespace, "holds"))
    for name in ("first", "second", "third"):
        await team.create(job(name, team.namespace, labels=_TRAINING, seconds=0.5))
    await _stands(scene, team, "third", "position 3 of 3")
    return team


async def _appoint(scene: Scene, team: Team, kind: str, name: str, **subject: str) -> None:
    """Let somebody order a team's line, and nothing else."""
    rule = {
        "apiGroups": ["fairslice.io"],
        "resources": ["teams/line"],
        "resourceNames": [team.name],
        "verbs": ["update"],
    }
    role = f"lead-{name}-{team.name}"
    await scene.target.own(manifest("ClusterRole", role, rules=[rule]))
    reference = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role}
    who = {"kind": kind, "name": name, **subject}
    binding = manifest("ClusterRoleBinding", role, roleRef=reference, subjects=[who])
    await scene.target.own(binding)


async def _mark(api: Api, team: Team, name: str, **marks: str | None) -> tuple[str, ...]:
    notes = {f"fairslice.io/{key}": value for key, value in marks.items()}
    answer = await api.patch("Job", name, {"metadata": {"annotations": notes}}, team.namespace)
    return answer.warnings


async def _says(scene: Scene, team: Team, name: str, key: str, text: str) -> str:
    found = await scene.settled(
        "Job", name, team.namespace, f"says {text!r}", lambda obj: text in _note(obj, key)
    )
    return _note(found, key)


async def _stands(scene: Scene, team: Team, name: str, text: str) -> str:
    return await _says(scene, team, name, "status", text)


def _note(obj: Obj, key: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(_OURS + key, ""))


async def test_marks_count_from_the_lead_alone_and_change_whose_turn_it_is(scene: Scene) -> None:
    team = await _waiting_line(scene, urgentPerWeek=1)
    lead = scene.target.user("lead")
    await _appoint(scene, team, "User", lead.name, apiGroup=_RBAC)

    warned = await _mark(team.api, team, "third", pin="true", urgent="true")
    assert any(f"teams/line of team {team.name}" in text for text in warned), warned
    refused = await _says(scene, team, "third", "marks", "urgent does not count")
    assert scene.target.user("nlp").name in refused

    await _mark(scene.api.acting_as(lead), team, "third", pin="yes", urgent=None)
    await _mark(scene.api.acting_as(lead), team, "third", pin="true")
    await _says(scene, team, "third", "marks", f"pin true: counts, by {lead.name}")
    await _stands(scene, team, "third", "position 1 of 3")
    await _mark(scene.api.acting_as(lead), team, "second", order="-1")
    await _stands(scene, team, "second", "position 2 of 3")
    await _mark(scene.api.acting_as(lead), team, "first", urgent="true")
    told = await _says(scene, team, "first", "marks", "urgent: counts")
    assert f"0 of 1 tokens of team {team.name} are left" in told
    await _mark(scene.api.acting_as(lead), team, "second", urgent="true")
    await _says(scene, team, "second", "marks", "has spent its 1 tokens of this week")
    spent = (await scene.api.get("Team", team.name))["status"]["urgent"]
    assert [(item["workload"], item["by"]) for item in spent] == [
        (f"Job {team.namespace}/first", lead.name)
    ]

    await scene.api.delete("Job", "holds", team.namespace)
    await eventually(
        "all three ran in the lead's order",
        lambda: scene.started(team.namespace),
        lambda runs: [run.owner for run in runs] == ["holds", "first", "third", "second"],
        within=30,
    )


async def test_all_controls_work_over_http_with_the_leads_own_token(
    scene: Scene, fairslice: Fairslice
) -> None:
    team = await _waiting_line(scene)
    token = await _account(scene, team)

    async def post(path: str, **fields: Any) -> tuple[int, Obj]:
        url = f"http://{fairslice.queue_status}/workloads/{path}"
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15)) as session,
            session.post(url, headers=headers, **fields) as answer,
        ):
            return answer.status, await answer.json()

    code, said = await post(f"{team.namespace}/third/pin")
    assert code == 200
    assert "pin true: counts" in said["message"]
    await _stands(scene, team, "third", "position 1 of 3")
    code, said = await post(f"{team.namespace}/second/move", json={"order": -3})
    assert code == 200
    assert "order -3: counts" in said["message"]
    assert (await post(f"{team.namespace}/third/hold"))[0] == 200
    await _stands(scene, team, "third", "held back by the annotation")
    code, said = await post(f"{team.namespace}/first/urgent")
    assert "has no tokens" in said["message"]
    assert (await post(f"{team.namespace}/first/cancel"))[0] == 200
    await scene.gone("Job", "first", team.namespace)
    other = await scene.team("cv", {"a100": ("0", "1")})
    await other.create(job("theirs", other.namespace, labels=_TRAINING))
    assert (await post(f"{other.namespace}/theirs/cancel"))[0] == 403

    assert (await post(f"{team.namespace}/holds/cancel"))[0] == 200
    await eventually("the second runs", lambda: scene.started(team.namespace, "second"))
    assert is_suspended(await scene.api.get("Job", "third", team.namespace))
    assert (await post(f"{team.namespace}/third/resume"))[0] == 200
    await eventually("the third runs", lambda: scene.started(team.namespace, "third"))


async def test_the_command_says_what_counts(scene: Scene, fairslice: Fairslice) -> None:
    team = await _waiting_line(scene, urgentPerWeek=2)
    where = ("-n", team.namespace)

    async def queue(*args: str) -> str:
        result = await fairslice.command("queue", *args, *where)
        assert result.code == 0, result
        return result.out

    assert "1 of 2 tokens" in await queue("urgent", "third")
    await _stands(scene, team, "third", "position 1 of 3")
    assert "pin true: counts" in await queue("pin", "second")
    assert "no longer pinned" in await queue("unpin", "second")
    assert "order 7: counts" in await queue("move", "first", "7")
    await queue("hold", "third")
    await _stands(scene, team, "third", "held back by the annotation")
    await queue("resume", "third")
    await queue("cancel", "holds")
    await eventually(
        "all three ran in the lead's order",
        lambda: scene.started(team.namespace),
        lambda runs: [run.owner for run in runs] == ["holds", "third", "second", "first"],
        within=30,
    )


async def test_stamps_of_an_author_can_not_be_forged(scene: Scene) -> None:
    team = await _waiting_line(scene, urgentPerWeek=1)
    lead = scene.target.user("lead")
    await _appoint(scene, team, "User", lead.name, apiGroup=_RBAC)
    await _mark(scene.api.acting_as(lead), team, "first", order="1")
    await _says(scene, team, "first", "marks", "order 1: counts")
    stamp = _note(await scene.api.get("Job", "first", team.namespace), "marked")

    lie = stamp.replace("fairslice.io/order", "fairslice.io/urgent").replace('"1"', '"true"')
    notes = {"fairslice.io/urgent": "true", f"{_OURS}marked": lie}
    await team.api.patch("Job", "third", {"metadata": {"annotations": notes}}, team.namespace)

    await _says(scene, team, "third", "marks", "urgent does not count")
    found = await scene.api.get("Team", team.name)
    assert not found.get("status", {}).get("urgent")


async def _account(scene: Scene, team: Team) -> str:
    """Make a ServiceAccount that may edit the team's work and order its line; return a token."""
    await scene.api.create(manifest("ServiceAccount", "lead", team.namespace))
    who = {"kind": "ServiceAccount", "name": "lead", "namespace": team.namespace}
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "edit"}
    binding = manifest("RoleBinding", "lead", team.namespace, roleRef=role, subjects=[who])
    await scene.api.create(binding)
    await _appoint(scene, team, "ServiceAccount", "lead", namespace=team.namespace)
    path = f"/api/v1/namespaces/{team.namespace}/serviceaccounts/lead/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await scene.api.call("POST", path, request)
    return str(answer.obj["status"]["token"])
