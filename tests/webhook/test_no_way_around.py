"""What an ordinary user tries, to get past queue and quota."""

from copy import deepcopy

from .conftest import MakeCluster
from .scene import (
    GPU,
    QUEUE,
    RS_CONTROLLER,
    SLICE_10,
    container,
    notebook,
    pod,
    replica,
    team,
    view,
)

BOOKING = "system.fairslice.io/booking"
ASSIGNMENT = "system.fairslice.io/assignment"
TRAINING = {"fairslice.io/class": "training"}


def one_gpu() -> object:
    return view(teams=(team(pools=[{"pool": "a100", "limit": "1"}]),))


async def test_taking_the_gate_off_is_refused_to_all_but_the_queue(cluster: MakeCluster) -> None:
    place = await cluster(one_gpu())
    await place.create(pod("first", labels=TRAINING))
    waiting = await place.create(pod("second", labels=TRAINING))
    freed = deepcopy(waiting.obj)
    freed["spec"]["schedulingGates"] = []
    refused = await place.update(freed, waiting.obj)
    assert not refused.allowed
    assert "fairslice.io/queued" in refused.message
    assert (await place.update(freed, waiting.obj, QUEUE)).patch == []


async def test_a_copied_manifest_gets_a_booking_of_its_own(cluster: MakeCluster) -> None:
    place = await cluster()
    first = await place.create(notebook("first"))
    copied = deepcopy(first.obj)
    copied["metadata"]["name"] = "copy"
    del copied["metadata"]["uid"]
    done = await place.create(copied)
    assert done.allowed
    assert done.annotations[BOOKING] != first.annotations[BOOKING]
    assert (await place.ledger.held("nlp")).pools == {"a100": 250}


async def test_a_forged_assignment_is_replaced_by_the_true_one(cluster: MakeCluster) -> None:
    place = await cluster(one_gpu())
    forged = notebook(
        annotations={
            BOOKING: "b" + "f" * 20,
            ASSIGNMENT: '{"booking":"b' + "f" * 20 + '","option":{"pool":"a100","product":"x",'
            '"mode":"mig","milli":1,"units":{"nvidia.com/gpu":1}}}',
            "system.fairslice.io/queued-at": "2001-01-01T00:00:00Z",
            "system.fairslice.io/user": "boss",
        },
        labels={"system.fairslice.io/state": "released", "system.fairslice.io/x": "y"},
    )
    done = await place.create(forged)
    assert done.limits() == {SLICE_10: "1"}
    assert '"milli":125' in done.annotations[ASSIGNMENT]
    assert done.annotations["system.fairslice.io/user"] == "alice"
    assert "system.fairslice.io/x" not in done.labels
    assert "system.fairslice.io/queued-at" not in done.annotations
    assert (await place.ledger.held("nlp")).users == {"alice": 125}


async def test_one_forged_stamp_on_many_pods_books_each(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "0.5"}]),)))
    outcomes = []
    for suffix in "abc":
        made = replica(suffix)
        made["metadata"]["annotations"] = {BOOKING: "b" + "e" * 20}
        outcomes.append((await place.create(made, RS_CONTROLLER)).gated)
    assert outcomes == [False, False, True]
    assert (await place.ledger.held("nlp")).pools == {"a100": 500}


async def test_a_bigger_request_under_a_fresh_stamp_is_refused(cluster: MakeCluster) -> None:
    place = await cluster()
    first = await place.mutate(notebook("nb"))
    swollen = deepcopy(first.obj)
    swollen["spec"]["containers"][0]["resources"] = {
        "limits": {GPU: "4"},
        "requests": {GPU: "4"},
    }
    refused = await place.mutate(swollen)
    assert not refused.allowed


async def test_what_was_changed_after_admission_is_not_stored(cluster: MakeCluster) -> None:
    place = await cluster()
    done = await place.mutate(notebook("nb"))
    done.obj["metadata"]["uid"] = "u1"
    swollen = deepcopy(done.obj)
    swollen["spec"]["containers"][0]["resources"]["limits"] = {GPU: "1"}
    swollen["spec"]["containers"][0]["resources"]["requests"] = {GPU: "1"}
    refused = await place.validate(swollen)
    assert "changed after admission" in refused.message
    peeping = deepcopy(done.obj)
    peeping["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert "changed after admission" in (await place.validate(peeping)).message
    bare = deepcopy(done.obj)
    del bare["metadata"]["annotations"]
    assert not (await place.validate(bare)).allowed
    assert (await place.validate(done.obj)).allowed
    # The booking belongs to that one object now.
    done.obj["metadata"]["uid"] = "u2"
    assert not (await place.validate(done.obj)).allowed


async def test_a_gate_set_by_hand_is_no_place_in_line(cluster: MakeCluster) -> None:
    place = await cluster()
    gates = [{"name": "other/gate"}, {"name": "fairslice.io/queued"}]
    done = await place.create(notebook(schedulingGates=gates))
    assert done.spec["schedulingGates"] == [{"name": "other/gate"}]
    plain = await place.create(pod("plain", container(), schedulingGates=gates))
    assert plain.spec["schedulingGates"] == [{"name": "other/gate"}]


async def test_stamps_and_class_of_a_pod_are_put_back(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(notebook())
    changed = deepcopy(stored.obj)
    changed["metadata"]["annotations"].pop(BOOKING)
    changed["metadata"]["annotations"][ASSIGNMENT] = "{}"
    changed["metadata"]["labels"]["fairslice.io/class"] = "production"
    changed["metadata"]["labels"]["mine"] = "yes"
    done = await place.update(changed, stored.obj)
    assert done.annotations == stored.annotations
    assert done.labels == {**stored.labels, "mine": "yes"}
    gone = deepcopy(stored.obj)
    del gone["metadata"]["annotations"]
    assert (await place.update(gone, stored.obj)).annotations == stored.annotations


async def test_an_ordinary_update_passes_as_it_is(cluster: MakeCluster) -> None:
    place = await cluster()
    stored = await place.create(notebook())
    changed = deepcopy(stored.obj)
    changed["metadata"]["finalizers"] = []
    changed["metadata"]["labels"]["a"] = "b"
    done = await place.update(changed, stored.obj)
    assert done.patch == []
    assert done.warnings == []


async def test_a_foreign_scheduler_does_not_skip_the_books(cluster: MakeCluster) -> None:
    place = await cluster(one_gpu())
    assert (await place.create(pod("a", schedulerName="mine"))).allowed
    assert not (await place.create(pod("b", schedulerName="mine"))).allowed


async def test_a_thousand_unfinished_requests_starve_nobody_for_long(cluster: MakeCluster) -> None:
    place = await cluster(view(teams=(team(pools=[{"pool": "a100", "limit": "4"}]),)))
    for number in range(30):
        await place.mutate(notebook(f"never-{number}"))
    place.now += 11
    assert (await place.create(pod("real", container(gpus=4)))).allowed
