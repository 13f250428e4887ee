"""The caBundle in webhook configurations: put there when it differs, and verified.

Patches are the smallest possible and name the resourceVersion they were made for: a writer
that was asleep can't undo a newer caBundle. Configurations that cert-manager's injector looks
after are read and never written.
"""

import asyncio
from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec
from cryptography import x509

from .bundle import Certificates, encode, parse, trusts
from .secret import ConflictError, UnavailableError

__all__ = [
    "ConfigurationKind",
    "ConfigurationRef",
    "PatchOperation",
    "WebhookConfiguration",
    "WebhookConfigurations",
    "ca_bundle_patch",
    "decode_configuration",
    "publish",
    "untrusting_entries",
]

_INJECTOR_ANNOTATIONS = "cert-manager.io/inject-"


class ConfigurationKind(StrEnum):
    """The kinds of webhook configuration, by the plural that their paths use."""

    MUTATING = "mutatingwebhookconfigurations"
    VALIDATING = "validatingwebhookconfigurations"


@dataclass(frozen=True, order=True)
class ConfigurationRef:
    """One webhook configuration by kind and name."""

    kind: ConfigurationKind
    name: str


class PatchOperation(msgspec.Struct, frozen=True):
    """One JSON Patch operation (RFC 6902)."""

    op: str
    path: str
    value: str


@dataclass(frozen=True)
class WebhookConfiguration:
    """The fields of a webhook configuration that matter here; one caBundle per entry."""

    ref: ConfigurationRef
    version: str
    entries: tuple[str, ...]
    ca_bundles: tuple[bytes, ...]
    injected_by_others: bool = False


class WebhookConfigurations(Protocol):
    """Where webhook configurations live. Every call may raise `UnavailableError`."""

    async def get(self, ref: ConfigurationRef) -> WebhookConfiguration | None:
        """Read one consistently; None when there is none."""

    async def patch(self, ref: ConfigurationRef, patch: Sequence[PatchOperation]) -> None:
        """Apply a JSON patch; raise `ConflictError` if it does not apply (409, 422, 404)."""


def decode_configuration(ref: ConfigurationRef, raw: bytes) -> WebhookConfiguration:
    """Read a configuration from the API server's JSON."""
    wire = msgspec.json.decode(raw, type=_Configuration)
    return WebhookConfiguration(
        ref,
        wire.metadata.resource_version,
        tuple(entry.name for entry in wire.webhooks or ()),
        tuple(entry.client_config.ca_bundle or b"" for entry in wire.webhooks or ()),
        any(key.startswith(_INJECTOR_ANNOTATIONS) for key in wire.metadata.annotations or ()),
    )


def ca_bundle_patch(
    found: WebhookConfiguration, bundle: Certificates
) -> tuple[PatchOperation, ...]:
    """Say what has to change for every entry to hold exactly this bundle; mostly nothing."""
    if found.injected_by_others:
        return ()
    value = b64encode(encode(bundle)).decode()
    changes = tuple(
        PatchOperation("add", f"/webhooks/{index}/clientConfig/caBundle", value)
        for index, pem in enumerate(found.ca_bundles)
        if frozenset(parse(pem)) != frozenset(bundle)
    )
    guard = PatchOperation("test", "/metadata/resourceVersion", found.version)
    return (guard, *changes) if changes else ()


async def publish(
    configurations: WebhookConfigurations,
    found: Iterable[WebhookConfiguration],
    bundle: Certificates,
    *,
    time_limit: float,
) -> None:
    """Put the bundle into each configuration as read; one that fails keeps no other waiting.

    Raises `UnavailableError` or `ConflictError`, the first that occurred, after trying all.
    """
    failure: ConflictError | UnavailableError | None = None
    for each in found:
        patch = ca_bundle_patch(each, bundle)
        try:
            if patch:
                async with asyncio.timeout(time_limit):
                    await configurations.patch(each.ref, patch)
        except (ConflictError, UnavailableError) as error:
            failure = failure or error
        except TimeoutError:
            failure = failure or UnavailableError(f"patching {each.ref.name} took too long")
    if failure:
        raise failure


def untrusting_entries(
    found: Iterable[WebhookConfiguration], chain: Sequence[x509.Certificate]
) -> tuple[str, ...]:
    """Name the entries whose API server would refuse a webhook that serves this chain."""
    return tuple(
        name
        for each in found
        for name, pem in zip(each.entries, each.ca_bundles, strict=True)
        if not trusts(parse(pem), chain)
    )


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _ClientConfig(msgspec.Struct, rename="camel"):
    ca_bundle: bytes | None = None


class _Webhook(msgspec.Struct, rename="camel"):
    name: str
    client_config: _ClientConfig = msgspec.field(default_factory=_ClientConfig)


class _Configuration(msgspec.Struct):
    metadata: _Metadata
    webhooks: list[_Webhook] | None = None
