"""The CRDs: what is committed is what the models say, and what users write is judged by it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import json

from fairslice.manifest_check import check_file
from fairslice.v1alpha1.resources import SharingPolicyResource, TeamResource
from fairslice.v1alpha1.schema import definitions, render, spec_schema
from fairslice.v1alpha1.validation import faults, schema_faults

ROOT = Path(__file__).parents[2]


def team(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fairslice.io/v1alpha1",
        "kind": "Team",
        "metadata": {"name": "nlp"},
        "spec": spec,
    }


def policy(**spec: Any) -> dict[str, Any]:
    return {**team(**spec), "kind": "SharingPolicy", "metadata": {"name": "default"}}


def test_the_committed_crds_are_those_of_the_models() -> None:
    written = (ROOT / "manifests/base/crds.yaml").read_text()
    assert written == render(), "run `python -m fairslice.v1alpha1.schema`"
    assert list(yaml.safe_load_all(written)) == definitions()


def test_the_schemas_use_only_what_a_structural_schema_may() -> None:
    def walk(schema: dict[str, Any]) -> None:
        assert schema["type"] in ("object", "array", "string", "integer", "boolean")
        assert "$ref" not in schema
        if "pattern" in schema:
            # RE2 has neither lookaround nor backreferences; \d would mean different digits here.
            assert not re.search(r"\(\?[=!<]|\\[1-9d]", schema["pattern"])
        for below in schema.get("properties", {}).values():
            walk(below)
        for name in ("items", "additionalProperties"):
            if name in schema:
                walk(schema[name])

    for kind in ("Team", "SharingPolicy"):
        walk(spec_schema(kind))


def test_every_default_keeps_its_own_schema() -> None:
    def walk(schema: dict[str, Any]) -> None:
        for name, below in schema.get("properties", {}).items():
            if "default" in below:
                whole = {"type": "object", "properties": {name: below}}
                assert not list(schema_faults(whole, {name: below["default"]}, ""))
            walk(below)
        if "items" in schema:
            walk(schema["items"])

    for kind in ("Team", "SharingPolicy"):
        walk(spec_schema(kind))


def test_kubectl_get_teams_has_the_columns_people_ask_for() -> None:
    columns = {
        d["spec"]["names"]["plural"]: [
            c["name"] for c in d["spec"]["versions"][0]["additionalPrinterColumns"]
        ]
        for d in definitions()
    }
    assert columns["teams"] == ["Used", "Guaranteed", "Limit", "Queued", "GPU-Hours", "Age"]
    assert columns["sharingpolicies"] == ["Hide", "Guards", "Rewrite", "Quota", "Queue", "Age"]


def test_the_smallest_objects_are_fine() -> None:
    assert faults(team()) == ()
    assert faults(policy()) == ()


@pytest.mark.parametrize(
    ("document", "line"),
    [
        (team(weight=0), "spec.weight: 0 is not between 1 and 1000"),
        (team(weight="2"), "spec.weight: '2' is not a whole number"),
        (team(mode={"hide": "On"}), "spec.mode.hide: 'On' is not one of Off, Audit, Enforce"),
        (
            team(mode={"hide": False}),
            "spec.mode.hide: false is not one of Off, Audit, Enforce "
            '(write "Off" in quotes: YAML reads a bare Off as false)',
        ),
        (
            team(pools=[{"pool": "a", "limit": 4}]),
            'spec.pools[0].limit: 4 is not a text (write "4" in quotes)',
        ),
        (
            team(pools=[{"pool": "a", "limit": "many"}]),
            "spec.pools[0].limit: 'many' is not a number of GPUs, to a thousandth: 4, 0.5",
        ),
        (team(pools=[{}]), "spec.pools[0].pool: missing"),
        (
            team(pools=[{"pool": "a", "windows": yaml.safe_load("[{from: 20:30}]")}]),
            'spec.pools[0].windows[0].from: 1230 is not a text (write "20:30" in quotes)',
        ),
        (
            team(pools=[{"pool": "a", "windows": [{"days": ["Sun", "Monday"]}]}]),
            "spec.pools[0].windows[0].days[1]: 'Monday' is not one of Mon, Tue, Wed, Thu, Fri, "
            "Sat, Sun",
        ),
        (
            team(pools=[{"pool": "a", "windows": [{"to": "25:00"}]}]),
            "spec.pools[0].windows[0].to: '25:00' is not a time of day such as 20:00; 24:00 ends "
            "a day",
        ),
        (
            team(pools=[{"pool": "a"}, {"pool": "a"}]),
            "spec.pools[1].pool: a is named twice",
        ),
        (
            team(pools=[{"pool": "a", "guaranteed": "4", "limit": "2"}]),
            "spec.pools[0].limit: 2 is below guaranteed 4: raise the limit or lower the guarantee",
        ),
        (
            team(resources={"nvidia.com/mig-1g.10gb": -1}),
            "spec.resources[nvidia.com/mig-1g.10gb]: -1 is not at least 0",
        ),
        (
            policy(queue={"halfLife": "1w"}),
            "spec.queue.halfLife: '1w' is not a time span such as 90s, 15m, 12h or 7d",
        ),
        (
            policy(classes=[{"name": "x", "modes": []}]),
            "spec.classes[0].modes: 0 entries are not between 1 and 4",
        ),
        (
            {**policy(), "metadata": {"name": "mine"}},
            "metadata.name: 'mine': the one policy is named default",
        ),
        (
            {"apiVersion": "v1", "kind": "Pod"},
            "v1 Pod is none of ours: fairslice.io/v1alpha1 SharingPolicy or Team",
        ),
        ("text", "not an object with apiVersion, kind, metadata and spec"),
    ],
)
def test_a_fault_is_told_with_its_path_and_what_is_allowed(document: object, line: str) -> None:
    assert [str(fault) for fault in faults(document)] == [line]


def test_a_misspelt_field_is_told_with_the_nearest_name() -> None:
    (fault,) = faults(policy(unasignedNamespaces="Deny"))
    assert fault.path == "spec.unasignedNamespaces"
    assert "did you mean unassignedNamespaces?" in fault.problem


def test_all_faults_of_a_document_are_told_at_once() -> None:
    found = faults(team(weight=0, typo=1, pools=[{"pool": "UPPER"}]))
    assert [fault.path for fault in found] == ["spec.weight", "spec.typo", "spec.pools[0].pool"]


def test_dates_are_read_as_kubectl_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(
        "apiVersion: fairslice.io/v1alpha1\nkind: SharingPolicy\nmetadata: {name: default}\n"
        'spec: {pools: [{name: a, prices: [{from: 2026-01-01, perGpuHour: "1"}]}]}\n'
    )
    assert check_file(file) == (1, [])


def test_the_issues_example_is_fine(shared_examples: Path) -> None:
    count, findings = check_file(shared_examples)
    assert (count, findings) == (3, [])


@pytest.fixture
def shared_examples() -> Path:
    path = ROOT.parent / "shared/examples.yaml"
    if not path.exists():
        pytest.skip("needs the shared examples")
    return path


def test_a_newer_crd_does_not_stop_an_older_binary() -> None:
    newer = team(weight=3, somethingNew={"deep": [1]})
    newer["status"] = {"used": "1", "alsoNew": True}
    read = json.decode(json.encode(newer), type=TeamResource)
    assert (read.spec.weight, read.status.used) == (3, "1")
    read_policy = json.decode(json.encode(policy(new=1)), type=SharingPolicyResource)
    assert read_policy.spec.classes[0].name == "production"
