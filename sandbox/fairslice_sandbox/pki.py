"""The sandbox's own certificate authority and the API server's certificate."""

import ipaddress
import os
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "ServingCertificate", "new_authority"]

_VALID = timedelta(days=365)


@dataclass(frozen=True)
class ServingCertificate:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    def context(self) -> ssl.SSLContext:
        """Give a TLS server context."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # The ssl module reads files only.
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "tls.pem")
            path.touch(mode=0o600)
            path.write_bytes(self.certificate + self.key)
            context.load_cert_chain(os.fspath(path))
        return context


@dataclass(frozen=True)
class Authority:
    """A certificate authority that lives as long as the process."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        """The CA's certificate in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, *hosts: str) -> ServingCertificate:
        """Issue a serving certificate for names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder("kube-apiserver", self.certificate.subject, key.public_key())
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        public = self.key.public_key()
        certificate = (
            builder.add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        return ServingCertificate(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def new_authority() -> Authority:
    """Make a certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fairslice-sandbox-ca")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder("fairslice-sandbox-ca", name, key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(key, certificate)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
