"""The caBundle in webhook configurations."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from fairslice_certs.authority import create_authority, issue_certificate
from fairslice_certs.bundle import parse
from fairslice_certs.inject import (
    WebhookConfiguration,
    ca_bundle_patch,
    decode_configuration,
    publish,
    untrusting_entries,
)
from fairslice_certs.secret import ConflictError, UnavailableError

from .world import MUTATING, NAMES, VALIDATING, MemoryConfigurations

NOW = datetime.now(UTC)
AUTHORITY, OTHER = (create_authority(NOW, timedelta(days=9)) for _ in range(2))
BUNDLE = (AUTHORITY.certificate,)


@pytest.fixture
def api() -> MemoryConfigurations:
    return MemoryConfigurations()


async def found(api: MemoryConfigurations) -> list[WebhookConfiguration]:
    both = [await api.get(MUTATING), await api.get(VALIDATING)]
    return [each for each in both if each]


async def test_every_entry_gets_the_bundle_and_nothing_else_changes(
    api: MemoryConfigurations,
) -> None:
    before = json.dumps(api.objects[MUTATING]["webhooks"][0]["clientConfig"]["service"])
    await publish(api, await found(api), BUNDLE, time_limit=1)
    assert api.bundles() == [AUTHORITY.certificate_pem()] * 3
    assert json.dumps(api.objects[MUTATING]["webhooks"][0]["clientConfig"]["service"]) == before


async def test_nothing_is_written_when_nothing_differs(api: MemoryConfigurations) -> None:
    await publish(api, await found(api), BUNDLE, time_limit=1)
    api.patches.clear()
    await publish(api, await found(api), BUNDLE, time_limit=1)
    assert api.patches == []


async def test_the_order_of_a_bundle_is_no_difference(api: MemoryConfigurations) -> None:
    two = (AUTHORITY.certificate, OTHER.certificate)
    await publish(api, await found(api), two, time_limit=1)
    assert all(ca_bundle_patch(each, two[::-1]) == () for each in await found(api))


async def test_only_the_entry_that_differs_is_patched(api: MemoryConfigurations) -> None:
    await publish(api, await found(api), BUNDLE, time_limit=1)
    api.set_bundle(MUTATING, 1, OTHER.certificate_pem())
    api.patches.clear()
    await publish(api, await found(api), BUNDLE, time_limit=1)
    [(ref, operations)] = api.patches
    assert ref == MUTATING
    assert [each["path"] for each in operations] == [
        "/metadata/resourceVersion",
        "/webhooks/1/clientConfig/caBundle",
    ]


async def test_a_writer_that_was_asleep_can_not_undo_a_newer_bundle(
    api: MemoryConfigurations,
) -> None:
    stale = await found(api)
    both = (AUTHORITY.certificate, OTHER.certificate)
    await publish(api, await found(api), both, time_limit=1)
    with pytest.raises(ConflictError):
        await publish(api, stale, BUNDLE, time_limit=1)
    assert all(set(parse(pem)) == set(both) for pem in api.bundles())


@pytest.mark.parametrize("hangs", [False, True])
async def test_one_configuration_that_can_not_be_written_does_not_keep_the_other_waiting(
    hangs: bool,
) -> None:
    class Half(MemoryConfigurations):
        async def patch(self, ref, patch):  # type: ignore[no-untyped-def]
            if ref == MUTATING and hangs:
                await asyncio.sleep(60)
            await super().patch(ref, patch)

    api = Half()
    api.unwritable = {MUTATING}
    with pytest.raises(UnavailableError):
        await publish(api, await found(api), BUNDLE, time_limit=0.05)
    assert api.bundles() == [b"", b"", AUTHORITY.certificate_pem()]


async def test_what_cert_manager_injects_is_left_to_it(api: MemoryConfigurations) -> None:
    api.objects[MUTATING]["metadata"]["annotations"] = {
        "cert-manager.io/inject-ca-from": "fairslice/webhook"
    }
    await publish(api, await found(api), BUNDLE, time_limit=1)
    assert [ref for ref, _ in api.patches] == [VALIDATING]


async def test_entries_that_do_not_trust_what_is_served_are_named(
    api: MemoryConfigurations,
) -> None:
    leaf = issue_certificate(AUTHORITY, NAMES, NOW, timedelta(days=1)).certificate
    await publish(api, await found(api), BUNDLE, time_limit=1)
    assert untrusting_entries(await found(api), [leaf]) == ()
    api.set_bundle(MUTATING, 1, OTHER.certificate_pem())
    assert untrusting_entries(await found(api), [leaf]) == ("hide.fairslice.io",)


def test_a_configuration_without_webhooks_or_ca_bundle_is_read() -> None:
    raw = b'{"metadata":{"resourceVersion":"3","annotations":null}}'
    assert decode_configuration(MUTATING, raw).entries == ()
    raw = b'{"metadata":{},"webhooks":[{"name":"a","clientConfig":{"caBundle":null}}]}'
    assert decode_configuration(MUTATING, raw).ca_bundles == (b"",)
