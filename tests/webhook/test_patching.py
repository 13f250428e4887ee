"""Patches that the API server would take."""

import json
from typing import Any

import jsonpatch
import jsonpointer
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairslice_webhook.patching import (
    InapplicablePatch,
    Op,
    add,
    apply,
    escape,
    map_ops,
    remove,
    remove_items,
    try_out,
)

keys = st.sampled_from(["a", "a/b", "a~b", "~1", "x.io/y~/z"])
maps = st.dictionaries(keys, st.text(max_size=3), max_size=5)


@given(st.none() | maps, st.dictionaries(keys, st.none() | st.text(max_size=3), max_size=5))
def test_a_map_is_brought_to_what_is_wanted(
    current: dict[str, str] | None, wanted: dict[str, str | None]
) -> None:
    for document in [{"m": None}, {}] if current is None else [{"m": current}]:
        ops = map_ops("/m", current, wanted)
        done = apply(ops, msgspec.json.encode(document))
        after = done.get("m") or {}
        assert {key: after.get(key) for key in wanted} == wanted
        kept = {key: value for key, value in (current or {}).items() if key not in wanted}
        assert {key: value for key, value in after.items() if key not in wanted} == kept
        assert map_ops("/m", done.get("m"), wanted) == ()


@given(st.lists(st.integers(), max_size=8), st.data())
def test_items_are_removed_by_their_first_index(items: list[int], data: st.DataObject) -> None:
    gone = data.draw(st.sets(st.integers(0, len(items) - 1)) if items else st.just(set()))
    done = apply(remove_items("/l", gone), msgspec.json.encode({"l": items}))
    assert done["l"] == [item for index, item in enumerate(items) if index not in gone]


@pytest.mark.parametrize(
    "ops",
    [
        [remove("/spec/priority")],
        [add("/spec/env/-", 1)],
        [add("/a/b/c", 1)],
        [add("/l/x", 1)],
        [add("/l/9", 1)],
        [Op("replace", "/missing", 1)],
        [add("nowhere", 1)],
        [Op("test", "/n", 2)],
    ],
)
def test_a_patch_that_does_not_apply_is_found_out(ops: list[Op]) -> None:
    document: dict[str, Any] = {"spec": {"env": None}, "l": [], "n": 1}
    with pytest.raises(InapplicablePatch):
        apply(ops, msgspec.json.encode(document))


# Against the library that knows all of RFC 6902.

names = st.sampled_from(["a", "b", "a/b", "m~n", "0", "1", "-"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)


@st.composite
def patches(draw: st.DrawFn) -> tuple[Any, list[Op]]:
    """Draw a document and operations that mostly lead somewhere in it."""
    document = draw(st.dictionaries(names, values, max_size=5))
    ops = []
    for _ in range(draw(st.integers(0, 6))):
        here: Any = document
        steps = []
        while True:
            known = (
                list(here)
                if isinstance(here, dict)
                else [str(index) for index in range(len(here) + 1)]
                if isinstance(here, list)
                else []
            )
            step = draw(st.sampled_from(known) if known and draw(st.booleans()) else names)
            steps.append(escape(step))
            try:
                here = here[int(step) if isinstance(here, list) else step]
            except (KeyError, IndexError, TypeError, ValueError):
                break
            if draw(st.booleans()):
                break
        kind = draw(st.sampled_from(["add", "add", "remove", "replace", "test"]))
        path = "/" + "/".join(steps)
        ops.append(Op(kind, path) if kind == "remove" else Op(kind, path, draw(values)))
    return document, ops


@settings(max_examples=400)
@given(patches())
def test_a_trial_finds_what_the_library_finds(case: tuple[Any, list[Op]]) -> None:
    document, ops = case
    before = msgspec.json.encode(ops)
    try:
        expected = jsonpatch.apply_patch(document, json.loads(before))
    except (jsonpatch.JsonPatchException, jsonpointer.JsonPointerException, TypeError, ValueError):
        with pytest.raises(InapplicablePatch):
            try_out(ops, msgspec.json.encode(document))
    else:
        assert apply(ops, msgspec.json.encode(document)) == expected
    assert msgspec.json.encode(ops) == before
