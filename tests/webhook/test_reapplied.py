"""A manifest that is applied again changes nothing, whatever admission made of it."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from .conftest import MakeCluster
from .scene import (
    A100,
    GPU,
    RS_CONTROLLER,
    SLICE_10,
    SLICE_20,
    T4,
    T4_SHARED,
    container,
    job,
    modes,
    node,
    notebook,
    pod,
    policy,
    team,
    view,
)
from .test_idempotence import NODES, TEAM, pods

EXPERIMENT = {"fairslice.io/class": "experiment"}
TRAINING = {"fairslice.io/class": "training"}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
MPS = {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"}
MINE = {"name": "MODEL", "value": "bert"}


def seen(**rules: Any) -> Any:
    nodes = (
        node("a1", A100, {GPU: 4, SLICE_10: 7, SLICE_20: 3, "nvidia.com/mig-3g.40gb": 2}),
        node("t1", T4_SHARED, {GPU: 4}),
        node("t2", T4, {GPU: 2}),
    )
    pools = [{"pool": "a100", "limit": "4"}, {"pool": "t4", "limit": "3"}]
    fractions = {"fractions": "Memory"}
    return view(policy(**{"rewrite": fractions, **rules}), (team(pools=pools),), nodes)


def applied(manifest: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """What `kubectl apply` makes of a stored object: the manifest's fields over what is there."""

    def merged(ours: Any, theirs: Any) -> Any:
        if ours in (None, [], {}):
            return theirs  # nothing to say is no change
        if isinstance(ours, dict) and isinstance(theirs, dict):
            return {
                **theirs,
                **{key: merged(value, theirs.get(key)) for key, value in ours.items()},
            }
        if isinstance(ours, list) and ours and "name" in ours[0]:
            known = {item["name"]: item for item in theirs or []}
            named = [merged(item, known.pop(item["name"], {})) for item in ours]
            return [*named, *known.values()]
        return deepcopy(ours)

    found = merged(manifest, stored)
    assert isinstance(found, dict)
    # What the API server had filled in by itself is in no manifest.
    for key in ("priority", "preemptionPolicy"):
        found["spec"].pop(key, None)
        if key in stored["spec"]:
            found["spec"][key] = stored["spec"][key]
    return found


REQUIRED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {
                            "key": "nvidia.com/gpu.product",
                            "operator": "In",
                            "values": ["Tesla-T4", "Tesla-T4-SHARED"],
                        }
                    ]
                }
            ]
        },
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "z", "operator": "Exists"}]}}
        ],
    }
}

