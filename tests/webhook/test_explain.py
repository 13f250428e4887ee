"""`explain` tells what would happen, and does nothing."""

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from fairslice.settings import Address
from fairslice_webhook.explain import Explainer, ExplainRequest, Explanation
from fairslice_webhook.explain_endpoint import MAX_EXPLAIN_BYTES, ExplainEndpoint
from fairslice_webhook.server import HealthServer

from .conftest import MakeCluster
from .scene import (
    GPU,
    SLICE_10,
    SLICE_20,
    Cluster,
    a100_node,
    container,
    deployment,
    job,
    modes,
    no_figures,
    notebook,
    pod,
    policy,
    team,
    view,
)

TRAINING = {"fairslice.io/class": "training"}


async def told(place: Cluster, *objects: dict[str, Any], **who: Any) -> list[Explanation]:
    explainer = Explainer(place.ledger, clock=lambda: place.now)
    before = await place.ledger.snapshot()
    who = {"namespace": "nlp", "user": "alice", **who}
    found = await explainer.explain(ExplainRequest(objects=objects, **who), place.view)
    # Whatever is explained, the books stay as they were.
    assert (await place.ledger.snapshot()) == before
    return found


def small(limit: str = "1") -> Any:
    return view(teams=(team(pools=[{"pool": "a100", "limit": limit}]),))


async def test_a_notebook_is_told_its_class_options_caps_and_final_request(
    cluster: MakeCluster,
) -> None:
    (found,) = await told(await cluster(small()), notebook())
    assert (found.object, found.verdict) == ("Pod nlp/nb", "runs")
    assert (found.team, found.work_class) == ("nlp", "experiment")
    assert found.class_source == "label fairslice.io/class"
    assert [option.gpus for option in found.options] == ["0.125", "0.25", "1"]
    assert [option.free for option in found.options] == [7, 3, 4]
    assert [option.chosen for option in found.options] == [True, False, False]
    (cap,) = found.caps
    assert (cap.cap, cap.used, cap.limit, cap.asked) == ("limit a100", "0", "1", "0.125")
    (row,) = found.containers
    assert (row.asked, row.given) == ({GPU: "1"}, {SLICE_10: "1"})
    assert any("fairslice gives mig-1g.10gb" in text for text in found.warnings)
    assert "system.fairslice.io/booking" in found.stamps


async def test_what_is_told_is_what_then_happens(cluster: MakeCluster) -> None:
    place = await cluster(small("2"))
    for number, verdict in enumerate(["runs", "runs", "waits"]):
        body = pod(f"p{number}", labels=TRAINING)
        (found,) = await told(place, body)
        done = await place.create(body)
        assert found.verdict == verdict
        assert done.gated is (verdict == "waits")
    (found,) = await told(place, notebook())
    assert found.verdict == "refused"
    assert "2 of 2 GPUs in use" in found.why
    assert found.why == (await place.create(notebook())).message


async def test_room_that_is_taken_counts_as_much_as_caps(cluster: MakeCluster) -> None:
    place = await cluster(view(nodes=(a100_node(whole=1),)))
    await place.create(job("first"))
    (found,) = await told(place, job("second"))
    assert found.verdict == "waits"
    assert [option.free for option in found.options] == [0]
    # It has been bound, so that others wait behind it.
    await place.create(job("second"))
    (third,) = await told(place, job("third"))
    assert (third.verdict, third.ahead) == ("waits", 1)


async def test_a_job_is_told_what_its_pods_would_ask_for(cluster: MakeCluster) -> None:
    body = job(pods=3, metadata={"labels": {"fairslice.io/class": "production"}})
    (found,) = await told(await cluster(), body)
    assert (found.verdict, found.pods) == ("runs", 3)
    assert found.containers[0].given == {SLICE_20: "1"}
    assert found.stamps["system.fairslice.io/state"] == "released"


async def test_more_than_can_ever_be_is_refused(cluster: MakeCluster) -> None:
    (found,) = await told(await cluster(), job(pods=9))
    assert found.verdict == "refused"
    assert "at most 4 of 9 pods" in found.why


async def test_a_deployment_is_told_by_its_pods_and_their_number(cluster: MakeCluster) -> None:
    place = await cluster(small("0.5"))
    few, many = await told(place, deployment(2), deployment(5))
    assert (few.object, few.verdict, few.pods) == ("Deployment nlp/serve", "runs", 2)
    assert few.containers[0].given == {SLICE_20: "1"}
    assert (many.verdict, many.pods) == ("waits", 5)
    assert "2 of 5 replicas" in many.why


@pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "ReplicaSet"])
async def test_others_with_a_template_are_told_by_their_pods(
    cluster: MakeCluster, kind: str
) -> None:
    body = {**deployment(1), "kind": kind}
    (found,) = await told(await cluster(), body)
    assert found.verdict == "runs"
    assert found.containers[0].given == {SLICE_20: "1"}


