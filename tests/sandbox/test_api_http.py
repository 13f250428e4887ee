"""The server as clients meet it: watches, pages, selectors, access, forms of answers."""

import asyncio
import json
import ssl
from pathlib import Path
from typing import Any, cast

import pytest
from kubernetes_asyncio import client as kubernetes
from kubernetes_asyncio import config, watch

from fairslice_sandbox.server import ApiServer
from fairslice_sandbox.users import ADMIN, UserInfo

from .api_world import (
    ALICE,
    APPLY_PATCH,
    BOB,
    MERGE_PATCH,
    Client,
    Obj,
    encode,
    pod,
    running_server,
)

PODS = "/api/v1/namespaces/nlp/pods"


async def label(client: Client, name: str, **labels: str | None) -> None:
    patch = {"metadata": {"labels": labels}}
    code, answer = await client.send("PATCH", f"{PODS}/{name}", patch, MERGE_PATCH)
    assert code == 200, answer


async def test_a_watch_shows_objects_come_into_and_leave_its_selection() -> None:
    async with running_server() as world:
        client = world.client(ALICE)
        async with client.watch(f"{PODS}?watch=1&labelSelector=team%3Dnlp") as stream:
            await client.send("POST", PODS, pod())
            await label(client, "nb", team="nlp")
            await label(client, "nb", more="x")
            await label(client, "nb", team="cv")
            seen = [await stream.next() for _ in range(3)]
            assert [event and event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED"]


async def test_a_watch_continues_after_a_list_without_a_gap() -> None:
    async with running_server() as world:
        client = world.client(ALICE)
        _, found = await client.send("GET", PODS)
        version = found["metadata"]["resourceVersion"]
        await client.send("POST", PODS, pod("a"))
        await client.send("DELETE", f"{PODS}/a")
        path = f"{PODS}?watch=1&resourceVersion={version}&timeoutSeconds=1"
        async with client.watch(path) as stream:
            events = [await stream.next(), await stream.next(), await stream.next()]
        assert [event and event["type"] for event in events] == ["ADDED", "DELETED", None]
        versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events[:2] if e]
        assert int(version) < versions[0] < versions[1]


async def test_an_expired_watch_answers_200_with_an_error_of_410() -> None:
    async with running_server() as world:
        client = world.client(ALICE)
        world.api.store.compact()
        async with client.watch(f"{PODS}?watch=1&resourceVersion=1") as stream:
            event = await stream.next()
            assert event is not None
            assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
            assert event["object"]["reason"] == "Expired"
            assert await stream.next() is None


async def test_bookmarks_keep_an_idle_watch_fresh_and_end_the_initial_events() -> None:
    async with running_server() as world:
        client = world.client(ALICE)
        await client.send("POST", PODS, pod("a"))
        query = "watch=1&allowWatchBookmarks=true&sendInitialEvents=true"
        more = "&resourceVersionMatch=NotOlderThan"
        async with client.watch(f"{PODS}?{query}{more}") as stream:
            first = await stream.next(bookmarks=True)
            marked = await stream.next(bookmarks=True)
            assert first is not None
            assert first["type"] == "ADDED"
            assert marked is not None
            assert marked["object"]["kind"] == "Pod"
            assert marked["object"]["metadata"]["annotations"] == {
                "k8s.io/initial-events-end": "true"
            }
            await world.api.create("configmaps", "nlp", {"metadata": {"name": "c"}}, user=ADMIN)
            later = await stream.next(bookmarks=True)
            assert later is not None
            assert later["type"] == "BOOKMARK"
            version = later["object"]["metadata"]["resourceVersion"]
            assert version == str(world.api.store.version)


