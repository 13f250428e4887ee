"""What is kept of an object says all that decisions ask of it, and costs as little as it can."""

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairslice import stamps
from fairslice.kube.objects import Pod
from fairslice.placement import pod_needs
from fairslice.pod_groups import group_of
from fairslice.requests import read_pod
from fairslice_queue.fact_reading import FactReader
from fairslice_queue.facts import PodFacts, WorkloadFacts
from fairslice_queue.lean_objects import LeanJob, LeanPod

SHARED = Path(os.environ.get("FAIRSLICE_SHARED", Path(__file__).parents[3] / "shared"))
GPU = "nvidia.com/gpu"
Obj = dict[str, Any]


def job(name: str = "train", gpus: int = 1, **metadata: Any) -> Obj:
    amounts = {GPU: str(gpus), "cpu": "4"}
    container = {"name": "main", "image": "a", "resources": {"limits": amounts}}
    base = {
        "name": name,
        "namespace": "nlp",
        "uid": name,
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {stamps.STATE: "queued", "team-tool": name},
        "annotations": {stamps.BOOKING: name, stamps.USER: "ada", "tool/run": name},
    }
    template = {"metadata": {"labels": {"job-name": name}}, "spec": {"containers": [container]}}
    return {"metadata": {**base, **metadata}, "spec": {"suspend": True, "template": template}}


def read(reader: FactReader, obj: Obj) -> WorkloadFacts:
    return reader.job(msgspec.convert(obj, LeanJob))


def pod(**fields: Any) -> Obj:
    container = {"name": "main", "resources": {"limits": {GPU: "1", "cpu": "2"}}}
    meta = {"name": "p", "namespace": "nlp", "uid": "p", "annotations": {stamps.BOOKING: "b"}}
    obj: Obj = {"metadata": meta, "spec": {"containers": [container]}, "status": {}}
    for path, value in fields.items():
        at, _, key = path.partition("_")
        obj[at] = {**obj[at], key: value}
    return obj


def read_a_pod(obj: Obj, reader: FactReader | None = None) -> PodFacts:
    return (reader or FactReader()).pod(msgspec.convert(obj, LeanPod))


@pytest.mark.parametrize(
    "change",
    [
        lambda obj: obj["metadata"].update(resourceVersion="2", managedFields=[{}]),
        lambda obj: obj["metadata"]["annotations"].update({"tool/progress": "3 of 10"}),
        lambda obj: obj["metadata"]["labels"].update({"team-tool": "again"}),
        lambda obj: obj["spec"]["template"]["spec"]["containers"][0].update(image="b", env=[]),
        lambda obj: obj.update(status={"active": 1, "ready": 1}),
    ],
)
def test_what_nobody_decides_by_is_no_change(change: Any) -> None:
    reader, obj = FactReader(), job()
    before = read(reader, deepcopy(obj))
    change(obj)
    assert read(reader, obj) == before


def test_our_own_line_on_an_object_is_no_news() -> None:
    reader, obj = FactReader(), job()
    before = read(reader, deepcopy(obj))
    obj["metadata"]["annotations"][stamps.STATUS] = "Queued: 3rd of 9"
    told = read(reader, deepcopy(obj))
    assert told.annotations[stamps.STATUS] == "Queued: 3rd of 9"
    assert before.quietly_became(told)
    obj["metadata"]["annotations"][stamps.ORDER] = "5"
    assert not told.quietly_became(read(reader, obj))


def test_like_jobs_share_all_but_their_names() -> None:
    reader = FactReader()
    one, other = read(reader, job("a")), read(reader, job("b"))
    assert one.spec is other.spec
    assert one.needs is other.needs
    assert one.labels is other.labels
    assert one.annotations is other.annotations
    assert one.template is other.template
    assert one.booking != other.booking


def test_unlike_jobs_share_nothing_that_differs() -> None:
    reader = FactReader()
    assert read(reader, job("a")).spec != read(reader, job("b", gpus=2)).spec


def test_labels_that_the_policy_goes_by_are_kept() -> None:
    reader = FactReader()
    assert "team-tool" not in read(reader, job()).labels
    reader.keep_labels(("team-tool", "job-name"))
    facts = read(reader, job())
    assert facts.labels == {stamps.STATE: "queued", "team-tool": "train"}
    assert facts.template.labels == {"job-name": "train"}


