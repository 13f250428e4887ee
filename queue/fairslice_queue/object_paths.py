"""Where the API server keeps the kinds that the queue acts on."""

from urllib.parse import quote

from fairslice.booking import Kind
from fairslice.workloads import ADAPTERS

__all__ = ["ObjectPaths"]

_POD = Kind("v1", "Pod", "pods")
_CRONJOB = Kind("batch/v1", "CronJob", "cronjobs")


class ObjectPaths:
    """Paths by kind. A custom kind is looked for in the version that its cluster serves."""

    def __init__(self) -> None:
        self._kinds = {adapter.kind.kind: adapter.kind for adapter in ADAPTERS}
        self._kinds |= {"Pod": _POD, "CronJob": _CRONJOB}

    def serve(self, kind: Kind) -> None:
        """Take note of the version in which a kind is served."""
        self._kinds[kind.kind] = kind

    def api_version(self, kind: str) -> str:
        """Return the version in which a kind is served."""
        return self._kinds[kind].api_version

    def everywhere(self, kind: str) -> str:
        """Build the path of a kind's objects in all namespaces."""
        found = self._kinds[kind]
        root = "/apis/" if found.group else "/api/"
        return f"{root}{found.api_version}/{found.plural}"

    def collection(self, kind: str, namespace: str) -> str:
        """Build the path of a kind's objects in a namespace."""
        root, _, plural = self.everywhere(kind).rpartition("/")
        return f"{root}/namespaces/{quote(namespace)}/{plural}"

    def of(self, kind: str, namespace: str, name: str) -> str:
        """Build an object's path."""
        return f"{self.collection(kind, namespace)}/{quote(name)}"
