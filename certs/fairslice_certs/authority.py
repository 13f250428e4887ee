"""Certificate authorities and the serving certificates they sign.

ECDSA P-256 throughout. Key identifiers are always set: with two authorities in one caBundle
they tell a verifier which one signed, and strict verifiers (Python 3.13's default) refuse a
certificate without them. Times come in as values; only keys and serials are random.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = [
    "BACKDATE",
    "ORGANIZATION",
    "KeyPair",
    "ServingNames",
    "create_authority",
    "issue_certificate",
]

ORGANIZATION = "fairslice.io"
"""Organization in the subject of every authority of ours; what tells ours from a user's."""

BACKDATE = timedelta(hours=1)
"""How far validity starts in the past, for API servers whose clock is behind."""

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class ServingNames:
    """The names and addresses under which API servers reach the webhook."""

    dns: tuple[str, ...]
    addresses: tuple[IPAddress, ...] = ()

    @classmethod
    def of_service(cls, service: str, namespace: str, *, extra: Iterable[str] = ()) -> Self:
        """Name a Service in every form a client may use, and extra hosts or IP addresses."""
        names = (
            service,
            f"{service}.{namespace}",
            f"{service}.{namespace}.svc",
            f"{service}.{namespace}.svc.cluster.local",
        )
        return cls.of_hosts((*names, *extra))

    @classmethod
    def of_hosts(cls, hosts: Iterable[str]) -> Self:
        """Sort hosts into DNS names and IP addresses (the URL form's `127.0.0.1`)."""
        dns: list[str] = []
        addresses: list[IPAddress] = []
        for host in dict.fromkeys(hosts):
            try:
                addresses.append(ipaddress.ip_address(host.strip("[]")))
            except ValueError:
                dns.append(host.lower())
        return cls(tuple(dns), tuple(addresses))

    def covered_by(self, certificate: x509.Certificate) -> bool:
        """Say whether the certificate may be served under all of these names."""
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return False
        return set(self.dns) <= set(names.value.get_values_for_type(x509.DNSName)) and set(
            self.addresses
        ) <= set(names.value.get_values_for_type(x509.IPAddress))

    def _extension(self) -> x509.SubjectAlternativeName:
        return x509.SubjectAlternativeName(
            [*map(x509.DNSName, self.dns), *map(x509.IPAddress, self.addresses)]
        )


@dataclass(frozen=True)
class KeyPair:
    """A certificate with its private key; the key shows in no repr."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    def certificate_pem(self) -> bytes:
        """Encode the certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        """Encode the private key as unencrypted PKCS #8 PEM."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def create_authority(now: datetime, lifetime: timedelta) -> KeyPair:
    """Create a self-signed authority; each has a subject of its own, so two never mix up."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    subject = _subject(f"fairslice webhook CA {serial:x}"[:32])
    builder = _builder(subject, key.public_key(), serial, now, now + lifetime)
    builder = (
        builder.issuer_name(subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False
        )
    )
    return KeyPair(builder.sign(key, hashes.SHA256()), key)


def issue_certificate(
    authority: KeyPair, names: ServingNames, now: datetime, lifetime: timedelta
) -> KeyPair:
    """Sign a serving certificate for a new key; it never outlives the authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + lifetime, authority.certificate.not_valid_after_utc)
    serial = x509.random_serial_number()
    # The names are in the SAN alone: a common name is limited to 64 characters.
    builder = _builder(_subject("fairslice webhook"), key.public_key(), serial, now, until)
    builder = (
        builder.issuer_name(authority.certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names._extension(), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )
    return KeyPair(builder.sign(authority.key, hashes.SHA256()), key)


def _subject(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, ORGANIZATION),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _builder(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - BACKDATE)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
