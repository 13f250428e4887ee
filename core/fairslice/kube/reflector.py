"""A local copy of a collection, whole or reduced to what its readers need.

The method is client-go's (tools/cache/reflector.go), `FactReflector` its SetTransform.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from fairslice.kube.client import KubeClient
from fairslice.kube.following import Change, Following, HasMetadata, Key, Timing, key_of

__all__ = ["Change", "FactReflector", "Facts", "Key", "Reflector", "Timing"]


class Facts(Protocol):
    """What is kept of an object; equal facts are no change."""

    @property
    def uid(self) -> str:
        """The object's uid."""

    @property
    def where(self) -> Key:
        """Its namespace and name."""


D = TypeVar("D", bound=HasMetadata)
F = TypeVar("F", bound=Facts)


class Reflector(Following[D]):
    """Keeps objects as they were decoded; a change is another version."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        kind: type[D],
        *,
        label_selector: str = "",
        field_selector: str = "",
        missing: str = "",
        timing: Timing | None = None,
    ) -> None:
        super().__init__(
            client,
            path,
            kind,
            label_selector=label_selector,
            field_selector=field_selector,
            missing=missing,
            timing=timing,
        )

    def _kept(self, item: Any) -> D:
        kept: D = item
        return kept

    def _key(self, kept: D) -> Key:
        return key_of(kept.metadata)

    def _replaces(self, old: D, new: D) -> bool:
        return old.metadata.uid != new.metadata.uid

    def _unchanged(self, old: D, new: D) -> bool:
        return old.metadata.resource_version == new.metadata.resource_version


class FactReflector(Following[F]):
    """Keeps of each object only what `read` makes of it; a change is one of these facts.

    A list of 50,000 costs what its facts cost, and an event that changes none of them reaches no
    subscriber.
    """

    def __init__(
        self,
        client: KubeClient,
        path: str,
        kind: type[D],
        read: Callable[[D], F],
        *,
        label_selector: str = "",
        timing: Timing | None = None,
    ) -> None:
        super().__init__(client, path, kind, label_selector=label_selector, timing=timing)
        self._read = read

    def _kept(self, item: Any) -> F:
        return self._read(item)

    def _key(self, kept: F) -> Key:
        return kept.where

    def _replaces(self, old: F, new: F) -> bool:
        return old.uid != new.uid

    def _unchanged(self, old: F, new: F) -> bool:
        return old == new
