"""Hot reload, by real handshakes on both event loops."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from fairslice_certs.authority import KeyPair, create_authority, issue_certificate
from fairslice_certs.serving import CertificateUnusableError, ServingContext

from .world import HOST, NAMES, handshake, served, strict_client, tls_server

NOW = datetime.now(UTC)
AUTHORITY = create_authority(NOW, timedelta(days=365))
CLIENT = strict_client(AUTHORITY.certificate_pem())


def issue() -> KeyPair:
    return issue_certificate(AUTHORITY, NAMES, NOW, timedelta(days=30))


def load(serving: ServingContext, pair: KeyPair) -> int:
    return serving.load(pair.certificate_pem(), pair.key_pem()).serial


async def reload_under_an_open_connection() -> None:
    serving = ServingContext()
    first = load(serving, issue())
    async with tls_server(serving.context) as port:
        reader, writer, serial = await handshake(port, CLIENT)
        assert serial == first
        second = load(serving, issue())
        assert await served(port, CLIENT) == second != first
        writer.write(b"still here\n")
        assert await reader.readline() == b"still here\n"
        writer.close()


async def test_new_handshakes_get_the_new_certificate_and_open_connections_live_on() -> None:
    await reload_under_an_open_connection()


def test_reload_works_on_uvloop() -> None:
    uvloop.run(reload_under_an_open_connection())


@pytest.mark.parametrize("broken", ["mismatch", "garbage", "empty", "encrypted"])
async def test_a_certificate_that_can_not_be_served_leaves_the_old_one_in_place(
    broken: str,
) -> None:
    serving = ServingContext()
    good = load(serving, issue())
    pair, other = issue(), issue()
    certificate, key = {
        "mismatch": (pair.certificate_pem(), other.key_pem()),
        "garbage": (b"-----BEGIN CERTIFICATE-----\nAAAA\n", pair.key_pem()),
        "empty": (b"", b""),
        "encrypted": (
            pair.certificate_pem(),
            pair.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            ),
        ),
    }[broken]
    async with tls_server(serving.context) as port:
        with pytest.raises(CertificateUnusableError):
            serving.load(certificate, key)
        assert serving.served is not None
        assert serving.served.serial == good
        assert await served(port, CLIENT) == good


async def test_a_change_from_ecdsa_to_rsa_serves_the_rsa_certificate() -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a user's own")])
    own = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(4711)
        .not_valid_before(NOW - timedelta(hours=1))
        .not_valid_after(NOW + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = own.public_bytes(serialization.Encoding.PEM)
    serving = ServingContext()
    load(serving, issue())
    async with tls_server(serving.context) as port:
        await served(port, CLIENT)
        serving.load(
            pem,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            ),
        )
        assert await served(port, ssl.create_default_context(cadata=pem.decode())) == 4711


async def test_before_the_first_certificate_handshakes_fail() -> None:
    serving = ServingContext()
    assert serving.served is None
    async with tls_server(serving.context) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await served(port, CLIENT)
        load(serving, issue())
        await served(port, CLIENT)


async def test_client_authentication_outlives_a_reload() -> None:
    def require_clients(context: ssl.SSLContext) -> None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=AUTHORITY.certificate_pem().decode())

    serving = ServingContext(require_clients)
    load(serving, issue())
    load(serving, issue())
    async with tls_server(serving.context) as port:
        # Under TLS 1.3 a client learns of the refusal only when it reads.
        reader, writer, _ = await handshake(port, CLIENT)
        try:
            writer.write(b"hello\n")
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(6)
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)


def test_the_served_certificate_tells_serial_and_expiry_and_no_key() -> None:
    serving = ServingContext()
    pair = issue()
    shown = serving.load(pair.certificate_pem(), pair.key_pem())
    assert shown == serving.served
    assert shown.serial == pair.certificate.serial_number
    assert shown.not_after == pair.certificate.not_valid_after_utc
    assert "PRIVATE" not in repr(shown) + repr(serving)
