"""The documentation, as far as it can be held against the code."""

import re
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from msgspec import NODEFAULT, UNSET, Struct, inspect

from fairslice import message_catalogue, messages
from fairslice.v1alpha1.policy import SharingPolicySpec
from fairslice.v1alpha1.team import TeamSpec, TeamStatus

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


def test_the_catalogue_is_that_of_the_code() -> None:
    written = (DOCS / "messages.md").read_text()
    assert written == message_catalogue.render(), "run `python -m fairslice.message_catalogue`"


def test_every_message_says_when_it_appears_in_one_line_with_an_example() -> None:
    for entry in message_catalogue.entries():
        assert entry.when, entry.name
        assert len(entry.example) <= messages.MAX_LENGTH
        assert "\n" not in entry.example
        assert "‹" not in entry.example, f"give {entry.name} an example in message_catalogue.py"


def sections() -> dict[str, dict[str, str]]:
    """Read the tables of policies.md: by heading, the default of each field."""
    found: dict[str, dict[str, str]] = {}
    for block in re.split(r"^### ", (DOCS / "policies.md").read_text(), flags=re.MULTILINE)[1:]:
        rows = re.findall(r"^\| `(\w+)`(?: ◦)? \|([^|]*)\|", block, re.MULTILINE)
        found[block.partition("\n")[0].replace("`", "")] = {
            name: default.strip() for name, default in rows
        }
    return found


def structs(kind: type[Struct], path: str) -> Iterator[tuple[str, inspect.StructType]]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    yield path, info
    for field in info.fields:
        below = field.type
        many = ""
        while not isinstance(below, inspect.StructType):
            if isinstance(below, inspect.VarTupleType):
                below, many = below.item_type, "[]"
            elif isinstance(below, inspect.Metadata):
                below = below.type
            else:
                break
        if isinstance(below, inspect.StructType):
            yield from structs(below.cls, f"{path}.{field.encode_name}{many}")


MODELS = [
    *structs(SharingPolicySpec, "spec"),
    *structs(TeamSpec, "Team spec"),
    *structs(TeamStatus, "Team status"),
]


@pytest.mark.parametrize(("path", "info"), MODELS, ids=[path for path, _ in MODELS])
def test_every_field_is_documented_with_its_default(path: str, info: inspect.StructType) -> None:
    told = sections().get(path)
    assert told is not None, f"docs/policies.md has no section {path}"
    assert list(told) == [field.encode_name for field in info.fields]
    for field in info.fields:
        said = told[field.encode_name]
        if field.required:
            assert said == "required"
        elif (default := plain(field.default)) is not None:
            assert said in (f"`{default}`", f'`"{default}"`'), f"{path}.{field.encode_name}"


def plain(default: Any) -> str | None:
    """Word a default as the page does; None where it takes words."""
    if default in (NODEFAULT, UNSET, "") or isinstance(default, tuple | Mapping | Struct):
        return None
    if isinstance(default, bool):
        return str(default).lower()
    return str(default.value if isinstance(default, Enum) else default)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            assert anchor in {slug(title) for title in headings(file)}, target


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)


def slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
