"""Webhooks are called as registered, and what they answer is what users get."""

import asyncio
from typing import Any

import pytest

from fairslice_sandbox.errors import ApiError
from fairslice_sandbox.users import ADMIN

from .api_world import (
    ALICE,
    MERGE_PATCH,
    Obj,
    allow,
    api_with_namespace,
    encode,
    job,
    patch_response,
    pod,
    register,
    running_server,
    webhook_server,
)

CLASSES = "priorityclasses.scheduling.k8s.io"


def deny(**status: Any) -> Obj:
    return {"allowed": False, "status": status}


def label(name: str, value: str = "1") -> Obj:
    """Answer with a label, in a pod that has some already."""
    return patch_response({"op": "add", "path": f"/metadata/labels/{name}", "value": value})


def labelled(name: str = "nb") -> Obj:
    made = pod(name)
    made["metadata"]["labels"] = {"a": "b"}
    return made


async def test_a_denial_carries_the_webhooks_words_and_code() -> None:
    async with running_server() as world, webhook_server() as hooks:
        answer = deny(code=422, reason="Invalid", message="over the limit")
        await register(world.api, hooks.webhook("quota", lambda _: answer))
        code, status = await world.client(ALICE).send("POST", "/api/v1/namespaces/nlp/pods", pod())
        assert code == 422
        assert status["reason"] == "Invalid"
        assert status["message"] == (
            'admission webhook "quota.fairslice.io" denied the request: over the limit'
        )
        await world.api.webhooks.close()


async def test_a_denial_without_a_code_is_a_bad_request_without_explanation() -> None:
    api = await api_with_namespace()
    async with webhook_server() as hooks:
        await register(api, hooks.webhook("no", lambda _: {"allowed": False}))
        with pytest.raises(ApiError, match="denied the request without explanation") as caught:
            await api.create("pods", "nlp", pod(), user=ALICE)
        assert caught.value.code == 400
        await api.close()


async def test_warnings_reach_the_client_as_headers() -> None:
    async with running_server() as world, webhook_server() as hooks:
        answer = {"allowed": True, "warnings": ['now "10 GB"', 'now "10 GB"']}
        await register(world.api, hooks.webhook("warn", lambda _: answer))
        client = world.client(ALICE)
        await client.send("POST", "/api/v1/namespaces/nlp/pods", pod())
        assert client.warnings == ['299 - "now \\"10 GB\\""']


async def test_a_patch_is_applied_and_defaulted_again() -> None:
    api = await api_with_namespace()
    container = {"name": "side", "image": "y", "resources": {"limits": {"nvidia.com/gpu": 2}}}
    async with webhook_server() as hooks:
        patch = patch_response({"op": "add", "path": "/spec/containers/-", "value": container})
        await register(api, hooks.webhook("sidecar", lambda _: patch))
        made = await api.create("pods", "nlp", pod(), user=ALICE)
        assert made["spec"]["containers"][1]["resources"] == {
            "limits": {"nvidia.com/gpu": "2"},
            "requests": {"nvidia.com/gpu": "2"},
        }
        await api.close()


@pytest.mark.parametrize("failure", ["Fail", "Ignore"])
async def test_a_patch_that_does_not_apply_is_an_error_whatever_the_policy(failure: str) -> None:
    api = await api_with_namespace()
    async with webhook_server() as hooks:
        patch = patch_response({"op": "remove", "path": "/spec/nope"})
        await register(api, hooks.webhook("bad", lambda _: patch, failurePolicy=failure))
        with pytest.raises(ApiError) as caught:
            await api.create("pods", "nlp", pod(), user=ALICE)
        assert caught.value.code == 500
        await api.close()


async def test_an_unreachable_webhook_fails_or_is_ignored_as_its_policy_says() -> None:
    api = await api_with_namespace()
    async with webhook_server() as hooks:
        webhook = hooks.webhook("down", failurePolicy="Ignore")
        webhook["clientConfig"]["url"] = "https://127.0.0.1:1/down"
        await register(api, webhook)
        await api.create("pods", "nlp", pod("ignored"), user=ALICE)
        await register(api, {**webhook, "failurePolicy": "Fail"}, name="strict")
        with pytest.raises(ApiError, match=r'failed calling webhook "down') as caught:
            await api.create("pods", "nlp", pod("failed"), user=ALICE)
        assert caught.value.code == 500
        await api.close()


async def test_a_webhook_whose_certificate_no_bundle_vouches_for_is_not_trusted() -> None:
    api = await api_with_namespace()
    async with webhook_server() as hooks:
        webhook = hooks.webhook("untrusted")
        webhook["clientConfig"].pop("caBundle")
        await register(api, webhook)
        with pytest.raises(ApiError, match="CERTIFICATE_VERIFY_FAILED"):
            await api.create("pods", "nlp", pod(), user=ALICE)
        assert hooks.requests == []
        await api.close()


