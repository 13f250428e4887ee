"""Every kind of the table on an API server: its CRD, no operator, and a real manifest of it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from fairslice.gangs import read_members
from fairslice.workloads import ADAPTERS, Adapter

from .harness.client import MERGE, Api, Refused
from .harness.kinds import Obj
from .harness.manifests import job
from .harness.nodes import TOLERATION
from .harness.scene import Scene
from .harness.shapes import a100
from .harness.target import Target
from .harness.waiting import eventually

_MANIFESTS = Path(__file__).parents[1] / "kinds"
_OURS = "system.fairslice.io/"
_STATE = f"{_OURS}state"
_TRAINING = {"fairslice.io/class": "training"}
_LOOSE = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

CUSTOM = {row.kind.kind: row for row in ADAPTERS if row.kind.group != "batch"}


def _manifest(kind: str, namespace: str) -> Obj:
    made: Obj = yaml.safe_load((_MANIFESTS / f"{kind.lower()}.yaml").read_text())
    made["metadata"] |= {"namespace": namespace, "labels": dict(_TRAINING)}
    _tolerate(made)
    return made


def _tolerate(part: object) -> None:
    """Let the pods of every template onto the suite's nodes."""
    if isinstance(part, dict):
        if "containers" in part or "cores" in part:
            part["tolerations"] = [dict(TOLERATION)]
        for below in part.values():
            _tolerate(below)
    elif isinstance(part, list):
        for below in part:
            _tolerate(below)


def _collection(row: Adapter, namespace: str) -> str:
    return f"/apis/{row.kind.api_version}/namespaces/{namespace}/{row.kind.plural}"


def _definition(row: Adapter) -> Obj:
    group, _, version = row.kind.api_version.partition("/")
    schema = {"type": "object", "properties": {"spec": _LOOSE, "status": _LOOSE}}
    names = {
        "kind": row.kind.kind,
        "plural": row.kind.plural,
        "singular": row.kind.kind.lower(),
        "listKind": f"{row.kind.kind}List",
    }
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{row.kind.plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kinds(target: Target) -> AsyncIterator[None]:
    """Serve the kinds that this cluster doesn't have."""
    made = []
    for row in CUSTOM.values():
        body = _definition(row)
        name = body["metadata"]["name"]
        if await target.api.find("CustomResourceDefinition", name) is None:
            await target.own(body)
            made.append(name)
    for row in CUSTOM.values():
        await eventually(f"{row.kind.plural} are served", lambda row=row: _served(target.api, row))
    yield
    for name in made:
        await target.disown("CustomResourceDefinition", name)


async def _served(api: Api, row: Adapter) -> bool:
    try:
        await api.call("GET", _collection(row, "default"))
    except Refused as refusal:
        if refusal.status in (404, 429):
            return False
        raise
    return True


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("kind", CUSTOM)
async def test_a_kind_waits_is_put_back_and_is_released_with_its_pods_assigned(
    scene: Scene, kind: str
) -> None:
    row = CUSTOM[kind]
    await scene.node(a100(8))
    team = await scene.team("nlp", {"a100": ("8", "8")})
    await team.create(job("holds", team.namespace, labels=_TRAINING, pods=8, seconds=None))
    path = _collection(row, team.namespace)
    api = scene.api

    plain = json.loads(json.dumps(_manifest(kind, team.namespace)).replace("nvidia.com/", "x.y/"))
    plain["metadata"]["name"] = "plain"
    made = (await api.call("POST", path, plain)).obj
    assert not row.is_suspended(made)
    assert _OURS not in json.dumps({**made, "metadata": {**made["metadata"], "managedFields": 0}})

    asked = _manifest(kind, team.namespace)
    name = asked["metadata"]["name"]
    waits = (await api.call("POST", path, asked)).obj
    assert row.is_suspended(waits)
    assert waits["metadata"]["labels"][_STATE] == "queued"

    free = row.suspend_body(suspend=False)
    back = await api.call("PATCH", f"{path}/{name}", free, content_type=MERGE)
    assert row.is_suspended(back.obj)
    assert any("still queued" in text for text in back.warnings)

    await team.api.delete("Job", "holds", team.namespace)

    async def found() -> Obj:
        return (await api.call("GET", f"{path}/{name}")).obj

    # What kinds there are, the queue asks every 20 s.
    released = await eventually(
        "it is released", found, lambda obj: not row.is_suspended(obj), within=45
    )
    assert released["metadata"]["labels"][_STATE] == "released"
    members = read_members(row.pod_sets(released))
    assert members
    for member in members:
        notes = member.pod_set.template.metadata.annotations or {}
        given = json.loads(notes[f"{_OURS}assignment"])
        assert given["option"]["units"] == member.ask.units
    for each in (name, "plain"):
        await api.call("DELETE", f"{path}/{each}", {"propagationPolicy": "Background"})
