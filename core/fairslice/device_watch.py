"""Following device classes, claims and templates, where the API has them at all."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from msgspec import DecodeError, Struct, json

from fairslice import stamps
from fairslice.device_claims import (
    ClaimSpec,
    DeviceClass,
    Devices,
    ResourceClaim,
    ResourceClaimTemplate,
)
from fairslice.kube.client import KubeClient
from fairslice.kube.errors import ApiError, NotFound
from fairslice.kube.objects import ObjectMeta
from fairslice.kube.reflector import FactReflector, Key, Reflector

__all__ = ["DeviceWatch"]

_log = logging.getLogger(__name__)

_GROUP = "/apis/resource.k8s.io"
_READABLE = ("v1", "v1beta2", "v1beta1")
_ABSENT_SECONDS = 60.0
_RETRY_SECONDS = 2.0
_SPECS_KEPT = 1024
_OURS = (stamps.USER_PREFIX, stamps.SYSTEM)


class _Version(Struct, frozen=True):
    version: str = ""


class _Group(Struct, frozen=True):
    versions: tuple[_Version, ...] = ()


class _SeenClaim(Struct, frozen=True):
    """A claim without what its allocation changes, and what others write on it."""

    where: Key
    uid: str
    claim: ResourceClaim


class DeviceWatch:
    """Keeps `devices` up to date; run it as a task.

    `synced` is set once all was listed, or it is sure that there is nothing to list. `changed`
    is called, without arguments, after each change of what counts; `claim_changed` with the old
    and the new state of a claim that changed in its stamps, came or went.
    """

    def __init__(
        self,
        client: KubeClient,
        changed: Callable[[], None],
        claim_changed: Callable[[ResourceClaim | None, ResourceClaim | None], None] | None = None,
    ) -> None:
        self.synced = asyncio.Event()
        self._client = client
        self._changed = changed
        self._claim_changed = claim_changed
        self._devices: Devices | None = Devices()
        self._classes: Reflector[DeviceClass] | None = None
        self._claims: FactReflector[_SeenClaim] | None = None
        self._specs: dict[ClaimSpec, ClaimSpec] = {}
        self._templates: Reflector[ResourceClaimTemplate] | None = None

    @property
    def devices(self) -> Devices:
        """What was last seen; the same object as long as nothing changed."""
        if self._devices is None:
            assert self._classes is not None
            assert self._claims is not None
            assert self._templates is not None
            self._devices = Devices.build(
                self._classes.store.values(),
                [seen.claim for seen in self._claims.store.values()],
                self._templates.store.values(),
            )
        return self._devices

    @property
    def gives_gpus(self) -> bool:
        """Say whether GPUs may come through claims here: a device class has some."""
        if self._classes is None:
            return False
        known = Devices.build(self._classes.store.values(), (), ())
        return any(unit is not None for unit in known.classes.values())

    async def run(self) -> None:
        """Look for the API, then follow it, forever."""
        root = f"{_GROUP}/{await self._version()}"
        self._classes = Reflector(self._client, f"{root}/deviceclasses", DeviceClass)
        self._claims = FactReflector(
            self._client, f"{root}/resourceclaims", ResourceClaim, self._seen
        )
        self._templates = Reflector(
            self._client, f"{root}/resourceclaimtemplates", ResourceClaimTemplate
        )
        followed = (self._classes, self._claims, self._templates)
        async with asyncio.TaskGroup() as tasks:
            for reflector in followed:
                tasks.create_task(reflector.run())
            for reflector in followed:
                await reflector.synced.wait()
            if all(reflector.absent for reflector in followed):
                _log.warning("%s serves no claims", root)
            self._classes.subscribe(lambda old, new: self._mark())
            self._templates.subscribe(lambda old, new: self._mark())
            self._claims.subscribe(self._on_claim)
            self._mark()
            self.synced.set()

    async def _version(self) -> str:
        """Find the newest version that is served; waits as long as there is none."""
        while True:
            pause = _ABSENT_SECONDS
            try:
                group = json.decode(await self._client.get(_GROUP), type=_Group)
                served = {item.version for item in group.versions}
                for version in _READABLE:
                    if version in served:
                        return version
                self.synced.set()
            except NotFound:
                self.synced.set()
            except (ApiError, DecodeError) as error:
                _log.debug("%s: %s", _GROUP, error)
                pause = _RETRY_SECONDS
            await asyncio.sleep(pause)

    def _seen(self, claim: ResourceClaim) -> _SeenClaim:
        meta = claim.metadata
        if len(self._specs) >= _SPECS_KEPT:
            self._specs.clear()
        return _SeenClaim(
            where=Key(meta.namespace, meta.name),
            uid=meta.uid,
            claim=ResourceClaim(
                metadata=ObjectMeta(
                    name=meta.name,
                    namespace=meta.namespace,
                    uid=meta.uid,
                    creation_timestamp=meta.creation_timestamp,
                    labels=_ours(meta.labels),
                    annotations=_ours(meta.annotations),
                ),
                # Most claims are made from a few templates.
                spec=self._specs.setdefault(claim.spec, claim.spec),
            ),
        )

    def _on_claim(self, old: _SeenClaim | None, new: _SeenClaim | None) -> None:
        before = old.claim if old is not None else None
        now = new.claim if new is not None else None
        if self._claim_changed is not None:
            self._claim_changed(before, now)
        # What a claim asks for never changes.
        if before is None or now is None or _booked(before) != _booked(now):
            self._mark()

    def _mark(self) -> None:
        self._devices = None
        self._changed()


def _ours(strings: Mapping[str, str] | None) -> dict[str, str] | None:
    kept = {key: text for key, text in (strings or {}).items() if key.startswith(_OURS)}
    return kept or None


def _booked(claim: ResourceClaim) -> bool:
    return stamps.BOOKING in (claim.metadata.annotations or {})