async def test_a_slow_webhook_is_given_up_after_its_timeout_which_it_is_told() -> None:
    api = await api_with_namespace()

    async def slow(_: Obj) -> Obj:
        await asyncio.sleep(5)
        return allow(_)

    async with webhook_server() as hooks:
        await register(api, hooks.webhook("slow", slow, timeoutSeconds=1))
        with pytest.raises(ApiError, match="context deadline exceeded"):
            await api.create("pods", "nlp", pod(), user=ALICE)
        assert hooks.queries == ["timeout=1s"]
        await api.close()


async def test_a_service_is_reached_where_it_runs_under_its_own_name() -> None:
    api = await api_with_namespace()
    async with webhook_server() as hooks:
        webhook = hooks.webhook("hook")
        service = {"namespace": "fairslice", "name": "hook", "path": "/hook"}
        webhook["clientConfig"] = {"service": service, "caBundle": hooks.bundle}
        await register(api, webhook)
        with pytest.raises(ApiError, match='service "hook" not found'):
            await api.create("pods", "nlp", pod(), user=ALICE)
        api.webhooks.services["fairslice", "hook"] = f"127.0.0.1:{hooks.port}"
        await api.create("pods", "nlp", pod(), user=ALICE)
        assert len(hooks.requests) == 1
        await api.close()


async def test_rules_selectors_and_conditions_choose_what_a_webhook_sees() -> None:
    api = await api_with_namespace()
    rule = {
        "apiGroups": ["batch"],
        "apiVersions": ["v1"],
        "resources": ["jobs"],
        "operations": ["CREATE"],
    }
    condition = {
        "name": "gpu",
        "expression": "object.spec.containers.exists(c, "
        "c.?resources.?limits.orValue({}).exists(k, k.startsWith('nvidia.com/')))",
    }
    async with webhook_server() as hooks:
        selector = {"matchLabels": {"kubernetes.io/metadata.name": "cv"}}
        labels = {"matchLabels": {"watched": "yes"}}
        await register(
            api,
            hooks.webhook("rules", rules=[rule]),
            hooks.webhook("namespace", namespaceSelector=selector),
            hooks.webhook("object", objectSelector=labels),
            hooks.webhook("condition", matchConditions=[condition]),
        )
        await api.create("pods", "nlp", pod("plain"), user=ALICE)
        assert hooks.requests == []
        await api.create("pods", "nlp", pod("gpu", 1), user=ALICE)
        await api.create("jobs.batch", "nlp", job(), user=ALICE)
        watched = pod("watched")
        watched["metadata"]["labels"] = {"watched": "yes"}
        await api.create("pods", "nlp", watched, user=ALICE)
        await api.create("namespaces", "", {"metadata": {"name": "cv"}}, user=ADMIN)
        await api.create("pods", "cv", pod("elsewhere"), user=ALICE)
        names = [request.get("name") for request in hooks.requests]
        assert names == ["gpu", "train", "watched", "elsewhere"]
        await api.close()


async def test_a_failing_condition_follows_the_failure_policy() -> None:
    api = await api_with_namespace()
    condition = [{"name": "broken", "expression": "object.spec.nope == 1"}]
    async with webhook_server() as hooks:
        await register(api, hooks.webhook("lax", matchConditions=condition, failurePolicy="Ignore"))
        await api.create("pods", "nlp", pod("a"), user=ALICE)
        await register(api, hooks.webhook("strict", matchConditions=condition), name="strict")
        with pytest.raises(ApiError, match="no such key: nope") as caught:
            await api.create("pods", "nlp", pod("b"), user=ALICE)
        assert caught.value.code == 403
        assert hooks.requests == []
        await api.close()


async def test_a_condition_that_does_not_compile_is_refused_at_registration() -> None:
    api = await api_with_namespace()
    async with webhook_server() as hooks:
        condition = [{"name": "broken", "expression": "object.spec ++"}]
        with pytest.raises(ApiError, match=r"webhooks\[0\].matchConditions\[0\].expression"):
            await register(api, hooks.webhook("bad", matchConditions=condition))


async def test_an_earlier_webhook_sees_what_a_later_one_changed() -> None:
    api = await api_with_namespace()
    seen: list[tuple[str, list[str]]] = []

    def record(name: str) -> Any:
        def answer(request: Obj) -> Obj:
            labels = request["object"]["metadata"]["labels"]
            seen.append((name, sorted(labels)))
            return allow(request) if name in labels else label(name)

        return answer

    async with webhook_server() as hooks:
        await register(
            api,
            hooks.webhook("once", record("once")),
            hooks.webhook("again", record("again"), reinvocationPolicy="IfNeeded"),
            hooks.webhook("last", record("last"), reinvocationPolicy="IfNeeded"),
        )
        made = await api.create("pods", "nlp", labelled(), user=ALICE)
        assert seen == [
            ("once", ["a"]),
            ("again", ["a", "once"]),
            ("last", ["a", "again", "once"]),
            ("again", ["a", "again", "last", "once"]),
        ]
        assert sorted(made["metadata"]["labels"]) == ["a", "again", "last", "once"]
        await api.close()


