"""Patches that the API server would take."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairslice_webhook.patching import (
    InapplicablePatch,
    Op,
    add,
    apply,
    map_ops,
    remove,
    remove_items,
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
