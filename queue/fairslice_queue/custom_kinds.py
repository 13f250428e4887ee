"""The suspendable kinds that come with CRDs: found when they are installed, then followed."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from msgspec import DecodeError, Struct, ValidationError, json

from fairslice import stamps
from fairslice.booking import Kind
from fairslice.kube.client import ApiError, KubeClient
from fairslice.kube.reflector import FactReflector, Key
from fairslice.workloads import ADAPTERS, Adapter
from fairslice_queue.fact_reading import FactReader
from fairslice_queue.facts import WorkloadFacts
from fairslice_queue.lean_objects import CustomObject
from fairslice_queue.object_paths import ObjectPaths

__all__ = ["CustomKinds"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 5.0
_RETRY_SECONDS = 1.0
# A kind that can't be listed must not keep the queue from its other work for ever.
_PATIENCE_SECONDS = 20.0

OnChange = Callable[[WorkloadFacts | None, WorkloadFacts | None], None]


class _Version(Struct, frozen=True, rename="camel"):
    group_version: str


class _Group(Struct, frozen=True):
    name: str
    versions: tuple[_Version, ...] = ()


class _Groups(Struct, frozen=True):
    groups: tuple[_Group, ...] = ()


class _Resource(Struct, frozen=True):
    name: str


class _Resources(Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


class CustomKinds:
    """Follows the kinds of the table that this cluster serves; `paths` learns their versions.

    A kind that isn't installed costs nothing but its place in the list of API groups, which is
    read every 5 s.
    """

    def __init__(
        self,
        client: KubeClient,
        paths: ObjectPaths,
        reader: FactReader,
        on_change: OnChange,
        *,
        look_seconds: float | None = None,
    ) -> None:
        self._client = client
        self._paths = paths
        self._reader = reader
        self._on_change = on_change
        self._look_seconds = look_seconds or _LOOK_SECONDS
        self._looked = asyncio.Event()
        self._missing = {each.kind.kind: each for each in ADAPTERS if each.kind.kind != "Job"}
        self._reflectors: dict[str, FactReflector[WorkloadFacts]] = {}

    async def run(self) -> None:
        """Look, follow what is there, and look again; for ever."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    for adapter in await self._look():
                        tasks.create_task(self._follow(adapter).run())
                except (ApiError, DecodeError, ValidationError) as error:
                    _log.warning("API groups: %s", error)
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                self._looked.set()
                await asyncio.sleep(self._look_seconds)

    async def synced(self) -> None:
        """Wait until what is installed has been listed once; not for ever for what can't be."""
        await self._looked.wait()
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                for reflector in list(self._reflectors.values()):
                    await reflector.synced.wait()
        except TimeoutError:
            unseen = [kind for kind, item in self._reflectors.items() if not item.synced.is_set()]
            _log.error("not listed, and left out until they are: %s", ", ".join(unseen))

    @property
    def stores(self) -> Mapping[str, Mapping[Key, WorkloadFacts]]:
        """What is kept, by kind."""
        return {kind: reflector.store for kind, reflector in self._reflectors.items()}

    def look_again(self) -> None:
        """List all objects anew, soon."""
        for reflector in self._reflectors.values():
            reflector.look_again()

    async def _look(self) -> list[Adapter]:
        """Find the kinds that are served and not yet followed. Raises ApiError."""
        groups = json.decode(await self._client.get("/apis"), type=_Groups).groups
        served = {group.name: [item.group_version for item in group.versions] for group in groups}
        plurals: dict[str, frozenset[str]] = {}
        found: list[Adapter] = []
        for adapter in list(self._missing.values()):
            kind = adapter.kind
            versions = served.get(kind.group, [])
            # The version that the table was written for, if there is a choice.
            for version in sorted(versions, key=lambda item: item != kind.api_version):
                if version not in plurals:
                    plurals[version] = await self._plurals(version)
                if kind.plural in plurals[version]:
                    self._paths.serve(Kind(version, kind.kind, kind.plural))
                    found.append(adapter)
                    break
        return found

    async def _plurals(self, version: str) -> frozenset[str]:
        body = await self._client.get(f"/apis/{version}")
        resources: Iterable[_Resource] = json.decode(body, type=_Resources).resources
        return frozenset(item.name for item in resources)

    def _follow(self, adapter: Adapter) -> FactReflector[WorkloadFacts]:
        kind = adapter.kind.kind
        del self._missing[kind]
        reflector = self._reflectors[kind] = FactReflector(
            self._client,
            self._paths.everywhere(kind),
            CustomObject,
            partial(self._reader.workload, adapter),
            label_selector=f"{stamps.LABEL_MANAGED}=true",
        )
        reflector.subscribe(self._on_change)
        _log.info("%s is served: its objects are queued as a whole", kind)
        return reflector
