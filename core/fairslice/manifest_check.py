"""`fairslice check`: read manifests as kubectl would and list what is wrong with them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from fairslice.v1alpha1.validation import faults

__all__ = ["CheckError", "Finding", "check_file", "read_documents"]


class CheckError(Exception):
    """A file that can't be read as YAML: which, and where."""


class Finding(Struct, frozen=True):
    """A fault in a file."""

    file: str
    object: str
    path: str
    problem: str

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{self.file}: {self.object}: {where}{self.problem}"


class _Loader(yaml.SafeLoader):
    """YAML as the API server gets to see it: JSON has no dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def check_file(path: Path) -> tuple[int, list[Finding]]:
    """Return how many objects the file holds, and everything wrong with them.

    Raises CheckError for a file that is missing or isn't YAML.
    """
    objects = read_documents(path)
    return len(objects), [
        Finding(str(path), _name(item), fault.path, fault.problem)
        for item in objects
        for fault in faults(item)
    ]


def read_documents(path: Path) -> list[Any]:
    """Read the objects of a file, lists taken apart; `-` is standard input.

    Raises CheckError for a file that is missing or isn't YAML.
    """
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        # The loader is SafeLoader minus dates.
        documents = list(yaml.load_all(text, Loader=_Loader))
    except (OSError, UnicodeDecodeError) as error:
        raise CheckError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}:" if mark is not None else ""
        raise CheckError(f"{path}:{where} {getattr(error, 'problem', 'not YAML')}") from None
    return [item for document in documents if document for item in _items(document)]


def _items(document: Any) -> Iterator[Any]:
    if isinstance(document, dict) and document.get("kind") == "List":
        yield from document.get("items") or ()
    else:
        yield document


def _name(document: Any) -> str:
    if not isinstance(document, dict):
        return "document"
    metadata = document.get("metadata")
    name = metadata.get("name", "") if isinstance(metadata, dict) else ""
    return f"{document.get('kind', 'object')} {name}".strip()