async def test_the_priority_plugin_runs_before_webhooks_and_again_after_a_change() -> None:
    api = await api_with_namespace()
    await api.create(CLASSES, "", {"metadata": {"name": "high"}, "value": 1000}, user=ADMIN)
    chosen = {"op": "add", "path": "/spec/priorityClassName", "value": "high"}
    async with webhook_server() as hooks:
        await register(api, hooks.webhook("class", lambda _: patch_response(chosen)))
        with pytest.raises(ApiError, match=r"integer value of priority \(0\) must not be provided"):
            await api.create("pods", "nlp", pod(), user=ALICE)
        assert hooks.requests[0]["object"]["spec"]["priority"] == 0
        removed = {"op": "remove", "path": "/spec/priority"}
        hooks.answers["/class"] = lambda _: patch_response(chosen, removed)
        made = await api.create("pods", "nlp", pod(), user=ALICE)
        assert (made["spec"]["priorityClassName"], made["spec"]["priority"]) == ("high", 1000)
        await api.close()


async def test_a_webhook_that_always_removes_the_priority_stores_a_pod_without_one() -> None:
    api = await api_with_namespace()
    removed = patch_response({"op": "remove", "path": "/spec/priority"})
    async with webhook_server() as hooks:
        await register(
            api, hooks.webhook("class", lambda _: removed, reinvocationPolicy="IfNeeded")
        )
        made = await api.create("pods", "nlp", pod(), user=ALICE)
        assert len(hooks.requests) == 2
        assert "priority" not in made["spec"]
        await api.close()


async def test_validating_webhooks_see_the_final_object_and_its_name() -> None:
    api = await api_with_namespace()
    generated = {**pod(), "metadata": {"generateName": "nb-", "labels": {"a": "b"}}}
    async with webhook_server() as hooks:
        await register(api, hooks.webhook("mutate", lambda _: label("done")))
        await register(api, hooks.webhook("check"), hooks.webhook("too"), kind="Validating")
        made = await api.create("pods", "nlp", generated, user=ALICE)
        first, *others = hooks.requests
        assert "name" not in first
        assert "uid" not in first["object"]["metadata"]
        for request in others:
            assert request["name"] == made["metadata"]["name"]
            assert request["object"]["metadata"]["uid"] == made["metadata"]["uid"]
            assert request["object"]["metadata"]["labels"] == {"a": "b", "done": "1"}
        assert len(others) == 2
        await api.close()


async def test_a_validating_webhook_may_not_patch() -> None:
    api = await api_with_namespace()
    async with webhook_server() as hooks:
        await register(api, hooks.webhook("check", lambda _: label("x")), kind="Validating")
        with pytest.raises(ApiError, match="validating webhooks may not patch"):
            await api.create("pods", "nlp", labelled(), user=ALICE)
        await api.close()


async def test_an_existing_name_reaches_the_webhooks_all_the_same() -> None:
    api = await api_with_namespace()
    await api.create("pods", "nlp", pod(), user=ALICE)
    async with webhook_server() as hooks:
        await register(api, hooks.webhook("seen"))
        with pytest.raises(ApiError) as caught:
            await api.create("pods", "nlp", pod(), user=ALICE)
        assert caught.value.reason == "AlreadyExists"
        assert len(hooks.requests) == 1
        await api.close()


async def test_a_dry_run_is_refused_where_a_webhook_has_side_effects_unknown() -> None:
    api = await api_with_namespace()
    async with webhook_server() as hooks:
        with pytest.raises(ApiError, match="sideEffects: Unsupported value"):
            await register(api, hooks.webhook("some", sideEffects="Some"))
        await register(api, hooks.webhook("none"))
        await api.create("pods", "nlp", pod(), user=ALICE, dry_run=True)
        assert hooks.requests[0]["dryRun"] is True
        assert api.list("pods") == []
        await api.close()


async def test_every_object_of_a_collection_is_reviewed_before_it_goes() -> None:
    async with running_server() as world, webhook_server() as hooks:
        for name in ("a", "b"):
            await world.api.create("pods", "nlp", pod(name), user=ALICE)
        await register(world.api, hooks.webhook("gone"))
        code, _ = await world.client(ALICE).send("DELETE", "/api/v1/namespaces/nlp/pods")
        assert code == 200
        assert {r["oldObject"]["metadata"]["name"] for r in hooks.requests} == {"a", "b"}
        assert {r["operation"] for r in hooks.requests} == {"DELETE"}
        assert world.api.list("pods") == []


async def test_a_webhook_on_every_resource_never_blocks_its_own_registration() -> None:
    api = await api_with_namespace()
    async with webhook_server() as hooks:
        rule = {
            "apiGroups": ["*"],
            "apiVersions": ["*"],
            "resources": ["*/*"],
            "operations": ["*"],
        }
        await register(api, hooks.webhook("all", lambda _: deny(), rules=[rule]))
        resource = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
        patch = encode({"metadata": {"labels": {"a": "b"}}})
        await api.patch(resource, "", "test", patch, MERGE_PATCH, user=ADMIN)
        await api.delete(resource, "", "test", user=ADMIN)
        assert hooks.requests == []
        await api.close()
