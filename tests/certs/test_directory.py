"""The Secret as a directory on disk."""

import asyncio
import os
import stat
from pathlib import Path

import pytest

from fairslice_certs.directory import DirectoryStore
from fairslice_certs.secret import AlreadyExistsError, ConflictError, UnavailableError

FIRST = {"ca.crt": b"a1", "ca.key": b"k1", "tls.crt": b"t1"}
SECOND = {"ca.crt": b"a2", "tls.crt": b"t2", "tls.key": b"k2"}


async def test_what_is_written_is_read_and_only_the_owner_may(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "certs"
    store = DirectoryStore(path)
    assert await store.get() is None
    await store.create(FIRST)
    found = await store.get()
    assert found
    assert found.data == FIRST
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    files = [each for each in path.rglob("*") if each.is_file()]
    assert len(files) > len(FIRST)
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


async def test_creating_twice_fails_and_keeps_the_first(tmp_path: Path) -> None:
    await DirectoryStore(tmp_path).create(FIRST)
    with pytest.raises(AlreadyExistsError):
        await DirectoryStore(tmp_path).create(SECOND)
    found = await DirectoryStore(tmp_path).get()
    assert found
    assert found.data == FIRST


async def test_of_two_writers_who_read_the_same_version_one_wins(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.create(FIRST)
    found = await store.get()
    assert found
    results = await asyncio.gather(
        store.replace(SECOND, found.version),
        store.replace({"tls.crt": b"x"}, found.version),
        return_exceptions=True,
    )
    assert sorted(type(each).__name__ for each in results) == ["ConflictError", "NoneType"]


async def test_a_replacement_drops_keys_and_leaves_nothing_behind(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.create(FIRST)
    for data in (SECOND, FIRST, SECOND):
        found = await store.get()
        assert found
        await store.replace(data, found.version)
    assert (tmp_path / "ca.crt").read_bytes() == b"a2"
    assert not (tmp_path / "ca.key").is_symlink()
    assert len([name for name in os.listdir(tmp_path) if name.startswith("..")]) == 2


async def test_readers_never_see_a_mixture(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    await store.create(FIRST)
    done = False

    async def write() -> None:
        nonlocal done
        for turn in range(40):
            found = await store.get()
            assert found
            await store.replace(FIRST if turn % 2 else SECOND, found.version)
        done = True

    async def read() -> None:
        while not done:
            found = await DirectoryStore(tmp_path).get()
            assert found
            assert found.data in (FIRST, SECOND)

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        group.create_task(read())


async def test_plain_files_that_a_user_put_there_are_read(tmp_path: Path) -> None:
    (tmp_path / "tls.crt").write_bytes(b"mine")
    found = await DirectoryStore(tmp_path).get()
    assert found
    assert found.data == {"tls.crt": b"mine"}
    with pytest.raises(ConflictError):
        await DirectoryStore(tmp_path).replace(SECOND, "another")


async def test_a_place_that_can_not_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="can't write") as caught:
        await DirectoryStore(tmp_path / "file" / "certs").create(FIRST)
    assert "\n" not in str(caught.value)
