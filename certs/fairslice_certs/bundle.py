"""Sets of trusted certificates, as a webhook's caBundle carries them (PEM)."""

from collections.abc import Iterable
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

__all__ = ["encode", "is_issued_by", "parse", "trusts", "unexpired"]

Certificates = tuple[x509.Certificate, ...]


def parse(pem: bytes) -> Certificates:
    """Read every usable certificate of a PEM text, once each; other text holds none."""
    try:
        certificates = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return ()
    return tuple(dict.fromkeys(each for each in certificates if _is_readable(each)))


def encode(certificates: Iterable[x509.Certificate]) -> bytes:
    """Write certificates as one PEM text."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def unexpired(certificates: Iterable[x509.Certificate], now: datetime) -> Certificates:
    """Keep the certificates that are good beyond `now`."""
    return tuple(each for each in certificates if now < each.not_valid_after_utc)


def is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Say whether the authority's key signed the certificate, under the authority's name."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def trusts(bundle: Iterable[x509.Certificate], chain: Iterable[x509.Certificate]) -> bool:
    """Say whether a client that trusts the bundle can verify a server that sends this chain."""
    anchors = frozenset(bundle)
    return any(
        link in anchors or any(is_issued_by(link, anchor) for anchor in anchors) for link in chain
    )


def _is_readable(certificate: x509.Certificate) -> bool:
    """Touch what is decoded on first use, so that nobody who reads it later fails."""
    try:
        certificate.public_key()
        return bool(
            certificate.subject is not None
            and certificate.issuer is not None
            and certificate.extensions is not None
            and certificate.not_valid_before_utc < certificate.not_valid_after_utc
        )
    except (
        ValueError,
        UnsupportedAlgorithm,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ):
        return False
