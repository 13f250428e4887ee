"""Every review that a real control plane sent gets an answer that it accepts."""

import base64
import json
import os
from pathlib import Path

import jsonpatch
import pytest

from fairslice_webhook.decide import Phase

from .conftest import MakeCluster
from .scene import modes, policy, view

SHARED = Path(os.environ.get("FAIRSLICE_SHARED", Path(__file__).parents[3] / "shared"))
FIXTURES = {
    path.stem: path.read_bytes()
    for path in sorted((SHARED / "fixtures" / "admission").glob("*.json"))
}

pytestmark = pytest.mark.skipif(not FIXTURES, reason="no recorded reviews beside the repository")


@pytest.mark.parametrize("name", FIXTURES)
@pytest.mark.parametrize("mode", ["Off", "Audit", "Enforce"])
async def test_a_recorded_review_is_answered(cluster: MakeCluster, name: str, mode: str) -> None:
    place = await cluster(view(policy(modes(mode))))
    body = FIXTURES[name]
    request = json.loads(body)["request"]
    raw = await place.admission.answer(body, place.view, Phase.MUTATE, 5.0)
    answer = json.loads(raw)
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    response = answer["response"]
    assert response["uid"] == request["uid"]
    assert response["allowed"] is True
    assert ("patch" in response) == ("patchType" in response)
    if "patch" in response:
        assert mode == "Enforce"
        assert request["object"] is not None
        jsonpatch.apply_patch(request["object"], json.loads(base64.b64decode(response["patch"])))


@pytest.mark.parametrize("name", FIXTURES)
async def test_a_second_pass_changes_nothing(cluster: MakeCluster, name: str) -> None:
    place = await cluster()
    recorded = json.loads(FIXTURES[name])
    request = recorded["request"]
    if request["object"] is None:
        return
    first = await place.call(json.dumps(recorded).encode(), request["object"])
    request["object"] = first.obj
    second = await place.call(json.dumps(recorded).encode(), first.obj)
    assert second.patch == []