async def test_pages_show_one_moment_and_expire() -> None:
    async with running_server() as world:
        client = world.client(ALICE)
        for name in "cab":
            await client.send("POST", PODS, pod(name))
        _, first = await client.send("GET", f"{PODS}?limit=2")
        names = [item["metadata"]["name"] for item in first["items"]]
        assert (names, first["metadata"]["remainingItemCount"]) == (["a", "b"], 1)
        await client.send("DELETE", f"{PODS}/c")
        token = first["metadata"]["continue"]
        _, second = await client.send("GET", f"{PODS}?limit=2&continue={token}")
        assert [item["metadata"]["name"] for item in second["items"]] == ["c"]
        assert second["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}
        world.api.store.compact()
        code, status = await client.send("GET", f"{PODS}?limit=2&continue={token}")
        assert (code, status["reason"]) == (410, "Expired")


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("labelSelector=team", ["a", "b"]),
        ("labelSelector=!team", ["c"]),
        ("labelSelector=team=nlp", ["a"]),
        ("labelSelector=team!=nlp", ["b", "c"]),
        ("labelSelector=team in (nlp, cv),x notin (y)", ["a", "b"]),
        ("fieldSelector=metadata.name=b", ["b"]),
        ("fieldSelector=metadata.name!=b,status.phase=Pending", ["a", "c"]),
        ("fieldSelector=spec.nodeName=", ["a", "b", "c"]),
    ],
)
async def test_selectors_choose(selector: str, names: list[str]) -> None:
    async with running_server() as world:
        client = world.client(ALICE)
        for name, team in (("a", "nlp"), ("b", "cv"), ("c", None)):
            body = pod(name)
            body["metadata"]["labels"] = {"team": team} if team else {}
            await client.send("POST", PODS, body)
        key, _, value = selector.partition("=")
        quoted = value.replace("=", "%3D").replace(" ", "%20")
        _, found = await client.send("GET", f"{PODS}?{key}={quoted}")
        assert [item["metadata"]["name"] for item in found["items"]] == names


async def test_an_unknown_field_selector_is_a_bad_request() -> None:
    async with running_server() as world:
        code, status = await world.client().send("GET", f"{PODS}?fieldSelector=spec.x%3D1")
        assert code == 400
        assert "field label not supported: spec.x" in status["message"]


async def test_people_may_do_what_a_role_grants_in_its_namespace_and_no_more() -> None:
    async with running_server() as world:
        alice, bob = world.client(ALICE), world.client(BOB)
        assert (await alice.send("GET", PODS))[0] == 200
        code, status = await bob.send("POST", PODS, pod())
        assert code == 403
        assert status["message"] == (
            'pods is forbidden: User "bob" cannot create resource "pods" in API group "" in the '
            'namespace "nlp"'
        )
        code, status = await alice.send("GET", "/api/v1/nodes")
        assert (
            'cannot list resource "nodes" in API group "" at the cluster scope'
            in (status["message"])
        )
        assert (await alice.send("PATCH", f"{PODS}/x/status", {}, MERGE_PATCH))[0] == 403
        assert (await alice.send("GET", "/api/v1/namespaces/default/pods"))[0] == 403
        assert (await bob.send("GET", "/apis"))[0] == 200


async def test_a_strange_token_is_unauthorized_and_none_is_anonymous() -> None:
    async with running_server() as world:
        client = world.client()
        client.token = "nonsense"
        assert (await client.send("GET", PODS))[0] == 401
        client.token = ""
        code, status = await client.send("GET", PODS)
        assert code == 403
        assert "system:anonymous" in status["message"]
        assert (await client.send("GET", "/readyz")) == (200, "ok")


async def test_a_service_account_acts_under_its_own_token_until_it_is_deleted() -> None:
    async with running_server() as world:
        admin = world.client()
        accounts = "/api/v1/namespaces/nlp/serviceaccounts"
        await admin.send("POST", accounts, {"metadata": {"name": "queue"}})
        code, answer = await admin.send("POST", f"{accounts}/queue/token", {"spec": {}})
        assert code == 201
        account = world.client()
        account.token = answer["status"]["token"]
        review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        _, who = await account.send("POST", review, {})
        info = who["status"]["userInfo"]
        assert info["username"] == "system:serviceaccount:nlp:queue"
        assert "system:serviceaccounts:nlp" in info["groups"]
        assert (await account.send("GET", PODS))[0] == 403
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"],
                  "resourceNames": ["nb"]}]  # fmt: skip
        rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/nlp"
        await admin.send("POST", f"{rbac}/roles", {"metadata": {"name": "q"}, "rules": rules})
        binding = {
            "metadata": {"name": "q"},
            "roleRef": {"kind": "Role", "name": "q"},
            "subjects": [{"kind": "ServiceAccount", "name": "queue"}],
        }
        await admin.send("POST", f"{rbac}/rolebindings", binding)
        assert (await account.send("GET", f"{PODS}/nb"))[0] == 404
        assert (await account.send("GET", f"{PODS}/other"))[0] == 403
        # Server-side apply that would create needs the right to.
        body = {"apiVersion": "v1", "kind": "Pod", **pod()}
        query = "?fieldManager=x"
        code, _ = await account.send("PATCH", f"{PODS}/nb{query}", body, APPLY_PATCH)
        assert code == 403
        await admin.send("DELETE", f"{accounts}/queue")
        assert (await account.send("GET", f"{PODS}/nb"))[0] == 401


