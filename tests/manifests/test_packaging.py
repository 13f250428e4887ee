"""The image and what goes into it: lock file, Dockerfile and wheel agree with pyproject.toml."""

import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def locked() -> dict[str, Version]:
    pins = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", LOCK.read_text(), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in pins}


def test_the_lock_satisfies_the_project(
    project: dict[str, Any], locked: dict[str, Version]
) -> None:
    for text in project["project"]["dependencies"]:
        wanted = Requirement(text)
        pinned = locked.get(canonicalize_name(wanted.name))
        assert pinned is not None, f"{wanted.name} is not in requirements.lock"
        assert wanted.specifier.contains(pinned), f"{pinned} is not {wanted}"


def test_the_lock_holds_what_its_packages_need(locked: dict[str, Version]) -> None:
    for name in locked:
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # For another platform or Python.
        for text in requirements:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                assert canonicalize_name(needed.name) in locked, f"{name} needs {needed.name}"


def test_every_pin_has_hashes_and_no_index_is_named() -> None:
    text = LOCK.read_text()
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)
    pins = [block for block in blocks if "==" in block.partition("\n")[0]]
    assert pins
    assert all("--hash=sha256:" in block for block in pins)
    assert "://" not in text
    assert "--index" not in text


def test_the_dockerfile_copies_what_the_wheel_is_made_of(project: dict[str, Any]) -> None:
    text = (ROOT / "Dockerfile").read_text()
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE)
        for word in line.split()[:-1]
    }
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {path.partition("/")[0] for path in (*wheel["packages"], *wheel["force-include"])}
    assert needed | {"pyproject.toml", "README.md", "requirements.lock"} == copied
    let_through = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")
    }
    assert let_through == copied
    assert "USER 65532:65532" in text
    assert "--require-hashes" in text


def test_what_the_wheel_includes_is_there(project: dict[str, Any]) -> None:
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    for path in (*wheel["packages"], *wheel["force-include"]):
        assert (ROOT / path).is_dir()
