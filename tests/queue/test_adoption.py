"""Bookings made from what is seen: like objects are read once, each in its own team's right."""

import msgspec

from fairslice import stamps
from fairslice.booking import Booking, State
from fairslice.inventory import Inventory
from fairslice.kube.objects import Node
from fairslice.teams import TeamIndex
from fairslice_queue.adoption import Adopter
from fairslice_queue.fact_reading import FactReader
from fairslice_queue.lean_objects import LeanJob

from .plans import GPU, NOW, policy, team


def adopter() -> Adopter:
    amounts = {"cpu": "32", "memory": "64Gi", "pods": "110", GPU: "8"}
    node = {
        "metadata": {"name": "n1", "labels": {"nvidia.com/gpu.product": "A100"}},
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]},
    }
    rules = policy()
    inventory = Inventory.build([msgspec.convert(node, Node)], rules)
    (pool,) = {offer.pool for offer in inventory.offers}
    may = team("cv", allowedClasses=["training"], pools=[{"pool": pool, "limit": "8"}])
    may_not = team("nlp", allowedClasses=["training"], pools=[{"pool": pool, "limit": "0"}])
    return Adopter(rules, TeamIndex.build([may, may_not], {}), inventory, lambda: "new")


def adopt(adopter: Adopter, reader: FactReader, namespace: str, gpus: int = 1) -> Booking:
    container = {"resources": {"limits": {GPU: str(gpus)}}}
    job = {
        "metadata": {
            "name": "a",
            "namespace": namespace,
            "uid": namespace,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {stamps.CLASS: "training"},
            "annotations": {stamps.BOOKING: f"b-{namespace}", stamps.USER: "ada"},
        },
        "spec": {"suspend": True, "template": {"spec": {"containers": [container]}}},
    }
    found = adopter.workload(reader.job(msgspec.convert(job, LeanJob)), (), NOW)
    assert found is not None
    return found


def test_like_work_of_two_teams_may_have_what_each_team_may() -> None:
    made, reader = adopter(), FactReader()
    one, other = adopt(made, reader, "cv"), adopt(made, reader, "nlp")
    assert [option.units for option in one.options] == [{GPU: 1}]
    assert other.options == ()
    assert (one.team, other.team) == ("cv", "nlp")
    assert one.state is other.state is State.QUEUED


def test_like_work_of_a_team_shares_its_options_and_unlike_work_does_not() -> None:
    made, reader = adopter(), FactReader()
    one, like, unlike = (adopt(made, reader, "cv", gpus) for gpus in (1, 1, 2))
    assert one.options is like.options
    assert [option.units for option in unlike.options] == [{GPU: 2}]
