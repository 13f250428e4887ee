import pytest
from msgspec import convert

from fairslice.classify import ClassError, classify, owner_kinds
from fairslice.kube.objects import ObjectMeta
from fairslice.teams import TeamConflict, TeamIndex

from .clusters import policy, team

POLICY = policy(
    classes=[
        {"name": "production", "priorityClassName": "fairslice-production"},
        {
            "name": "experiment",
            "priorityClassName": "fairslice-experiment",
            "match": [
                {"podLabels": {"component": "singleuser-server"}},
                {"ownerKinds": ["Notebook"], "namespaces": ["lab"]},
                {},
            ],
        },
        {"name": "training"},
    ]
)


def test_a_namespace_is_found_by_name_or_by_label() -> None:
    index = TeamIndex.build(
        [team("nlp", namespaces=["nlp", "later"]), team("cv", namespaceSelector={"team": "cv"})],
        {"nlp": {}, "vision": {"team": "cv"}, "other": {"team": "x"}},
    )
    names = [index.of(name) for name in ("nlp", "later", "vision", "other")]
    assert [found.name if found else None for found in names] == ["nlp", "nlp", "cv", None]
    assert index.conflicts == ()
    assert index.namespaces_of("nlp") == ("later", "nlp")
    assert index.named("cv") is index.of("vision")


def test_a_contested_namespace_goes_to_the_first_team_by_name_and_is_reported() -> None:
    teams = [team("b", namespaces=["x"]), team("a", namespaceSelector={"k": "v"})]
    index = TeamIndex.build(teams, {"x": {"k": "v"}})
    found = index.of("x")
    assert found is not None
    assert found.name == "a"
    assert index.conflicts == (TeamConflict("x", "a", ("b",)),)


def test_a_team_without_names_and_selector_has_no_namespace() -> None:
    assert TeamIndex.build([team("empty")], {"x": {}}).of("x") is None


def _class(**fields: object) -> tuple[str | None, str]:
    arguments = {"namespace": "lab", "labels": None, **fields}
    who = arguments.pop("team", team("nlp", allowedClasses=["experiment", "training"]))
    found = classify(POLICY, who, **arguments)  # type: ignore[arg-type]
    return (found.work_class.name if found.work_class else None), found.source


def test_the_label_comes_first_then_priority_then_rules_then_defaults() -> None:
    defaults = team(
        "nlp",
        allowedClasses=["experiment", "training"],
        defaultClass="training",
        namespaceClasses={"lab": "experiment"},
    )
    labels = {"fairslice.io/class": "training", "component": "singleuser-server"}
    assert _class(labels=labels, priority_class="fairslice-experiment")[0] == "training"
    assert _class(priority_class="fairslice-experiment") == (
        "experiment",
        "priorityClassName fairslice-experiment",
    )
    assert _class(labels={"component": "singleuser-server"})[0] == "experiment"
    assert _class(owner_kinds=("StatefulSet", "Notebook"))[0] == "experiment"
    assert _class(team=defaults) == ("experiment", "default of namespace lab")
    assert _class(team=defaults, namespace="elsewhere") == ("training", "default of team nlp")
    assert _class() == (None, "unclassified")
    assert _class(namespace="elsewhere", owner_kinds=("Notebook",))[0] is None


def test_an_ungranted_or_unknown_class_is_refused_with_the_granted_ones() -> None:
    with pytest.raises(
        ClassError, match="not granted to team nlp: use one of experiment, training"
    ):
        _class(labels={"fairslice.io/class": "production"})
    with pytest.raises(ClassError, match="not granted"):
        _class(priority_class="fairslice-production")
    with pytest.raises(ClassError, match="does not exist"):
        _class(labels={"fairslice.io/class": "prod"})


def test_a_rule_for_an_ungranted_class_is_passed_over() -> None:
    strict = team("nlp", allowedClasses=["training"])
    assert _class(team=strict, labels={"component": "singleuser-server"})[0] is None


def test_without_a_team_there_are_no_classes() -> None:
    assert _class(team=None, labels={"fairslice.io/class": "training"})[0] is None


def test_owner_kinds_are_read_from_owners_and_from_their_controllers_labels() -> None:
    metadata = convert(
        {
            "ownerReferences": [{"kind": "StatefulSet", "name": "nb"}],
            "labels": {"notebook-name": "nb"},
        },
        ObjectMeta,
    )
    assert owner_kinds(metadata) == ("StatefulSet", "Notebook")
    assert owner_kinds(ObjectMeta()) == ()