async def test_access_reviews_answer_as_the_authorizer_decides() -> None:
    async with running_server() as world:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"

        async def allowed(user: str, **attributes: str) -> bool:
            review = {"spec": {"user": user, "resourceAttributes": attributes}}
            _, answer = await world.client().send("POST", path, review)
            return bool(answer["status"]["allowed"])

        assert await allowed("alice", verb="create", resource="pods", namespace="nlp")
        assert not await allowed("alice", verb="create", resource="pods", namespace="cv")
        assert not await allowed("bob", verb="create", resource="pods", namespace="nlp")


async def test_impersonation_needs_the_right_to() -> None:
    async with running_server() as world:
        headers = {"Impersonate-User": "bob", "Authorization": f"Bearer {world.client().token}"}
        async with world.session.get(world.server.url + PODS, headers=headers) as response:
            assert response.status == 403
            assert 'User "bob" cannot list' in (await response.json())["message"]
        headers["Authorization"] = f"Bearer {world.client(ALICE).token}"
        async with world.session.get(world.server.url + PODS, headers=headers) as response:
            assert 'cannot impersonate resource "users"' in (await response.json())["message"]


async def test_tables_and_metadata_come_in_the_form_asked_for() -> None:
    async with running_server() as world:
        client = world.client(ALICE)
        await client.send("POST", PODS, pod())
        form = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
        _, shown = await client.send("GET", PODS, accept=form)
        assert [column["name"] for column in shown["columnDefinitions"]][:5] == [
            "Name", "Ready", "Status", "Restarts", "Age",
        ]  # fmt: skip
        assert shown["rows"][0]["cells"][:3] == ["nb", "0/1", "Pending"]
        assert shown["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
        form = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
        _, shown = await client.send("GET", PODS, accept=form)
        assert shown["kind"] == "PartialObjectMetadataList"
        assert "spec" not in shown["items"][0]


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/api/v1/nonsense", None, 404),
        ("GET", "/apis/nonsense.io/v1/things", None, 404),
        ("GET", f"{PODS}/none", None, 404),
        ("POST", f"{PODS}/nb", {}, 405),
        ("PUT", PODS, {}, 405),
        ("POST", PODS, b"{", 400),
        ("POST", PODS, b"[]", 400),
        ("POST", PODS, {"kind": "Job", "apiVersion": "batch/v1"}, 400),
        ("POST", PODS, {"metadata": {"name": "x", "namespace": "cv"}}, 400),
        ("POST", PODS, {"metadata": {"name": "X"}, "spec": {}}, 422),
        ("GET", f"{PODS}?limit=x", None, 400),
        ("GET", f"{PODS}?continue=x", None, 400),
        ("GET", f"{PODS}?labelSelector=a+b+c", None, 400),
        ("PATCH", f"{PODS}/nb", {}, 415),
        ("POST", f"{PODS}?dryRun=Some", {}, 400),
        ("DELETE", f"{PODS}/nb", b"[1]", 400),
    ],
)
async def test_a_bad_request_gets_a_status_that_says_why(
    method: str, path: str, body: Obj | bytes | None, code: int
) -> None:
    async with running_server() as world:
        await world.api.create("pods", "nlp", pod(), user=ADMIN)
        found, status = await world.client().send(method, path, body)
        assert (found, status["kind"], status["status"]) == (code, "Status", "Failure")
        assert status["message"]


