"""What the API serves right now: the built-in resources and those of the stored CRDs."""

from collections.abc import Iterable

from .builtin import BUILTIN
from .errors import unknown_path
from .store import Resource

__all__ = ["Registry"]


class Registry:
    """Resources by path and by key."""

    def __init__(self, resources: Iterable[Resource] = BUILTIN) -> None:
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        self._by_key: dict[str, Resource] = {}
        self.revision = 0
        for resource in resources:
            self.add(resource)

    def add(self, resource: Resource) -> None:
        """Serve a resource; the last version added is the one that a bare key names."""
        self._by_path[resource.group, resource.version, resource.plural] = resource
        self._by_key[resource.key] = resource
        self.revision += 1

    def remove(self, key: str) -> None:
        """Stop serving every version of a resource."""
        self._by_key.pop(key, None)
        for path in [path for path, found in self._by_path.items() if found.key == key]:
            del self._by_path[path]
        self.revision += 1

    def find(self, key: str) -> Resource:
        """Find by key, as in jobs.batch. Raises ApiError 404."""
        try:
            return self._by_key[key]
        except KeyError:
            raise unknown_path() from None

    def at(self, group: str, version: str, plural: str) -> Resource | None:
        """Find by path."""
        return self._by_path.get((group, version, plural))

    def of_kind(self, api_version: str, kind: str) -> Resource | None:
        """Find the resource of a kind."""
        for resource in self._by_path.values():
            if resource.kind == kind and resource.api_version == api_version:
                return resource
        return None

    def all(self) -> list[Resource]:
        """Everything served, every version of it."""
        return list(self._by_path.values())

    def __contains__(self, key: str) -> bool:
        return key in self._by_key
