"""PodTemplates in which the queue keeps what must come back: nobody else writes their stamps."""

from copy import deepcopy
from typing import Any

from .conftest import MakeCluster
from .scene import QUEUE, container

MANIFEST = "system.fairslice.io/manifest"
DISRUPTED = "system.fairslice.io/disrupted"
MANAGED = "system.fairslice.io/managed"


def template(**annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {
            "name": "fairslice-pod-nb",
            "namespace": "nlp",
            "labels": {MANAGED: "true", "mine": "yes"},
            "annotations": {MANIFEST: "{}", **annotations},
        },
        "template": {"spec": {"containers": [container(gpus=1)]}},
    }


async def test_a_forged_manifest_is_made_an_ordinary_podtemplate(cluster: MakeCluster) -> None:
    place = await cluster()
    done = await place.mutate(template(**{DISRUPTED: "x", "note": "y"}))
    assert done.allowed
    assert done.labels == {"mine": "yes"}
    assert done.annotations == {"note": "y"}
    assert any("fairslice's own" in text for text in done.warnings)
    assert (await place.mutate(template(), QUEUE)).patch == []


async def test_a_stored_manifest_is_put_back_to_what_the_queue_wrote(cluster: MakeCluster) -> None:
    place = await cluster()
    old = template()
    new = deepcopy(old)
    new["metadata"]["annotations"] = {MANIFEST: '{"kind":"Pod"}', DISRUPTED: "now", "note": "y"}
    done = await place.update(new, old)
    assert done.annotations == {MANIFEST: "{}", "note": "y"}
    assert (await place.update(new, old, QUEUE)).patch == []
    # Whoever may write it may also take it away, and with it the return.
    plain = template()
    plain["metadata"] = {"name": "x", "namespace": "nlp"}
    assert (await place.update(plain, plain)).patch == []