async def test_discovery_names_built_in_and_custom_kinds() -> None:
    async with running_server() as world:
        client = world.client()
        _, core = await client.send("GET", "/api/v1")
        names = {resource["name"] for resource in core["resources"]}
        assert {"pods", "pods/binding", "pods/eviction", "pods/ephemeralcontainers"} <= names
        form = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        _, groups = await client.send("GET", "/apis", accept=form)
        assert groups["kind"] == "APIGroupDiscoveryList"
        assert {"apps", "batch"} <= {item["metadata"]["name"] for item in groups["items"]}
        _, version = await client.send("GET", "/version")
        assert version["gitVersion"].startswith("v1.34")


async def test_protobuf_bodies_of_typed_clients_are_read() -> None:
    def message(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    async with running_server() as world:
        meta = message(1, b"sent") + message(11, message(1, b"a") + message(2, b"b"))
        about = message(1, b"v1") + message(2, b"Namespace")
        body = b"k8s\x00" + message(1, about) + message(2, message(1, meta))
        kind = "application/vnd.kubernetes.protobuf"
        code, made = await world.client().send("POST", "/api/v1/namespaces", body, kind)
        assert code == 201
        assert made["metadata"]["labels"] == {"a": "b", "kubernetes.io/metadata.name": "sent"}
        code, _ = await world.client().send("POST", "/api/v1/namespaces", body[:-3], kind)
        assert code == 400


async def test_the_kubernetes_client_lists_watches_and_patches(tmp_path: Path) -> None:
    async with running_server() as world:
        path = tmp_path / "kubeconfig"
        world.server.write_kubeconfig(path, ADMIN)
        assert path.stat().st_mode & 0o777 == 0o600
        configuration = kubernetes.Configuration()
        await config.load_kube_config(str(path), client_configuration=configuration)
        async with kubernetes.ApiClient(configuration) as api:
            core = kubernetes.CoreV1Api(api)
            made = await core.create_namespaced_pod("nlp", cast(Any, pod()))
            assert made.status.phase == "Pending"
            listed = await core.list_namespaced_pod("nlp")
            assert [item.metadata.name for item in listed.items] == ["nb"]
            async with watch.Watch() as watching:
                stream = watching.stream(
                    core.list_namespaced_pod,
                    "nlp",
                    timeout_seconds=1,
                    resource_version=listed.metadata.resource_version,
                )
                await core.patch_namespaced_pod("nb", "nlp", {"metadata": {"labels": {"a": "b"}}})
                event = await anext(stream)
                assert event["type"] == "MODIFIED"


async def test_stopping_ends_open_watches_at_once() -> None:
    async with running_server() as world, world.client().watch(f"{PODS}?watch=1"):
        async with asyncio.timeout(3):
            await world.server.stop()


async def test_a_taken_port_is_said_and_nothing_keeps_running() -> None:
    async with running_server() as world:
        port = int(world.server.url.rpartition(":")[2])
        other = ApiServer(world.api.store, world.api)
        with pytest.raises(OSError, match="address already in use"):
            await other.start(port=port)


async def test_a_client_without_the_ca_does_not_trust_the_server() -> None:
    async with running_server() as world:
        host, port = world.server.url.removeprefix("https://").split(":")
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection(host, int(port), ssl=ssl.create_default_context())


async def test_pods_find_the_ca_and_their_namespace_its_account() -> None:
    async with running_server() as world:
        ca = world.server.authority.pem.decode()
        for namespace in ("default", "nlp"):
            found = world.api.get("configmaps", namespace, "kube-root-ca.crt")
            assert found["data"] == {"ca.crt": ca}
        await world.api.create("namespaces", "", {"metadata": {"name": "late"}}, user=ADMIN)
        assert world.api.get("configmaps", "late", "kube-root-ca.crt")["data"] == {"ca.crt": ca}
        assert world.api.get("serviceaccounts", "late", "default")


def test_users_have_the_form_that_reviews_carry() -> None:
    user = UserInfo("a", ("b",), "c", {"d": ("e",)})
    assert json.loads(encode(user.as_json())) == {
        "username": "a",
        "groups": ["b"],
        "uid": "c",
        "extra": {"d": ["e"]},
    }