def test_the_place_in_line_is_since_the_stamp_or_else_since_it_was_made() -> None:
    made = read(FactReader(), job())
    assert made.queued_at == made.created > 0
    notes = {stamps.BOOKING: "a", stamps.QUEUED_AT: "2025-01-01T00:00:00Z"}
    assert read(FactReader(), job(annotations=notes)).queued_at < made.created
    notes[stamps.QUEUED_AT] = "long ago"
    assert read(FactReader(), job(annotations=notes)).queued_at == made.created


def test_the_schedulers_words_are_no_news_but_that_it_found_no_node_is() -> None:
    def unschedulable(text: str) -> PodFacts:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        return read_a_pod(pod(status_conditions=[{**condition, "message": text}]))

    assert unschedulable("0/3 nodes").quietly_became(unschedulable("0/4 nodes"))
    assert not read_a_pod(pod()).quietly_became(unschedulable("0/4 nodes"))


def test_of_a_pod_without_gpus_only_what_it_takes_of_its_node_is_kept() -> None:
    obj = pod(spec_containers=[{"resources": {"requests": {"cpu": "2"}}}], spec_nodeName="n1")
    obj["metadata"] = {"name": "web", "namespace": "shop", "uid": "u", "labels": {"app": "web"}}
    facts = read_a_pod(obj)
    assert (facts.key, facts.node, facts.needs.cpu_milli) == ("shop/web", "n1", 2000)
    assert not facts.asks_gpus
    obj["status"] = {"startTime": "2026-01-01T00:00:00Z", "containerStatuses": [{}]}
    assert read_a_pod(obj) == facts


@pytest.mark.parametrize(
    "labels", [{"dag_id": "x"}, {"component": "singleuser-server"}, {"tekton.dev/taskRun": "x"}]
)
def test_pods_of_tools_that_make_them_again_are_known(labels: Obj) -> None:
    assert read_a_pod(pod(metadata_labels=labels)).recreated
    assert not read_a_pod(pod(metadata_labels={"app": "x"})).recreated


def test_recorded_pods_ask_and_need_the_same_as_when_read_whole() -> None:
    folder = SHARED / "fixtures" / "admission"
    if not folder.is_dir():
        pytest.skip("no recorded requests here")
    seen = 0
    for path in sorted(folder.glob("*.json")):
        request = msgspec.json.decode(path.read_bytes())["request"]
        obj = request.get("object") or {}
        if request["kind"]["kind"] != "Pod" or "containers" not in obj.get("spec", {}):
            continue
        whole = msgspec.convert(obj, Pod)
        facts = read_a_pod(obj)
        ask = read_pod(whole.spec, whole.metadata.annotations, fractions=True)
        if not ask.is_gpu and not facts.booking:
            assert not facts.asks_gpus
            continue
        seen += 1
        kept = read_pod(facts.spec, facts.annotations, fractions=True)
        assert (kept.units, kept.memory) == (ask.units, ask.memory)
        assert facts.needs == pod_needs(whole.spec)
        assert facts.booked_group == group_of(whole.metadata)
    assert seen


def recorded(word: str) -> list[Obj]:
    path = SHARED / "fixtures" / "watch" / f"preemption-{word}.jsonl"
    if not path.is_file():
        pytest.skip("no recorded watch here")
    events = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    return [event["object"] for event in events if event["type"] != "BOOKMARK"]


def test_a_recorded_preemption_is_told_by_few_of_its_events() -> None:
    reader, known, changes, disrupted = FactReader(), dict[str, PodFacts](), 0, set[str]()
    objects = recorded("pods")
    for obj in objects:
        # The pods of this record are of before the install: as if they had been booked.
        obj["metadata"].setdefault("annotations", {})[stamps.BOOKING] = obj["metadata"]["uid"]
        facts = read_a_pod(obj, reader)
        before = known.get(facts.key)
        changes += before is None or (before != facts and not before.quietly_became(facts))
        known[facts.key] = facts
        if facts.disruption:
            disrupted.add(facts.disruption)
    assert disrupted
    assert changes < len(objects)


def test_recorded_jobs_are_counted_to_their_end() -> None:
    reader = FactReader()
    seen = [reader.job(msgspec.convert(obj, LeanJob)) for obj in recorded("jobs")]
    by_name: dict[str, list[WorkloadFacts]] = {}
    for facts in seen:
        by_name.setdefault(facts.name, []).append(facts)
    for history in by_name.values():
        assert all(facts.needs is history[0].needs for facts in history)
        assert all(facts.desired == 0 for facts in history if facts.finished)
    assert any(facts.failed for facts in seen)
