"""The Secret as a directory, for a webhook that runs outside a cluster.

Laid out as the kubelet mounts Secrets: the files of one version in a directory of their own,
`..data` pointing to it, and a link per key. Moving that one link replaces all files at once.
A directory with plain files (a user's certificate) is read as well.
"""

import asyncio
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .secret import AlreadyExistsError, ConflictError, SecretData, StoredSecret, UnavailableError

__all__ = ["DirectoryStore"]

_CURRENT = "..data"


class DirectoryStore:
    """A `SecretStore` in a directory (created with mode 0700, files 0600)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def get(self) -> StoredSecret | None:
        """Read all files of one version; None when there are none."""
        return await asyncio.to_thread(self._get)

    async def create(self, data: SecretData) -> None:
        """Write the first version, or raise `AlreadyExistsError`."""
        await asyncio.to_thread(self._write, data, None)

    async def replace(self, data: SecretData, version: str) -> None:
        """Put this data in place of the version named, or raise `ConflictError`."""
        await asyncio.to_thread(self._write, data, version)

    def _get(self) -> StoredSecret | None:
        try:
            while True:
                before = self._version_directory()
                data = _read_files(before)
                if self._version_directory() == before:
                    break
        except OSError as error:
            raise UnavailableError(f"can't read {self._path}: {error.strerror}") from error
        return StoredSecret(data, _digest(data)) if data else None

    def _version_directory(self) -> Path:
        link = self._path / _CURRENT
        return self._path / os.readlink(link) if link.is_symlink() else self._path

    def _write(self, data: SecretData, version: str | None) -> None:
        try:
            with self._locked():
                found = self._get()
                if version is None and found:
                    raise AlreadyExistsError(f"{self._path} holds certificates already")
                if version is not None and (found is None or found.version != version):
                    raise ConflictError(f"{self._path} changed since it was read")
                self._swap(data)
        except OSError as error:
            raise UnavailableError(f"can't write {self._path}: {error.strerror}") from error

    def _swap(self, data: SecretData) -> None:
        new = Path(tempfile.mkdtemp(prefix="..", dir=self._path))
        for name, content in data.items():
            descriptor = os.open(new / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        _point(self._path / _CURRENT, new.name)
        for name in data:
            _point(self._path / name, f"{_CURRENT}/{name}")
        for each in self._path.iterdir():
            if each.is_symlink() and not each.exists():
                each.unlink()
            elif each.name.startswith("..") and each.name not in (_CURRENT, new.name):
                shutil.rmtree(each)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _read_files(directory: Path) -> dict[str, bytes]:
    try:
        files = [each for each in directory.iterdir() if each.name[0] != "." and each.is_file()]
        return {each.name: each.read_bytes() for each in files}
    except FileNotFoundError:
        return {}  # Not there yet, or replaced meanwhile: then it is read again.


def _digest(data: SecretData) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(data.items()):
        digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _point(link: Path, target: str) -> None:
    scratch = link.with_name(f".{link.name}.new")
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(target)
    os.replace(scratch, link)
