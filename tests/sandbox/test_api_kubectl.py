"""kubectl works against the sandbox as against any cluster."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from fairslice_sandbox.users import ADMIN

from .api_world import ALICE, Obj, World, job, pod, running_server
from .test_api_custom_resources import crd

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")

NODE: Obj = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "gpu-1"},
    "status": {
        "capacity": {"cpu": 64, "nvidia.com/gpu": 8},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


@dataclass
class Kubectl:
    """Runs kubectl as somebody."""

    world: World
    home: Path

    async def __call__(self, *arguments: str, feed: Obj | None = None, user: str = "admin") -> str:
        """Run it: what it prints. Fails the test unless it exits with 0."""
        code, output, errors = await self.run(*arguments, feed=feed, user=user)
        assert code == 0, errors
        return output

    async def run(
        self, *arguments: str, feed: Obj | None = None, user: str = "admin"
    ) -> tuple[int, str, str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "KUBECONFIG": str(self.home / user),
        }
        process = await asyncio.create_subprocess_exec(
            "kubectl", *arguments, env=environment, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        data = json.dumps(feed).encode() if feed is not None else None
        async with asyncio.timeout(30):
            output, errors = await process.communicate(data)
        assert process.returncode is not None
        return process.returncode, output.decode(), errors.decode()


@pytest_asyncio.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    async with running_server() as world:
        world.server.write_kubeconfig(tmp_path / "admin", ADMIN, "nlp")
        world.server.write_kubeconfig(tmp_path / "alice", ALICE, "nlp")
        yield Kubectl(world, tmp_path)


def typed(api_version: str, kind: str, body: Obj) -> Obj:
    return {"apiVersion": api_version, "kind": kind, **body}


async def test_apply_creates_changes_and_sees_when_nothing_changed(kubectl: Kubectl) -> None:
    body = typed("batch/v1", "Job", job(suspend=True))
    assert await kubectl("apply", "-f", "-", feed=body) == "job.batch/train created\n"
    assert await kubectl("apply", "-f", "-", feed=body) == "job.batch/train unchanged\n"
    body["spec"]["parallelism"] = 2
    assert await kubectl("apply", "-f", "-", feed=body) == "job.batch/train configured\n"
    shown = json.loads(await kubectl("get", "job", "train", "-o", "json"))
    assert shown["spec"]["parallelism"] == 2
    assert "Parallelism:      2" in await kubectl("describe", "job", "train")


async def test_a_misspelt_field_is_refused(kubectl: Kubectl) -> None:
    body = typed("batch/v1", "Job", job(paralelism=2))
    code, _, errors = await kubectl.run("apply", "-f", "-", feed=body)
    assert code == 1
    assert 'unknown field "spec.paralelism"' in errors


async def test_run_get_describe_label_annotate_patch_and_delete(kubectl: Kubectl) -> None:
    await kubectl("run", "nb", "--image=x", "--labels=a=b", user="alice")
    await kubectl("label", "pod", "nb", "team=nlp", user="alice")
    await kubectl("annotate", "pod", "nb", "note=x", user="alice")
    await kubectl("patch", "pod", "nb", "-p", '{"metadata":{"labels":{"s":"1"}}}')
    await kubectl("patch", "pod", "nb", "--type=merge", "-p", '{"metadata":{"labels":{"a":null}}}')
    operation = '[{"op":"add","path":"/metadata/labels/j","value":"1"}]'
    await kubectl("patch", "pod", "nb", "--type=json", "-p", operation)
    wide = await kubectl("get", "pods", "-o", "wide", "--show-labels")
    assert "NOMINATED NODE" in wide
    assert "j=1,s=1,team=nlp" in wide
    assert "Service Account:  default" in await kubectl("describe", "pod", "nb")
    gone = await kubectl("delete", "pod", "nb", "--wait")
    assert gone.startswith('pod "nb" deleted')  # newer ones add the namespace


async def test_typed_commands_send_protobuf_and_are_understood(kubectl: Kubectl) -> None:
    await kubectl("create", "namespace", "cv")
    await kubectl("create", "deployment", "web", "--image=x", "--replicas=2", user="alice")
    await kubectl("scale", "deployment", "web", "--replicas=3", user="alice")
    assert "0/3" in await kubectl("get", "deployments")
    await kubectl("create", "cronjob", "c", "--image=x", "--schedule=*/5 * * * *")
    await kubectl("create", "job", "--from=cronjob/c", "manual")
    await kubectl("create", "secret", "generic", "s", "--from-literal=a=b")
    data = await kubectl("get", "secret", "s", "-o", "jsonpath={.data.a}")
    assert data == "Yg=="
    assert (await kubectl("create", "token", "default")).count(".") == 2


async def test_who_may_do_what(kubectl: Kubectl) -> None:
    assert await kubectl("auth", "can-i", "create", "pods", user="alice") == "yes\n"
    code, output, _ = await kubectl.run("auth", "can-i", "create", "nodes", user="alice")
    assert (code, output) == (1, "no\n")
    assert "alice" in await kubectl("auth", "whoami", user="alice")


async def test_custom_resources_have_columns_short_names_and_server_side_apply(
    kubectl: Kubectl,
) -> None:
    body = typed("apiextensions.k8s.io/v1", "CustomResourceDefinition", crd())
    columns = [{"name": "Weight", "type": "integer", "jsonPath": ".spec.weight"}]
    body["spec"]["versions"][0]["additionalPrinterColumns"] = columns
    await kubectl("apply", "-f", "-", feed=body)
    await kubectl("wait", "--for=condition=established", "crd/teams.fairslice.io")
    named = {"metadata": {"name": "nlp"}, "spec": {"namespaces": ["nlp"], "weight": 2}}
    team = typed("fairslice.io/v1alpha1", "Team", named)
    await kubectl("apply", "-f", "-", feed=team)
    assert (await kubectl("get", "tm")).split() == ["NAME", "WEIGHT", "nlp", "2"]
    assert "Weight:  2" in await kubectl("describe", "team", "nlp")
    # From client-side to server-side apply, which takes the ownership over.
    team["spec"]["weight"] = 2
    await kubectl("apply", "--server-side", "-f", "-", feed=team)
    team["spec"]["weight"] = 3
    await kubectl("apply", "--server-side", "-f", "-", feed=team)
    code, _, errors = await kubectl.run(
        "apply", "--server-side", "--field-manager=other", "-f", "-",
        feed={**team, "spec": {**team["spec"], "weight": 4}},
    )  # fmt: skip
    assert code == 1
    assert 'conflict with "kubectl"' in errors
    code, _, errors = await kubectl.run(
        "apply", "-f", "-", feed={**team, "spec": {"namespaces": ["NLP"], "weight": 0}}
    )
    assert 'The Team "nlp" is invalid' in errors
    assert "* spec.weight: Invalid value: 0" in errors
    status = '{"status":{"used":"1"}}'
    await kubectl("patch", "team", "nlp", "--subresource=status", "--type=merge", "-p", status)
    assert await kubectl("get", "team", "nlp", "-o", "jsonpath={.status.used}") == "1"


async def test_nodes_are_described_cordoned_and_drained(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", feed=NODE)
    binding = {"target": {"name": "gpu-1"}}
    api = kubectl.world.api
    await api.create("pods", "nlp", pod(gpus=1), user=ALICE)
    await api.create_subresource("pods", "nlp", "nb", "binding", binding, user=ADMIN)
    described = await kubectl("describe", "node", "gpu-1")
    assert "nvidia.com/gpu     1         1" in described
    await kubectl("cordon", "gpu-1")
    assert "SchedulingDisabled" in await kubectl("get", "nodes")
    drained = asyncio.create_task(kubectl("drain", "gpu-1", "--force", "--timeout=10s"))
    async with asyncio.timeout(10):
        with api.subscribe("pods") as events:
            async for event in events:
                if event.object["metadata"].get("deletionTimestamp"):
                    break
        await api.delete("pods", "nlp", "nb", user=ADMIN, grace_seconds=0)
        assert "drained" in await drained


async def test_a_debug_container_joins_a_pod(kubectl: Kubectl) -> None:
    await kubectl("run", "nb", "--image=x")
    await kubectl("debug", "nb", "--image=busybox", "--target=nb", "-c", "dbg", "--attach=false")
    path = "jsonpath={.spec.ephemeralContainers[0].name}"
    assert await kubectl("get", "pod", "nb", "-o", path) == "dbg"


async def test_get_watches_until_told_to_stop(kubectl: Kubectl) -> None:
    watching = asyncio.create_task(
        kubectl.run("get", "pods", "-w", "-o", "name", "--request-timeout=3s")
    )
    await asyncio.sleep(1)
    await kubectl.world.api.create("pods", "nlp", pod("late"), user=ALICE)
    _, output, _ = await watching
    assert "pod/late" in output
