"""Scenario 1: whatever a real API server sends gets an answer that it accepts."""

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from .harness.client import Refused
from .harness.kinds import Obj
from .harness.reviews import ask, entries
from .harness.scene import Scene
from .harness.shapes import a100

_SHARED = Path(os.environ.get("FAIRSLICE_SHARED", Path(__file__).parents[3] / "shared"))
_REVIEWS: dict[str, Obj] = {
    file.stem: json.decode(file.read_bytes())
    for file in sorted((_SHARED / "fixtures" / "admission").glob("*.json"))
}

pytestmark = pytest.mark.skipif(not _REVIEWS, reason="no admission fixtures beside the repository")

_SERVERS_OWN = (
    "creationTimestamp",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "uid",
)


def _moved(value: Any, namespace: str) -> Any:
    """Put a recorded review into a namespace of this cluster."""
    match value:
        case dict():
            return {
                key: namespace if key == "namespace" and part else _moved(part, namespace)
                for key, part in value.items()
            }
        case list():
            return [_moved(part, namespace) for part in value]
        case _:
            return value


def _as_written(obj: Obj) -> Obj:
    """Take away what the API server put on a recorded object."""
    meta = {key: part for key, part in obj["metadata"].items() if key not in _SERVERS_OWN}
    spec = dict(obj["spec"])
    for key in ("volumes", "priority", "preemptionPolicy", "nodeName"):
        spec.pop(key, None)
    if obj["kind"] == "Job":
        # What the server fills in, and refuses on an object that a user writes.
        spec.pop("selector", None)
        template = spec["template"]
        labels = (template.get("metadata") or {}).get("labels") or {}
        own = {key: text for key, text in labels.items() if not _is_jobs_own(key)}
        spec["template"] = {**template, "metadata": {"labels": own}}
    for group in ("initContainers", "containers"):
        if spec.get(group):
            spec[group] = [{**each, "volumeMounts": []} for each in spec[group]]
    return {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": meta, "spec": spec}


def _is_jobs_own(label: str) -> bool:
    return label.startswith("batch.kubernetes.io/") or label in ("job-name", "controller-uid")


async def test_recorded_requests_get_valid_answers(scene: Scene) -> None:
    await scene.node(a100(12, mig_1g_10gb=7))
    team = await scene.team("nlp", {"a100": ("16", "16")})
    hooks = await entries(scene.api)
    assert any(hook.mutates for hook in hooks)
    for name, recorded in _REVIEWS.items():
        body = _moved(recorded, team.namespace)
        request = body["request"]
        for hook in hooks:
            verdict = await ask(hook, body)
            if request["operation"] == "DELETE":
                assert verdict.allowed, f"{hook.name} on {name}: {verdict}"
                assert verdict.obj == request["object"]


async def test_what_was_recorded_is_accepted_when_it_is_sent_again(scene: Scene) -> None:
    await scene.node(a100(12, mig_1g_10gb=7))
    team = await scene.team("nlp", {"a100": ("16", "16")})
    refusals: dict[str, str] = {}
    for name, recorded in _REVIEWS.items():
        request = recorded["request"]
        if request["operation"] != "CREATE" or request.get("subResource"):
            continue
        obj = _moved(_as_written({**request["object"]}), team.namespace)
        # A fixed name in place of a generated one: both ways are as good here.
        generated = obj["metadata"].pop("generateName", "").strip("-")
        obj["metadata"].setdefault("name", generated)
        try:
            await team.create(obj, dry_run=bool(request.get("dryRun")))
        except Refused as refusal:
            if refusal.status != 409:
                refusals[name] = str(refusal)
    assert refusals == {}
