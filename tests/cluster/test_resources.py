"""Policies and teams as people write them: taken as they stand, or refused with the field."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from .harness.client import Refused
from .harness.installation import get_policy, set_policy
from .harness.kinds import Obj
from .harness.manifests import manifest
from .harness.policy import pool_name
from .harness.scene import Scene
from .harness.waiting import eventually

_SHARED = Path(os.environ.get("FAIRSLICE_SHARED", Path(__file__).parents[3] / "shared"))
_EXAMPLES = _SHARED / "examples.yaml"
_WRITTEN: list[Obj] = list(yaml.safe_load_all(_EXAMPLES.read_text())) if _EXAMPLES.exists() else []


@pytest.mark.skipif(not _WRITTEN, reason="no examples beside the repository")
async def test_the_examples_are_taken_as_they_stand(scene: Scene) -> None:
    policy, *teams = _WRITTEN
    current = await scene.api.get("SharingPolicy", "default")
    await _dry_replace(scene, {**current, "spec": _jsonable(policy["spec"])})
    for team in teams:
        body = {**team, "metadata": {"name": f"suite-{scene.target.run_id}-example"}}
        await scene.api.create(body, dry_run=True, strict=True)


async def _dry_replace(scene: Scene, obj: Obj) -> None:
    path = f"/apis/fairslice.io/v1alpha1/sharingpolicies/{obj['metadata']['name']}"
    params = {"dryRun": "All", "fieldValidation": "Strict"}
    await scene.api.call("PUT", path, obj, params=params)


def _jsonable(value: Any) -> Any:
    """Undo YAML's dates, which JSON writes as text."""
    match value:
        case dict():
            return {key: _jsonable(part) for key, part in value.items()}
        case list():
            return [_jsonable(part) for part in value]
        case str() | int() | float() | bool() | None:
            return value
        case _:
            return str(value)


@pytest.mark.parametrize(
    ("spec", "path", "said"),
    [
        ({"mode": {"queue": "Enforced"}}, "spec.mode.queue", '"Enforce"'),
        ({"unassignedNamespaces": "Maybe"}, "spec.unassignedNamespaces", '"Deny"'),
        ({"classes": [{"name": "x", "overflow": "Wait"}]}, "spec.classes[0].overflow", '"Queue"'),
        ({"queue": {"halfLife": "a week"}}, "spec.queue.halfLife", "should match"),
        ({"queue": {"restartLimit": 1000}}, "spec.queue.restartLimit", "100"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
async def test_a_policy_field_out_of_range_is_refused_with_path_and_values(
    scene: Scene, spec: Obj, path: str, said: str
) -> None:
    current = await scene.api.get("SharingPolicy", "default")
    with pytest.raises(Refused) as refused:
        await _dry_replace(scene, {**current, "spec": spec})
    assert refused.value.status == 422
    assert path in refused.value.message
    assert said in refused.value.message


async def test_a_misspelt_field_is_refused_by_name(scene: Scene) -> None:
    current = await scene.api.get("SharingPolicy", "default")
    with pytest.raises(Refused) as refused:
        await _dry_replace(scene, {**current, "spec": {"unasignedNamespaces": "Deny"}})
    assert 'unknown field "spec.unasignedNamespaces"' in refused.value.message


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"weight": 0}, "spec.weight"),
        ({"pools": [{"pool": "a", "guaranteed": "four"}]}, "spec.pools[0].guaranteed"),
        ({"namespaces": ["Not A Name"]}, "spec.namespaces[0]"),
        ({"budgets": [{"period": "Hourly"}]}, "spec.budgets[0].period"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
async def test_a_team_field_out_of_range_is_refused_with_its_path(
    scene: Scene, spec: Obj, path: str
) -> None:
    with pytest.raises(Refused) as refused:
        await scene.api.create(manifest("Team", "suite-wrong", spec=spec), dry_run=True)
    assert refused.value.status == 422
    assert path in refused.value.message


async def test_a_team_that_contradicts_itself_is_refused_with_the_way_out(scene: Scene) -> None:
    pool = pool_name(scene.target.run_id, "a100")
    spec = {"pools": [{"pool": pool, "guaranteed": "4", "limit": "2"}]}
    with pytest.raises(Refused) as refused:
        await scene.api.create(manifest("Team", "suite-wrong", spec=spec), dry_run=True)
    assert "spec.pools[0].limit" in refused.value.message
    assert "raise the limit" in refused.value.message


async def test_a_class_that_is_added_gets_its_priority_class(scene: Scene) -> None:
    before = await get_policy(scene.api)
    assert before is not None
    name = f"suite-{scene.target.run_id}-batch"
    added = {"name": "batch", "priorityClassName": name}
    classes = [*before["spec"]["classes"], added]
    await set_policy(scene.api, {**before, "spec": {**before["spec"], "classes": classes}})
    try:
        made = await eventually(
            "the class has its PriorityClass", lambda: scene.api.find("PriorityClass", name)
        )
        assert made["preemptionPolicy"] == "Never"
        lowest = await scene.api.get("PriorityClass", "fairslice-experiment")
        assert made["value"] < lowest["value"]
    finally:
        await set_policy(scene.api, before)
        await scene.api.delete("PriorityClass", name)


async def test_a_team_shows_where_it_stands(scene: Scene) -> None:
    team = await scene.team("nlp", {"a100": ("2", "4")})
    await scene.settled("Team", team.name, "", "shows its quota", _shows_quota)


def _shows_quota(team: Obj) -> bool:
    status = team.get("status") or {}
    return (str(status.get("guaranteed")), str(status.get("limit"))) == ("2", "4")
