"""Custom resources keep to the schema of their CRD, in the API server's words."""

from typing import Any

import pytest

from fairslice_sandbox.api import Api
from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.users import ADMIN

from .api_world import MERGE_PATCH, STRATEGIC_PATCH, Obj, encode, new_api

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
TEAMS = "teams.fairslice.io"
SPEC = {
    "type": "object",
    "required": ["namespaces"],
    "x-kubernetes-validations": [
        {"rule": "self.weight != 13", "message": "unlucky"},
        {
            "rule": "oldSelf.namespaces.all(n, n in self.namespaces)",
            "message": "namespaces can only be added",
        },
    ],
    "properties": {
        "weight": {"type": "integer", "minimum": 1, "maximum": 100, "default": 1},
        "namespaces": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}},
        "mode": {"type": "string", "enum": ["Audit", "Enforce"], "default": "Audit"},
        "note": {"type": "string", "maxLength": 5, "nullable": True},
        "limits": {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "pools": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["pool"],
            "items": {
                "type": "object",
                "required": ["pool"],
                "properties": {"pool": {"type": "string"}, "rate": {"type": "number"}},
            },
        },
    },
}


def crd(**spec: Any) -> Obj:
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": SPEC, "status": status}}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "metadata": {"name": TEAMS},
        "spec": {
            "group": "fairslice.io",
            "scope": "Cluster",
            "names": {"plural": "teams", "kind": "Team", "shortNames": ["tm"]},
            "versions": [version],
            **spec,
        },
    }


async def api_with_teams() -> Api:
    api = new_api()
    made = await api.create(CRDS, "", crd(), user=ADMIN)
    conditions = {item["type"]: item["status"] for item in made["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    return api


def team(**spec: Any) -> Obj:
    return {"metadata": {"name": "nlp"}, "spec": {"namespaces": ["nlp"], **spec}}


async def test_defaults_are_filled_in() -> None:
    api = await api_with_teams()
    made = await api.create(TEAMS, "", team(), user=ADMIN)
    assert made["spec"] == {"namespaces": ["nlp"], "weight": 1, "mode": "Audit"}
    assert made["apiVersion"] == "fairslice.io/v1alpha1"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            {"weight": 0},
            "spec.weight: Invalid value: 0: spec.weight in body should be greater than or equal "
            "to 1",
        ),
        (
            {"weight": "2"},
            'spec.weight: Invalid value: "string": spec.weight in body must be of type integer: '
            '"string"',
        ),
        (
            {"mode": "Of"},
            'spec.mode: Unsupported value: "Of": supported values: "Audit", "Enforce"',
        ),
        (
            {"namespaces": ["N"]},
            'spec.namespaces[0]: Invalid value: "N": spec.namespaces[0] in body should match '
            "'^[a-z]+$'",
        ),
        ({"note": "too long"}, "spec.note: Too long: may not be more than 5 bytes"),
        (
            {"limits": {"a": 1.5}},
            "spec.limits.a: Invalid value: 1.5: spec.limits.a in body must be of type "
            "integer,string",
        ),
        ({"pools": [{"rate": 1}]}, "spec.pools[0].pool: Required value"),
        (
            {"pools": [{"pool": "a"}, {"pool": "a"}]},
            'spec.pools[1]: Duplicate value: {"pool":"a"}',
        ),
        ({"weight": 13}, 'spec: Invalid value: "object": unlucky'),
    ],
)
async def test_an_invalid_field_is_refused_with_its_path(spec: Obj, message: str) -> None:
    api = await api_with_teams()
    with pytest.raises(ApiError) as caught:
        await api.create(TEAMS, "", team(**spec), user=ADMIN)
    assert caught.value.code == 422
    assert caught.value.message == f'Team.fairslice.io "nlp" is invalid: {message}'


async def test_all_faults_are_named_at_once() -> None:
    api = await api_with_teams()
    with pytest.raises(ApiError) as caught:
        await api.create(TEAMS, "", team(weight=0, mode="x"), user=ADMIN)
    assert caught.value.details is not None
    assert [cause["field"] for cause in caught.value.details["causes"]] == [
        "spec.weight",
        "spec.mode",
    ]


async def test_a_transition_rule_compares_with_what_was_there() -> None:
    api = await api_with_teams()
    await api.create(TEAMS, "", team(namespaces=["nlp", "dev"]), user=ADMIN)
    fewer = encode({"spec": {"namespaces": ["nlp"]}})
    with pytest.raises(ApiError, match="namespaces can only be added"):
        await api.patch(TEAMS, "", "nlp", fewer, MERGE_PATCH, user=ADMIN)


async def test_a_misspelt_field_is_refused_when_strict_and_pruned_else() -> None:
    api = await api_with_teams()
    body = team(wieght=2, free={"any": {"thing": 1}})
    with pytest.raises(ApiError, match=r'strict decoding error: unknown field "spec\.wieght"'):
        await api.create(TEAMS, "", body, user=ADMIN, field_validation="Strict")
    made = await api.create(TEAMS, "", body, user=ADMIN)
    assert "wieght" not in made["spec"]
    assert made["spec"]["free"] == {"any": {"thing": 1}}


async def test_spec_and_status_are_written_apart() -> None:
    api = await api_with_teams()
    await api.create(TEAMS, "", {**team(), "status": {"used": "1"}}, user=ADMIN)
    assert "status" not in api.get(TEAMS, "", "nlp")
    both = encode({"spec": {"weight": 5}, "status": {"used": "2"}})
    await api.patch(TEAMS, "", "nlp", both, MERGE_PATCH, user=ADMIN, subresource="status")
    found = api.get(TEAMS, "", "nlp")
    assert (found["spec"]["weight"], found["status"]) == (1, {"used": "2"})
    assert found["metadata"]["generation"] == 1
    await api.patch(TEAMS, "", "nlp", both, MERGE_PATCH, user=ADMIN)
    assert api.get(TEAMS, "", "nlp")["metadata"]["generation"] == 2


async def test_custom_resources_know_no_strategic_merge() -> None:
    api = await api_with_teams()
    await api.create(TEAMS, "", team(), user=ADMIN)
    with pytest.raises(ApiError) as caught:
        await api.patch(TEAMS, "", "nlp", b"{}", STRATEGIC_PATCH, user=ADMIN)
    assert caught.value.code == 415


async def test_without_its_definition_a_kind_is_unknown_and_its_objects_are_gone() -> None:
    api = await api_with_teams()
    await api.create(TEAMS, "", team(), user=ADMIN)
    await api.delete(CRDS, "", TEAMS, user=ADMIN)
    with pytest.raises(ApiError, match="could not find the requested resource"):
        api.list(TEAMS)
    await api.create(CRDS, "", crd(), user=ADMIN)
    assert api.list(TEAMS) == []


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"group": "other.io"}, r'must be spec.names.plural\+"."\+spec.group'),
        ({"scope": "World"}, "spec.scope: Unsupported value"),
        ({"versions": []}, "exactly one version marked as storage version"),
    ],
)
async def test_a_broken_definition_is_refused(broken: Obj, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        await new_api().create(CRDS, "", crd(**broken), user=ADMIN)


async def test_a_rule_that_does_not_compile_is_refused_with_the_definition() -> None:
    body = crd()
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = [{"rule": "self.spec ++", "message": "no"}]
    schema = {**schema, "x-kubernetes-validations": rules}
    body["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    with pytest.raises(ApiError, match=r"x-kubernetes-validations\[0\].rule.*compilation failed"):
        await new_api().create(CRDS, "", body, user=ADMIN)