async def test_a_cron_job_a_notebook_and_a_list_are_told_by_what_they_make(
    cluster: MakeCluster,
) -> None:
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly", "namespace": "nlp"},
        "spec": {"jobTemplate": {"metadata": job()["metadata"], "spec": job(pods=2)["spec"]}},
    }
    kubeflow = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "Notebook",
        "metadata": {"name": "mine", "namespace": "nlp"},
        "spec": {"template": {"spec": {"containers": [container(gpus=1)]}}},
    }
    rules = policy(
        classes=[{"name": "experiment", "modes": ["mig"], "match": [{"ownerKinds": ["Notebook"]}]},
                 {"name": "training"}]
    )  # fmt: skip
    both = {"apiVersion": "v1", "kind": "List", "items": [cron, kubeflow]}
    place = await cluster(view(rules))
    first, second = await told(place, both)
    assert (first.object, first.verdict, first.pods) == ("CronJob nlp/nightly", "runs", 2)
    assert second.work_class == "experiment"
    assert "match rule" in second.class_source
    assert second.containers[0].given == {SLICE_10: "1"}


async def test_denials_are_told_word_for_word(cluster: MakeCluster) -> None:
    place = await cluster()
    privileged = pod("p", container(securityContext={"privileged": True}))
    foreign = pod("q", labels={"fairslice.io/class": "nonsense"})
    for body in (privileged, foreign, pod("r", container(gpus="0.5"))):
        (found,) = await told(place, body)
        assert found.verdict == "refused"
        assert found.why == (await place.mutate(body)).message


async def test_what_is_not_counted_is_said_so(cluster: MakeCluster) -> None:
    place = await cluster()
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {}}
    plain, other, elsewhere = await told(
        place, pod("p", container()), service, pod("e", namespace="elsewhere")
    )
    assert "no GPU" in plain.why
    assert (other.object, other.verdict) == ("Service nlp/s", "runs")
    assert "belongs to no team" in elsewhere.why
    assert {found.verdict for found in (plain, other, elsewhere)} == {"runs"}


async def test_audit_is_told_as_audit(cluster: MakeCluster) -> None:
    place = await cluster(
        view(policy(modes("Audit")), (team(pools=[{"pool": "a100", "limit": "0.1"}]),))
    )
    (found,) = await told(place, notebook())
    assert found.verdict == "runs"
    assert any(text.startswith("[audit]") for text in found.warnings)


async def test_nothing_is_told_of_other_teams(cluster: MakeCluster) -> None:
    cv = team("cv", pools=[{"pool": "a100", "limit": "3"}])
    place = await cluster(view(teams=(team(), cv)))
    await place.create(pod("secret", container(gpus=2), namespace="cv", labels=TRAINING), "bob")
    (found,) = await told(place, job())
    text = json.dumps(
        found, default=lambda item: {k: getattr(item, k) for k in item.__struct_fields__}
    )
    assert "cv" not in text
    assert "bob" not in text


@pytest_asyncio.fixture
async def served(cluster: MakeCluster) -> AsyncIterator[tuple[Cluster, str]]:
    place = await cluster(small("0.5"))
    endpoint = ExplainEndpoint(Explainer(place.ledger), lambda: place.view)
    health = HealthServer(list, no_figures, place.metrics, explain=endpoint.handle)
    address = await health.start(Address("127.0.0.1", 0))
    try:
        yield place, f"http://{address}"
    finally:
        await health.stop()


async def run(url: str, tmp_path: Path, *objects: Any, output: str = "text") -> tuple[int, str]:
    file = tmp_path / "m.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", "from fairslice.cli import main; main()",
        "explain", "-f", str(file), "-n", "nlp", "--user", "alice", "--webhook-url", url,
        "-o", output,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_the_command_tells_and_ends_with_the_worst_verdict(
    served: tuple[Cluster, str], tmp_path: Path
) -> None:
    _, url = served
    code, said = await run(url, tmp_path, notebook(), deployment(2))
    assert code == 0, said
    assert "Pod nlp/nb: runs" in said
    assert "main: nvidia.com/gpu: 1 → nvidia.com/mig-1g.10gb: 1" in said
    code, said = await run(url, tmp_path, notebook(), deployment(5))
    assert (code, "Deployment nlp/serve: waits" in said) == (3, True)
    code, said = await run(url, tmp_path, deployment(5), job(pods=9), output="json")
    assert code == 1
    assert [item["verdict"] for item in json.loads(said)] == ["waits", "refused"]
    code, said = await run("http://127.0.0.1:9", tmp_path, notebook())
    assert (code, "--webhook-url" in said) == (1, True)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b'{"objects": [7]}', 400),
        (b'{"objects": [{"kind": "Pod"}]}', 400),
        (b'{"objects": [{"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": 3}]}', 400),
        (json.dumps({"objects": [{"kind": "X"}] * 101}).encode(), 400),
        (b" " * (MAX_EXPLAIN_BYTES + 1), 413),
        (b'{"objects": []}', 200),
    ],
)
async def test_the_endpoint_says_what_is_wrong_with_a_body(
    served: tuple[Cluster, str], body: bytes, status: int
) -> None:
    _, url = served
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/explain", data=io.BytesIO(body)) as response,
    ):
        answer = await response.json()
        assert response.status == status
        assert ("error" in answer) == (status != 200)
