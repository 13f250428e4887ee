"""Why one goes before another of its team: what the order goes by, in words."""

from typing import Any

import pytest

from fairslice.teams import TeamIndex
from fairslice_queue.order import Order, TeamKey
from fairslice_queue.precedence import why_before
from fairslice_queue.rights import Rights

from .plans import NOW, Scene, node, policy, team


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ({"work_class": "production"}, {"urgent": True}, "class that may pass everyone"),
        ({"urgent": True, "work_class": "batch"}, {"pinned": True}, "marked as urgent"),
        ({"pinned": True, "work_class": "batch"}, {"order": -9}, "pinned by the team's lead"),
        ({"pinned": True, "work_class": "batch"}, {"at": NOW - 9000}, "pinned by the team's lead"),
        ({"at": NOW - 9000, "work_class": "batch"}, {}, "longer than the queue's aging time"),
        ({"work_class": "batch"}, {"gpus": 3}, "within its team's guarantee"),
        ({}, {"work_class": "batch"}, "more important class"),
        ({"order": -1}, {}, "order that the team's lead gave"),
        ({"user": "bob"}, {"at": NOW - 500}, "holds less: 0 GPUs against 1"),
        ({"at": NOW - 140}, {}, "40 s longer"),
        ({}, {}, "the name decides"),
    ],
)
def test_the_first_difference_is_told(
    first: dict[str, Any], second: dict[str, Any], says: str
) -> None:
    scene = Scene(
        [team("cv", guaranteed=3)],
        [node()],
        policy=policy(aging="1h", withinTeam="FairByUser"),
    )
    scene.hold("runs", team="cv", user="ada")
    for name, given in (("a", first), ("b", second)):
        fields = dict(given)
        for mark, names in (("pinned", scene.pinned), ("urgent", scene.urgent)):
            if fields.pop(mark, False):
                names.add(name)
        scene.orders[name] = fields.pop("order", 0)
        scene.wait(name, team="cv", **{"at": NOW - 100, **fields})
    one, other = keys(scene)
    assert one < other
    assert says in why_before(one, other)


def keys(scene: Scene) -> list[TeamKey]:
    drawn, teams = scene.state(), TeamIndex.build(scene.teams, {})
    rights = Rights(teams, drawn.tally, NOW, scene.stops)
    order = Order(scene.policy, drawn.tally, lambda _: 0.0, NOW, rights)
    return [order.in_team(item) for item in drawn.waiting]
