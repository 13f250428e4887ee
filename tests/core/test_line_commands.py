"""`fairslice queue hold|resume|move|cancel`: ordinary writes with the caller's own rights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from .object_server import ObjectServer
from .scripted_server import status
from .test_cli_commands import kubeconfig, one_line, run, serving

JOB = "/apis/batch/v1/namespaces/nlp/jobs/train"
POD = "/api/v1/namespaces/nlp/pods/nb"
HOLD = "fairslice.io/hold"
ORDER = "fairslice.io/order"


def obj(name: str, **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "nlp", "uid": f"uid-{name}", **meta},
        "spec": {"suspend": True},
    }


@contextmanager
def cluster(tmp_path: Path, **job: Any) -> Iterator[tuple[ObjectServer, list[str]]]:
    server = ObjectServer()
    server.objects = {JOB: obj("train", **job), POD: obj("nb")}
    with serving(server.handle) as url:
        yield server, ["--kubeconfig", kubeconfig(tmp_path / "c", url), "-n", "nlp"]


def notes(server: ObjectServer, path: str = JOB) -> dict[str, str]:
    return server.objects[path]["metadata"].get("annotations") or {}


def test_work_is_held_and_resumed_by_annotation(tmp_path: Path) -> None:
    with cluster(tmp_path) as (server, at):
        done = run("queue", "hold", "train", *at)
        assert done.output == "Job nlp/train: held; what runs already goes on\n"
        assert notes(server) == {HOLD: "true"}
        assert run("queue", "resume", "job/train", *at).exit_code == 0
        assert notes(server) == {}
        assert server.objects[JOB]["spec"]["suspend"] is True  # it is the queue's to release


def test_what_its_user_suspended_is_resumed_too(tmp_path: Path) -> None:
    held = {"system.fairslice.io/state": "held"}
    with cluster(tmp_path, labels=held) as (server, at):
        run("queue", "resume", "train", *at)
        assert server.objects[JOB]["spec"]["suspend"] is False


def test_work_is_moved_and_moved_back(tmp_path: Path) -> None:
    with cluster(tmp_path) as (server, at):
        done = run("queue", "move", *at, "--", "train", "-3")
        assert "order -3 among its team's work" in done.output
        assert "it is not in line, and this counts when it is" in done.output
        assert notes(server) == {ORDER: "-3"}
        run("queue", "move", *at, "train", "0")
        assert notes(server) == {}


@pytest.mark.parametrize(
    ("verb", "key", "says"),
    [
        (["urgent"], "fairslice.io/urgent", "marked as urgent (told: anna)"),
        (["pin"], "fairslice.io/pin", "pinned, first of its team's line (told: anna)"),
        (["move"], ORDER, "order 4 among its team's work of the same class (told: anna)"),
    ],
)
def test_marks_are_written_and_the_queues_answer_is_shown(
    tmp_path: Path, verb: list[str], key: str, says: str
) -> None:
    server = ObjectServer()
    server.objects = {JOB: obj("train", labels={"system.fairslice.io/state": "queued"})}
    looks = 0

    async def handle(request: Any) -> Any:
        nonlocal looks
        looks += request.method == "GET"
        if looks == 3:  # the queue has seen it
            notes(server)["system.fairslice.io/marks"] = "told: anna"
        return await server.handle(request)

    with serving(handle) as url:
        at = ["--kubeconfig", kubeconfig(tmp_path / "c", url), "-n", "nlp"]
        order = ["4"] if verb == ["move"] else []
        done = run("queue", *verb, "train", *order, *at)
        assert says in done.output
        assert notes(server)[key] == (order or ["true"])[0]
        again = run("queue", *verb, "train", *order, *at)  # nothing is new, nothing to wait for
        assert says in again.output
        if verb == ["pin"]:
            assert "no longer pinned" in run("queue", "unpin", "train", *at).output
            assert key not in notes(server)


def test_a_queue_that_does_not_answer_is_not_waited_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairslice.line_control._ANSWER_SECONDS", 0.3)
    with cluster(tmp_path, labels={"system.fairslice.io/state": "queued"}) as (_, at):
        done = run("queue", "urgent", "train", *at)
    assert "the queue has not said yet whether that counts" in done.output


def test_pods_are_found_by_name_after_jobs_and_by_kind(tmp_path: Path) -> None:
    with cluster(tmp_path) as (server, at):
        run("queue", "hold", "nb", *at)
        assert notes(server, POD) == {HOLD: "true"}
        assert run("queue", "resume", "pods/nb", *at).exit_code == 0


def test_work_is_cancelled(tmp_path: Path) -> None:
    with cluster(tmp_path) as (server, at):
        assert run("queue", "cancel", "train", *at).output == "Job nlp/train: cancelled\n"
        assert JOB not in server.objects


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nothing", "there is no Job or Pod nothing in namespace nlp"),
        ("teapot/x", "'teapot' is none of the kinds that are queued"),
    ],
)
def test_what_is_not_there_is_one_line(tmp_path: Path, name: str, says: str) -> None:
    with cluster(tmp_path) as (_, at):
        assert says in one_line(run("queue", "hold", name, *at))


def test_whoever_may_not_patch_may_not_hold(tmp_path: Path) -> None:
    server = ObjectServer()
    server.objects = {JOB: obj("train")}
    deny = status(403, 'jobs.batch "train" is forbidden', "Forbidden")

    async def handle(request: Any) -> Any:
        return await (server.handle if request.method == "GET" else deny)(request)

    with serving(handle) as url:
        config = kubeconfig(tmp_path / "c", url)
        line = one_line(run("queue", "hold", "train", "-n", "nlp", "--kubeconfig", config))
    assert "forbidden" in line
    assert notes(server) == {}


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    with cluster(tmp_path) as (server, at):
        file = Path(at[1])
        config = yaml.safe_load(file.read_text())
        config["contexts"][0]["context"]["namespace"] = "nlp"
        file.write_text(yaml.safe_dump(config))
        assert run("queue", "hold", "train", *at[:2]).exit_code == 0
        assert notes(server) == {HOLD: "true"}