MANIFESTS: dict[str, dict[str, Any]] = {
    "a notebook": notebook(),
    "a fraction": pod("p", container(gpus="500m"), labels=EXPERIMENT),
    "a fraction that became a whole card": pod("p", container(gpus="900m"), labels=EXPERIMENT),
    "zero": pod("p", {**container(), "resources": {"limits": {GPU: "0"}, "requests": {GPU: "0"}}}),
    "zero beside one": pod(
        "p",
        container("a", gpus=1),
        {**container("b"), "resources": {"limits": {GPU: "0"}, "requests": {GPU: "0"}}},
        labels=EXPERIMENT,
    ),
    "a variable, without GPUs": pod("p", container(env=[MINE, ALL])),
    "a variable that comes from elsewhere": pod(
        "p", container(env=[{"name": ALL["name"], "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])
    ),
    "variables, with GPUs": pod("p", container(gpus=1, env=[ALL, MINE, MPS]), labels=EXPERIMENT),
    "a variable alone, with GPUs": pod("p", container(gpus=1, env=[ALL]), labels=EXPERIMENT),
    "variables of an init container": notebook(initContainers=[container("i", env=[MPS, ALL])]),
    "a runtime class": pod("p", container(), runtimeClassName="nvidia"),
    "a foreign priority": notebook(priorityClassName="boss", priority=10**6),
    "an affinity": pod("p", labels=EXPERIMENT, affinity=REQUIRED),
    "a gate": notebook(schedulingGates=[{"name": "fairslice.io/queued"}, {"name": "own/gate"}]),
    "stamps": notebook(annotations={"system.fairslice.io/booking": "b" + "f" * 20}),
}


@pytest.mark.parametrize("what", MANIFESTS)
async def test_a_manifest_applied_again_ends_as_what_is_stored(
    cluster: MakeCluster, what: str
) -> None:
    place = await cluster(seen())
    manifest = MANIFESTS[what]
    first = await place.create(manifest)
    assert first.allowed, first.message
    stored = first.obj
    again = await place.update(applied(manifest, stored), stored)
    assert again.allowed
    assert again.obj == stored
    # As the API server keeps the order of what was there, too.
    assert (await place.update(stored, stored)).patch == []


def edited(obj: dict[str, Any], edit: Any) -> dict[str, Any]:
    changed = deepcopy(obj)
    edit(changed["spec"]["containers"][0], changed["spec"])
    return changed


EDITS = {
    "two GPUs": lambda item, _: item["resources"]["limits"].update({GPU: "2"}),
    "a larger slice": lambda item, _: item["resources"]["limits"].update({SLICE_20: "1"}),
    "more of the slice": lambda item, _: item["resources"]["limits"].update({SLICE_10: "2"}),
    "a variable of one's own": lambda item, _: item.update(env=[{"name": "A", "value": "b"}, ALL]),
    "another image": lambda item, _: item.update(image="other"),
    "an owned priority": lambda _, spec: spec.update(priorityClassName="fairslice-production"),
    "another node": lambda _, spec: spec.update(nodeName="a9"),
    "another affinity": lambda _, spec: spec.update(affinity=REQUIRED),
    "another gate": lambda _, spec: spec.update(schedulingGates=[{"name": "own/gate"}]),
}


@pytest.mark.parametrize("what", EDITS)
async def test_what_is_really_changed_is_left_for_the_api_server_to_refuse(
    cluster: MakeCluster, what: str
) -> None:
    place = await cluster(seen())
    stored = (await place.create(notebook())).obj
    changed = edited(stored, EDITS[what])
    done = await place.update(changed, stored)
    assert done.spec == changed["spec"]


async def test_what_was_stored_as_it_came_is_not_kept_against_its_owner(
    cluster: MakeCluster,
) -> None:
    place = await cluster(seen(mode=modes("Enforce", hide="Off")))
    stored = (await place.create(pod("p", container(gpus=1, env=[ALL])))).obj
    assert stored["spec"]["containers"][0]["env"] == [ALL]
    changed = edited(stored, lambda item, _: item.update(env=[{**ALL, "value": "0"}]))
    assert (await place.update(changed, stored)).spec == changed["spec"]


async def test_put_back_is_never_more_than_what_is_stored(cluster: MakeCluster) -> None:
    place = await cluster(seen())
    stored = (await place.create(pod("p", container(gpus=1, env=[ALL]), labels=EXPERIMENT))).obj
    # With a change of one's own beside it, the API server sees both and refuses.
    changed = edited(
        applied(MANIFESTS["a variable alone, with GPUs"], stored),
        lambda item, _: item.update(image="other"),
    )
    done = await place.update(changed, stored)
    assert done.spec["containers"][0]["image"] == "other"


async def test_fractions_and_priorities_that_stay_are_said_so(cluster: MakeCluster) -> None:
    place = await cluster(seen())
    for what, word in (("a fraction", "500m was served as"), ("a foreign priority", "boss")):
        manifest = deepcopy(MANIFESTS[what])
        manifest["metadata"]["name"] = what.replace(" ", "-")
        stored = (await place.create(manifest)).obj
        again = await place.update(applied(manifest, stored), stored)
        assert any(word in text for text in again.warnings)


async def test_a_jobs_manifest_with_a_replacement_policy_can_be_applied_again(
    cluster: MakeCluster,
) -> None:
    place = await cluster(seen())
    manifest = job()
    stored = (await place.create(manifest)).obj
    assert stored["spec"]["podReplacementPolicy"] == "Failed"
    again = await place.update(applied(manifest, stored), stored)
    assert again.obj == stored


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(pods())
async def test_any_manifest_can_be_applied_again(cluster: MakeCluster, obj: dict[str, Any]) -> None:
    names = [item["name"] for item in obj["spec"]["containers"]]
    assume(len(names) == len(set(names)))
    place = await cluster(view(teams=(TEAM,), nodes=NODES))
    user = RS_CONTROLLER if "ownerReferences" in obj["metadata"] else "alice"
    first = await place.mutate(obj, user)
    if not first.allowed:
        return
    again = await place.update(applied(obj, first.obj), first.obj)
    assert again.allowed
    assert plain(again.obj) == plain(first.obj)


def plain(obj: dict[str, Any]) -> Any:
    """An object without what is empty: absent, null and empty are the same to the API server."""
    if isinstance(obj, dict):
        kept = {key: plain(value) for key, value in obj.items()}
        return {key: value for key, value in kept.items() if value not in (None, {}, [])}
    return [plain(item) for item in obj] if isinstance(obj, list) else obj
