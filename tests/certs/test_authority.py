"""Authorities and certificates, judged by real handshakes and an independent verifier."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fairslice_certs.authority import KeyPair, ServingNames, create_authority, issue_certificate
from fairslice_certs.serving import ServingContext

from .world import NAMES, served, strict_client, tls_server

NOW = datetime.now(UTC)
YEAR, MONTH = timedelta(days=365), timedelta(days=30)


@pytest.fixture(scope="module")
def authority() -> KeyPair:
    return create_authority(NOW, YEAR)


@pytest.mark.parametrize(
    "host",
    [
        "fairslice-webhook",
        "fairslice-webhook.fairslice",
        "fairslice-webhook.fairslice.svc",
        "fairslice-webhook.fairslice.svc.cluster.local",
        "127.0.0.1",
    ],
)
async def test_a_strict_client_accepts_every_name_of_the_service(
    authority: KeyPair, host: str
) -> None:
    leaf = issue_certificate(authority, NAMES, NOW, MONTH)
    serving = ServingContext()
    serving.load(leaf.certificate_pem(), leaf.key_pem())
    client = strict_client(authority.certificate_pem())
    async with tls_server(serving.context) as port:
        assert await served(port, client, host) == leaf.certificate.serial_number


async def test_a_client_refuses_a_name_that_was_not_asked_for(authority: KeyPair) -> None:
    leaf = issue_certificate(authority, NAMES, NOW, MONTH)
    serving = ServingContext()
    serving.load(leaf.certificate_pem(), leaf.key_pem())
    client = strict_client(authority.certificate_pem())
    async with tls_server(serving.context) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await served(port, client, "fairslice-webhook.elsewhere.svc")


def test_a_certificate_has_what_strict_verifiers_ask_for(authority: KeyPair) -> None:
    leaf = issue_certificate(authority, NAMES, NOW, MONTH).certificate
    extensions = leaf.extensions
    identifier = extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    own = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert identifier.key_identifier == own.digest
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.digital_signature
    assert not usage.value.key_cert_sign
    assert list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.SERVER_AUTH
    ]
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    key = leaf.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)


def test_a_long_service_name_is_no_problem(authority: KeyPair) -> None:
    names = ServingNames.of_service("w" * 63, "n" * 63)
    leaf = issue_certificate(authority, names, NOW, MONTH).certificate
    assert names.covered_by(leaf)
    common = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0]
    assert len(common.value) <= 64


def test_validity_starts_an_hour_ago_and_never_outlives_the_authority(authority: KeyPair) -> None:
    late = NOW + timedelta(days=360)
    leaf = issue_certificate(authority, NAMES, late, MONTH).certificate
    hour_before = (late - timedelta(hours=1)).replace(microsecond=0)
    assert leaf.not_valid_before_utc == hour_before
    assert leaf.not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_hosts_are_sorted_into_names_and_addresses() -> None:
    names = ServingNames.of_hosts(["GPU.example.org", "10.0.0.1", "[::1]", "10.0.0.1"])
    assert names.dns == ("gpu.example.org",)
    assert [str(address) for address in names.addresses] == ["10.0.0.1", "::1"]


def test_a_certificate_covers_fewer_names_but_not_more(authority: KeyPair) -> None:
    leaf = issue_certificate(authority, NAMES, NOW, MONTH).certificate
    assert ServingNames.of_hosts(["fairslice-webhook.fairslice.svc"]).covered_by(leaf)
    assert not ServingNames.of_hosts([*NAMES.dns, "other.example.org"]).covered_by(leaf)
    assert not NAMES.covered_by(authority.certificate)


def test_a_key_pair_shows_its_key_in_no_repr(authority: KeyPair) -> None:
    assert "PRIVATE" not in repr(authority)
    assert "key=" not in repr(authority)
