"""Writes end as they would on a real API server: versions, validation, deletion, patches."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.quantities import canonical
from fairslice_sandbox.users import ADMIN

from .api_world import (
    ALICE,
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    Obj,
    api_with_namespace,
    encode,
    job,
    new_api,
    pod,
)


async def test_a_stale_version_conflicts_and_an_unconditional_update_does_not() -> None:
    api = await api_with_namespace()
    first = await api.create("configmaps", "nlp", {"metadata": {"name": "c"}}, user=ALICE)
    await api.update("configmaps", "nlp", "c", {**first, "data": {"a": "1"}}, user=ALICE)
    with pytest.raises(ApiError, match="the object has been modified") as caught:
        await api.update("configmaps", "nlp", "c", {**first, "data": {"a": "2"}}, user=ALICE)
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")
    bare = {"metadata": {"name": "c"}, "data": {"a": "3"}}
    assert (await api.update("configmaps", "nlp", "c", bare, user=ALICE))["data"] == {"a": "3"}


async def test_a_write_that_changes_nothing_leaves_the_version_alone() -> None:
    api = await api_with_namespace()
    made = await api.create("pods", "nlp", pod(), user=ALICE)
    again = await api.patch("pods", "nlp", "nb", b"{}", MERGE_PATCH, user=ALICE)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_the_generation_counts_changes_of_the_spec_only() -> None:
    api = await api_with_namespace()
    await api.create("jobs.batch", "nlp", job(suspend=True), user=ALICE)
    for patch, subresource, generation in (
        ({"metadata": {"labels": {"a": "b"}}}, "", 1),
        ({"status": {"active": 1}}, "status", 1),
        ({"spec": {"suspend": False}}, "", 2),
    ):
        changed = await api.patch(
            "jobs.batch", "nlp", "train", encode(patch), MERGE_PATCH,
            user=ALICE, subresource=subresource,
        )  # fmt: skip
        assert changed["metadata"]["generation"] == generation
    assert changed["status"] == {"active": 1}


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"nvidia.com/gpu": "500m"}, "must be an integer"),
        ({"nvidia.com/gpu": 0.5}, "must be an integer"),
        ({"nvidia.com/gpu": -1}, "must be greater than or equal to 0"),
        ({"gpu": 1}, "must be a standard resource for containers"),
    ],
)
async def test_impossible_resources_are_refused_with_their_path(limits: Obj, message: str) -> None:
    api = await api_with_namespace()
    body = pod()
    body["spec"]["containers"][0]["resources"] = {"limits": limits}
    with pytest.raises(ApiError, match=message) as caught:
        await api.create("pods", "nlp", body, user=ALICE)
    name = next(iter(limits))
    assert caught.value.code == 422
    assert f"spec.containers[0].resources.limits[{name}]" in caught.value.message


async def test_an_extended_resource_is_requested_as_much_as_it_is_limited() -> None:
    api = await api_with_namespace()
    body = pod(gpus=2)
    body["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": 1}
    with pytest.raises(ApiError, match=r"must be equal to nvidia\.com/gpu limit of 2"):
        await api.create("pods", "nlp", body, user=ALICE)
    body["spec"]["containers"][0]["resources"] = {"requests": {"nvidia.com/gpu": 1}}
    with pytest.raises(ApiError, match="Limit must be set for non overcommitable resources"):
        await api.create("pods", "nlp", body, user=ALICE)


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"nodeSelector": {"a": "b"}}, True),
        ({"tolerations": [{"operator": "Exists"}]}, True),
        ({"schedulingGates": [{"name": "x.io/y"}]}, True),
        ({"containers": [{"name": "m", "resources": {"limits": {"cpu": "1"}}}]}, True),
        ({"priorityClassName": "high"}, False),
        ({"containers": [{"name": "m", "image": "other"}]}, False),
        ({"containers": [{"name": "n", "image": "x"}]}, False),
        ({"affinity": {"podAffinity": {}}}, False),
    ],
)
async def test_a_suspended_jobs_template_takes_scheduling_directives_and_resources_only(
    spec: Obj,
    allowed: bool,
) -> None:
    api = await api_with_namespace()
    await api.create("jobs.batch", "nlp", job(suspend=True), user=ALICE)
    patch = {"spec": {"suspend": False, "template": {"spec": spec}}}
    change = api.patch("jobs.batch", "nlp", "train", encode(patch), STRATEGIC_PATCH, user=ALICE)
    if allowed:
        changed = await change
        assert next(iter(spec)) in changed["spec"]["template"]["spec"]
        again = {"spec": {"template": {"metadata": {"labels": {"late": "x"}}}}}
        change = api.patch("jobs.batch", "nlp", "train", encode(again), STRATEGIC_PATCH, user=ALICE)
    with pytest.raises(ApiError, match=r"spec\.template: Invalid value: .*: field is immutable"):
        await change


async def test_a_job_that_has_started_is_immutable_even_if_suspended() -> None:
    api = await api_with_namespace()
    await api.create("jobs.batch", "nlp", job(suspend=True), user=ALICE)
    started = encode({"status": {"startTime": "2026-01-01T00:00:00Z"}})
    await api.patch(
        "jobs.batch", "nlp", "train", started, MERGE_PATCH, user=ADMIN, subresource="status"
    )
    patch = encode({"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}})
    with pytest.raises(ApiError, match="field is immutable"):
        await api.patch("jobs.batch", "nlp", "train", patch, MERGE_PATCH, user=ALICE)


async def test_a_pod_failure_policy_wants_failed_pods_replaced_only() -> None:
    api = await api_with_namespace()
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    policy: Obj = {"podFailurePolicy": {"rules": rules}}
    made = await api.create("jobs.batch", "nlp", job(**policy), user=ALICE)
    assert made["spec"]["podReplacementPolicy"] == "Failed"
    policy["podReplacementPolicy"] = "TerminatingOrFailed"
    with pytest.raises(ApiError, match='supported values: "Failed"'):
        await api.create("jobs.batch", "nlp", job("other", **policy), user=ALICE)


async def test_gates_can_only_be_removed_and_a_gated_pod_only_narrowed() -> None:
    api = await api_with_namespace()
    gates = [{"name": "fairslice.io/queue"}]
    await api.create("pods", "nlp", pod(schedulingGates=gates, nodeSelector={"a": "b"}), user=ALICE)

    async def patch(spec: Obj) -> Obj:
        return await api.patch("pods", "nlp", "nb", encode({"spec": spec}), MERGE_PATCH, user=ALICE)

    with pytest.raises(ApiError, match="only deletion is allowed"):
        await patch({"schedulingGates": [*gates, {"name": "x.io/y"}]})
    with pytest.raises(ApiError, match="only additions are allowed"):
        await patch({"nodeSelector": {"a": "c"}})
    with pytest.raises(ApiError, match="pod updates may not change fields other than"):
        await patch({"priorityClassName": "high"})
    with pytest.raises(ApiError, match=r"non-empty \.spec\.schedulingGates"):
        await api.create_subresource(
            "pods", "nlp", "nb", "binding", {"target": {"name": "n"}}, user=ADMIN
        )
    await patch({"nodeSelector": {"a": "b", "pool": "a100"}})
    freed = await patch({"schedulingGates": None})
    assert "schedulingGates" not in freed["spec"]
    with pytest.raises(ApiError, match="pod updates may not change fields other than"):
        await patch({"nodeSelector": {"a": "b", "pool": "a100", "more": "x"}})


async def bound_pod(api: Any, **spec: Any) -> Obj:
    await api.create("pods", "nlp", pod(**spec), user=ALICE)
    await api.create_subresource(
        "pods", "nlp", "nb", "binding", {"target": {"name": "n1"}}, user=ADMIN
    )
    found: Obj = api.get("pods", "nlp", "nb")
    return found


async def test_a_running_pod_goes_when_its_kubelet_says_so() -> None:
    api = await api_with_namespace()
    await bound_pod(api)
    marked = await api.delete("pods", "nlp", "nb", user=ALICE)
    assert marked["metadata"]["deletionGracePeriodSeconds"] == 30
    assert marked["metadata"]["generation"] == 2
    # A second deletion changes nothing, a shorter one does.
    again = await api.delete("pods", "nlp", "nb", user=ALICE)
    assert again["metadata"]["resourceVersion"] == marked["metadata"]["resourceVersion"]
    hurried = await api.delete("pods", "nlp", "nb", user=ALICE, grace_seconds=5)
    assert hurried["metadata"]["deletionGracePeriodSeconds"] == 5
    await api.delete("pods", "nlp", "nb", user=ADMIN, grace_seconds=0)
    assert api.list("pods") == []


async def test_a_finalizer_holds_an_object_until_it_is_removed() -> None:
    api = await api_with_namespace()
    body = pod()
    body["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    await api.create("pods", "nlp", body, user=ALICE)
    held = await api.delete("pods", "nlp", "nb", user=ALICE)
    assert held["metadata"]["deletionTimestamp"]
    more = encode({"metadata": {"finalizers": ["a.b/c", *body["metadata"]["finalizers"]]}})
    with pytest.raises(ApiError, match="no new finalizers can be added"):
        await api.patch("pods", "nlp", "nb", more, MERGE_PATCH, user=ALICE)
    none = encode({"metadata": {"finalizers": None}})
    await api.patch("pods", "nlp", "nb", none, MERGE_PATCH, user=ALICE)
    assert api.list("pods") == []


@pytest.mark.parametrize(
    ("propagation", "finalizers"),
    [("Foreground", ["foregroundDeletion"]), ("Orphan", ["orphan"]), (None, ["orphan"])],
)
async def test_propagation_leaves_a_finalizer_for_the_garbage_collector(
    propagation: str | None, finalizers: list[str]
) -> None:
    api = await api_with_namespace()
    await api.create("jobs.batch", "nlp", job(), user=ALICE)
    warnings: list[str] = []
    left = await api.delete(
        "jobs.batch", "nlp", "train", user=ALICE, propagation=propagation, warnings=warnings
    )
    assert left["metadata"]["finalizers"] == finalizers
    assert bool(warnings) is (propagation is None)


async def test_a_precondition_on_the_uid_protects_a_namesake() -> None:
    api = await api_with_namespace()
    await api.create("pods", "nlp", pod(), user=ALICE)
    with pytest.raises(ApiError, match="Precondition failed: UID in precondition") as caught:
        await api.delete("pods", "nlp", "nb", user=ALICE, preconditions={"uid": "other"})
    assert caught.value.code == 409


async def test_a_terminating_namespace_takes_nothing_new_and_goes_when_finalized() -> None:
    api = await api_with_namespace()
    ended = await api.delete("namespaces", "", "nlp", user=ADMIN)
    assert ended["status"]["phase"] == "Terminating"
    with pytest.raises(ApiError, match="because it is being terminated") as caught:
        await api.create("pods", "nlp", pod(), user=ALICE)
    assert caught.value.code == 403
    body = {**ended, "spec": {"finalizers": []}}
    await api.update("namespaces", "", "nlp", body, user=ADMIN, subresource="finalize")
    with pytest.raises(ApiError, match='namespaces "nlp" not found'):
        await api.create("pods", "nlp", pod(), user=ALICE)


async def test_an_eviction_respects_the_disruption_budget() -> None:
    api = await api_with_namespace()
    body = pod()
    body["metadata"]["labels"] = {"a": "b"}
    await api.create("pods", "nlp", body, user=ALICE)
    running = encode({"status": {"phase": "Running"}})
    await api.patch("pods", "nlp", "nb", running, MERGE_PATCH, user=ADMIN, subresource="status")
    budgets = "poddisruptionbudgets.policy"
    budget = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"a": "b"}}}}
    await api.create(budgets, "nlp", budget, user=ALICE)
    with pytest.raises(ApiError, match="would violate the pod's disruption budget") as caught:
        await api.create_subresource("pods", "nlp", "nb", "eviction", {}, user=ADMIN)
    assert caught.value.code == 429
    allowed = encode({"status": {"disruptionsAllowed": 1}})
    await api.patch(budgets, "nlp", "b", allowed, MERGE_PATCH, user=ADMIN, subresource="status")
    await api.create_subresource("pods", "nlp", "nb", "eviction", {}, user=ADMIN)
    assert api.list("pods") == []
    assert api.get(budgets, "nlp", "b")["status"]["disruptionsAllowed"] == 0


async def test_a_missing_priority_class_denies_the_pod() -> None:
    api = await api_with_namespace()
    with pytest.raises(ApiError, match="no PriorityClass with name high was found"):
        await api.create("pods", "nlp", pod(priorityClassName="high"), user=ALICE)


async def test_a_resource_quota_holds_pods_back_and_shows_its_use() -> None:
    api = await api_with_namespace()
    spec = {"hard": {"requests.nvidia.com/gpu": "2", "pods": "5"}}
    await api.create("resourcequotas", "nlp", {"metadata": {"name": "q"}, "spec": spec}, user=ADMIN)
    await api.create("pods", "nlp", pod("a", 1), user=ALICE)
    with pytest.raises(ApiError) as caught:
        await api.create("pods", "nlp", pod("b", 2), user=ALICE)
    assert caught.value.message == (
        'pods "b" is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=2, '
        "used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=2"
    )
    status = api.get("resourcequotas", "nlp", "q")["status"]
    assert status["used"] == {"requests.nvidia.com/gpu": "1", "pods": "1"}


async def test_unknown_fields_are_refused_when_strict_and_dropped_with_a_warning_else() -> None:
    api = await api_with_namespace()
    body = job()
    body["spec"]["template"]["spec"]["containers"][0]["imagee"] = "y"
    path = 'unknown field "spec.template.spec.containers[0].imagee"'
    with pytest.raises(ApiError) as caught:
        await api.create("jobs.batch", "nlp", body, user=ALICE, field_validation="Strict")
    assert caught.value.code == 400
    assert caught.value.message.endswith(f"strict decoding error: {path}")
    warnings: list[str] = []
    made = await api.create("jobs.batch", "nlp", body, user=ALICE, warnings=warnings)
    assert "imagee" not in made["spec"]["template"]["spec"]["containers"][0]
    assert warnings == [path]


async def test_strategic_merge_knows_lists_by_key() -> None:
    api = await api_with_namespace()
    body = job(suspend=True)
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    pods = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "nb"},
            "spec": body["spec"]["template"]["spec"]}  # fmt: skip
    template = {"metadata": {"name": "t"}, "template": {"spec": pods["spec"]}}
    await api.create("podtemplates", "nlp", template, user=ALICE)
    env = [
        {"name": "C", "value": "3"},
        {"name": "A", "$patch": "delete"},
        {"name": "B", "value": "9"},
    ]
    patch = {"template": {"spec": {"containers": [{"name": "m", "env": env}]}}}
    changed = await api.patch(
        "podtemplates", "nlp", "t", encode(patch), STRATEGIC_PATCH, user=ALICE
    )
    found = changed["template"]["spec"]["containers"][0]
    assert found["image"] == "x"
    assert found["env"] == [{"name": "B", "value": "9"}, {"name": "C", "value": "3"}]


async def test_a_json_patch_that_does_not_apply_is_invalid() -> None:
    api = await api_with_namespace()
    await api.create("pods", "nlp", pod(), user=ALICE)
    patch = encode([{"op": "test", "path": "/metadata/name", "value": "other"}])
    with pytest.raises(ApiError) as caught:
        await api.patch("pods", "nlp", "nb", patch, JSON_PATCH, user=ALICE)
    assert caught.value.code == 422


async def test_apply_removes_what_its_manager_left_out_and_guards_what_others_own() -> None:
    api = await api_with_namespace()

    async def apply(manager: str, data: Obj, *, force: bool = False) -> Obj:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}
        return await api.patch(
            "configmaps", "nlp", "c", encode(body), APPLY_PATCH,
            user=ALICE, field_manager=manager, force=force,
        )  # fmt: skip

    await apply("one", {"a": "1", "b": "1"})
    await apply("two", {"c": "2"})
    assert (await apply("one", {"a": "1"}))["data"] == {"a": "1", "c": "2"}
    with pytest.raises(ApiError, match=r'conflict with "one" using v1: \.data\.a'):
        await apply("two", {"a": "2", "c": "2"})
    forced = await apply("two", {"a": "2", "c": "2"}, force=True)
    assert forced["data"] == {"a": "2", "c": "2"}
    same = await apply("two", {"a": "2", "c": "2"})
    assert same["metadata"]["resourceVersion"] == forced["metadata"]["resourceVersion"]


async def test_a_watch_from_a_forgotten_version_expires() -> None:
    api = new_api()
    start = api.store.version
    for name in ("a", "b"):
        await api.create("namespaces", "", {"metadata": {"name": name}}, user=ADMIN)
    with api.subscribe("namespaces", start) as events:
        assert [event.object["metadata"]["name"] for event in events.drain()] == ["a", "b"]
    api.store.compact()
    with pytest.raises(ApiError) as caught:
        api.subscribe("namespaces", start)
    assert (caught.value.code, caught.value.reason) == (410, "Expired")


async def test_the_same_event_shows_in_both_event_apis() -> None:
    api = await api_with_namespace()
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "nb", "namespace": "nlp"},
        "note": "released",
        "reason": "Released",
        "type": "Normal",
        "reportingController": "fairslice",
        "eventTime": "2026-01-01T00:00:00.000000Z",
    }
    await api.create("events.events.k8s.io", "nlp", event, user=ALICE)
    core = api.list("events", "nlp", field_selector="involvedObject.name=nb")
    assert [item["message"] for item in core] == ["released"]
    assert api.get("events.events.k8s.io", "nlp", "e")["note"] == "released"


@given(st.integers(0, 10**6), st.sampled_from(["", "m", "k", "Ki", "Mi", "G"]))
def test_a_canonical_quantity_stays_as_it_is(number: int, suffix: str) -> None:
    once = canonical(f"{number}{suffix}")
    assert canonical(once) == once


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1000m", "1"), (0.5, "500m"), ("1k", "1k"), (1000, "1k"), ("1024Mi", "1Gi"), ("1e3", "1e3")],
)
def test_quantities_are_stored_in_canonical_form(text: Any, expected: str) -> None:
    assert canonical(text) == expected


async def test_generated_names_differ() -> None:
    api = await api_with_namespace()
    body = {**pod(), "metadata": {"generateName": "nb-"}}
    made = [await api.create("pods", "nlp", body, user=ALICE) for _ in range(20)]
    names = [item["metadata"]["name"] for item in made]
    assert len(set(names)) == 20
    assert all(len(name) == 8 for name in names)
    versions = [int(item["metadata"]["resourceVersion"]) for item in made]
    assert all(later > earlier for earlier, later in itertools.pairwise(versions))
